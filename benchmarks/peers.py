"""Programs that stream or show how far they are, against other libraries that do.

They are not needed to run the benchmarks. `make bench` installs them; where one is missing, its
rows are left out, and that is said.

Bars go to a file that keeps nothing, and are drawn twenty times in a loop of ten thousand steps, as
jax-tqdm does by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import iterations
from benchmarks.case import Case
from benchmarks.columns import step
from benchmarks.streams import BUFFER, Stream, ignore, log_scalars, loop, plain_seconds, quiet
from benchmarks.timing import Side
from logax import log, tap
from logax.loggers import ProgressLogger

LIBRARIES = {
    "jaxtap": "jax-tap",
    "jax_tqdm": "jax-tqdm",
    "jax_progress": "jax-progress",
    "nlsq": "nlsq",
}
LONG = 10_000
DRAWN = 20

Making = Callable[[], tuple[Side, Side]]


def missing() -> list[str]:
    """The libraries whose rows are left out."""
    return [name for module, name in LIBRARIES.items() if not importlib.util.find_spec(module)]


def _jaxtap(scalars: int, buffer: int) -> Making:
    """A record's price with jax-tap, which looks at the carry of the loop, and with `tap`."""

    def make() -> tuple[Side, Side]:
        jaxtap = importlib.import_module("jaxtap")
        x = jnp.float32(1)
        floor = plain_seconds(x)

        def select(leaves: Any) -> dict[str, Any]:
            return {f"key{j}": leaves[0] + j for j in range(scalars)}

        theirs = jax.jit(jaxtap.verbose(loop(quiet), on_step=ignore, select=select))
        ours = tap(loop(log_scalars(scalars)), ignore, buffer=buffer)
        return Stream(theirs, x, -floor), Stream(ours, x, -floor)

    return make


def _with_our_bar() -> Side:
    def body(carry: Any, i: Any) -> Any:
        carry = step(carry)
        log({"value": carry}, step=i, every=LONG // DRAWN)
        return carry, None

    def function(x: Any) -> Any:
        return jax.lax.scan(body, x, jnp.arange(LONG))[0]

    bar = ProgressLogger(LONG, file=open(os.devnull, "w"))  # noqa: SIM115
    return Stream(tap(function, bar), jnp.float32(1))


def _against_tqdm() -> tuple[Side, Side]:
    nowhere = open(os.devnull, "w")  # noqa: SIM115
    scan_tqdm = importlib.import_module("jax_tqdm").scan_tqdm

    def body(carry: Any, i: Any) -> Any:
        return step(carry), None

    shown = scan_tqdm(LONG, print_rate=LONG // DRAWN, file=nowhere)(body)
    theirs = jax.jit(lambda x: jax.lax.scan(shown, x, jnp.arange(LONG))[0])
    return Stream(theirs, jnp.float32(1)), _with_our_bar()


def _against_progress() -> tuple[Side, Side]:
    meters = importlib.import_module("jax_progress")
    meter = meters.TqdmProgressMeter(total=LONG, refresh_steps=LONG // DRAWN)
    nowhere = open(os.devnull, "w")  # noqa: SIM115

    @jax.jit
    def function(x: Any) -> Any:
        def body(carried: Any, _: Any) -> Any:
            carry, state = carried
            return (step(carry), meter.step(state)), None

        (carry, state), _ = jax.lax.scan(body, (x, meter.init()), None, length=LONG)
        meter.close(state)
        return carry

    def quietly(x: Any) -> Any:
        with contextlib.redirect_stderr(nowhere):  # it takes no file
            return jax.block_until_ready(function(x))

    return Stream(quietly, jnp.float32(1)), _with_our_bar()


@contextlib.contextmanager
def _same_precision() -> Iterator[None]:
    """Importing NLSQ has JAX compute in 64 bits, here too."""
    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _against_nlsq() -> tuple[Side, Side]:
    with _same_precision():
        theirs = importlib.import_module("nlsq.utils.async_logger")
    iterations.heard(theirs.logger.name)
    cost = jax.block_until_ready(jnp.float32(1))
    _, ours = iterations.outside()
    return iterations.Calls(cost, theirs.log_iteration_async, jax.effects_barrier), ours


_PRICE = "a record of tap(f) against jax-tap"
_BAR = "a compiled loop of 10,000 steps with a bar"

_ROWS: list[tuple[str, Case]] = [
    *(
        (
            "jaxtap",
            Case(_PRICE, f"buffer={buffer}, {scalars} scalar{'s'[: scalars > 1]}", 1.0, make),
        )
        for buffer in (BUFFER, 1)
        for scalars in (10, 1)
        for make in [_jaxtap(scalars, buffer)]
    ),
    ("jax_tqdm", Case(_BAR, "ProgressLogger, against jax-tqdm", 1.0, _against_tqdm)),
    (
        "jax_progress",
        Case(_BAR, "ProgressLogger, against jax-progress", 1.0, _against_progress),
    ),
    ("nlsq", Case(iterations.GROUP, "100 calls outside jit, against NLSQ's", 1.0, _against_nlsq)),
]

CASES = [case for module, case in _ROWS if importlib.util.find_spec(module)]

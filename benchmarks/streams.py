"""Programs that stream: `tap` against `jax.debug.callback`, and against `spool`.

What is timed is the program, from the call until its result is there; the callback does nothing,
and all that is still on its way to it arrives before the next timing. A *record's price* is the
time beyond that of the same program without any logging.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.columns import step
from benchmarks.timing import Side
from logax import flush, log, spool, tap

STEPS = 1_000
BUFFER = 64
LANES = 1_024
ON_GPU = jax.default_backend() == "gpu"


@dataclasses.dataclass(frozen=True)
class Stream:
    """A call whose records are delivered before the clock starts again.

    Attributes:
      function: What is called.
      x: With what.
      extra: Seconds that are added to each call.
    """

    function: Callable[..., Any]
    x: Any
    extra: float = 0.0

    def seconds(self, number: int) -> float:
        total = 0.0
        for _ in range(number):
            start = time.perf_counter()
            jax.block_until_ready(self.function(self.x))
            total += time.perf_counter() - start + self.extra
            flush()
        return total

    def results(self) -> Any:
        return jax.tree.leaves(self.function(self.x))[:1]


def ignore(record: Any) -> None:
    pass


def loop(
    say: Callable[[Any, Any], None], advance: Callable[[Any], Any] = step, steps: int = STEPS
) -> Any:
    """A scan that advances and says something of each step."""

    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            carry = advance(carry)
            say(carry, i)
            return carry, None

        return jax.lax.scan(body, x, jnp.arange(steps))[0]

    return function


def log_scalars(scalars: int) -> Callable[[Any, Any], None]:
    def say(carry: Any, i: Any) -> None:
        log({f"key{j}": carry + j for j in range(scalars)}, step=i)

    return say


def _call_back(scalars: int) -> Callable[[Any, Any], None]:
    def say(carry: Any, i: Any) -> None:
        jax.debug.callback(lambda *_: None, *(carry + j for j in range(scalars)), i)

    return say


def quiet(carry: Any, i: Any) -> None:
    pass


def plain_seconds(x: Any) -> float:
    """How long the program takes that says nothing."""
    plain = Stream(jax.jit(loop(quiet)), x)
    plain.seconds(3)
    return statistics.median(plain.seconds(1) for _ in range(11))


def _price(scalars: int, buffer: int) -> Callable[[], tuple[Side, Side]]:
    """A record's price with `jax.debug.callback` and with `tap`."""

    def make() -> tuple[Side, Side]:
        x = jnp.float32(1)
        floor = plain_seconds(x)
        by_jax = jax.jit(loop(_call_back(scalars)))
        ours = tap(loop(log_scalars(scalars)), ignore, buffer=buffer)
        return Stream(by_jax, x, -floor), Stream(ours, x, -floor)

    return make


def _large(buffer: int) -> Callable[[], tuple[Side, Side]]:
    """An array of a megabyte at each step."""

    def make() -> tuple[Side, Side]:
        def function(say: Callable[[Any, Any], None]) -> Any:
            run = loop(say, lambda carry: carry * 0.999, steps=50)
            return lambda x: run(x).sum()

        x = jnp.ones(2**18)
        by_jax = jax.jit(function(_call_back(1)))
        return Stream(by_jax, x), Stream(tap(function(log_scalars(1)), ignore, buffer=buffer), x)

    return make


def _allowed(scalars: int) -> tuple[Side, Side]:
    """`spool` and three microseconds a record, against `tap`."""
    x = jnp.float32(1)
    spooled = jax.jit(spool(loop(log_scalars(scalars))))
    tapped = tap(loop(log_scalars(scalars)), ignore, buffer=BUFFER)
    return Stream(spooled, x, 3e-6 * STEPS), Stream(tapped, x)


def _dear_steps() -> tuple[Side, Side]:
    """Steps of some twenty microseconds or more."""
    grid = jnp.linspace(-1, 1, 1 << 24 if ON_GPU else 1 << 15)

    def advance(carry: Any) -> Any:
        return jnp.tanh(carry + grid).mean() + 0.5

    x = jnp.float32(1)
    spooled = jax.jit(spool(loop(log_scalars(10), advance)))
    tapped = tap(loop(log_scalars(10), advance), ignore, buffer=BUFFER)
    return Stream(spooled, x), Stream(tapped, x)


def _lanes() -> tuple[Side, Side]:
    x = jnp.linspace(0, 1, LANES)
    spooled = jax.jit(jax.vmap(spool(loop(log_scalars(1)))))
    return Stream(spooled, x), Stream(_batched(), x)


def _more_lanes() -> tuple[Side, Side]:
    return Stream(_batched(), jnp.zeros(1)), Stream(_batched(), jnp.linspace(0, 1, LANES))


def _batched() -> Any:
    return jax.jit(jax.vmap(tap(loop(log_scalars(1)), ignore, buffer=BUFFER, lanes="batch")))


class _Unlike(Case):
    """A row whose sides have different results."""

    def _check(self, by_hand: Any, logax: Any) -> None:
        pass


_PRICE = "a record of tap(f) against jax.debug.callback"
_SPOOL = "tap(f, buffer=64) against spool(f)"

CASES = [
    Case(_PRICE, "buffer=64, 10 scalars", 1 / 60 if ON_GPU else 1 / 20, _price(10, BUFFER)),
    Case(_PRICE, "buffer=64, 1 scalar", None, _price(1, BUFFER)),
    Case(_PRICE, "buffer=1, 10 scalars", 1 / 5, _price(10, 1)),
    Case(_PRICE, "buffer=1, 1 scalar", 1 / 5, _price(1, 1)),
    Case(_PRICE, "buffer=1, an array of 1 MB, all of its time", None, _large(1)),
    Case(_PRICE, "buffer=8, an array of 1 MB, all of its time", None, _large(8)),
    Case(_SPOOL, "1 scalar, 3 µs a record more allowed", 1.0, lambda: _allowed(1)),
    Case(_SPOOL, "10 scalars, 3 µs a record more allowed", 1.0, lambda: _allowed(10)),
    Case(_SPOOL, "10 scalars, steps of 20 µs or more", 1.15, _dear_steps),
    Case(_SPOOL, "vmap of 1,024 lanes", None if ON_GPU else 1.3, _lanes),
    _Unlike("tap(f), 1,024 lanes against 1", "buffer=64", 3.0 if ON_GPU else None, _more_lanes),
]

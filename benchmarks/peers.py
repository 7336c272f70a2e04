"""Programs that stream, against other libraries that do: jax-tap.

They are not needed to run the benchmarks. `make bench` installs them; where one is missing, its
rows are left out, and that is said.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.streams import BUFFER, Stream, ignore, log_scalars, loop, plain_seconds, quiet
from benchmarks.timing import Side
from logax import tap


def missing() -> list[str]:
    """The libraries whose rows are left out."""
    return [] if importlib.util.find_spec("jaxtap") else ["jax-tap"]


def _jaxtap(scalars: int, buffer: int) -> Callable[[], tuple[Side, Side]]:
    """A record's price with jax-tap, which looks at the carry of the loop, and with `tap`."""

    def make() -> tuple[Side, Side]:
        import jaxtap  # noqa: PLC0415 - it may be missing

        x = jnp.float32(1)
        floor = plain_seconds(x)

        def select(leaves: Any) -> dict[str, Any]:
            return {f"key{j}": leaves[0] + j for j in range(scalars)}

        theirs = jax.jit(jaxtap.verbose(loop(quiet), on_step=ignore, select=select))
        ours = tap(loop(log_scalars(scalars)), ignore, buffer=buffer)
        return Stream(theirs, x, -floor), Stream(ours, x, -floor)

    return make


_PRICE = "a record of tap(f) against jax-tap"

CASES = (
    []
    if missing()
    else [
        Case(_PRICE, f"buffer={buffer}, {scalars} scalar{'s' if scalars > 1 else ''}", None, make)
        for buffer in (BUFFER, 1)
        for scalars in (10, 1)
        for make in [_jaxtap(scalars, buffer)]
    ]
)

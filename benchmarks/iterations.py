"""`log_iteration_async`: what it takes of its caller's time, and of a loop whose steps do work.

The lines go through Python's `logging` to a file that keeps nothing, so that they are formatted and
written. All that is still on its way is delivered before the next timing.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.streams import ON_GPU, Stream
from benchmarks.timing import Allowance, Side
from logax import flush
from logax.iterations import log_iteration_async

CALLS = 100
STEPS = 50
SECONDS_A_CALL = 15e-6


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls outside of any program, with arrays that are on the device."""

    cost: Any
    function: Callable[..., None] = log_iteration_async
    deliver: Callable[[], None] = flush

    def seconds(self, number: int) -> float:
        total = 0.0
        for _ in range(number):
            start = time.perf_counter()
            for i in range(CALLS):
                self.function(i, self.cost, self.cost, verbose=2)
            total += time.perf_counter() - start
            self.deliver()
        return total

    def results(self) -> Any:
        return [jnp.zeros(())]


def heard(name: str = "logax.iterations") -> None:
    """Have the lines of a logger formatted and written, to where nothing is kept."""
    logger = logging.getLogger(name)
    if not any(isinstance(own, logging.StreamHandler) for own in logger.handlers):
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115


def outside() -> tuple[Side, Side]:
    """What calls may take, and what they take."""
    heard()
    calls = Calls(jax.block_until_ready(jnp.float32(1)))
    return Allowance(CALLS * SECONDS_A_CALL, calls.results()), calls


def _advance(x: Any) -> Any:
    """A step of a millisecond or more."""
    grid = jnp.linspace(-1, 1, 1 << 30 if ON_GPU else 1 << 21)
    return jnp.tanh(x + grid).mean() + 0.5


def _compiled() -> tuple[Side, Side]:
    heard()

    def loop(verbose: int) -> Callable[[Any], Any]:
        def step(i: Any, x: Any) -> Any:
            x = _advance(x)
            log_iteration_async(i, x, x, verbose=verbose)
            return x

        return jax.jit(lambda x: jax.lax.fori_loop(0, STEPS, step, x))

    return Stream(loop(0), jnp.float32(1)), Stream(loop(2), jnp.float32(1))


def _in_python() -> tuple[Side, Side]:
    heard()
    step = jax.jit(_advance)

    def loop(verbose: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for i in range(STEPS):
                x = jax.block_until_ready(step(x))
                log_iteration_async(i, x, x, verbose=verbose)
            return x

        return run

    return Stream(loop(0), jnp.float32(1)), Stream(loop(2), jnp.float32(1))


GROUP = "log_iteration_async(..., verbose=2)"

CASES = [
    Case(GROUP, "100 calls outside jit, 15 µs each allowed", 1.0, outside),
    Case(GROUP, "compiled loop, steps of 1 ms or more, against verbose=0", 1.05, _compiled),
    Case(GROUP, "Python loop, steps of 1 ms or more, against verbose=0", 1.05, _in_python),
]

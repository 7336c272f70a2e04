"""Loggers of Python loops: what a `log` call takes of the loop's time, alone and against kUPS.

kUPS, whose loggers have the same shape, is not needed to run the benchmarks. `make bench` installs
it where there is Python 3.13; where it is missing, its rows are left out, and that is said.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.streams import ON_GPU, Stream
from benchmarks.timing import Side
from logax import OnSteps
from logax.loop import (
    CallbackLogger,
    CheckLogger,
    CompositeLogger,
    NullLogger,
    PrintLogger,
    RingBufferLogger,
    TqdmLogger,
    nan_check,
    run_loop,
)

CALLS = 1_000
SECONDS_A_CALL = 3e-6
STEPS = 200 if ON_GPU else 20
NEVER = OnSteps([10**9])


def missing() -> list[str]:
    """The libraries whose rows are left out."""
    return [] if importlib.util.find_spec("kups") else ["kUPS"]


class _Terminal(io.StringIO):
    """What is drawn on is forgotten."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


@dataclasses.dataclass(frozen=True)
class _Logging:
    """A thousand calls of `log` with a state that is there, from within the block.

    Attributes:
      logger: Which one.
      extra: Seconds that are added to each call.
    """

    logger: Any
    extra: float = 0.0

    def seconds(self, number: int) -> float:
        state = _state()
        usual, sys.stderr = sys.stderr, _Terminal()
        try:
            with self.logger as logger:
                log = logger.log
                start = time.perf_counter()
                for step in range(number * CALLS):
                    log(state, step)
                return time.perf_counter() - start + number * CALLS * self.extra
        finally:
            sys.stderr = usual

    def results(self) -> Any:
        return [jnp.zeros(())]


def _state() -> Any:
    return {"position": jnp.zeros((64, 3)), "energy": jnp.float32(1)}


def _energy(state: Any) -> dict[str, Any]:
    return {"energy": state["energy"]}


def _five() -> CompositeLogger:
    return CompositeLogger(
        TqdmLogger(10**9, _energy),
        RingBufferLogger(5, schedule=NEVER),
        CheckLogger(nan_check(), NEVER),
        PrintLogger(_energy, NEVER),
        CallbackLogger(lambda state, step: None, NEVER),
    )


def _not_due() -> tuple[Side, Side]:
    return _Logging(NullLogger(), SECONDS_A_CALL), _Logging(_five())


def _against_kups(theirs: Callable[[Any], Any], ours: Callable[[], Any]) -> Any:
    def make() -> tuple[Side, Side]:
        kups = importlib.import_module("kups.core.logging")
        return _Logging(theirs(kups)), _Logging(ours())

    return make


def _particles() -> Any:
    """Two megabytes."""
    shape = (4096, 128) if ON_GPU else (512, 1024)
    return jax.block_until_ready(jax.random.normal(jax.random.key(0), shape))


def _drift(x: Any) -> Any:
    """A step of Stein's method: all particles act on each other."""
    squares = jnp.sum(x * x, axis=1)
    near = jnp.exp(-(squares[:, None] + squares - 2 * x @ x.T) / x.shape[1])
    force = -near @ x + 2 / x.shape[1] * (near.sum(axis=1)[:, None] * x - near @ x)
    return x + 0.1 * force / x.shape[0]


def _with_ring() -> tuple[Side, Side]:
    x = _particles()

    def loop(logger: Any) -> Callable[[Any], Any]:
        return lambda x: run_loop(_drift, x, STEPS, logger=logger)

    return Stream(loop(NullLogger()), x), Stream(loop(RingBufferLogger(5)), x)


def _with_keys() -> tuple[Side, Side]:
    """Keys for a thousand small steps: split by hand, and from `key_chain`."""

    def walk(key: Any, x: Any) -> Any:
        return x + 0 * jax.random.normal(key, x.shape)

    step = jax.jit(walk, donate_argnums=1)
    x = jnp.zeros(64)

    def by_hand(x: Any) -> Any:
        key, state = jax.random.key(0), jnp.copy(x)
        for _ in range(CALLS):
            key, own = jax.random.split(key)
            state = step(own, state)
        return state

    def with_chain(x: Any) -> Any:
        return run_loop(walk, x, CALLS, key=jax.random.key(0))

    return Stream(by_hand, x), Stream(with_chain, x)


_CALLS = "logger.log(state, step), 1,000 calls"
_KUPS = "logger.log(state, step) against kUPS"

CASES = [
    Case(_CALLS, "five loggers, none of them due, 3 µs a call allowed", 1.0, _not_due),
    Case("a Python loop", "RingBufferLogger(5), 2 MB", 1.05 if ON_GPU else None, _with_ring),
    Case("a Python loop", "run_loop, keys by key_chain, against split", None, _with_keys),
]
if not missing():
    CASES += [
        Case(
            _KUPS,
            "TqdmLogger",
            1.0,
            _against_kups(lambda kups: kups.TqdmLogger(10**9), lambda: TqdmLogger(10**9)),
        ),
        Case(
            _KUPS,
            "TqdmLogger with a postfix",
            1.0,
            _against_kups(
                lambda kups: kups.TqdmLogger(10**9, _energy), lambda: TqdmLogger(10**9, _energy)
            ),
        ),
        Case(
            _KUPS,
            "CompositeLogger of five that do nothing",
            None,
            _against_kups(
                lambda kups: kups.CompositeLogger(*(kups.NullLogger() for _ in range(5))),
                lambda: CompositeLogger(*(NullLogger() for _ in range(5))),
            ),
        ),
    ]

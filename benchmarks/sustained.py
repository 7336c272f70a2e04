"""Streams that last: 200,000 records of a loop that does next to nothing else.

A short stream fits into the queue. A long one shows whether delivery keeps up with the program, and
how far it lags behind: a queue that fills makes the program wait. Three things are measured of each
stream. *The program's time* goes from the call until its result is there. *Delivered* goes on until
the callback has every record, or until all are safe on disk. *Lag* is the longest time between the
moment when a record left the program and the moment when its callback was called.

Most rows are set against an allowance, as a goal. Others compare the default buffer, whose size
adapts, with `buffer=64`, with `spool` and with `jax.debug.callback`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.streams import (
    BUFFER,
    ON_GPU,
    Delivered,
    Stream,
    UncheckedCase,
    call_back,
    ignore,
    log_scalars,
    loop,
    spooled,
    tapped,
)
from benchmarks.timing import QUICK, Comparison, Effort, Side
from logax import flush, load, tap
from logax._delivery.worker import worker
from logax.loggers import SaveLogger

RECORDS = 200_000
RUNS = 64  # in one compiled call, for the rows of several
REPETITIONS = 3 if ON_GPU else 7
TINY_STEPS = 50_000 if ON_GPU else RECORDS  # where two programs are compared
PART = 20  # of the records, for whom a twentieth takes long enough


class Measured(NamedTuple):
    """Seconds for each of the records: of the program, until delivered; and the lag in seconds."""

    program: list[float]
    delivered: list[float]
    lag: float


@functools.cache
def _measured(sink: str, scalars: int, buffer: int | None, runs: int, repetitions: int) -> Measured:
    """Return what a stream takes, after one that is not counted."""
    program, delivered = [], []
    with _stream(sink, scalars, buffer, runs) as call:
        for number in range(repetitions + 1):
            start = time.perf_counter()
            jax.block_until_ready(call(jnp.float32(1)))
            middle = time.perf_counter()
            flush()
            if number:
                program.append((middle - start) / RECORDS)
                delivered.append((time.perf_counter() - start) / RECORDS)
    lag = _lag(scalars, buffer) if sink == "a callback" else 0.0
    return Measured(program, delivered, lag)


@contextlib.contextmanager
def _stream(
    sink: str, scalars: int, buffer: int | None, runs: int
) -> Iterator[Callable[[Any], Any]]:
    """Yield a streaming function; afterwards raise unless every record arrived."""
    steps = RECORDS // runs
    function = loop(log_scalars(scalars), steps=steps)
    if sink == "a callback":
        last: list[Any] = [0, None]

        def count(record: Any) -> None:
            last[0] += 1
            last[1] = record

        yield tap(function, count, buffer=buffer)
        if last[0] % RECORDS or last[1].steps["step"] != RECORDS - 1:
            raise RuntimeError(f"{last[0]} records arrived, the last at {last[1]}.")
        return
    with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
        with contextlib.closing(SaveLogger(folder)) as logger:
            if runs == 1:
                yield logger.tap(function, logger.init(jax.random.key(0)), buffer=buffer)
            else:
                states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), runs))
                lanes = jax.vmap(
                    lambda state, x: logger.tap(function, state, buffer=buffer)(x), (0, None)
                )
                yield functools.partial(jax.jit(lanes), states)
        stored = [run.logs.step["key0"] for run in load(folder).values()]
        expected = np.tile(np.arange(steps), len(stored[0]) // steps)
        if len(stored) != runs or not all(np.array_equal(expected, each) for each in stored):
            raise RuntimeError(f"{len(stored)} runs are stored, not all whole and in order.")


def _lag(scalars: int, buffer: int | None) -> float:
    """Return the longest time that a record took from the program to its callback."""
    left: list[tuple[float, int]] = []  # when records left, and how many had by then
    arrived: list[float] = []
    add, number = worker.add, 0

    def noted(size: int, run: Any, item: Any, records: int = 1, kind: Any = None) -> bool:
        nonlocal number
        number += records
        left.append((time.perf_counter(), number))
        return add(size, run, item, records, kind)

    function = loop(log_scalars(scalars), steps=RECORDS)
    worker.add = noted  # type: ignore[method-assign]
    try:
        tap(function, lambda record: arrived.append(time.perf_counter()), buffer=buffer)(
            jnp.float32(1)
        )
        flush()
    finally:
        worker.add = add  # type: ignore[method-assign]
    return max(arrived[min(last, RECORDS) - 1] - moment for moment, last in left)


@dataclasses.dataclass(frozen=True)
class _Row(Case):
    """A figure of a stream against what is allowed.

    Attributes:
      stream: Where records go, the number of scalars, the buffer, and the number of runs.
      allowed: Seconds.
      figure: Takes the figure, in seconds, from what was measured.
    """

    stream: tuple[str, int, int | None, int] = ("a callback", 1, 1, 1)
    allowed: float = 0.0
    figure: Callable[[Measured], list[float]] = lambda measured: measured.program

    def run(self, effort: Effort) -> Comparison:
        repetitions = 3 if effort == QUICK else REPETITIONS
        figures = self.figure(_measured(*self.stream, repetitions))
        ratios = [figure / self.allowed for figure in figures]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return Comparison(
            by_hand=self.allowed,
            logax=statistics.median(figures),
            ratio=middle,
            ratio_quartiles=(low, high),
            ratio_of_fastest=min(ratios),
            repetitions=len(ratios),
            calls=1,
        )


def _rows(sink: str, scalars: int) -> Iterator[Case]:
    group = f"a stream of 200,000 records into {sink}"
    of = "1 scalar" if scalars == 1 else f"{scalars} scalars"
    least = 60_000 if sink == "a callback" else 80_000

    def row(
        buffer: int | None,
        name: str,
        allowed: float,
        figure: Any,
        goal: bool = True,
        runs: int = 1,
    ) -> Case:
        shown = "default" if buffer is None else f"buffer={buffer}"
        stream = (sink, scalars, buffer, runs)
        goals = 1.0 if goal else None
        return _Row(group, f"{shown}, {of}, {name}", goals, _no_sides, 0.0, stream, allowed, figure)

    # What a GPU takes for each host call is not ours to bound.
    on_cpu = not ON_GPU
    yield row(1, "the program's time, 12 µs a record", 12e-6, _program, on_cpu)
    yield row(1, "the slowest call, 20 µs a record", 20e-6, _slowest, on_cpu)
    yield row(1, f"delivered, {least:,} a second", 1 / least, _delivered, on_cpu)
    if sink != "a callback":
        yield row(None, "delivered, 200,000 a second", 1 / 200_000, _delivered)
        several = f"{RUNS} runs, delivered, 200,000 a second"
        yield row(None, several, 1 / 200_000, _delivered, runs=RUNS)
        return
    yield row(None, f"delivered, {least:,} a second", 1 / least, _delivered)
    for buffer in (1, None):
        yield row(buffer, "lag, 0.5 s", 0.5, lambda measured: [measured.lag])


def _program(measured: Measured) -> list[float]:
    return measured.program


def _slowest(measured: Measured) -> list[float]:
    return [max(measured.program)]


def _delivered(measured: Measured) -> list[float]:
    return measured.delivered


def _no_sides() -> tuple[Side, Side]:
    raise NotImplementedError


# The default against others.


def _advance(microseconds: int) -> tuple[Callable[[Any], Any], int]:
    """Return a step that takes about so long, and how many of them to take."""
    if microseconds == 20:
        grid = jnp.linspace(-1, 1, 1 << 24 if ON_GPU else 1 << 15)
        return lambda carry: jnp.tanh(carry + grid).mean() + 0.5, 10_000
    base = jnp.linspace(-1, 1, (4096 if ON_GPU else 384) ** 2).reshape(
        2 * [4096 if ON_GPU else 384]
    )

    def multiply(carry: Any) -> Any:
        x = base
        for _ in range(3 if ON_GPU else 1):
            x = jnp.tanh(x @ (base + carry))
        return x.mean() + 0.5

    return multiply, 500


def _default_against_64(microseconds: int) -> tuple[Side, Side]:
    x = jnp.float32(1)
    if not microseconds:
        function = loop(log_scalars(10), steps=TINY_STEPS)
    else:
        advance, steps = _advance(microseconds)
        function = loop(log_scalars(10), advance, steps)
    return tapped(function, x, BUFFER), tapped(function, x, None)


def _spool_against_default() -> tuple[Side, Side]:
    x, function = jnp.float32(1), loop(log_scalars(10), steps=TINY_STEPS)
    return spooled(function, x), tapped(function, x, None)


class _Scaled(Stream):
    """A stream of a part of the records, taken as many times as there are parts."""

    def seconds(self, number: int) -> float:
        return PART * super().seconds(number)


def _callback_against_default() -> tuple[Side, Side]:
    x = jnp.float32(1)
    theirs = jax.jit(loop(call_back(10), steps=TINY_STEPS // PART))
    ours = tap(loop(log_scalars(10), steps=TINY_STEPS), ignore)
    return _Scaled(theirs, x), Delivered(ours, x)


_DEFAULT = "tap(f), the default buffer"

CASES = [
    *(row for sink in ("a callback", "SaveLogger") for k in (1, 10) for row in _rows(sink, k)),
    Case(_DEFAULT, "tiny steps, against buffer=64", 1.05, lambda: _default_against_64(0)),
    Case(_DEFAULT, "steps of 20 µs, against buffer=64", 1.05, lambda: _default_against_64(20)),
    Case(_DEFAULT, "steps of 1 ms, against buffer=64", 1.05, lambda: _default_against_64(1000)),
    Case(_DEFAULT, "tiny steps, against spool(f)", None, _spool_against_default),
    UncheckedCase(
        _DEFAULT,
        "until delivered, against jax.debug.callback (a twentieth of it)",
        None,
        _callback_against_default,
    ),
]

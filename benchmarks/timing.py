"""How two ways of doing the same thing are compared.

Both are warm and run in one process. A *repetition* times each of them once, in random order, so
that whatever drifts (clock, temperature, other work) meets both alike. Each timing makes as many
calls as fill about half a millisecond, less than a scheduler's slice, and waits for every result.
The garbage collector is off while the clock runs. Of each side the median is kept, and the ratio is
the median of the ratios of the repetitions. Beside it stands the ratio of the fastest timings,
which a busy machine disturbs least.
"""

from __future__ import annotations

import dataclasses
import gc
import operator
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax


class Side(Protocol):
    """One of two ways to do the same."""

    def seconds(self, number: int) -> float:
        """How long doing it `number` times takes."""

    def results(self) -> Any:
        """What it gives."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a compiled function; `one_of` takes one array out of its results.

    Waiting for that one is enough, since all results of a program are ready at once, and it costs
    both sides the same, whatever the structure of their results.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    one_of: Callable[[Any], Any] = operator.itemgetter(0)

    def seconds(self, number: int) -> float:
        function, args, one_of = self.function, self.args, self.one_of
        start = time.perf_counter()
        for _ in range(number):
            one_of(function(*args)).block_until_ready()
        return time.perf_counter() - start

    def results(self) -> Any:
        return self.function(*self.args)


@dataclasses.dataclass(frozen=True)
class Building:
    """Tracing, lowering and compiling of a function that JAX has never seen.

    `fresh` makes such a function; with `compiles` off nothing is compiled.
    """

    fresh: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...]
    compiles: bool = True

    def seconds(self, number: int) -> float:
        functions = [jax.jit(self.fresh()) for _ in range(number)]
        start = time.perf_counter()
        for function in functions:
            lowered = function.lower(*self.args)
            if self.compiles:
                lowered.compile()
        return time.perf_counter() - start

    def results(self) -> Any:
        return jax.jit(self.fresh())(*self.args)


@dataclasses.dataclass(frozen=True)
class Allowance:
    """A time that is not measured but given, and what must have been done in it.

    Attributes:
      each: Seconds.
      expected: The results that the other side must have.
    """

    each: float
    expected: Any

    def seconds(self, number: int) -> float:
        return number * self.each

    def results(self) -> Any:
        return self.expected


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure: for one timing, for all repetitions, and how many these may be."""

    timing_seconds: float = 5e-4
    total_seconds: float = 6.0
    fewest: int = 11
    most: int = 1000


QUICK = Effort(timing_seconds=0.0, total_seconds=0.0, fewest=3, most=3)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Seconds of one call by hand and of one with logax, and how the repetitions spread."""

    by_hand: float
    logax: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    ratio_of_fastest: float
    repetitions: int
    calls: int


def compare(by_hand: Side, logax: Side, effort: Effort, seed: int = 0) -> Comparison:
    """Time both sides, warm, alternating in random order."""
    sides = (by_hand, logax)
    times, calls = _repeated(sides, _warm_seconds(sides), effort, seed)
    by_hand_median, logax_median = (statistics.median(own) / calls for own in times)
    ratios = [mine / theirs for theirs, mine in zip(*times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    fastest = min(times[1]) / min(times[0])
    return Comparison(
        by_hand=by_hand_median,
        logax=logax_median,
        ratio=middle,
        ratio_quartiles=(low, high),
        ratio_of_fastest=fastest,
        repetitions=len(ratios),
        calls=calls,
    )


def medians(sides: Sequence[Side], effort: Effort, seed: int = 0) -> list[float]:
    """The seconds of each of several sides, warm, alternating in random order.

    What takes longer than all of the effort is timed once, and where that builds a program, cold.
    """
    once = _warm_seconds(sides)
    if sum(once) > effort.total_seconds:
        return once
    times, calls = _repeated(sides, once, effort, seed)
    return [statistics.median(own) / calls for own in times]


def _warm_seconds(sides: Sequence[Side]) -> list[float]:
    """How long each side takes once, when it is warm; what builds a program is not warmed up."""
    for side in sides:
        if not isinstance(side, Building):
            side.seconds(3 if isinstance(side, Call) else 1)
    return [side.seconds(1) for side in sides]


def _repeated(
    sides: Sequence[Side], once: Sequence[float], effort: Effort, seed: int
) -> tuple[list[list[float]], int]:
    """All timings of each side, and of how many calls each is, for sides that take so long once."""
    calls = max(1, round(effort.timing_seconds / min(once)))
    round_seconds = sum(side.seconds(calls) for side in sides)
    repetitions = min(effort.most, max(effort.fewest, int(effort.total_seconds / round_seconds)))
    return _alternating(sides, calls, repetitions, random.Random(seed)), calls


def _alternating(
    sides: Sequence[Side], calls: int, repetitions: int, order: random.Random
) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sides]
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            for i in order.sample(range(len(sides)), len(sides)):
                times[i].append(sides[i].seconds(calls))
            if isinstance(sides[0], Building):
                gc.collect()  # what was built is large, and full of cycles
    finally:
        if enabled:
            gc.enable()
    return times

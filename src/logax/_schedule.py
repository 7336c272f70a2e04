"""Sets of steps that can be counted: single steps, and grids, the multiples of a number in bounds.

Every set of steps that schedules are made of is a union of these, and so are the unions and the
intersections of such sets. How many of their members are smaller than some number follows from
arithmetic, however large it is.

Schedules: objects that say when.

A schedule answers for one step at a time. In a Python loop the step is an int and the answer a
bool. Inside a program the step is traced and so is the answer, which is how `log(..., every=)`
computes an expensive value only when it is due.

`a | b` is due where one of the two is, `a & b` where both are. Schedules that go by the step alone
also know how many steps are due and where a step stands among them, which is what storage needs
to lay out its arrays; what these make together knows it too.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import operator
import time
from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from logax._support.messages import received
from logax._support.validation import in_seconds, whole


@dataclasses.dataclass(frozen=True)
class Grid:
    """The multiples of n from `first` to `last`."""

    n: int
    first: int = 0
    last: float = math.inf

    def __repr__(self) -> str:
        if (self.first, self.last) == (0, math.inf):
            return f"EveryNStep({self.n})"
        bounds = f"Between({self.first}, {None if self.last == math.inf else self.last})"
        return bounds if self.n == 1 else f"EveryNStep({self.n}) & {bounds}"

    def holds(self, step: Any) -> Any:
        """Whether `step`, an array or traced, is one of them."""
        is_whole = step.dtype.kind in "iu"
        largest = jnp.iinfo(step.dtype).max if is_whole else math.inf
        if self.first > largest:
            return step != step
        kind = step.dtype if is_whole else np.float32
        due = step == 0 if self.n > largest else step % np.asarray(self.n, kind) == 0
        if self.first > 0:
            due = due & (step >= np.asarray(self.first, kind))
        return due & (step <= np.asarray(self.last, kind)) if self.last < largest else due

    def before(self, stop: int) -> int:
        """How many of them are smaller than `stop`."""
        end = min(stop - 1, self.last)
        return max(0, int(end // self.n) - (self.first - 1) // self.n) if end >= 0 else 0

    def is_empty(self) -> bool:
        """Whether no multiple of n lies within the bounds."""
        return -(-self.first // self.n) * self.n > self.last

    def is_in(self, other: Grid) -> bool:
        """Whether all of it is in another one."""
        return self.n % other.n == 0 and other.first <= self.first and self.last <= other.last

    def intersection(self, other: Grid) -> Grid:
        """What is in both: all grids begin at 0."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return Grid(math.lcm(self.n, other.n), first, last)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """All that are in one of the grids or among the single steps, which are sorted."""

    grids: tuple[Grid, ...]
    steps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        single = [f"OnSteps({self.steps})"] if self.steps or not self.grids else []
        return " | ".join([*map(repr, self.grids), *single])

    def holds(self, step: Any) -> Any:
        """Whether `step` is one of them, traced or not."""
        if isinstance(step, (int, float, np.integer)):
            for grid in self.grids:
                if (
                    step % grid.n == 0
                    and (not grid.first or grid.first <= step)
                    and step <= grid.last
                ):
                    return True
            return step in self._steps
        if not hasattr(step, "dtype"):
            raise TypeError(
                f"A schedule is asked for a step, a whole number, and got {received(step)}. Write "
                "`logger.log(state, step)`, in this order."
            )
        if step.dtype.itemsize < 4:  # where other numbers may not fit
            step = step.astype(jnp.promote_types(step.dtype, jnp.int32))
        return functools.reduce(
            operator.or_, [g.holds(step) for g in self.grids], self._is_single(step)
        )

    @functools.cached_property
    def _steps(self) -> frozenset[int]:
        return frozenset(self.steps)

    def _is_single(self, step: Any) -> Any:
        kind = step.dtype if step.dtype.kind in "iu" else np.dtype(np.int32)
        fitting = [each for each in self.steps if each <= jnp.iinfo(kind).max]
        return jnp.isin(step, np.asarray(fitting, kind))

    def before(self, stop: int) -> int:
        """How many are smaller than `stop`."""
        return _covered(self.grids, stop) + bisect.bisect_left(self._apart, stop)

    @functools.cached_property
    def _apart(self) -> list[int]:
        """The single steps that are in no grid."""
        grids = dataclasses.replace(self, steps=())
        return [step for step in self.steps if not grids.holds(step)]

    def union(self, other: Pattern) -> Pattern:
        """What is in one of the two."""
        steps = tuple(sorted({*self.steps, *other.steps}))
        return Pattern(_needed((*self.grids, *other.grids)), steps)

    def intersection(self, other: Pattern) -> Pattern:
        """What is in both."""
        single = {step for step in self.steps if other.holds(step)}
        single |= {step for step in other.steps if self.holds(step)}
        pairs = itertools.product(self.grids, other.grids)
        return Pattern(_needed(a.intersection(b) for a, b in pairs), tuple(sorted(single)))


def _needed(grids: Iterable[Grid]) -> tuple[Grid, ...]:
    """The grids without those that are empty or a part of another."""
    kept: list[Grid] = []
    for grid in grids:
        if not grid.is_empty() and not any(grid.is_in(other) for other in kept):
            kept = [other for other in kept if not other.is_in(grid)] + [grid]
    return tuple(kept)


def _covered(grids: Sequence[Grid], stop: int) -> int:
    """How many numbers smaller than `stop` are in one of the grids."""
    if not grids:
        return 0
    first, *rest = grids
    common = [grid for grid in map(first.intersection, rest) if not grid.is_empty()]
    return first.before(stop) + _covered(rest, stop) - _covered(common, stop)


@runtime_checkable
class Schedule(Protocol):
    """What says when: any object with this method."""

    def should_log(self, step: Any) -> Any:
        """Whether `step` is due: an int in a Python loop, a traced scalar inside a program."""


LoggingFrequency = Schedule


class _Combines:
    """What `|` and `&` mean."""

    def __or__(self, other: Any) -> Any:
        return _combined(_AnyOf, self, other)

    def __ror__(self, other: Any) -> Any:
        return _combined(_AnyOf, other, self)

    def __and__(self, other: Any) -> Any:
        return _combined(_AllOf, self, other)

    def __rand__(self, other: Any) -> Any:
        return _combined(_AllOf, other, self)


class _Fixed(_Combines):
    """A schedule that goes by the step alone."""

    @functools.cached_property
    def _pattern(self) -> Pattern:
        raise NotImplementedError

    def should_log(self, step: Any) -> Any:
        """Whether `step` is due."""
        return self._pattern.holds(step)

    def leading_shape(self, total_steps: int) -> tuple[int, ...]:
        """The axis that arrays need for what is due in so many steps, as a shape."""
        return (self._pattern.before(total_steps),)

    def dataset_index(self, step: int) -> int | EllipsisType:
        """Where on that axis the due step `step` stands."""
        if not self._pattern.holds(step):
            raise ValueError(f"`dataset_index` is that of a step that is due, and {step} is not.")
        return self._pattern.before(step)


@dataclasses.dataclass(frozen=True)
class Once(_Fixed):
    """Step 0 and nothing else. What it stores has no axis for the steps."""

    @functools.cached_property
    def _pattern(self) -> Pattern:
        return Pattern((Grid(1, 0, 0),))

    def should_log(self, step: Any) -> Any:
        """Whether `step` is 0."""
        return step == 0

    def leading_shape(self, total_steps: int) -> tuple[int, ...]:
        """No axis at all."""
        return ()

    def dataset_index(self, step: int) -> EllipsisType:
        """All of the array."""
        return ...


@dataclasses.dataclass(frozen=True)
class EveryNStep(_Fixed):
    """Steps 0, n, 2n, ..."""

    n: int

    def __post_init__(self) -> None:
        if whole(self.n, 1) is None:
            raise ValueError(f"`EveryNStep` takes a whole number of 1 or more, and got {self.n!r}.")
        object.__setattr__(self, "n", operator.index(self.n))

    @functools.cached_property
    def _pattern(self) -> Pattern:
        return Pattern((Grid(self.n),))

    def should_log(self, step: Any) -> Any:
        """Whether `step` is a multiple of n."""
        if isinstance(step, int):  # asked at every step of most loops
            return step % self.n == 0
        return self._pattern.holds(step)


@dataclasses.dataclass(frozen=True, init=False)
class OnSteps(_Fixed):
    """The given steps."""

    steps: tuple[int, ...]

    def __init__(self, steps: Iterable[int]) -> None:
        if not isinstance(steps, Iterable):
            raise ValueError(f"`OnSteps` takes several steps, and got {steps!r}: `OnSteps([0])`.")
        given = tuple(steps)
        if any(whole(step, 0) is None for step in given):
            raise ValueError(f"`OnSteps` takes whole numbers of 0 or more, and got {given!r}.")
        object.__setattr__(self, "steps", tuple(sorted({operator.index(step) for step in given})))

    @functools.cached_property
    def _pattern(self) -> Pattern:
        return Pattern((), self.steps)


@dataclasses.dataclass(frozen=True)
class Between(_Fixed):
    """The steps from `first` to `last`, both included; without an end if `last` is None."""

    first: int
    last: int | None

    def __post_init__(self) -> None:
        first, last = whole(self.first, 0), None if self.last is None else whole(self.last, 0)
        if first is None or (last is None) != (self.last is None):
            raise ValueError(
                f"`Between` takes whole numbers of 0 or more, and got {self.first!r} and "
                f"{self.last!r}. Write `Between(100, None)` for all steps from 100 on."
            )
        if last is not None and first > last:
            raise ValueError(
                f"`Between` takes the first step and then the last, both included, and got "
                f"{first} and {last}. Write `Between({last}, {first})`."
            )
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "last", last)

    @functools.cached_property
    def _pattern(self) -> Pattern:
        return Pattern((Grid(1, self.first, math.inf if self.last is None else self.last),))


class EverySeconds(_Combines):
    """The first step, then whichever comes when so many seconds have passed since the last.

    For loops in Python: it looks at the clock when it is asked. Asked again for the same step it
    gives the same answer, so that several loggers can share it; asked for an earlier one it begins
    anew, as for a new run.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = in_seconds("EverySeconds", "seconds", seconds, zero=False)
        self._asked: int | None = None
        self._answer = False
        self._next = -math.inf

    def __repr__(self) -> str:
        return f"EverySeconds({self.seconds:g})"

    def should_log(self, step: int) -> bool:
        """Whether `step` is due now."""
        if self._asked is not None and step <= self._asked:
            if step == self._asked:
                return self._answer
            self._next = -math.inf
        now = time.monotonic()
        self._asked, self._answer = step, now >= self._next
        if self._answer:
            self._next = now + self.seconds
        return self._answer


@dataclasses.dataclass(frozen=True)
class _AnyOf(_Combines):
    """Due where one of them is. All are asked: each goes its own way."""

    parts: tuple[Schedule, ...]

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    def should_log(self, step: Any) -> Any:
        answers = [_answer(part, step) for part in self.parts]
        return functools.reduce(operator.or_, answers)


@dataclasses.dataclass(frozen=True)
class _AllOf(_Combines):
    """Due where all of them are. A clock comes last, and is asked only where the others are due."""

    parts: tuple[Schedule, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({x!r})" if isinstance(x, _AnyOf) else repr(x) for x in self.parts)

    def should_log(self, step: Any) -> Any:
        due: Any = True
        for part in self.parts:
            if isinstance(due, (bool, np.bool_)) and not due:
                return False
            due = due & _answer(part, step)
        return due


@dataclasses.dataclass(frozen=True)
class _OnPattern(_Fixed):
    """What schedules that go by the step alone are together."""

    pattern: Pattern

    def __repr__(self) -> str:
        return repr(self.pattern)

    @functools.cached_property
    def _pattern(self) -> Pattern:
        return self.pattern


def _answer(schedule: Schedule, step: Any) -> Any:
    """What a schedule says, which may be the user's and say it with any object."""
    answer = schedule.should_log(step)
    return answer if hasattr(answer, "dtype") else bool(answer)


def _combined(kind: Any, a: Any, b: Any) -> Any:
    """One schedule of two; of fixed ones, one that is fixed. A number is every n-th step."""
    a, b = (EveryNStep(each) if whole(each, 1) is not None else each for each in (a, b))
    if not (is_schedule(a) and is_schedule(b)):
        return NotImplemented
    if isinstance(a, _Fixed) and isinstance(b, _Fixed):
        one, two = a._pattern, b._pattern
        return _OnPattern(one.union(two) if kind is _AnyOf else one.intersection(two))
    return kind(tuple(sorted((a, b), key=has_clock)))


def is_schedule(value: Any) -> bool:
    """Whether it says when; a class does not yet."""
    return isinstance(value, Schedule) and not isinstance(value, type)


def has_clock(schedule: Any) -> bool:
    """Whether it goes by the time that passes."""
    if isinstance(schedule, (_AnyOf, _AllOf)):
        return any(map(has_clock, schedule.parts))
    return isinstance(schedule, EverySeconds)


def as_schedule(every: Any, what: str) -> Schedule:
    """The schedule that `every` stands for: itself, or every n-th step for a number."""
    if is_schedule(every):
        return every  # type: ignore[no-any-return]
    if whole(every, 1) is None:
        raise ValueError(
            f"{what} takes a whole number of 1 or more, or a schedule such as `OnSteps([0, 10])`, "
            f"any object with `should_log(step)`, and got "
            f"{repr(every) if isinstance(every, (int, float)) else received(every)}."
        )
    return EveryNStep(operator.index(every))


def for_programs(every: Any, what: str) -> Schedule:
    """The same, for a step inside a program."""
    schedule = as_schedule(every, what)
    if has_clock(schedule):
        raise ValueError(
            f"{what} is asked inside the program, where there is no clock, and got {schedule!r}. "
            "Write a number of steps, or look at the clock where records arrive, in a callback of "
            "`tap`."
        )
    return schedule

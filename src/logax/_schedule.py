"""Schedules: objects that decide at which steps to log.

`should_log(step)` answers for one step. In a Python loop the step is an int and the answer a bool.
Inside a program both are traced, so `log(..., every=schedule)` computes an expensive value only at
due steps.

`a | b` is due where either schedule is, `a & b` where both are. Schedules that depend on the step
alone can also count their due steps and number them, which `logax.storage` needs to size and index
its arrays. Their unions and intersections can too, because each is a `StepSet`: a union of grids
(multiples of a number within bounds) and single steps. Counting its elements below a number takes
arithmetic only, not time in proportion to that number.
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

from logax._support.messages import describe_value
from logax._support.validation import validate_seconds, whole


@runtime_checkable
class Schedule(Protocol):
    """Protocol of schedules: any object with a method `should_log`.

    Pass a schedule to `log(..., every=schedule)` or to the loggers and writers of `logax.loop` and
    `logax.storage`. Combine the schedules of logax with `|` (either is due) and `&` (both are due);
    a number n stands for `EveryNStep(n)`.
    """

    def should_log(self, step: Any) -> Any:
        """Return whether `step` is due.

        Args:
          step: An int in a Python loop, a traced scalar inside a program.

        Returns:
          A bool, or a traced boolean scalar for a traced step.
        """


LoggingFrequency = Schedule  # another public name of the protocol


class _CombinableSchedule:
    """Mixin that defines `|` and `&`."""

    def __or__(self, other: Any) -> Any:
        return _combine_schedules(_AnyOf, self, other)

    def __ror__(self, other: Any) -> Any:
        return _combine_schedules(_AnyOf, other, self)

    def __and__(self, other: Any) -> Any:
        return _combine_schedules(_AllOf, self, other)

    def __rand__(self, other: Any) -> Any:
        return _combine_schedules(_AllOf, other, self)


class _StepSchedule(_CombinableSchedule):
    """Base class of schedules that depend on the step alone."""

    @functools.cached_property
    def _step_set(self) -> StepSet:
        raise NotImplementedError

    def should_log(self, step: Any) -> Any:
        """Return whether `step`, an int or a traced scalar, is due."""
        return self._step_set.contains(step)

    def leading_shape(self, total_steps: int) -> tuple[int, ...]:
        """Return `(n,)`, where n is the number of due steps below `total_steps`."""
        return (self._step_set.count_below(total_steps),)

    def dataset_index(self, step: int) -> int | EllipsisType:
        """Return the number of due steps before `step`, its index along the axis of due steps.

        Raises:
          ValueError: `step` is not due.
        """
        if not self._step_set.contains(step):
            raise ValueError(f"`dataset_index` takes a step that is due, and {step} is not due.")
        return self._step_set.count_below(step)


@dataclasses.dataclass(frozen=True)
class Once(_StepSchedule):
    """Only step 0. Arrays that are stored on this schedule have no axis for steps."""

    @functools.cached_property
    def _step_set(self) -> StepSet:
        return StepSet((StepGrid(1, 0, 0),))

    def should_log(self, step: Any) -> Any:
        """Return whether `step` is 0."""
        return step == 0

    def leading_shape(self, total_steps: int) -> tuple[int, ...]:
        """Return `()`: there is no axis for steps."""
        return ()

    def dataset_index(self, step: int) -> EllipsisType:
        """Return `...`, the index of the whole array."""
        return ...


@dataclasses.dataclass(frozen=True)
class EveryNStep(_StepSchedule):
    """Steps 0, n, 2n, ...

    Args:
      n: Number of steps between due steps, 1 or more.

    Raises:
      ValueError: `n` is not an integer of 1 or more.
    """

    n: int

    def __post_init__(self) -> None:
        if whole(self.n, 1) is None:
            raise ValueError(f"`EveryNStep` takes a whole number of 1 or more, and got {self.n!r}.")
        object.__setattr__(self, "n", operator.index(self.n))

    @functools.cached_property
    def _step_set(self) -> StepSet:
        return StepSet((StepGrid(self.n),))

    def should_log(self, step: Any) -> Any:
        """Return whether `step` is a multiple of n."""
        if isinstance(step, int):  # fast path: most loops ask at every step
            return step % self.n == 0
        return self._step_set.contains(step)


@dataclasses.dataclass(frozen=True, init=False)
class OnSteps(_StepSchedule):
    """The given steps.

    Args:
      steps: Iterable of integers of 0 or more, in any order.

    Raises:
      ValueError: `steps` is not an iterable of such integers.
    """

    steps: tuple[int, ...]

    def __init__(self, steps: Iterable[int]) -> None:
        if not isinstance(steps, Iterable):
            raise ValueError(f"`OnSteps` takes several steps, and got {steps!r}: `OnSteps([0])`.")
        given = tuple(steps)
        if any(whole(step, 0) is None for step in given):
            raise ValueError(f"`OnSteps` takes whole numbers of 0 or more, and got {given!r}.")
        object.__setattr__(self, "steps", tuple(sorted({operator.index(step) for step in given})))

    @functools.cached_property
    def _step_set(self) -> StepSet:
        return StepSet((), self.steps)


@dataclasses.dataclass(frozen=True)
class Between(_StepSchedule):
    """All steps from `first` to `last`, both included.

    `EveryNStep(10) & Between(100, 200)` is every tenth step among them.

    Args:
      first: First due step, 0 or more.
      last: Last due step; None for no end.

    Raises:
      ValueError: A bound is not an integer of 0 or more, or `first` exceeds `last`.
    """

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
    def _step_set(self) -> StepSet:
        return StepSet((StepGrid(1, self.first, math.inf if self.last is None else self.last),))


class EverySeconds(_CombinableSchedule):
    """The first step, then the first step after each interval of `seconds`.

    For Python loops only, because it reads the clock at each call of `should_log`. Repeated calls
    for the same step return the same answer, so several loggers can share one instance. A call for
    an earlier step starts over, as for a new run.

    Args:
      seconds: Minimum time between two due steps, more than 0.

    Raises:
      ValueError: `seconds` is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = validate_seconds("EverySeconds", "seconds", seconds, zero=False)
        self._asked: int | None = None
        self._answer = False
        self._next = -math.inf

    def __repr__(self) -> str:
        return f"EverySeconds({self.seconds:g})"

    def should_log(self, step: int) -> bool:
        """Return whether `step` is due now."""
        if self._asked is not None and step <= self._asked:
            if step == self._asked:
                return self._answer
            self._next = -math.inf
        now = time.monotonic()
        self._asked, self._answer = step, now >= self._next
        if self._answer:
            self._next = now + self.seconds
        return self._answer


def as_schedule(every: Any, what: str) -> Schedule:
    """Return `every` if it is a schedule, and `EveryNStep(every)` for a number.

    Raises:
      ValueError: `every` is neither; the message begins with `what`.
    """
    if is_schedule(every):
        return every  # type: ignore[no-any-return]
    if whole(every, 1) is None:
        raise ValueError(
            f"{what} takes a whole number of 1 or more, or a schedule such as `OnSteps([0, 10])`, "
            f"any object with `should_log(step)`, and got "
            f"{repr(every) if isinstance(every, (int, float)) else describe_value(every)}."
        )
    return EveryNStep(operator.index(every))


def as_traceable_schedule(every: Any, what: str) -> Schedule:
    """Return the schedule of `every` for use inside a program, where there is no clock.

    Raises:
      ValueError: `every` is not a schedule or number, or reads the clock.
    """
    schedule = as_schedule(every, what)
    if has_clock(schedule):
        raise ValueError(
            f"{what} is evaluated inside the program, where there is no clock, and got "
            f"{schedule!r}. Write a number of steps, or check the time where records arrive, in a "
            "callback of `tap`."
        )
    return schedule


def is_schedule(value: Any) -> bool:
    """Return whether a value is a schedule; the class of a schedule is not."""
    return isinstance(value, Schedule) and not isinstance(value, type)


def has_clock(schedule: Any) -> bool:
    """Return whether a schedule depends on the time."""
    if isinstance(schedule, (_AnyOf, _AllOf)):
        return any(map(has_clock, schedule.parts))
    return isinstance(schedule, EverySeconds)


@dataclasses.dataclass(frozen=True)
class _AnyOf(_CombinableSchedule):
    """Due where any part is. All parts are asked at every step, because a clock keeps state."""

    parts: tuple[Schedule, ...]

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    def should_log(self, step: Any) -> Any:
        answers = [_ask_schedule(part, step) for part in self.parts]
        return functools.reduce(operator.or_, answers)


@dataclasses.dataclass(frozen=True)
class _AllOf(_CombinableSchedule):
    """Due where all parts are. A clock comes last, and is asked only if the others are due."""

    parts: tuple[Schedule, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({x!r})" if isinstance(x, _AnyOf) else repr(x) for x in self.parts)

    def should_log(self, step: Any) -> Any:
        due: Any = True
        for part in self.parts:
            if isinstance(due, (bool, np.bool_)) and not due:
                return False
            due = due & _ask_schedule(part, step)
        return due


@dataclasses.dataclass(frozen=True)
class _StepSetSchedule(_StepSchedule):
    """Combination of schedules that depend on the step alone."""

    step_set: StepSet

    def __repr__(self) -> str:
        return repr(self.step_set)

    @functools.cached_property
    def _step_set(self) -> StepSet:
        return self.step_set


def _ask_schedule(schedule: Schedule, step: Any) -> Any:
    """Return the answer of a schedule as an array or a bool; user code may return any object."""
    answer = schedule.should_log(step)
    return answer if hasattr(answer, "dtype") else bool(answer)


def _combine_schedules(kind: Any, a: Any, b: Any) -> Any:
    """Combine two schedules. Two step schedules give a step schedule; n means every n-th step."""
    a, b = (EveryNStep(each) if whole(each, 1) is not None else each for each in (a, b))
    if not (is_schedule(a) and is_schedule(b)):
        return NotImplemented
    if isinstance(a, _StepSchedule) and isinstance(b, _StepSchedule):
        one, two = a._step_set, b._step_set
        return _StepSetSchedule(one.union(two) if kind is _AnyOf else one.intersection(two))
    return kind(tuple(sorted((a, b), key=has_clock)))


@dataclasses.dataclass(frozen=True)
class StepGrid:
    """The multiples of n from `first` to `last`, both included."""

    n: int
    first: int = 0
    last: float = math.inf

    def __repr__(self) -> str:
        if (self.first, self.last) == (0, math.inf):
            return f"EveryNStep({self.n})"
        bounds = f"Between({self.first}, {None if self.last == math.inf else self.last})"
        return bounds if self.n == 1 else f"EveryNStep({self.n}) & {bounds}"

    def contains(self, step: Any) -> Any:
        """Return whether the array or tracer `step` is in the grid."""
        is_whole = step.dtype.kind in "iu"
        largest = jnp.iinfo(step.dtype).max if is_whole else math.inf
        if self.first > largest:
            return step != step
        kind = step.dtype if is_whole else np.float32
        due = step == 0 if self.n > largest else step % np.asarray(self.n, kind) == 0
        if self.first > 0:
            due = due & (step >= np.asarray(self.first, kind))
        return due & (step <= np.asarray(self.last, kind)) if self.last < largest else due

    def count_below(self, stop: int) -> int:
        """Return the number of elements below `stop`."""
        end = min(stop - 1, self.last)
        return max(0, int(end // self.n) - (self.first - 1) // self.n) if end >= 0 else 0

    def is_empty(self) -> bool:
        """Return whether no multiple of n is within the bounds."""
        return -(-self.first // self.n) * self.n > self.last

    def is_subset_of(self, other: StepGrid) -> bool:
        """Return whether `other` contains every element."""
        return self.n % other.n == 0 and other.first <= self.first and self.last <= other.last

    def intersection(self, other: StepGrid) -> StepGrid:
        """Return the common elements, again a grid, because all grids consist of multiples."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return StepGrid(math.lcm(self.n, other.n), first, last)


@dataclasses.dataclass(frozen=True)
class StepSet:
    """The union of some grids and some single steps, which are sorted."""

    grids: tuple[StepGrid, ...]
    steps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        single = [f"OnSteps({self.steps})"] if self.steps or not self.grids else []
        return " | ".join([*map(repr, self.grids), *single])

    def contains(self, step: Any) -> Any:
        """Return whether the number, array or tracer `step` is in the set."""
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
                f"A schedule takes a step, an integer, and got {describe_value(step)}. Write "
                "`logger.log(state, step)`, in this order."
            )
        if step.dtype.itemsize < 4:  # the bounds may not fit
            step = step.astype(jnp.promote_types(step.dtype, jnp.int32))
        return functools.reduce(
            operator.or_, [g.contains(step) for g in self.grids], self._is_single_step(step)
        )

    @functools.cached_property
    def _steps(self) -> frozenset[int]:
        return frozenset(self.steps)

    def _is_single_step(self, step: Any) -> Any:
        kind = step.dtype if step.dtype.kind in "iu" else np.dtype(np.int32)
        fitting = [each for each in self.steps if each <= jnp.iinfo(kind).max]
        return jnp.isin(step, np.asarray(fitting, kind))

    def count_below(self, stop: int) -> int:
        """Return the number of elements below `stop`."""
        return _count_union_below(self.grids, stop) + bisect.bisect_left(
            self._steps_outside_grids, stop
        )

    @functools.cached_property
    def _steps_outside_grids(self) -> list[int]:
        """Single steps that no grid contains, sorted."""
        grids = dataclasses.replace(self, steps=())
        return [step for step in self.steps if not grids.contains(step)]

    def union(self, other: StepSet) -> StepSet:
        """Return the steps that are in either set."""
        steps = tuple(sorted({*self.steps, *other.steps}))
        return StepSet(_drop_redundant_grids((*self.grids, *other.grids)), steps)

    def intersection(self, other: StepSet) -> StepSet:
        """Return the steps that are in both sets."""
        single = {step for step in self.steps if other.contains(step)}
        single |= {step for step in other.steps if self.contains(step)}
        pairs = itertools.product(self.grids, other.grids)
        return StepSet(
            _drop_redundant_grids(a.intersection(b) for a, b in pairs), tuple(sorted(single))
        )


def _drop_redundant_grids(grids: Iterable[StepGrid]) -> tuple[StepGrid, ...]:
    """Drop the grids that are empty or a subset of another."""
    kept: list[StepGrid] = []
    for grid in grids:
        if not grid.is_empty() and not any(grid.is_subset_of(other) for other in kept):
            kept = [other for other in kept if not other.is_subset_of(grid)] + [grid]
    return tuple(kept)


def _count_union_below(grids: Sequence[StepGrid], stop: int) -> int:
    """Return the number of elements below `stop` of the union, by inclusion-exclusion."""
    if not grids:
        return 0
    first, *rest = grids
    common = [grid for grid in map(first.intersection, rest) if not grid.is_empty()]
    return (
        first.count_below(stop) + _count_union_below(rest, stop) - _count_union_below(common, stop)
    )

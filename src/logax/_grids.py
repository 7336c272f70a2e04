"""Sets of steps that can be counted: single steps, and grids, the multiples of a number in bounds.

Every set of steps that schedules are made of is a union of these, and so are the unions and the
intersections of such sets. How many of their members are smaller than some number follows from
arithmetic, however large it is.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax._errors import received


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

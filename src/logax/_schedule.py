"""Schedules: objects that say when.

A schedule answers for one step at a time. Inside a program the step is traced and so is the answer,
which is how `log(..., every=schedule)` computes an expensive value only when it is due.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from logax._compat import Array


@runtime_checkable
class Schedule(Protocol):
    """What `log(..., every=)` takes: any object with this method."""

    def due(self, step: Array) -> Array:
        """Whether `step`, a scalar that may be traced, is due."""


@dataclasses.dataclass(frozen=True)
class Once:
    """Step 0 and nothing else."""

    def due(self, step: Array) -> Array:
        """Whether `step` is 0."""
        return step == 0


@dataclasses.dataclass(frozen=True)
class EveryNStep:
    """Steps 0, n, 2n, ..."""

    n: int

    def __post_init__(self) -> None:
        if whole(self.n, 1) is None:
            raise ValueError(f"`EveryNStep` takes a whole number of 1 or more, and got {self.n!r}.")

    def due(self, step: Array) -> Array:
        """Whether `step` is a multiple of n."""
        if step.dtype.itemsize < 4:  # where n itself may not fit
            step = step.astype(jnp.promote_types(step.dtype, jnp.int32))
        if jnp.issubdtype(step.dtype, jnp.integer) and self.n > jnp.iinfo(step.dtype).max:
            return step == 0
        return step % self.n == 0


@dataclasses.dataclass(frozen=True, init=False)
class OnSteps:
    """The given steps."""

    steps: tuple[int, ...]

    def __init__(self, steps: Iterable[int]) -> None:
        if not isinstance(steps, Iterable):
            raise ValueError(f"`OnSteps` takes several steps, and got {steps!r}: `OnSteps([0])`.")
        given = tuple(steps)
        if any(whole(step, 0) is None for step in given):
            raise ValueError(f"`OnSteps` takes whole numbers of 0 or more, and got {given!r}.")
        object.__setattr__(self, "steps", tuple(sorted({operator.index(step) for step in given})))

    def due(self, step: Array) -> Array:
        """Whether `step` is one of them."""
        return jnp.isin(step, np.asarray(self.steps, np.int32))


def as_schedule(every: Any, what: str = "`every`") -> Schedule:
    """The schedule that `every` stands for: itself, or every n-th step for a number."""
    if isinstance(every, Schedule) and not isinstance(every, type):
        return every
    if whole(every, 1) is None:
        raise ValueError(
            f"{what} takes a whole number of 1 or more, or a schedule such as `OnSteps([0, 10])`, "
            f"and got {every!r}."
        )
    return EveryNStep(operator.index(every))


def at_least_one(what: str, name: str, value: Any) -> int:
    """The number that an option asks for, or an error."""
    number = whole(value, 1)
    if number is None:
        raise ValueError(f"`{what}` takes `{name}` of 1 or more, and got {value!r}.")
    return min(number, _COUNTABLE)


_COUNTABLE = 2**31 - 1  # programs count with 32 bits


def whole(value: Any, least: int) -> int | None:
    """`value` as an int if it is a whole number of at least `least`, else None."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= least else None

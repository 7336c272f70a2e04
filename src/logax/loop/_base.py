"""What the loggers here share: they work by schedule, between `__enter__` and `__exit__`.

A logger fills in `_begin`, `_take` and `_end`. There is no flag to look at in every step: outside
of its block a logger asks a schedule that raises.
"""

from __future__ import annotations

import operator
from types import TracebackType
from typing import Any, Self

from logax._schedule import Schedule, as_schedule
from logax._support.messages import received


class EnteredLogger:
    """A logger that takes in the steps of a schedule, while it is entered."""

    def __init__(self, schedule: int | Schedule = 1) -> None:
        self._schedule = as_schedule(schedule, f"The schedule of `{type(self).__name__}`")
        self._outside = Outside(type(self))
        self._should_log: Any = self._outside.should_log
        self._is_entered = False

    def _begin(self) -> None:
        """Get ready for a run."""

    def _take(self, state: Any, step: int) -> None:
        """Take in a step that is due."""
        raise NotImplementedError

    def _end(self, error: BaseException | None) -> None:
        """End the run, which may have failed."""

    def log(self, state: Any, step: int) -> None:
        """Take in the state after step `step`, if that is due."""
        if self._should_log(step):
            self._take(state, as_step(self, step))

    def __enter__(self) -> Self:
        if self._is_entered:
            raise RuntimeError(
                f"This `{type(self).__name__}` is in use: it was entered and not left. Make a "
                "second one for a second loop, and put each only once into a `CompositeLogger`."
            )
        self._begin()
        self._is_entered = True
        self._should_log = self._schedule.should_log
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_entered:
            self._is_entered = False
            self._should_log = self._outside.should_log
            self._end(error)


class Outside:
    """What is asked and told of steps outside of the block of a logger of this class.

    It does not know the logger itself, which would hold what holds it: what a logger that is
    dropped has on the device must be free at once, and not when Python looks for such circles.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def should_log(self, step: int) -> bool:
        """Raise, in the place of a schedule."""
        raise outside(self._kind)

    def log(self, state: Any, step: int) -> None:
        """Raise, in the place of a logger."""
        raise outside(self._kind)


def checked_view(what: str, view: Any) -> Any:
    """The view, if it can be one."""
    if not callable(view):
        raise TypeError(
            f"`{what}` takes a view, a function of the state, and got {received(view)}. Write "
            '`lambda state: {"energy": state.energy}`.'
        )
    return view


def as_step(logger: Any, step: Any) -> int:
    """The number of a step as an int, also where it is an array."""
    try:
        return operator.index(step)
    except TypeError as error:
        raise TypeError(
            f"`{type(logger).__name__}.log` takes the number of the step, an int, and got "
            f"{received(step)}. Write `logger.log(state, step)`, with `step` of `range(num_steps)`."
        ) from error


def outside(kind: type) -> RuntimeError:
    """The error for a step that is logged outside of the block of a logger of this class."""
    return RuntimeError(
        f"`{kind.__name__}.log` was called outside of its `with` block. Write\n\n"
        "    with logger:\n"
        "        logger.log(state, step)\n\n"
        "with the whole loop inside the block."
    )

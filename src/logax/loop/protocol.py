"""The protocol of loggers for Python loops, and the base class of ours.

The base class adds a schedule and a `with` block. Subclasses implement `_begin`, `_take` and
`_end`. `log` tests no flag at every step: outside of the `with` block, a guard that raises replaces
the schedule.
"""

from __future__ import annotations

import operator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from logax._schedule import Schedule, as_schedule
from logax._support.messages import describe_value

State = TypeVar("State")
State_contra = TypeVar("State_contra", contravariant=True)

METHODS = ("__enter__", "__exit__", "log")


@runtime_checkable
class Logger(Protocol[State_contra]):
    """Protocol of a logger for Python loops: a context manager with a method `log(state, step)`.

    Any class with these three methods is a logger; it need not inherit from this one.

        with logger:
            for step in range(num_steps):
                state = advance(state)
                logger.log(state, step)

    The loop calls `log` after every step. The logger selects steps by its own schedule; on other
    steps it neither waits for the device nor fetches anything.

    `state` is any pytree. Its buffers may be donated to the next step, so `log` must read or copy
    whatever it needs before it returns. `step` is a plain int.
    """

    def __enter__(self) -> Self:
        """Prepare for the loop: open files, show a bar."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """Finish, whether the loop ended normally or failed."""

    def log(self, state: State_contra, step: int, /) -> None:
        """Handle the state after step `step`."""


class NullLogger:
    """Logger that does nothing: the default of `run_loop`, and a way to turn logging off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def log(self, state: Any, step: int) -> None:
        """Do nothing."""


def check_logger(what: str, logger: Any) -> None:
    """Raise a TypeError with advice unless `logger` is a logger for Python loops."""
    if isinstance(logger, type):
        name = logger.__name__
        raise TypeError(f"{what} takes loggers, and got the class `{name}`. Write `{name}(...)`.")
    missing = [f"`{name}`" for name in METHODS if not callable(getattr(logger, name, None))]
    harvests = type(logger).__module__.startswith("logax.loggers")
    if not missing and not harvests:
        return
    if callable(getattr(logger, "loop", None)):
        raise TypeError(
            f"{what} takes loggers for Python loops, and got {describe_value(logger)}, which "
            "takes the logs of functions. Write `logger.loop(view, schedule)` instead."
        )
    if harvests:
        raise TypeError(
            f"{what} takes loggers for Python loops, and got {describe_value(logger)}, which "
            "follows compiled loops. Write `logax.loop.TqdmLogger(num_steps)`."
        )
    hint = ""
    if isinstance(logger, (list, tuple)):
        hint = " Write `CompositeLogger(*loggers)`."
    elif callable(logger):
        hint = " For a function, write `CallbackLogger(fn, schedule)`."
    raise TypeError(
        f"{what} takes loggers, which have the methods `__enter__`, `__exit__` and "
        f"`log(state, step)`, and got {describe_value(logger)}, which has no "
        f"{' and no '.join(missing)}.{hint}"
    )


class ScheduledLogger:
    """Logger that handles the steps of a schedule while its `with` block is open.

    Args:
      schedule: Steps to handle: a schedule, or a number n for every n-th step.
    """

    def __init__(self, schedule: int | Schedule = 1) -> None:
        self._schedule = as_schedule(schedule, f"The schedule of `{type(self).__name__}`")
        self._outside = NotEnteredGuard(type(self))
        self._should_log: Any = self._outside.should_log
        self._is_entered = False

    def _begin(self) -> None:
        """Prepare for a run of the loop."""

    def _take(self, state: Any, step: int) -> None:
        """Handle the state after a step that is due."""
        raise NotImplementedError

    def _end(self, error: BaseException | None) -> None:
        """Finish the run. `error` is the exception that ended the loop, if any."""

    def log(self, state: Any, step: int) -> None:
        """Handle the state after step `step`, if that step is due."""
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


class NotEnteredGuard:
    """Replacement for a schedule or a logger outside of its `with` block: every call raises.

    It refers to the class of the logger, not to the logger, which would be a reference cycle: the
    device memory of a logger that goes out of scope must be free at once, not at the next garbage
    collection.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def should_log(self, step: int) -> bool:
        """Raise, in place of `Schedule.should_log`."""
        raise not_entered_error(self._kind)

    def log(self, state: Any, step: int) -> None:
        """Raise, in place of `Logger.log`."""
        raise not_entered_error(self._kind)


def validate_view(what: str, view: Any) -> Any:
    """Return `view`; raise a TypeError if it is not callable."""
    if not callable(view):
        raise TypeError(
            f"`{what}` takes a view, a function of the state, and got {describe_value(view)}. "
            'Write `lambda state: {"energy": state.energy}`.'
        )
    return view


def as_step(logger: Any, step: Any) -> int:
    """Return the step number as an int, also if it is an integer array."""
    try:
        return operator.index(step)
    except TypeError as error:
        raise TypeError(
            f"`{type(logger).__name__}.log` takes the number of the step, an int, and got "
            f"{describe_value(step)}. Write `logger.log(state, step)`, with `step` of "
            "`range(num_steps)`."
        ) from error


def not_entered_error(kind: type) -> RuntimeError:
    """Return the error for a call of `log` outside of the `with` block of the logger."""
    return RuntimeError(
        f"`{kind.__name__}.log` was called outside of its `with` block. Write\n\n"
        "    with logger:\n"
        "        logger.log(state, step)\n\n"
        "with the whole loop inside the block."
    )

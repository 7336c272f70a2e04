"""What a logger for a Python loop is, and what is none."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from logax._support.messages import received

State = TypeVar("State")
State_contra = TypeVar("State_contra", contravariant=True)

METHODS = ("__enter__", "__exit__", "log")


@runtime_checkable
class Logger(Protocol[State_contra]):
    """What a Python loop reports to: a context manager with a method `log(state, step)`.

    Any class with these three methods is one; there is nothing to inherit from.

        with logger:
            for step in range(num_steps):
                state = advance(state)
                logger.log(state, step)

    The loop calls `log` after every step and knows nothing else. Which steps matter is the logger's
    affair, by its own schedule, and where nothing is due it neither waits for the device nor
    fetches anything.

    `state` is any pytree, and its buffers may be donated to the next step: what is needed of it
    must be read, or copied, before `log` returns. `step` is a plain int.
    """

    def __enter__(self) -> Self:
        """Get ready: open files, show the bar."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """End all of that, whether the loop came to its end or failed."""

    def log(self, state: State_contra, step: int, /) -> None:
        """Take in the state that step number `step` has led to."""


class NullLogger:
    """Does nothing, for warm-up and for loops that are not to be logged."""

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
    """Raise an error that teaches, unless this is a logger for Python loops."""
    if isinstance(logger, type):
        name = logger.__name__
        raise TypeError(f"{what} takes loggers, and got the class `{name}`. Write `{name}(...)`.")
    missing = [f"`{name}`" for name in METHODS if not callable(getattr(logger, name, None))]
    harvests = type(logger).__module__.startswith("logax.loggers")
    if not missing and not harvests:
        return
    if callable(getattr(logger, "loop", None)):
        raise TypeError(
            f"{what} takes loggers for Python loops, and got {received(logger)}, which takes the "
            "logs of functions. Write `logger.loop(view, schedule)` in its place."
        )
    if harvests:
        raise TypeError(
            f"{what} takes loggers for Python loops, and got {received(logger)}, which follows "
            "loops that are compiled. Write `logax.loop.TqdmLogger(num_steps)`."
        )
    hint = ""
    if isinstance(logger, (list, tuple)):
        hint = " Write `CompositeLogger(*loggers)`."
    elif callable(logger):
        hint = " A function becomes one by `CallbackLogger(fn, schedule)`."
    raise TypeError(
        f"{what} takes loggers, which have the methods `__enter__`, `__exit__` and "
        f"`log(state, step)`, and got {received(logger)}, which has no {' and no '.join(missing)}."
        + hint
    )

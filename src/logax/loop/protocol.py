"""The protocol of loggers for Python loops, and its validation."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

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

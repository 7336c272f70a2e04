"""Several loggers as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self

from logax._errors import raise_together
from logax.loop._entered import outside
from logax.loop.protocol import Logger, State, check_logger


class CompositeLogger(Generic[State]):
    """Several loggers as one: entered in order, told in order, left in reverse order.

    Whatever one of them does, the others get theirs. If one cannot be entered, those before it are
    left again. If one fails in `log`, those after it are told of the step all the same; if one
    fails while it is left, the others are left too. Then the error is raised, and several of them
    together as an `ExceptionGroup`.

    Args:
      *loggers: Any number of loggers for Python loops.

    Raises:
      TypeError: One of them is none.
    """

    def __init__(self, *loggers: Logger[State]) -> None:
        for position, logger in enumerate(loggers):
            check_logger(f"`CompositeLogger`, at position {position},", logger)
        self._loggers = loggers
        self._stack: contextlib.ExitStack | None = None
        self._errors: list[BaseException] = []
        self._logs: list[Callable[[State, int], None]] = []

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("This `CompositeLogger` is in use: it was entered and not left.")
        self._errors = []
        with contextlib.ExitStack() as stack:
            for logger in self._loggers:
                try:
                    logger.__enter__()
                except BaseException as error:  # noqa: BLE001 - raised when the others are left
                    stack.__exit__(type(error), error, error.__traceback__)
                    raise_together("several loggers failed", [error, *self._errors])
                stack.push(self._leaving(logger))
            self._stack = stack.pop_all()
        self._logs = [logger.log for logger in self._loggers]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._stack is None:
            return False
        stack, self._stack, self._logs = self._stack, None, []
        suppresses = bool(stack.__exit__(kind, error, traceback))
        raise_together("several loggers failed", self._errors)
        return suppresses

    def _leaving(self, logger: Logger[State]) -> Callable[..., Any]:
        """What leaves one logger and keeps its error for later."""

        def leave(*reason: Any) -> bool | None:
            try:
                return logger.__exit__(*reason)
            except BaseException as error:  # noqa: BLE001 - raised when all have been left
                self._errors.append(error)
                return None

        return leave

    def log(self, state: State, step: int) -> None:
        """Tell all of them."""
        if self._stack is None:
            raise outside(self)
        errors: list[Exception] | None = None
        for log in self._logs:
            try:
                log(state, step)
            except Exception as error:  # noqa: BLE001 - raised when all have been told
                errors = [*(errors or ()), error]
        if errors:
            raise_together("several loggers failed", errors)

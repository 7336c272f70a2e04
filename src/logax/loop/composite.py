"""A function as a logger.

Several loggers as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from logax._schedule import Schedule
from logax._support.messages import raise_together, received
from logax.loop._base import EnteredLogger, Outside
from logax.loop.protocol import Logger, check_logger


class CallbackLogger(EnteredLogger):
    """Calls a function on the steps that are due.

    It is called in the loop, and what it raises stops the loop. What it keeps of the state it must
    copy, since the buffers may be donated to the next step.

    Args:
      fn: Called as `fn(state, step)`.
      schedule: When: a schedule, or a number n for every n-th step.
    """

    def __init__(self, fn: Callable[[Any, int], Any], schedule: int | Schedule) -> None:
        if not callable(fn):
            raise TypeError(
                f"`CallbackLogger` takes a function of state and step, and got {received(fn)}."
            )
        super().__init__(schedule)
        self._fn = fn

    def _take(self, state: Any, step: int) -> None:
        self._fn(state, step)


SEVERAL = "several loggers failed"


class CompositeLogger:
    """Several loggers as one: entered in order, told in order, left in reverse order.

    Whatever one of them does, the others get theirs. If one cannot be entered, those before it are
    left again. If one fails in `log`, those after it are told of the step all the same; if one
    fails while it is left, the others are left too. Then the error is raised, and several of them,
    that of the loop included, together as an `ExceptionGroup`. An interrupt comes out as itself.

    Args:
      *loggers: Any number of loggers for Python loops.

    Raises:
      TypeError: One of them is none.
      ValueError: One of them is there twice.
    """

    def __init__(self, *loggers: Logger[Any]) -> None:
        for position, logger in enumerate(loggers):
            check_logger(f"`CompositeLogger`, at position {position},", logger)
            if any(logger is other for other in loggers[:position]):
                raise ValueError(f"`CompositeLogger` got {received(logger)} twice. Give it once.")
        self._loggers = loggers
        self._stack: contextlib.ExitStack | None = None
        self._errors: list[BaseException] = []
        self._told: tuple[Any, ...] = (Outside(type(self)),)

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
                    raise_together(SEVERAL, [error, *self._errors])
                stack.push(self._leaving(logger))
            self._stack = stack.pop_all()
        self._told = self._loggers
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._stack is None:
            return False
        stack, self._stack, self._told = self._stack, None, (Outside(type(self)),)
        suppresses = bool(stack.__exit__(kind, error, traceback))
        if self._errors:
            of_the_loop = [error] if error is not None and not suppresses else []
            others = [each for each in self._errors if each is not error]
            raise_together(SEVERAL, [*of_the_loop, *others])
        return suppresses

    def _leaving(self, logger: Logger[Any]) -> Callable[..., Any]:
        """What leaves one logger and keeps its error for later."""

        def leave(*reason: Any) -> bool | None:
            try:
                return logger.__exit__(*reason)
            except BaseException as error:  # noqa: BLE001 - raised when all have been left
                self._errors.append(error)
                return None

        return leave

    def log(self, state: Any, step: int) -> None:
        """Tell all of them."""
        try:
            for logger in self._told:
                logger.log(state, step)
        except Exception as error:
            others = self._told_after(logger, state, step)
            if others:
                raise ExceptionGroup(SEVERAL, [error, *others]) from None
            raise

    def _told_after(self, failed: Any, state: Any, step: int) -> list[Exception]:
        """Tell the others, and give their errors."""
        errors = []
        places = (i for i, logger in enumerate(self._told) if logger is failed)
        for logger in self._told[next(places, len(self._told)) + 1 :]:
            try:
                logger.log(state, step)
            except Exception as error:  # noqa: BLE001 - raised when all have been told
                errors.append(error)
        return errors

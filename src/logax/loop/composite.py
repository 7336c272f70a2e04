"""Build loggers from functions and from other loggers: `CallbackLogger`, `CompositeLogger`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from logax._schedule import Schedule
from logax._support.messages import describe_value, raise_together
from logax.loop.protocol import Logger, NotEnteredGuard, ScheduledLogger, check_logger


class CallbackLogger(ScheduledLogger):
    """Call a function on the steps that are due.

        with CallbackLogger(lambda state, step: print(step, state.energy), 100) as logger:
            ...

    The loop calls the function and waits for it; an exception of the function ends the loop. The
    function must copy whatever it keeps of the state, whose buffers may be donated to the next
    step.

    Args:
      fn: Function called as `fn(state, step)`; its result is ignored.
      schedule: Steps to call it on: a schedule, or a number n for every n-th step.
    """

    def __init__(self, fn: Callable[[Any, int], Any], schedule: int | Schedule) -> None:
        if not callable(fn):
            raise TypeError(
                "`CallbackLogger` takes a function of state and step, and got "
                f"{describe_value(fn)}."
            )
        super().__init__(schedule)
        self._fn = fn

    def _take(self, state: Any, step: int) -> None:
        self._fn(state, step)


GROUP_MESSAGE = "several loggers failed"


class CompositeLogger:
    """Combine several loggers into one.

        with CompositeLogger(TqdmLogger(1000), RingBufferLogger(5)) as logger:
            ...

    It enters the loggers and calls their `log` in the given order, and exits them in reverse order.
    A logger that fails does not affect the others: if one cannot be entered, those before it are
    exited; if one fails in `log`, the rest still get the step; if one fails on exit, the rest are
    still exited. The error is raised afterwards. Several errors, including that of the loop, are
    raised together as an `ExceptionGroup`, but an interrupt is raised as itself.

    Args:
      *loggers: Any number of loggers for Python loops.

    Raises:
      TypeError: If an argument is not a logger for Python loops.
      ValueError: If a logger is given twice.
    """

    def __init__(self, *loggers: Logger[Any]) -> None:
        for position, logger in enumerate(loggers):
            check_logger(f"`CompositeLogger`, at position {position},", logger)
            if any(logger is other for other in loggers[:position]):
                raise ValueError(
                    f"`CompositeLogger` got {describe_value(logger)} twice. Give it once."
                )
        self._loggers = loggers
        self._stack: contextlib.ExitStack | None = None
        self._errors: list[BaseException] = []
        self._active: tuple[Any, ...] = (NotEnteredGuard(type(self)),)

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("This `CompositeLogger` is in use: it was entered and not left.")
        self._errors = []
        with contextlib.ExitStack() as stack:
            for logger in self._loggers:
                try:
                    logger.__enter__()
                except BaseException as error:  # noqa: BLE001 - raised after the others exit
                    stack.__exit__(type(error), error, error.__traceback__)
                    raise_together(GROUP_MESSAGE, [error, *self._errors])
                stack.push(self._exit_callback(logger))
            self._stack = stack.pop_all()
        self._active = self._loggers
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._stack is None:
            return False
        stack, self._stack, self._active = self._stack, None, (NotEnteredGuard(type(self)),)
        suppresses = bool(stack.__exit__(kind, error, traceback))
        if self._errors:
            of_the_loop = [error] if error is not None and not suppresses else []
            others = [each for each in self._errors if each is not error]
            raise_together(GROUP_MESSAGE, [*of_the_loop, *others])
        return suppresses

    def _exit_callback(self, logger: Logger[Any]) -> Callable[..., Any]:
        """Return a function that exits one logger and keeps its error for later."""

        def exit_logger(*reason: Any) -> bool | None:
            try:
                return logger.__exit__(*reason)
            except BaseException as error:  # noqa: BLE001 - raised after the exit of the last one
                self._errors.append(error)
                return None

        return exit_logger

    def log(self, state: Any, step: int) -> None:
        """Call `log` of each logger."""
        try:
            for logger in self._active:
                logger.log(state, step)
        except Exception as error:
            others = self._log_to_rest(logger, state, step)
            if others:
                raise ExceptionGroup(GROUP_MESSAGE, [error, *others]) from None
            raise

    def _log_to_rest(self, failed: Any, state: Any, step: int) -> list[Exception]:
        """Call `log` of the loggers after `failed`, and return their errors."""
        errors = []
        places = (i for i, logger in enumerate(self._active) if logger is failed)
        for logger in self._active[next(places, len(self._active)) + 1 :]:
            try:
                logger.log(state, step)
            except Exception as error:  # noqa: BLE001 - raised after the last logger
                errors.append(error)
        return errors

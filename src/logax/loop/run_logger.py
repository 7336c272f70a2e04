"""Log a Python loop to a destination of `logax.loggers`: the result of `logger.loop(view)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import describe_value
from logax.loop.protocol import ScheduledLogger, validate_view


class RunLogger(ScheduledLogger):
    """Log a view of the state to a run of a logger, on the steps that are due.

    Created by `logger.loop(view, schedule)`. Entering opens the run; leaving ends it, as finished,
    or as crashed if the loop failed. It does not wait for the device.

    Args:
      logger: Logger that the run belongs to.
      view: Function from the state to a mapping from names to values.
      schedule: Steps to log: a schedule, or a number n for every n-th step.
      run: Function that opens the run: it returns a context manager.
    """

    def __init__(
        self,
        logger: Any,
        view: Callable[[Any], Tree],
        schedule: int | Schedule,
        run: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> None:
        super().__init__(schedule)
        self._logger, self._run = logger, run
        self._view = validate_view(f"{type(logger).__name__}.loop", view)
        self._block = contextlib.ExitStack()  # holds the open run
        self._state: Any = None

    def _begin(self) -> None:
        self._state = self._block.enter_context(self._run())

    def _take(self, state: Any, step: int) -> None:
        values = self._view(state)
        if not isinstance(values, Mapping):
            raise TypeError(
                f"The view of `{type(self._logger).__name__}.loop` must give a mapping from names "
                f"to values, and gave {describe_value(values)}. Write "
                '`lambda state: {"energy": state.energy}`.'
            )
        self._logger.log(self._state, values, step=step)

    def _end(self, error: BaseException | None) -> None:
        traceback = None if error is None else error.__traceback__
        self._block.__exit__(None if error is None else type(error), error, traceback)

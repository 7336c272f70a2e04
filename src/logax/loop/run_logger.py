"""A run of a logger for harvested functions, fed from a Python loop: `logger.loop(view)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import received
from logax.loop._base import EnteredLogger, checked_view


class RunLoop(EnteredLogger):
    """Writes what a view gives of the state to a run, on the steps that are due.

    Made by `logger.loop(view, schedule)`. The run opens when the loop is entered, and ends when it
    is left: finished, or crashed where the loop has failed. The device is not waited for.

    Args:
      logger: Where the run is.
      view: From the state to a mapping from names to values.
      schedule: When: a schedule, or a number n for every n-th step.
      run: Opens the run: a function that returns a context manager.
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
        self._view = checked_view(f"{type(logger).__name__}.loop", view)
        self._block = contextlib.ExitStack()  # of the run
        self._state: Any = None

    def _begin(self) -> None:
        self._state = self._block.enter_context(self._run())

    def _take(self, state: Any, step: int) -> None:
        values = self._view(state)
        if not isinstance(values, Mapping):
            raise TypeError(
                f"The view of `{type(self._logger).__name__}.loop` must give a mapping from names "
                f"to values, and gave {received(values)}. Write "
                '`lambda state: {"energy": state.energy}`.'
            )
        self._logger.log(self._state, values, step=step)

    def _end(self, error: BaseException | None) -> None:
        traceback = None if error is None else error.__traceback__
        self._block.__exit__(None if error is None else type(error), error, traceback)

"""Write lines of text: `PrintLogger` to a file, `PythonLogger` to the standard `logging`."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import describe_value
from logax._support.validation import validate_file
from logax.loop._pytrees import format_line
from logax.loop.protocol import ScheduledLogger, validate_view


class PrintLogger(ScheduledLogger):
    """Print a line on the steps that are due: `step 100: energy=-1.234, temperature=0.97`.

        with PrintLogger(lambda state: {"energy": state.energy}, EveryNStep(100)) as logger:
            ...

    It waits for the device on the steps that are due, and on no others. Lines appear above a
    progress bar of tqdm.

    Args:
      view: Function from the state to the values to print: a dictionary of numbers, or any pytree.
        Arrays are shown by their mean.
      schedule: Steps to print: a schedule, or a number n for every n-th step.
      file: Text file to print to; by default the standard output.
    """

    def __init__(
        self, view: Callable[[Any], Tree], schedule: int | Schedule, *, file: Any = None
    ) -> None:
        super().__init__(schedule)
        validate_file("PrintLogger", file)
        self._view, self._file = validate_view("PrintLogger", view), file
        self._write = importlib.import_module("tqdm.auto").tqdm.write

    def _take(self, state: Any, step: int) -> None:
        file = sys.stdout if self._file is None else self._file
        self._write(_format_step(step, self._view(state)), file=file)


class PythonLogger(ScheduledLogger):
    """Send a line to the standard `logging` on the steps that are due.

        with PythonLogger(lambda state: {"energy": state.energy}, EveryNStep(100)) as logger:
            ...

    It waits for the device on the steps that are due, and on no others. If `level` is disabled, it
    does not call the view and does not wait at all. Lines appear above a progress bar of tqdm.

    Args:
      view: Function from the state to the values to log: a dictionary of numbers, or any pytree.
        Arrays are shown by their mean.
      schedule: Steps to log: a schedule, or a number n for every n-th step.
      logger: Logger of the standard library; by default `logging.getLogger("logax.loop")`.
      level: Level of the lines.
    """

    def __init__(
        self,
        view: Callable[[Any], Tree],
        schedule: int | Schedule,
        *,
        logger: logging.Logger | None = None,
        level: int = logging.INFO,
    ) -> None:
        super().__init__(schedule)
        self._view = validate_view("PythonLogger", view)
        self._logger = logging.getLogger("logax.loop") if logger is None else logger
        if not isinstance(self._logger, logging.Logger):
            raise TypeError(
                f"`PythonLogger` takes a `logger` of the standard `logging`, and got "
                f'{describe_value(logger)}. Write `logging.getLogger("name")`.'
            )
        self._level = level
        self._above_progress_bars = importlib.import_module("tqdm.auto").tqdm.external_write_mode

    def _take(self, state: Any, step: int) -> None:
        if self._logger.isEnabledFor(self._level):
            text = _format_step(step, self._view(state))
            with self._above_progress_bars():
                self._logger.log(self._level, "%s", text)


def _format_step(step: int, values: Tree) -> str:
    return f"step {step}: {format_line(values)}".removesuffix(": ")

"""Lines of text: printed, or sent to the standard `logging`."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import received
from logax._support.validation import check_file
from logax.loop._base import EnteredLogger, checked_view
from logax.loop._states import line


class PrintLogger(EnteredLogger):
    """Prints a line on the steps that are due: `step 100: energy=-1.234, temperature=0.97`.

    It waits for the device there, and only there. A bar that is on the screen stays below.

    Args:
      view: What to show of the state: a dictionary of numbers, or any pytree. Of arrays it is the
        mean.
      schedule: When: a schedule, or a number n for every n-th step.
      file: Where to; the standard output if it is not given.
    """

    def __init__(
        self, view: Callable[[Any], Tree], schedule: int | Schedule, *, file: Any = None
    ) -> None:
        super().__init__(schedule)
        check_file("PrintLogger", file)
        self._view, self._file = checked_view("PrintLogger", view), file
        self._write = importlib.import_module("tqdm.auto").tqdm.write

    def _take(self, state: Any, step: int) -> None:
        file = sys.stdout if self._file is None else self._file
        self._write(_line(step, self._view(state)), file=file)


class PythonLogger(EnteredLogger):
    """Sends a line to the standard `logging` on the steps that are due.

    Nothing is looked at, and the device is not waited for, unless the logger lets the level
    through. A bar that is on the screen stays below.

    Args:
      view: What to show of the state: a dictionary of numbers, or any pytree. Of arrays it is the
        mean.
      schedule: When: a schedule, or a number n for every n-th step.
      logger: Where to; `logging.getLogger("logax.loop")` if it is not given.
      level: At which level.
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
        self._view = checked_view("PythonLogger", view)
        self._logger = logging.getLogger("logax.loop") if logger is None else logger
        if not isinstance(self._logger, logging.Logger):
            raise TypeError(
                f"`PythonLogger` takes a `logger` of the standard `logging`, and got "
                f'{received(logger)}. Write `logging.getLogger("name")`.'
            )
        self._level = level
        self._beside_bars = importlib.import_module("tqdm.auto").tqdm.external_write_mode

    def _take(self, state: Any, step: int) -> None:
        if self._logger.isEnabledFor(self._level):
            text = _line(step, self._view(state))
            with self._beside_bars():
                self._logger.log(self._level, "%s", text)


def _line(step: int, values: Tree) -> str:
    return f"step {step}: {line(values)}".removesuffix(": ")

"""Several loggers as one."""

from __future__ import annotations

from typing import Any

from logax._support.messages import received
from logax.loggers._core.logger import Logger
from logax.loggers.progress import ProgressLogger


class MultiLogger(Logger):
    """Sends everything to several loggers: `MultiLogger(SaveLogger("runs"), ConsoleLogger())`.

    A run has the same id everywhere. Each destination treats lanes in its own way. One that fails
    harms no other. Callbacks, as `tap` takes them, and `ProgressLogger` may be among them: they get
    each record as it comes. To close it closes all of them.

    Args:
      *loggers: Any number of loggers and callbacks.

    Raises:
      TypeError: One of them is neither.
      ValueError: One of them is there twice, or is closed.
    """

    def __init__(self, *loggers: Any) -> None:
        branches, callbacks = [], []
        for position, logger in enumerate(loggers):
            if any(logger is other for other in loggers[:position]):
                raise ValueError(f"`MultiLogger` got {received(logger)} twice. Give it once.")
            if isinstance(logger, Logger):
                logger._check_open()
                branches += logger._branches
                callbacks += logger._callbacks
            elif callable(logger) and not isinstance(logger, type):
                callbacks.append(logger)
            else:
                several = isinstance(logger, (list, tuple))
                advice = (
                    "Write `MultiLogger(*loggers)`."
                    if several
                    else "Loggers for Python loops are combined by `logax.loop.CompositeLogger`."
                )
                raise TypeError(
                    f"`MultiLogger` takes loggers and callbacks, and got {received(logger)} at "
                    f"position {position}. {advice}"
                )
        if len({id(each) for each in [*branches, *callbacks]}) < len(branches) + len(callbacks):
            raise ValueError(
                "`MultiLogger` got a logger twice, once inside another `MultiLogger`. Give it once."
            )
        self._start(branches, callbacks)

    def _end(self, status: str) -> None:
        try:
            super()._end(status)
        finally:
            for callback in self._callbacks:
                if isinstance(callback, ProgressLogger):
                    callback.close()

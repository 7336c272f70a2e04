"""`MultiLogger`: several loggers as one."""

from __future__ import annotations

from typing import Any

from logax._support.messages import describe_value
from logax.loggers._core.logger import Logger
from logax.loggers.progress import ProgressLogger


class MultiLogger(Logger):
    """Send all runs and records to several loggers.

        logger = MultiLogger(SaveLogger("runs"), ConsoleLogger())

    A run has the same id everywhere. Each logger keeps its own `lanes`. A logger that fails does
    not affect the others. Callbacks, as `tap` takes them, and `ProgressLogger` may be among them:
    they receive each record as it arrives. Closing a `MultiLogger` closes all of its loggers.

    Args:
      *loggers: Loggers and callbacks.

    Raises:
      TypeError: An argument is neither a logger nor a callback.
      ValueError: A logger is given twice, or is closed.
    """

    def __init__(self, *loggers: Any) -> None:
        sink_workers, callbacks = [], []
        for position, logger in enumerate(loggers):
            if any(logger is other for other in loggers[:position]):
                raise ValueError(f"`MultiLogger` got {describe_value(logger)} twice. Give it once.")
            if isinstance(logger, Logger):
                logger._check_open()
                sink_workers += logger._sink_workers
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
                    "`MultiLogger` takes loggers and callbacks, and got "
                    f"{describe_value(logger)} at position {position}. {advice}"
                )
        if len({id(each) for each in [*sink_workers, *callbacks]}) < len(sink_workers) + len(
            callbacks
        ):
            raise ValueError(
                "`MultiLogger` got a logger twice, once inside another `MultiLogger`. Give it once."
            )
        self._start(sink_workers, callbacks)

    def _end(self, status: str) -> None:
        try:
            super()._end(status)
        finally:
            for callback in self._callbacks:
                if isinstance(callback, ProgressLogger):
                    callback.close()

"""`CallbackLogger`: a function as a destination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logax._delivery.record_batch import RecordBatch, RunRecord
from logax._support.messages import add_note, describe_value
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class CallbackLogger(Logger):
    """Call a function with each record of each run.

        def show(record):
            print(record.stream.run.name, record.steps["step"], record.values["loss"])

        logger = CallbackLogger(show)

    A `RunRecord` holds the stream with its run, the values and the steps. Records arrive in order,
    about twice per second. The function runs on the delivery thread: it may be slow, call JAX, and
    raise. An error does not keep later records from the function.

    Args:
      function: Function of a `RunRecord`.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      TypeError: `function` is not callable.
    """

    def __init__(self, function: Callable[[RunRecord], Any], *, lanes: str = "split") -> None:
        if not callable(function):
            raise TypeError(
                "`CallbackLogger` takes a function of a record, and got "
                f"{describe_value(function)}. "
                "Write `CallbackLogger(lambda record: print(record.values))`."
            )
        super().__init__(_CallbackSink(function), lanes=lanes)


class _CallbackSink(Sink):
    def __init__(self, function: Callable[[RunRecord], Any]) -> None:
        self._function = function

    def write(self, batch: RecordBatch) -> None:
        failed, first = 0, None
        for record in batch.records():
            try:
                self._function(record)
            except BaseException as error:  # noqa: BLE001 - later records must be delivered
                failed, first = failed + 1, error if first is None else first
        if first is not None:
            add_note(first, f"It raised for {failed} of {batch.number} records.")
            raise first

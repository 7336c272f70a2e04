"""A function as a destination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logax._delivery.record_batch import RecordBatch, RunRecord
from logax._support.messages import add_note, received
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class CallbackLogger(Logger):
    """Calls a function with each record: its stream with the run, its values, its steps.

        def show(record):
            print(record.stream.run.name, record.steps["step"], record.values["loss"])

        logger = CallbackLogger(show)

    Records come about twice a second, in order. The function runs on the thread of delivery and may
    take its time, call JAX, and fail.

    Args:
      function: Called with a `RunRecord`.
      lanes: What becomes of seeds: "split", "aggregate" or "group".

    Raises:
      TypeError: `function` cannot be called.
    """

    def __init__(self, function: Callable[[RunRecord], Any], *, lanes: str = "split") -> None:
        if not callable(function):
            raise TypeError(
                f"`CallbackLogger` takes a function of a record, and got {received(function)}. "
                "Write `CallbackLogger(lambda record: print(record.values))`."
            )
        super().__init__(_Calls(function), lanes=lanes)


class _Calls(Sink):
    def __init__(self, function: Callable[[RunRecord], Any]) -> None:
        self._function = function

    def write(self, portion: RecordBatch) -> None:
        failed, first = 0, None
        for record in portion.records():
            try:
                self._function(record)
            except BaseException as error:  # noqa: BLE001 - the other records must have theirs
                failed, first = failed + 1, error if first is None else first
        if first is not None:
            add_note(first, f"It raised for {failed} of {portion.number} records.")
            raise first

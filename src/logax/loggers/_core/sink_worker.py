"""Pass runs and records to one sink of a logger, on the right thread, and store its errors.

A sink that fails stops nothing else. `logax.flush()` and the next call of the logger raise the
error, with the number of lost records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from logax._delivery.control import register_worker
from logax._delivery.errors import DeliveryError, delivery_errors
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._delivery.worker import Worker, worker
from logax._runs.errors import RefusedRunsError, RunsWriteError
from logax._support.messages import describe_error
from logax.loggers._core.aggregation import aggregate_lanes
from logax.loggers._core.registry import OpenRun
from logax.loggers.sink import Sink


class SinkWorker:
    """Passes runs and records to one sink, and calls its methods on one thread.

    Args:
      sink: The sink.
      name: Public name of the logger.
      lanes: Treatment of lanes: "split", "aggregate" or "group".
      network: True if the sink waits for a network, and so needs a separate thread.
    """

    def __init__(self, sink: Sink, name: str, lanes: str, network: bool) -> None:
        self.sink, self.name, self.lanes = sink, name, lanes
        self.users = 0  # number of loggers: its own, and each `MultiLogger` that contains it
        self._open: dict[RunInfo, int] = {}
        self._refusals: dict[RunInfo, _Refusal] = {}  # of runs that will not be opened
        self._streams: dict[int, tuple[Any, tuple[Stream, ...]]] = {}
        self._worker: Worker | None = None
        if network:
            self._worker = Worker(f"logax-{name}", short_turns=False)
            register_worker(self._worker)

    def open(self, runs: Sequence[OpenRun]) -> None:
        """Open runs."""
        self._submit(self._open_runs, [run.info(self.lanes) for run in runs])

    def write(self, batches: Sequence[RecordBatch]) -> None:
        """Write batches, and flush the sink."""
        self._submit(self._write_batches, batches, held=batches)

    def close(self, runs: Sequence[OpenRun], status: str) -> None:
        """Close runs."""
        self._submit(self._close_runs, [run.info(self.lanes) for run in runs], status)

    def end(self) -> None:
        """Remove one of the loggers that use the sink; after the last one, end the sink."""
        self.users -= 1
        if self.users:
            return
        self._submit(self._end_sink)
        if self._worker is not None:
            self._worker.stop()

    def settle(self) -> None:
        """Flush the sink again if it still holds records that an earlier flush could not write."""
        if self.sink.has_unsafe:
            self._submit(self._flush)

    def check(self) -> None:
        """Raise the errors of the sink that no call has raised yet."""
        delivery_errors.raise_pending(self)
        for refusal in dict.fromkeys(list(self._refusals.values())):
            delivery_errors.raise_pending(refusal)

    def _submit(
        self, job: Callable[..., Any], *arguments: Any, held: Sequence[RecordBatch] = ()
    ) -> None:
        if self._worker is None:
            job(*arguments)
        else:
            self._worker.put(sum(map(_num_bytes, held)), job, *arguments)

    def _open_runs(self, runs: Sequence[RunInfo]) -> None:
        new = []
        for run in runs:
            if run not in self._open:
                new.append(run)
            self._open[run] = self._open.get(run, 0) + 1
        if not new:
            return
        try:
            self.sink.open(new)
        except RefusedRunsError as error:
            self._refuse(error.runs, error.reason)
        except BaseException as error:  # noqa: BLE001 - raised by the next call
            if self.sink.opens_later:
                self._fail("open", 0, error)
            else:
                self._refuse(new, error)
            return
        self._flush()

    def _refuse(self, runs: Sequence[RunInfo], error: BaseException) -> None:
        """Report runs that could not be opened, and from now on their lost records."""
        refusal = _Refusal(self.name, runs, error)
        self._refusals |= dict.fromkeys(runs, refusal)
        refusal.report(0)

    def _write_batches(self, batches: Sequence[RecordBatch]) -> None:
        written = 0
        for batch in batches:
            for part in self._for_sink(batch):
                part = self._of_open_runs(part)
                if part.streams and self._try("write to", part.number, self.sink.write, part):
                    written += part.number
        self._flush(written)

    def _flush(self, records: int = 0) -> None:
        self._try("flush", records, self.sink.flush)

    def _end_sink(self) -> None:
        self._try("end", 0, self.sink.end, is_final=True)

    def _of_open_runs(self, batch: RecordBatch) -> RecordBatch:
        """Return the batch without runs that could not be opened, and report their lost records."""
        if not self._refusals:
            return batch
        kept: list[int] = []
        lost: dict[_Refusal, list[int]] = {}
        for number, stream in enumerate(batch.streams):
            refusal = self._refusals.get(stream.run)
            (kept if refusal is None else lost.setdefault(refusal, [])).append(number)
        for refusal, numbers in lost.items():
            refusal.report(batch.only(numbers).number)
        return batch.only(kept)

    def _for_sink(self, batch: RecordBatch) -> Iterable[RecordBatch]:
        """Return the batch with the runs and lanes that the sink sees."""
        known = self._streams.get(id(batch.streams))
        if known is None or known[0] is not batch.streams:
            own = tuple(map(self._sink_stream, batch.streams))
            if len(self._streams) > _MAX_CACHED_STREAM_SETS:
                self._streams.clear()
            known = self._streams[id(batch.streams)] = (batch.streams, own)
        streams = known[1]
        if self.lanes == "aggregate" or not self.sink.takes_lanes:
            return aggregate_lanes(batch, [stream.run for stream in streams])
        return [dataclasses.replace(batch, streams=streams)]

    def _sink_stream(self, stream: Stream) -> Stream:
        run: Any = stream.run  # an `OpenRun` so far: each sink treats lanes its own way
        return stream._replace(run=run.info(self.lanes))

    def _close_runs(self, runs: Sequence[RunInfo], status: str) -> None:
        closed = []
        for run in runs:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]
                closed.append(run)
        opened = [run for run in closed if self._refusals.pop(run, None) is None]
        if opened:
            self._try("close", 0, self.sink.close, opened, status)
            self._flush()
        self._streams.clear()  # its entries keep runs alive

    def _try(
        self,
        what: str,
        records: int,
        job: Callable[..., Any],
        *arguments: Any,
        is_final: bool = False,
    ) -> bool:
        current = self._worker or worker
        current.running = (f"`{self.name}`, at", job)
        try:
            job(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised by the next call
            self._fail(what, records, error, is_final)
            return False
        finally:
            current.running = None
        return True

    def _fail(self, what: str, records: int, error: BaseException, is_final: bool = False) -> None:
        records = getattr(error, "records_lost", records)  # if the sink knows the number
        # The message of a RunsWriteError states the loss.
        states_loss = not records or isinstance(error, RunsWriteError)
        lost = "" if states_loss else f" {records} records may be lost."
        message = f"`{self.name}` could not {what} its runs: {describe_error(error)}{lost}"
        failure = DeliveryError(message)
        failure.__cause__ = error
        delivery_errors.add(self, failure, records=records, is_final=is_final)


class _Refusal:
    """Runs that one call of `open` could not open, and the number of records that they lost.

    Args:
      name: Name of the logger.
      runs: The runs.
      error: The error of the sink.
    """

    def __init__(self, name: str, runs: Sequence[RunInfo], error: BaseException) -> None:
        which = f"run {runs[0].name}"
        if len(runs) > 1:
            which = f"runs {runs[0].name} and {len(runs) - 1} more"
        self._message = f"`{name}` could not open the {which}: {describe_error(error)}"
        self._error, self._lost = error, 0

    def report(self, records: int) -> None:
        """Count lost records; the next `flush` raises an error with their total number."""
        self._lost += records
        lost = f" Number of records lost with it so far: {self._lost}." if self._lost else ""
        failure = DeliveryError(f"{self._message}{lost}")
        failure.__cause__ = self._error
        delivery_errors.add(self, failure, records=records, is_final=True)


_MAX_CACHED_STREAM_SETS = 256


def _num_bytes(batch: RecordBatch) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in batch.leaves.values())

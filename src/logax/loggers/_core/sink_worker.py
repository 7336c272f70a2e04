"""Hand runs and records to one sink of a logger, on the right thread, and keep its errors.

A sink that fails stops nothing else. `logax.flush()` and the next call of the logger raise the
error, with the number of records that were lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from logax._delivery.control import drained_by_flush
from logax._delivery.errors import DeliveryError, troubles
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._delivery.worker import Worker, worker
from logax._runs.errors import RefusedRunsError, RunsWriteError
from logax._support.messages import described
from logax.loggers._core.aggregation import folded
from logax.loggers._core.registry import LiveRun
from logax.loggers.sink import Sink


class Branch:
    """Passes runs and records on to one sink.

    Args:
      sink: The sink.
      name: Public name of the logger.
      lanes: Treatment of seeds: "split", "aggregate" or "group".
      network: True if the sink waits for others, and so has a thread of its own.
    """

    def __init__(self, sink: Sink, name: str, lanes: str, network: bool) -> None:
        self.sink, self.name, self.lanes = sink, name, lanes
        self.users = 0  # number of loggers: one, and each `MultiLogger` that it is in
        self._open: dict[RunInfo, int] = {}
        self._refusals: dict[RunInfo, _Refusal] = {}  # of runs that will not be opened
        self._streams: dict[int, tuple[Any, tuple[Stream, ...]]] = {}
        self._worker: Worker | None = None
        if network:
            self._worker = Worker(f"logax-{name}", short_turns=False)
            drained_by_flush(self._worker)

    def open(self, runs: Sequence[LiveRun]) -> None:
        """Runs begin."""
        self._do(self._opened, [run.info(self.lanes) for run in runs])

    def write(self, portions: Sequence[RecordBatch]) -> None:
        """Hand over what has come, and have it made safe."""
        self._do(self._written, portions, held=portions)

    def close(self, runs: Sequence[LiveRun], status: str) -> None:
        """Runs have ended."""
        self._do(self._closed, [run.info(self.lanes) for run in runs], status)

    def end(self) -> None:
        """One of the loggers that use it sends nothing more; after the last of them it ends."""
        self.users -= 1
        if self.users:
            return
        self._do(self._ended)
        if self._worker is not None:
            self._worker.stop()

    def settle(self) -> None:
        """Try again to make safe what the sink could not; a `flush` then fails until that is."""
        if self.sink.has_unsafe:
            self._do(self._flush)

    def check(self) -> None:
        """Raise errors that nobody has seen yet."""
        troubles.tell(self)
        for refusal in dict.fromkeys(list(self._refusals.values())):
            troubles.tell(refusal)

    def _do(
        self, job: Callable[..., Any], *arguments: Any, held: Sequence[RecordBatch] = ()
    ) -> None:
        if self._worker is None:
            job(*arguments)
        else:
            self._worker.put(sum(map(_size, held)), job, *arguments)

    def _opened(self, runs: Sequence[RunInfo]) -> None:
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
        except BaseException as error:  # noqa: BLE001 - raised where somebody asks next
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

    def _written(self, portions: Sequence[RecordBatch]) -> None:
        written = 0
        for portion in portions:
            for part in self._addressed(portion):
                part = self._of_open_runs(part)
                if part.streams and self._try("write to", part.number, self.sink.write, part):
                    written += part.number
        self._flush(written)

    def _flush(self, records: int = 0) -> None:
        self._try("flush", records, self.sink.flush)

    def _ended(self) -> None:
        self._try("end", 0, self.sink.end, is_final=True)

    def _of_open_runs(self, portion: RecordBatch) -> RecordBatch:
        """Return the portion without runs that could not be opened; count the records of those."""
        if not self._refusals:
            return portion
        kept: list[int] = []
        lost: dict[_Refusal, list[int]] = {}
        for number, stream in enumerate(portion.streams):
            refusal = self._refusals.get(stream.run)
            (kept if refusal is None else lost.setdefault(refusal, [])).append(number)
        for refusal, numbers in lost.items():
            refusal.report(portion.only(numbers).number)
        return portion.only(kept)

    def _addressed(self, portion: RecordBatch) -> Iterable[RecordBatch]:
        """The portion with the runs as the sink knows them, and lanes as it takes them."""
        known = self._streams.get(id(portion.streams))
        if known is None or known[0] is not portion.streams:
            own = tuple(map(self._known, portion.streams))
            if len(self._streams) > _MAX_STREAM_SETS:
                self._streams.clear()
            known = self._streams[id(portion.streams)] = (portion.streams, own)
        streams = known[1]
        if self.lanes == "aggregate" or not self.sink.takes_lanes:
            return folded(portion, [stream.run for stream in streams])
        return [dataclasses.replace(portion, streams=streams)]

    def _known(self, stream: Stream) -> Stream:
        run: Any = stream.run  # until here a `LiveRun`, whose lanes are undecided
        return stream._replace(run=run.info(self.lanes))

    def _closed(self, runs: Sequence[RunInfo], status: str) -> None:
        over = []
        for run in runs:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]
                over.append(run)
        opened = [run for run in over if self._refusals.pop(run, None) is None]
        if opened:
            self._try("close", 0, self.sink.close, opened, status)
            self._flush()
        self._streams.clear()  # which keep runs

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
        except BaseException as error:  # noqa: BLE001 - told to whoever asks next
            self._fail(what, records, error, is_final)
            return False
        finally:
            current.running = None
        return True

    def _fail(self, what: str, records: int, error: BaseException, is_final: bool = False) -> None:
        records = getattr(error, "records_lost", records)  # where the sink knows better
        # The message of a RunsWriteError says what became of the records.
        says_loss = not records or isinstance(error, RunsWriteError)
        lost = "" if says_loss else f" {records} records may be lost."
        told = f"`{self.name}` could not {what} its runs: {described(error)}{lost}"
        failure = DeliveryError(told)
        failure.__cause__ = error
        troubles.failed(self, failure, records=records, is_final=is_final)


class _Refusal:
    """Runs that one call of `open` could not open, and the number of records that they lost.

    Args:
      name: Name of the logger.
      runs: The runs.
      error: The error that says why.
    """

    def __init__(self, name: str, runs: Sequence[RunInfo], error: BaseException) -> None:
        which = f"run {runs[0].name}"
        if len(runs) > 1:
            which = f"runs {runs[0].name} and {len(runs) - 1} more"
        self._message = f"`{name}` could not open the {which}: {described(error)}"
        self._error, self._lost = error, 0

    def report(self, records: int) -> None:
        """Count lost records; the error that `flush` raises next names all of them."""
        self._lost += records
        lost = f" Number of records lost with it so far: {self._lost}." if self._lost else ""
        failure = DeliveryError(f"{self._message}{lost}")
        failure.__cause__ = self._error
        troubles.failed(self, failure, records=records, is_final=True)


_MAX_STREAM_SETS = 256


def _size(portion: RecordBatch) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in portion.leaves.values())

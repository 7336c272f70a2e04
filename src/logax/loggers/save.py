"""`SaveLogger`: runs on disk, for `logax.load`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._runs.format import RUNNING
from logax._runs.runs import Runs
from logax._runs.runs_writer import RunsWriter
from logax._support.files import make_writable_folder
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class SaveLogger(Logger):
    """Save runs on disk, in a folder that `logax.load` reads, even while it is written.

        logger = SaveLogger("runs")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

        logax.load("runs").find("first")["loss"]

    Each process writes its own SQLite file, so any number of processes may share a folder; a forked
    process starts another file. Records are flushed about twice per second, and then survive any
    end of the process. If the disk is full, the error states which records are safe; the others
    wait in memory, and are written when there is space.

    Args:
      path: The folder. It is created if it does not exist, with its parents.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      NotADirectoryError: `path` is a file.
      PermissionError: The folder is not writable.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(SaveSink(path), lanes=lanes)


class SaveSink(Sink):
    """The sink of `SaveLogger`."""

    opens_later = True  # the writer tries again with the next records

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = make_writable_folder("SaveLogger", "path", path)
        self._writer = RunsWriter("SaveLogger", self.path, clock)

    @property
    def has_unsafe(self) -> bool:  # type: ignore[override]
        """True while records wait in memory."""
        return self._writer.has_unsafe

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Write the metadata of the runs; `RefusedRunsError` names those that others write."""
        self._writer.open(runs)

    def write(self, batch: RecordBatch) -> None:
        """Write records, which are durable after `flush`."""
        self._writer.write(batch)

    def flush(self) -> None:
        """Make all records durable, and visible to readers."""
        self._writer.flush()

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write the status of the runs."""
        self._writer.close(runs, status)

    def end(self) -> None:
        """Leave one complete file."""
        self._writer.end()

    def known_runs(self) -> KnownRuns:
        """Return all runs of the folder."""
        runs = Runs(self.path, follow=False)
        running = {run for run, status in runs.statuses().items() if status == RUNNING}
        return KnownRuns(self.path, runs.names(), running)

    def claim(self, ids: Sequence[str]) -> None:
        """Prevent other processes from resuming these runs."""
        self._writer.claim(ids)

    def release(self, ids: Sequence[str]) -> None:
        """Allow other processes to resume these runs."""
        self._writer.release(ids)

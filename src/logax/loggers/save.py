"""Runs on disk: `SaveLogger`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._runs.format import RUNNING
from logax._runs.runs import Runs
from logax._runs.writer import Writer
from logax._support.files import writable_folder
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class SaveLogger(Logger):
    """Keeps runs on disk, in a folder that `logax.load` reads, also while it is being written.

        logger = SaveLogger("runs")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

        logax.load("runs").find("first")["loss"]

    Each process writes one SQLite file of its own, so that any number of them may share a folder;
    one that is forked makes another. What was flushed, about twice a second, survives whatever
    happens to the process. Where the disk is full the error says what is safe; the rest waits in
    memory, and is written when there is room.

    Args:
      path: The folder. It is made, with those above it, if it is not there.
      lanes: What becomes of seeds; see `Logger`.

    Raises:
      NotADirectoryError: `path` is a file.
      PermissionError: The folder may not be written to.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(SaveSink(path), lanes=lanes)


class SaveSink(Sink):
    """The folder of a `SaveLogger`."""

    opens_later = True  # the writer does, with what comes next

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = writable_folder("SaveLogger", "path", path)
        self._writer = Writer("SaveLogger", self.path, clock)

    @property
    def has_unsafe(self) -> bool:  # type: ignore[override]
        """Whether records wait in memory."""
        return self._writer.has_unsafe

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Write what is known of the runs; RefusedRunsError names those that others write."""
        self._writer.open(runs)

    def write(self, portion: RecordBatch) -> None:
        """Write records; they are safe after `flush`."""
        self._writer.write(portion)

    def flush(self) -> None:
        """Make all that was written safe, and seen by readers."""
        self._writer.flush()

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write how the runs ended."""
        self._writer.close(runs, status)

    def end(self) -> None:
        """Leave one file that is whole."""
        self._writer.end()

    def known_runs(self) -> KnownRuns:
        """All runs of the folder."""
        runs = Runs(self.path, follow=False)
        running = {run for run, status in runs.statuses().items() if status == RUNNING}
        return KnownRuns(self.path, runs.names(), running)

    def claim(self, ids: Sequence[str]) -> None:
        """Keep other processes from resuming these runs."""
        self._writer.claim(ids)

    def release(self, ids: Sequence[str]) -> None:
        """Let others resume these runs."""
        self._writer.release(ids)

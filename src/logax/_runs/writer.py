"""The way of records into a folder: one writer, one file, one process.

The file is made when there is something to write. In a process that was forked, the writer lets the
file of its parent be, and makes one of its own; so it does where somebody has removed its file.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from logax._runs.claims import Claims, taken_error
from logax._runs.errors import RefusedRunsError
from logax._runs.file import RunsFile
from logax._runs.journal import Entry
from logax._runs.packed import Layouts, Packed

if TYPE_CHECKING:
    from logax.loggers.sink import Portion, RunInfo


class Writer:
    """Writes runs to a new file in a folder, in the order of calls. Not for several threads.

    Its methods raise an OSError where the disk refuses.

    Args:
      name: Public name of the logger or function that writes.
      folder: The folder.
      clock: Returns the wall time, in seconds since the epoch. Times are information only: nothing
        depends on their order.
    """

    def __init__(self, name: str, folder: str, clock: Callable[[], float] = time.time) -> None:
        self._name, self._folder, self._clock = name, folder, clock
        self._claims = Claims(folder)
        self._sequences: weakref.WeakKeyDictionary[RunInfo, int] = weakref.WeakKeyDictionary()
        self._file: RunsFile | None = None
        self._running: dict[RunInfo, None] = {}
        self._layouts = Layouts()
        self._ended: list[str] = []  # resumed runs, whose ends are not safe yet

    @property
    def has_unsafe(self) -> bool:
        """True if records wait in memory that the disk has refused."""
        file = self._file
        return file is not None and not self._is_of_parent() and file.journal.has_entries

    def claim(self, ids: Sequence[str]) -> None:
        """Claim runs that are to be resumed; on any thread. See `Claims.take`."""
        self._claims.take(ids)

    def release(self, ids: Sequence[str]) -> None:
        """Give up claims on runs that are not resumed after all; on any thread."""
        self._claims.release(ids)

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Begin runs.

        Raises:
          RefusedRunsError: Another process has resumed some of them, or they cannot be claimed. All
            others are open.
        """
        if self._is_of_parent():
            self._abandon()
        refused = self._claim_resumed([run for run in runs if run.resumed])
        if refused is None:
            self._add_open(runs)
            return
        try:
            self._add_open([run for run in runs if run not in refused.runs])
        except OSError as error:  # these runs wait in memory; the next write raises it again
            raise refused from error
        raise refused from refused.reason

    def write(self, portion: Portion) -> None:
        """Take records."""
        if not portion.values or not portion.streams:
            return
        packed = Packed(portion, *self._layouts.of(portion), self._clock())
        file = self._own()
        do = functools.partial(file.add_portion, packed)
        file.journal.add(Entry(do, packed.number, packed.size))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """End runs."""
        file = self._own()
        for run in runs:
            self._running.pop(run, None)
        do = functools.partial(file.add_ends, tuple(runs), self._clock(), status)
        self._ended += [run.id for run in runs if run.resumed]
        file.journal.add(Entry(do))

    def flush(self) -> None:
        """Make all of it safe."""
        self._commit(is_last=False)

    def end(self) -> None:
        """Leave a file that is whole, and nothing beside it, whatever the disk refuses."""
        try:
            self._commit(is_last=True)
        finally:
            self._claims.release_all()
            if self._file is not None and not self._is_of_parent():
                file, self._file = self._file, None
                file.end()

    def _commit(self, is_last: bool) -> None:
        file = self._file
        if file is None or self._is_of_parent():
            return
        file.journal.commit(is_last)
        if self._ended:  # others may resume them as soon as their end can be read
            self._claims.release(self._ended)
            self._ended = []
        if not file.is_there():
            self._replace(file)

    def _own(self) -> RunsFile:
        """The file of this process."""
        if self._is_of_parent():
            self._abandon()
        if self._file is None:
            self._file = RunsFile(self._name, self._folder, self._clock, self._sequences)
            self._add_runs(self._file, self._running)
        return self._file

    def _is_of_parent(self) -> bool:
        return self._file is not None and self._file.process != os.getpid()

    def _abandon(self) -> None:
        self._file = None
        self._running.clear()  # those are for the other process to end
        self._claims = Claims(self._folder)

    def _claim_resumed(self, runs: Sequence[RunInfo]) -> RefusedRunsError | None:
        """Claim resumed runs; return the error that names those which cannot be resumed."""
        try:
            taken = self._claims.take_free([run.id for run in runs])
        except (OSError, ValueError) as error:
            return RefusedRunsError(runs, error)
        for run in runs:
            if run.id not in taken:
                self._sequences[run] = self._claims.sequence(run.id)
        refused = [run for run in runs if run.id in taken]
        return RefusedRunsError(refused, taken_error(taken)) if refused else None

    def _add_open(self, runs: Sequence[RunInfo]) -> None:
        if not runs:
            return
        new = dict.fromkeys(runs)
        is_new = self._file is None
        self._running |= new
        self._add_runs(self._own(), () if is_new else new)  # a new file has them already

    def _add_runs(self, file: RunsFile, runs: Iterable[RunInfo]) -> None:
        now = self._clock()
        for run in runs:
            file.journal.add(Entry(functools.partial(file.add_run, run, now)))

    def _replace(self, lost: RunsFile) -> None:
        """Go on in a new file, and say so."""
        lost.close()
        self._file = None
        file = self._own()
        file.journal.commit()
        raise FileNotFoundError(
            f"`{self._name}` wrote to {lost.path}, which somebody has removed. The "
            f"{lost.journal.safe} records in it are lost; what comes now goes to {file.path}."
        )

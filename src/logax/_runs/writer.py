"""A file that is being written: the rows that go into it.

The way of records into a folder: one writer, one file, one process.

The file is made when there is something to write. In a process that was forked, the writer lets the
file of its parent be, and makes one of its own; so it does where somebody has removed its file.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import json
import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from logax._runs.claims import Claims, taken_error
from logax._runs.config_json import as_json
from logax._runs.database import end, make
from logax._runs.encoding import Layouts, Packed
from logax._runs.errors import RefusedRunsError
from logax._runs.format import CHUNK, COUNTED, SUFFIX, block_checksums, row_checksum
from logax._runs.journal import Entry, Journal, Numbers
from logax._runs.locks import Progress, writer_lock

if TYPE_CHECKING:
    from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
    from logax._runs.encoding import Packed


class RunsFile:
    """A new file in a folder, which is made if it is not there.

    Args:
      name: Who writes, as users know it.
      folder: Where to.
      clock: Returns the wall time, in seconds since the epoch.
      sequences: Sequence number of each run that was opened by the writer.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        clock: Callable[[], float],
        sequences: MutableMapping[RunInfo, int],
    ) -> None:
        self.process, self._clock, self._commits = os.getpid(), clock, 0
        # Elsewhere there is one process, and JAX need not start a backend to say so.
        self._index = jax.process_index() if jax.distributed.is_initialized() else 0
        os.makedirs(folder, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
        own = f"{stamp}-{self.process}-{secrets.token_hex(6)}{SUFFIX}"
        self.path = os.path.join(os.path.abspath(folder), own)
        self._lock = writer_lock(self.path)
        try:
            self._connection = make(self.path)
        except sqlite3.Error as error:
            self._lock.release()
            raise OSError(
                f"`{name}` could not make a file in {folder}: {error}. Nothing was written; "
                "it tries again with what comes next."
            ) from error
        except BaseException:
            self._lock.release()
            raise
        self._identity = os.stat(self.path).st_ino
        self._sequences = sequences
        self._runs: Numbers[RunInfo] = Numbers()
        self._families: Numbers[tuple[Stream, ...]] = Numbers()
        self._layouts: Numbers[str] = Numbers()
        self._texts: Numbers[bytes] = Numbers()
        self._family_numbers = itertools.count(1)
        numbers = (self._runs, self._families, self._layouts, self._texts)
        self.journal = Journal(
            name, self._connection, self.path, numbers, self._count_rows, self._note_commit
        )
        _written.add(self)

    def add_run(self, run: RunInfo, opened: float, guest: bool = False) -> int:
        """Add a row for a run that begins, goes on, or was begun in another process."""
        content = {
            "id": run.id,
            "name": run.name,
            "group": run.group,
            "lane": run.lane,
            "lanes": run.lanes,
            "began": float(run.began),
            "resumed": run.resumed,
        }
        number = self._insert(
            "runs",
            self._sequences.get(run, 0),
            float(opened),
            int(guest),
            json.dumps(content),
            self._text(as_json(run.config)),
            self._text(as_json(run.machine)),
        )
        self._runs[run] = number
        return number

    def add_ends(self, runs: Sequence[RunInfo], ended: float, status: str) -> None:
        """Add rows for runs that have ended."""
        for number in [self._run(run) for run in runs]:
            self._insert("ends", number, float(ended), status)
        over = set(runs)
        for run in over:
            self._runs.forget(run)
        for family in self._families:
            if any(stream.run in over for stream in family):
                self._families.forget(family)

    def add_portion(self, packed: Packed) -> None:
        """Add rows for records."""
        family = self._family(packed.streams)
        layout = self._layouts.get(packed.layout)
        if layout is None:
            layout = self._insert("layouts", packed.layout)
            self._layouts[packed.layout] = layout
        first = 0
        for array in packed.alone:
            for start in range(0, len(array), CHUNK):
                number = self._insert_data("blobs", array[start : start + CHUNK])
                first = first or number
        self._insert_data(
            "portions",
            packed.shared,
            family,
            layout,
            len(packed.streams),
            packed.records,
            int(packed.ragged),
            packed.alike,
            first,
            float(packed.arrived),
            self._index,
            packed.statistics,
        )

    def is_there(self) -> bool:
        """Whether nobody has removed it."""
        try:
            return os.stat(self.path).st_ino == self._identity
        except OSError:
            return False

    def end(self) -> None:
        """Leave it whole, with nothing beside it."""
        try:
            end(self._connection)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of it as it is."""
        self._connection.close()
        self._lock.release()

    def abandon(self) -> None:
        """Leave it to the process that this one was forked from.

        SQLite must not even close it here, and so Python must never come to that.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    def _run(self, run: RunInfo) -> int:
        number = self._runs.get(run)
        if number is not None:
            return number
        return self.add_run(run, self._clock(), guest=True)

    def _family(self, streams: tuple[Stream, ...]) -> int:
        number = self._families.get(streams)
        if number is not None:
            return number
        number = next(self._family_numbers)
        for place, stream in enumerate(streams):
            run = self._run(stream.run)
            self._insert("streams", run, number, place, json.dumps(stream.lane), stream.shard)
        self._families[streams] = number
        return number

    def _text(self, content: str) -> int:
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        number = self._texts.get(digest)
        if number is None:
            number = self._texts[digest] = self._insert("texts", content)
        return number

    def _count_rows(self, records: int) -> None:
        """Write the tally, with which readers see that rows are missing."""
        counts = [self._last(table) for table in COUNTED]
        row = (1, self._commits + 1, records, *counts)
        marks = ", ".join("?" * (len(row) + 1))
        self._connection.execute(
            f"INSERT OR REPLACE INTO tally VALUES ({marks})", (*row, row_checksum("tally", *row))
        )

    def _note_commit(self) -> None:
        self._commits += 1
        self._lock.note(Progress(self._commits, self.journal.safe))

    def _last(self, table: str) -> int:
        (number,) = self._connection.execute(f"SELECT max(number) FROM {table}").fetchone()
        return number or 0

    def _insert(self, table: str, *values: Any, data: tuple[Any, ...] = ()) -> int:
        """Add a row behind the others, with its checksum, and return its number."""
        row = (self._last(table) + 1, *values)
        row = (*row, row_checksum(table, *row), *data)
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        return int(row[0])

    def _insert_data(self, table: str, data: bytes | memoryview, *values: Any) -> int:
        return self._insert(table, *values, len(data), block_checksums(data), data=(data,))


def _forked() -> None:
    for file in list(_written):
        file.abandon()
    _written.clear()


_written: weakref.WeakSet[RunsFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
    os.register_at_fork(after_in_child=_forked)


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

    def write(self, portion: RecordBatch) -> None:
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

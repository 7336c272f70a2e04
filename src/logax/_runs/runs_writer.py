"""Write runs to a folder: one writer, one file, one process.

The writer creates its file with the first write. In a forked process it leaves the file to the
parent and creates another one; it also does so if its file was removed.
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

from logax._runs.claims import Claims, claimed_error
from logax._runs.database import create_database, finalize_database
from logax._runs.encoding import LayoutCache, encode_batch
from logax._runs.errors import RefusedRunsError
from logax._runs.format import (
    COUNTED_TABLES,
    MAX_BLOB_BYTES,
    RUNS_SUFFIX,
    block_checksums,
    row_checksum,
)
from logax._runs.journal import Journal, JournalEntry, RowNumbers
from logax._runs.lock_files import WriterProgress, create_writer_lock
from logax._serialization.plain_config import as_json

if TYPE_CHECKING:
    from logax._delivery.record_batch import RecordBatch, RunInfo, Stream


class RunsFile:
    """A new file of runs that is being written. Its folder is created if necessary.

    Args:
      name: Public name of the logger or function that writes, for errors.
      folder: Folder of the file.
      clock: Function that returns the wall time, in seconds since the epoch.
      sequences: Sequence number of each run that the writer has opened.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        clock: Callable[[], float],
        sequences: MutableMapping[RunInfo, int],
    ) -> None:
        self.process, self._clock, self._commits = os.getpid(), clock, 0
        # Without `jax.distributed` there is one process; asking JAX would start a backend.
        self._index = jax.process_index() if jax.distributed.is_initialized() else 0
        os.makedirs(folder, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
        own = f"{stamp}-{self.process}-{secrets.token_hex(6)}{RUNS_SUFFIX}"
        self.path = os.path.join(os.path.abspath(folder), own)
        self._lock = create_writer_lock(self.path)
        try:
            self._connection = create_database(self.path)
        except sqlite3.Error as error:
            self._lock.release()
            raise OSError(
                f"`{name}` could not create a file in {folder}: {error}. Nothing was written; the "
                "next write tries again."
            ) from error
        except BaseException:
            self._lock.release()
            raise
        self._identity = os.stat(self.path).st_ino
        self._sequences = sequences
        self._runs: RowNumbers[RunInfo] = RowNumbers()
        self._families: RowNumbers[tuple[Stream, ...]] = RowNumbers()
        self._layouts: RowNumbers[str] = RowNumbers()
        self._texts: RowNumbers[bytes] = RowNumbers()
        self._family_numbers = itertools.count(1)
        numbers = (self._runs, self._families, self._layouts, self._texts)
        self.journal = Journal(
            name, self._connection, self.path, numbers, self._write_tally, self._record_commit
        )
        _open_files.add(self)

    def add_run(self, run: RunInfo, opened: float, guest: bool = False) -> int:
        """Add a row for a run that begins, is resumed, or was opened by the parent of a fork."""
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
            self._text_number(as_json(run.config)),
            self._text_number(as_json(run.machine)),
        )
        self._runs[run] = number
        return number

    def add_ends(self, runs: Sequence[RunInfo], ended: float, status: str) -> None:
        """Add rows for runs that have ended."""
        for number in [self._run_number(run) for run in runs]:
            self._insert("ends", number, float(ended), status)
        over = set(runs)
        for run in over:
            self._runs.forget(run)
        for family in self._families:
            if any(stream.run in over for stream in family):
                self._families.forget(family)

    def add_batch(
        self, streams: tuple[Stream, ...], layout: str, arrived: float, encoded: Any
    ) -> None:
        """Add rows for a batch of records.

        Args:
          streams: Streams of the batch.
          layout: Layout of the records, as JSON.
          arrived: Wall time of arrival, in seconds since the epoch.
          encoded: Result of `encode_batch`.
        """
        shape, statistics, shared, alone = encoded
        family = self._family_number(streams)
        number = self._layouts.get(layout)
        if number is None:
            number = self._layouts[layout] = self._insert("layouts", layout)
        first = 0
        for array in alone:
            for start in range(0, len(array), MAX_BLOB_BYTES):
                blob = self._insert_data("blobs", array[start : start + MAX_BLOB_BYTES])
                first = first or blob
        row = (family, number, *shape, first, float(arrived), self._index, statistics)
        self._insert_data("portions", shared, *row)

    def is_current(self) -> bool:
        """Return whether the file still exists under its name."""
        try:
            return os.stat(self.path).st_ino == self._identity
        except OSError:
            return False

    def end(self) -> None:
        """Close the file so that one complete file remains, without a log or a lock file."""
        try:
            finalize_database(self._connection)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file as it is."""
        self._connection.close()
        self._lock.release()

    def abandon(self) -> None:
        """Leave the file to the parent of this forked process.

        SQLite must not close the connection here, so the reference keeps Python from closing it.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    def _run_number(self, run: RunInfo) -> int:
        number = self._runs.get(run)
        if number is not None:
            return number
        return self.add_run(run, self._clock(), guest=True)

    def _family_number(self, streams: tuple[Stream, ...]) -> int:
        number = self._families.get(streams)
        if number is not None:
            return number
        number = next(self._family_numbers)
        for place, stream in enumerate(streams):
            run = self._run_number(stream.run)
            self._insert("streams", run, number, place, json.dumps(stream.lane), stream.shard)
        self._families[streams] = number
        return number

    def _text_number(self, content: str) -> int:
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        number = self._texts.get(digest)
        if number is None:
            number = self._texts[digest] = self._insert("texts", content)
        return number

    def _write_tally(self, records: int) -> None:
        """Write the tally, which lets readers notice missing rows."""
        counts = [self._last_number(table) for table in COUNTED_TABLES]
        row = (1, self._commits + 1, records, *counts)
        marks = ", ".join("?" * (len(row) + 1))
        self._connection.execute(
            f"INSERT OR REPLACE INTO tally VALUES ({marks})", (*row, row_checksum("tally", *row))
        )

    def _record_commit(self) -> None:
        self._commits += 1
        self._lock.write_progress(WriterProgress(self._commits, self.journal.safe_records))

    def _last_number(self, table: str) -> int:
        (number,) = self._connection.execute(f"SELECT max(number) FROM {table}").fetchone()
        return number or 0

    def _insert(self, table: str, *values: Any, data: tuple[Any, ...] = ()) -> int:
        """Append a row with its checksum, and return its number."""
        row = (self._last_number(table) + 1, *values)
        row = (*row, row_checksum(table, *row), *data)
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        return int(row[0])

    def _insert_data(self, table: str, data: bytes | memoryview, *values: Any) -> int:
        return self._insert(table, *values, len(data), block_checksums(data), data=(data,))


def _abandon_after_fork() -> None:
    for file in list(_open_files):
        file.abandon()
    _open_files.clear()


_open_files: weakref.WeakSet[RunsFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
    os.register_at_fork(after_in_child=_abandon_after_fork)


class RunsWriter:
    """Writer of runs, to a new file in a folder, in the order of calls. Not thread-safe.

    All methods raise OSError if the disk refuses.

    Args:
      name: Public name of the logger or function that writes, for errors.
      folder: Folder of the file.
      clock: Function that returns the wall time, in seconds since the epoch. Times are information
        only: nothing depends on their order.
    """

    def __init__(self, name: str, folder: str, clock: Callable[[], float] = time.time) -> None:
        self._name, self._folder, self._clock = name, folder, clock
        self._claims = Claims(folder)
        self._sequences: weakref.WeakKeyDictionary[RunInfo, int] = weakref.WeakKeyDictionary()
        self._file: RunsFile | None = None
        self._running: dict[RunInfo, None] = {}
        self._layouts = LayoutCache()
        self._ended_ids: list[str] = []  # resumed runs whose ends are not committed yet

    @property
    def has_unsafe(self) -> bool:
        """True if records that the disk has refused wait in memory."""
        file = self._file
        return file is not None and not self._is_inherited() and file.journal.has_entries

    def claim(self, ids: Sequence[str]) -> None:
        """Claim runs to resume; from any thread. See `Claims.claim`."""
        self._claims.claim(ids)

    def release(self, ids: Sequence[str]) -> None:
        """Release claims on runs that are not resumed after all; from any thread."""
        self._claims.release(ids)

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Open runs.

        Raises:
          RefusedRunsError: Another process has resumed some of the runs, or they cannot be claimed.
            All others are open.
        """
        if self._is_inherited():
            self._abandon()
        refused = self._claim_resumed([run for run in runs if run.resumed])
        if refused is None:
            self._begin_runs(runs)
            return
        try:
            self._begin_runs([run for run in runs if run not in refused.runs])
        except OSError as error:  # these runs wait in memory, and the next write raises again
            raise refused from error
        raise refused from refused.reason

    def write(self, batch: RecordBatch) -> None:
        """Write a batch of records; it is safe after `flush`."""
        if not batch.values or not batch.streams:
            return
        layout, text = self._layouts.layout_of(batch)
        encoded = encode_batch(batch, layout)
        arrived = self._clock()
        file = self._current_file()
        apply = functools.partial(file.add_batch, tuple(batch.streams), text, arrived, encoded)
        *_, shared, alone = encoded
        size = len(shared) + sum(map(len, alone))
        file.journal.add(JournalEntry(apply, batch.number, size))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """End runs with a status."""
        file = self._current_file()
        for run in runs:
            self._running.pop(run, None)
        apply = functools.partial(file.add_ends, tuple(runs), self._clock(), status)
        self._ended_ids += [run.id for run in runs if run.resumed]
        file.journal.add(JournalEntry(apply))

    def flush(self) -> None:
        """Commit everything that was written."""
        self._commit(is_last=False)

    def end(self) -> None:
        """Commit and close the file, so that one complete file remains; close it also on errors."""
        try:
            self._commit(is_last=True)
        finally:
            self._claims.release_all()
            if self._file is not None and not self._is_inherited():
                file, self._file = self._file, None
                file.end()

    def _commit(self, is_last: bool) -> None:
        file = self._file
        if file is None or self._is_inherited():
            return
        file.journal.commit(is_last)
        if self._ended_ids:  # processes may resume them once they can read their ends
            self._claims.release(self._ended_ids)
            self._ended_ids = []
        if not file.is_current():
            self._replace_file(file)

    def _current_file(self) -> RunsFile:
        """Return the file of this process; create it if necessary."""
        if self._is_inherited():
            self._abandon()
        if self._file is None:
            self._file = RunsFile(self._name, self._folder, self._clock, self._sequences)
            self._add_runs(self._file, self._running)
        return self._file

    def _is_inherited(self) -> bool:
        return self._file is not None and self._file.process != os.getpid()

    def _abandon(self) -> None:
        self._file = None
        self._running.clear()  # the parent ends these
        self._claims = Claims(self._folder)

    def _claim_resumed(self, runs: Sequence[RunInfo]) -> RefusedRunsError | None:
        """Claim resumed runs; return an error that names the runs that cannot be resumed."""
        try:
            taken = self._claims.claim_available([run.id for run in runs])
        except (OSError, ValueError) as error:
            return RefusedRunsError(runs, error)
        for run in runs:
            if run.id not in taken:
                self._sequences[run] = self._claims.sequence(run.id)
        refused = [run for run in runs if run.id in taken]
        return RefusedRunsError(refused, claimed_error(taken)) if refused else None

    def _begin_runs(self, runs: Sequence[RunInfo]) -> None:
        if not runs:
            return
        new = dict.fromkeys(runs)
        is_new = self._file is None
        self._running |= new
        self._add_runs(self._current_file(), () if is_new else new)  # a new file begins with them

    def _add_runs(self, file: RunsFile, runs: Iterable[RunInfo]) -> None:
        now = self._clock()
        for run in runs:
            file.journal.add(JournalEntry(functools.partial(file.add_run, run, now)))

    def _replace_file(self, lost: RunsFile) -> None:
        """Continue in a new file, and raise an error that reports the loss."""
        lost.close()
        self._file = None
        file = self._current_file()
        file.journal.commit()
        raise FileNotFoundError(
            f"`{self._name}` wrote to {lost.path}, which was removed. The "
            f"{lost.journal.safe_records} records in it are lost; later ones go to {file.path}."
        )

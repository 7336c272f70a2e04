"""A file that is being written: the rows that go into it."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from logax._runs.checksums import block_checksums, row_checksum
from logax._runs.database import end, make
from logax._runs.format import CHUNK, COUNTED, SUFFIX
from logax._runs.journal import Journal, Numbers
from logax._runs.locks import Progress, writer_lock
from logax._runs.texts import as_json

if TYPE_CHECKING:
    from logax._runs.packed import Packed
    from logax.loggers.sink import RunInfo, Stream


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

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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from logax._runs.alive import Lock
from logax._runs.database import end, make
from logax._runs.format import CHUNK, SUFFIX
from logax._runs.journal import Journal, Numbers
from logax._runs.texts import as_json

if TYPE_CHECKING:
    from logax._runs.packed import Packed
    from logax.loggers.sink import RunInfo, Stream


class RunsFile:
    """A new file in a folder, which is made if it is not there.

    Args:
      name: Who writes, as users know it.
      folder: Where to.
    """

    def __init__(self, name: str, folder: str) -> None:
        self.process = os.getpid()
        os.makedirs(folder, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        own = f"{stamp}-{self.process}-{secrets.token_hex(6)}{SUFFIX}"
        self.path = os.path.join(os.path.abspath(folder), own)
        self._lock = Lock(self.path)
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
        self._runs: Numbers[RunInfo] = Numbers()
        self._families: Numbers[tuple[Stream, ...]] = Numbers()
        self._layouts: Numbers[str] = Numbers()
        self._texts: Numbers[bytes] = Numbers()
        self._family_numbers = itertools.count(1)
        numbers = (self._runs, self._families, self._layouts, self._texts)
        self.journal = Journal(name, self._connection, self.path, numbers)
        _written.add(self)

    def add_run(self, run: RunInfo, opened: float, guest: bool = False) -> int:
        """A row for a run that begins, goes on, or was begun in another process."""
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
            "runs (opened, guest, content, config, machine)",
            opened,
            int(guest),
            json.dumps(content),
            self._text(as_json(run.config)),
            self._text(as_json(run.machine)),
        )
        self._runs[run] = number
        return number

    def add_ends(self, runs: Sequence[RunInfo], ended: float, status: str) -> None:
        """Rows for runs that have ended."""
        numbers = [self._run(run) for run in runs]
        self._connection.executemany(
            "INSERT INTO ends (run, ended, status) VALUES (?, ?, ?)",
            [(number, ended, status) for number in numbers],
        )
        over = set(runs)
        for run in over:
            self._runs.forget(run)
        for family in self._families:
            if any(stream.run in over for stream in family):
                self._families.forget(family)

    def add_portion(self, packed: Packed) -> None:
        """Rows for records."""
        family = self._family(packed.streams)
        layout = self._layouts.get(packed.layout)
        if layout is None:
            layout = self._insert("layouts (content)", packed.layout)
            self._layouts[packed.layout] = layout
        first = 0
        for array in packed.alone:
            for start in range(0, len(array), CHUNK):
                number = self._insert("blobs (data)", array[start : start + CHUNK])
                first = first or number
        self._insert(
            "portions (family, layout, streams, records, ragged, alike, blob, written, data)",
            family,
            layout,
            len(packed.streams),
            packed.records,
            int(packed.ragged),
            packed.alike,
            first,
            time.time(),
            packed.shared,
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
        self._lock.let_go()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))

    def _run(self, run: RunInfo) -> int:
        number = self._runs.get(run)
        return self.add_run(run, time.time(), guest=True) if number is None else number

    def _family(self, streams: tuple[Stream, ...]) -> int:
        number = self._families.get(streams)
        if number is not None:
            return number
        number = next(self._family_numbers)
        rows = [
            (self._run(stream.run), number, place, json.dumps(stream.lane), stream.shard)
            for place, stream in enumerate(streams)
        ]
        self._connection.executemany(
            "INSERT INTO streams (run, family, place, lane, shard) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._families[streams] = number
        return number

    def _text(self, content: str) -> int:
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        number = self._texts.get(digest)
        if number is None:
            number = self._texts[digest] = self._insert("texts (content)", content)
        return number

    def _insert(self, table: str, *values: Any) -> int:
        marks = ", ".join("?" * len(values))
        cursor = self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)
        return int(cursor.lastrowid or 0)


def _forked() -> None:
    for file in list(_written):
        file.abandon()
    _written.clear()


_written: weakref.WeakSet[RunsFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
    os.register_at_fork(after_in_child=_forked)

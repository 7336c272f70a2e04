"""Journal of uncommitted writes, so that a full disk loses as few records as possible.

Each write is an entry. The journal applies it at once, in a transaction of SQLite, and keeps it in
memory until the transaction is committed. If the disk refuses, the journal rolls back all entries
since the last commit, and applies them again together with the next entry, until they succeed. It
keeps at most `_MAX_PENDING_BYTES`; entries beyond that are refused, and their records are counted
and reported as lost.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from logax._runs.errors import RunsWriteError

K = TypeVar("K", bound=Hashable)
_MAX_PENDING_BYTES = 2**28
_AUTO_COMMIT_BYTES = 2**25  # the journal commits without a flush once it holds this much


class JournalEntry(NamedTuple):
    """A write.

    Attributes:
      apply: Function that adds the rows to the current transaction.
      records: Number of records that it writes.
      size: Number of bytes that it keeps in memory.
    """

    apply: Callable[[], Any]
    records: int = 0
    size: int = 0


class RowNumbers(Generic[K]):
    """Numbers of rows that are written once and that other rows refer to."""

    def __init__(self) -> None:
        self._safe: dict[K, int] = {}
        self._new: dict[K, int] = {}
        self._forgotten: list[K] = []

    def get(self, key: K) -> int | None:
        """Return the number of a row; None if it was not written."""
        number = self._safe.get(key)
        return self._new.get(key) if number is None else number

    def __setitem__(self, key: K, number: int) -> None:
        self._new[key] = number

    def commit(self) -> None:
        """Keep the rows of the current transaction, and drop the forgotten ones."""
        self._safe |= self._new
        for key in self._forgotten:
            self._safe.pop(key, None)
        self.undo()

    def undo(self) -> None:
        """Drop the rows of the current transaction, which was rolled back."""
        self._new.clear()
        self._forgotten.clear()

    def forget(self, key: K) -> None:
        """Drop a row after the next commit, since no later row refers to it."""
        self._forgotten.append(key)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._safe, *self._new])


class Journal:
    """Writes that are not committed yet.

    Args:
      name: Public name of the logger or function that writes, for errors.
      connection: Connection to the file.
      path: Path of the file, for errors.
      numbers: Numbers of rows, to commit and undo together with the entries.
      before_commit: Function that is called before each commit with the number of records that are
        safe after it, those of earlier commits included.
      after_commit: Function that is called after each commit.

    Attributes:
      safe_records: Number of records that are committed.
    """

    def __init__(
        self,
        name: str,
        connection: sqlite3.Connection,
        path: str,
        numbers: tuple[RowNumbers[Any], ...],
        before_commit: Callable[[int], None] = lambda records: None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_commit, self._after_commit = before_commit, after_commit
        self._name, self._connection, self._path, self._numbers = name, connection, path, numbers
        self._entries: list[JournalEntry] = []
        self._applied = 0  # number of entries in the current transaction
        self._size = 0
        self.safe_records = 0

    @property
    def has_entries(self) -> bool:
        """True if there are uncommitted entries."""
        return bool(self._entries)

    def add(self, entry: JournalEntry) -> None:
        """Apply an entry, after all entries that could not be applied before.

        Raises:
          RunsWriteError: The disk refuses. The journal keeps the entry if it has room for it.
        """
        if self._size + entry.size > _MAX_PENDING_BYTES and self._entries:
            self._run_or_undo(self._commit, entry.records)
        self._entries.append(entry)
        self._size += entry.size
        self._run_or_undo(self._apply if self._size < _AUTO_COMMIT_BYTES else self._commit)

    def commit(self, is_last: bool = False) -> None:
        """Commit all entries.

        Args:
          is_last: No later call follows: entries that cannot be committed now are lost.
        """
        self._run_or_undo(self._commit, is_last=is_last)

    def _apply(self) -> None:
        if not self._connection.in_transaction:
            self._applied = 0
            self._connection.execute("BEGIN IMMEDIATE")
        while self._applied < len(self._entries):
            self._entries[self._applied].apply()
            self._applied += 1

    def _commit(self) -> None:
        if not self._entries:
            return
        self._apply()
        safe = self.safe_records + sum(entry.records for entry in self._entries)
        self._before_commit(safe)
        self._connection.execute("COMMIT")
        self.safe_records = safe
        self._entries.clear()
        self._size = self._applied = 0
        for numbers in self._numbers:
            numbers.commit()
        self._after_commit()

    def _run_or_undo(
        self, action: Callable[[], None], refused: int = 0, is_last: bool = False
    ) -> None:
        try:
            action()
        except sqlite3.OperationalError as error:
            self._undo()
            raise self._write_error(error, refused, is_last) from error
        except BaseException:
            # The entry itself cannot be stored: drop it, and keep the others.
            if self._applied < len(self._entries):
                self._size -= self._entries.pop(self._applied).size
            self._undo()
            raise

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._applied = 0
        for numbers in self._numbers:
            numbers.undo()

    def _write_error(self, error: sqlite3.Error, refused: int, is_last: bool) -> RunsWriteError:
        waiting = sum(entry.records for entry in self._entries)
        fate = "wait in memory and are written with the next ones, once the disk accepts them"
        fate = "are lost" if is_last else fate
        lost = f" {refused} records did not fit into memory and are lost." if refused else ""
        return RunsWriteError(
            _errno_of(error),
            f"`{self._name}` could not write to {self._path}: {error}. The {self.safe_records} "
            f"records that were written before are safe; {waiting} {fate}.{lost}",
        )


def _errno_of(error: sqlite3.Error) -> int:
    """Return the error number of the operating system for an error of SQLite."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    codes = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}
    return codes.get(primary, errno.EIO)

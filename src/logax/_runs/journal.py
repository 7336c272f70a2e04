"""What was said and is not yet safe, so that a full disk loses nothing that can be kept.

Everything that is written is an entry, done at once within a transaction of SQLite, and remembered
until that is committed. Where the disk refuses, all entries since the last commit are undone, and
done again when the next one comes, until they fit. Only so many bytes are remembered: what comes
while these are full is refused, counted, and said.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from logax._runs.errors import RunsWriteError

K = TypeVar("K", bound=Hashable)
_MOST = 2**28  # bytes that are remembered
_ENOUGH = 2**25  # bytes after which they are committed without being asked


class Entry(NamedTuple):
    """What is to be done, how many records and bytes it is."""

    do: Callable[[], Any]
    records: int = 0
    size: int = 0


class Numbers(Generic[K]):
    """The numbers of rows that are written once and referred to often."""

    def __init__(self) -> None:
        self._safe: dict[K, int] = {}
        self._new: dict[K, int] = {}
        self._over: list[K] = []

    def get(self, key: K) -> int | None:
        """The number of a row, if it was written."""
        number = self._safe.get(key)
        return self._new.get(key) if number is None else number

    def __setitem__(self, key: K, number: int) -> None:
        self._new[key] = number

    def commit(self) -> None:
        """What was written is safe."""
        self._safe |= self._new
        for key in self._over:
            self._safe.pop(key, None)
        self.undo()

    def undo(self) -> None:
        """What was written since is not there any more."""
        self._new.clear()
        self._over.clear()

    def forget(self, key: K) -> None:
        """There will be no reference to this one, once all of this is safe."""
        self._over.append(key)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._safe, *self._new])


class Journal:
    """Entries that are done, and not safe yet.

    Args:
      name: Who writes, as users know it.
      connection: To the file.
      path: The file.
      numbers: The rows that others refer to.
      seal: Called before each commit with the number of records that it makes safe, those of
        earlier commits included.
      sealed: Called after each commit.
    """

    def __init__(
        self,
        name: str,
        connection: sqlite3.Connection,
        path: str,
        numbers: tuple[Numbers[Any], ...],
        seal: Callable[[int], None] = lambda records: None,
        sealed: Callable[[], None] = lambda: None,
    ) -> None:
        self._seal, self._sealed = seal, sealed
        self._name, self._connection, self._path, self._numbers = name, connection, path, numbers
        self._entries: list[Entry] = []
        self._done = 0  # of them, in this transaction
        self._size = 0
        self.safe = 0  # records

    @property
    def has_entries(self) -> bool:
        """Whether something is not safe yet."""
        return bool(self._entries)

    def add(self, entry: Entry) -> None:
        """Do something, with all that could not be done before.

        Raises:
          RunsWriteError: The disk refuses. The entry is remembered, if there is room for it.
        """
        if self._size + entry.size > _MOST and self._entries:
            self._try(self._commit, entry.records)
        self._entries.append(entry)
        self._size += entry.size
        self._try(self._do if self._size < _ENOUGH else self._commit)

    def commit(self, is_last: bool = False) -> None:
        """Make all of it safe.

        Args:
          is_last: Whether there will be no other chance: what cannot be written now is lost.
        """
        self._try(self._commit, is_last=is_last)

    def _do(self) -> None:
        if not self._connection.in_transaction:
            self._done = 0
            self._connection.execute("BEGIN IMMEDIATE")
        while self._done < len(self._entries):
            self._entries[self._done].do()
            self._done += 1

    def _commit(self) -> None:
        if not self._entries:
            return
        self._do()
        safe = self.safe + sum(entry.records for entry in self._entries)
        self._seal(safe)
        self._connection.execute("COMMIT")
        self.safe = safe
        self._entries.clear()
        self._size = self._done = 0
        for numbers in self._numbers:
            numbers.commit()
        self._sealed()

    def _try(self, action: Callable[[], None], refused: int = 0, is_last: bool = False) -> None:
        try:
            action()
        except sqlite3.OperationalError as error:
            self._undo()
            raise self._explained(error, refused, is_last) from error
        except BaseException:
            # An entry that cannot be stored, whatever the disk: it alone is left out.
            if self._done < len(self._entries):
                self._size -= self._entries.pop(self._done).size
            self._undo()
            raise

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._done = 0
        for numbers in self._numbers:
            numbers.undo()

    def _explained(self, error: sqlite3.Error, refused: int, is_last: bool) -> RunsWriteError:
        waiting = sum(entry.records for entry in self._entries)
        fate = "wait in memory and are written with the next ones, when the disk takes them"
        fate = "are lost" if is_last else fate
        lost = f" {refused} records found no room in memory, and are lost." if refused else ""
        return RunsWriteError(
            _code(error),
            f"`{self._name}` could not write to {self._path}: {error}. The {self.safe} records "
            f"that were written before are safe; {waiting} {fate}.{lost}",
        )


def _code(error: sqlite3.Error) -> int:
    """What the system would call this."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    codes = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}
    return codes.get(primary, errno.EIO)

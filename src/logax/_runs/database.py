"""Create and open files of runs as SQLite databases, and find damage that SQLite ignores.

A reader opens a file read-only for each access and closes it afterwards, so that it sees the last
commit, blocks no writer, and survives a fork. It reads through SQLite alone: closing another
descriptor of the file would release the locks of a writer in the same process.

A file may come from anywhere. A reader refuses a file whose tables differ in any letter from those
that a writer creates, so that SQLite evaluates no view, trigger or expression of the file. No text
or array can be larger than the file, and no access takes more steps than its size justifies.

**The write-ahead log.** SQLite keeps the newest pages in a log beside the file, the `-wal` file. It
reads the log up to the first frame with a wrong checksum and takes that for the end. After the last
commit a killed writer may leave anything: a frame without its page, frames whose checksums SQLite
corrects before it commits, and frames of an earlier cycle, which have other salts. A wrong checksum
is therefore damage only if a commit of the current cycle follows. If the last commit itself is
damaged, the number of commits in the lock file reveals it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from logax._runs.errors import RunsError
from logax._runs.format import (
    APPLICATION_ID,
    FORMAT_VERSION,
    PAGE_BYTES,
    RUNS_SUFFIX,
    SCHEMA,
    SCHEMAS,
)
from logax._support.messages import format_sentence

BUSY_TIMEOUT_SECONDS = 10.0  # wait for another connection that has locked a file
_WAL_CHECKPOINT_BYTES = 2**25  # SQLite moves a log of this size into the file
_MAX_GROWTH_BYTES = 2**26  # of a file while it is being read
_MIN_PAGE_BYTES, _MAX_PAGE_BYTES = 512, 65536
_LOCK_BYTE_OFFSET = 2**30  # SQLite locks this byte, and never writes the page that contains it
_PROGRESS_INTERVAL_OPCODES = 10_000  # SQLite calls the progress handler after as many
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_WAL_MAGIC = 0x377F0682  # the lowest bit is set if checksums read big-endian words
_BLOCK_WORDS = 2048
_MASK = 0xFFFFFFFF


class WalState(NamedTuple):
    """Content of a write-ahead log.

    Attributes:
      damage: Description of the damage; None if there is none.
      pages: Numbers of the pages that the log has.
    """

    damage: str | None
    pages: frozenset[int]


def check_wal(path: str) -> WalState:
    """Check a write-ahead log; an empty or missing log is intact."""
    try:
        with open(path, "rb") as file:
            header = file.read(_WAL_HEADER_BYTES)
            if not header:
                return WalState(None, frozenset())
            if len(header) < _WAL_HEADER_BYTES:
                return WalState("the header of its log is cut off", frozenset())
            magic, _, size, _, *salts, one, two = struct.unpack(">8I", header)
            order = ">" if magic & 1 else "<"
            if (
                magic & ~1 != _WAL_MAGIC
                or not _MIN_PAGE_BYTES <= size <= _MAX_PAGE_BYTES
                or size & (size - 1)
                or _wal_checksum(header[:24], (0, 0), order) != (one, two)
            ):
                return WalState("the header of its log is damaged", frozenset())
            pages: set[int] = set()
            sums, number = (one, two), 0
            broken = None
            while len(frame := file.read(_FRAME_HEADER_BYTES + size)) == _FRAME_HEADER_BYTES + size:
                number += 1
                page, commits, salt_1, salt_2, one, two = struct.unpack_from(">6I", frame)
                if broken is None:
                    sums = _wal_checksum(frame[:8] + frame[_FRAME_HEADER_BYTES:], sums, order)
                    if [salt_1, salt_2] == salts and sums == (one, two):
                        pages.add(page)
                        continue
                    broken = number
                elif commits and (salt_1 == salts[0] or salt_2 == salts[1]):
                    return WalState(f"its log is damaged from frame {broken} on", frozenset(pages))
            return WalState(None, frozenset(pages))
    except FileNotFoundError:
        return WalState(None, frozenset())


def _wal_checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    """Return SQLite's running checksum of a log over pairs of words, modulo 2**32.

    Each pair `(a, b)` updates `s += a + t; t += b + s`. The results are sums of the words weighted
    with Fibonacci numbers, which NumPy computes for a block of words at once.
    """
    s, t = start
    numbers = np.frombuffer(data, f"{order}u4").astype(np.uint64)
    for at in range(0, len(numbers), _BLOCK_WORDS):
        block = numbers[at : at + _BLOCK_WORDS]
        # The sequence s0, t0, s1, t1, ... has x[n] = x[n - 2] + x[n - 1] + block[n].
        n = len(block)
        weights = _WEIGHTS[n - 1 :: -1] if n else _WEIGHTS[:0]
        total = int((block * weights & _MASK).sum()) & _MASK
        short = int((block[:-1] * weights[1:] & _MASK).sum()) & _MASK
        f = _FIBONACCI
        s, t = (
            (s * f[n - 1] + t * f[n] + short) & _MASK,
            (s * f[n] + t * f[n + 1] + total) & _MASK,
        )
    return s, t


def _checksum_weights(number: int) -> list[int]:
    found = [0, 1]
    while len(found) < number:
        found.append((found[-1] + found[-2]) & _MASK)
    return found


_FIBONACCI = _checksum_weights(_BLOCK_WORDS + 3)
_WEIGHTS = np.array(_FIBONACCI[1 : _BLOCK_WORDS + 1], np.uint64)  # from the last word on


def create_database(path: str) -> sqlite3.Connection:
    """Create a file and open it for writing; it has its name only once it is complete."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.part")
    try:
        with contextlib.closing(_connect(_uri(temporary, "rwc"))) as new:
            new.execute("PRAGMA synchronous = OFF")
            new.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            new.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            new.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            new.execute("BEGIN")
            for statement in SCHEMA:
                new.execute(statement)
            new.execute("COMMIT")
            new.execute("PRAGMA journal_mode = WAL")
        os.rename(temporary, path)
    except BaseException:
        for name in (temporary, *(f"{temporary}-{end}" for end in ("journal", "wal", "shm"))):
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    connection = _connect(_uri(path, "rw"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_CHECKPOINT_BYTES // PAGE_BYTES}")
    return connection


def finalize_database(connection: sqlite3.Connection) -> None:
    """Close a file and merge its log into it, so that one file remains.

    While a process reads the file, or if the disk is full, the log stays beside it. Records in the
    log are as safe as records in the file.
    """
    try:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # In WAL mode, SQLite cannot open a file in a read-only folder.
            connection.execute("PRAGMA journal_mode = DELETE")
    finally:
        connection.close()


def _connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"


@contextlib.contextmanager
def open_database(path: str) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a file for reading, in one transaction; yield the connection and the format's version.

    Raises:
      RunsError: It is not a file of runs, or a part that the caller reads is damaged.
    """
    try:
        size = _total_bytes(path)
        _check_size(path, size)
        with contextlib.closing(_connect_read_only(path)) as connection:
            _set_limits(connection, size)
            yield connection, _check_schema(connection)
    except RunsError:
        raise
    except (sqlite3.Error, sqlite3.Warning, OSError, RecursionError, ValueError) as error:
        raise _unreadable_error(path, str(error) or type(error).__name__) from error


def _unreadable_error(path: str, why: str) -> RunsError:
    return RunsError(
        f"{path} cannot be read as a file of runs: {format_sentence(why)} If it is one, it is "
        "damaged: move it out of its folder to read the others, or restore it from a copy."
    )


def _check_size(path: str, size: int) -> None:
    """Raise RunsError for a file that is so short that SQLite would take it for a new database."""
    if size < _MIN_PAGE_BYTES:
        raise RunsError(
            f"{path} is not a file of runs: it has {size} byte{'s' if size != 1 else ''}."
        )


def _total_bytes(path: str) -> int:
    """Return the size of all files that SQLite would open; ValueError unless all are regular."""
    size = 0
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            found = os.stat(name) if name == path else os.lstat(name)
        except FileNotFoundError:
            if name == path:
                raise ValueError("the file does not exist") from None
            continue
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{os.path.basename(name)} is not a regular file")
        size += found.st_size
    return size


def _connect_read_only(path: str) -> sqlite3.Connection:
    """Return a read-only connection in a transaction."""
    connection = _connect(_uri(path, "ro"))
    try:
        connection.execute("BEGIN")
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if os.access(os.path.dirname(os.path.abspath(path)), os.W_OK) or _has_wal(path):
            raise
        # In a read-only folder SQLite cannot lock the file; no process can write to it either.
        connection = _connect(_uri(path, "ro") + "&immutable=1")
        connection.execute("BEGIN")
    except BaseException:
        connection.close()
        raise
    return connection


def _has_wal(path: str) -> bool:
    return os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal") > 0


def _set_limits(connection: sqlite3.Connection, size: int) -> None:
    """Limit the size of values and the time of queries to what a file of this size justifies."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(size + _MAX_GROWTH_BYTES, 2**30))
    left = 1_000 + size // 1_000

    def is_too_long() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(is_too_long, _PROGRESS_INTERVAL_OPCODES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def find_size_damage(path: str, connection: sqlite3.Connection) -> str | None:
    """Compare the pages that a database should have with the pages in the file and in its log.

    No process may be writing to the file. Returns a description of the damage, or None.
    """
    log = check_wal(f"{path}-wal")
    if log.damage is not None:
        return f"{log.damage}, and the newest records may be missing"
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = os.stat(path).st_size
    if log.pages:  # the file itself may be behind
        unused = _LOCK_BYTE_OFFSET // page + 1
        missing = range(size // page + 1, pages + 1)
        is_whole = size % page == 0 and all(n in log.pages or n == unused for n in missing)
    else:
        is_whole = size == page * pages
    return None if is_whole else f"it has {size} bytes, and {pages} pages of {page} are expected"


def lacks_wal(path: str, connection: sqlite3.Connection) -> bool:
    """Return whether a database keeps its newest pages in a log, but the log is missing."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(mode == "wal") and not _has_wal(path)


def _check_schema(connection: sqlite3.Connection) -> int:
    """Return the version of the format; ValueError if the tables are not those of logax."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise ValueError("it is a database of another program")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"its format has version {version}, and this logax reads up to {FORMAT_VERSION}; "
            "upgrade logax"
        )
    expected = SCHEMAS.get(version, ())
    found = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL LIMIT ?", (len(expected) + 1,)
    ).fetchall()
    if not expected or sorted(str(sql) for (sql,) in found) != sorted(expected):
        raise ValueError("its tables are not those of a file of runs")
    return int(version)


def is_runs_file_name(name: str) -> bool:
    """Return whether a file of this name may be a file of runs."""
    return name.endswith(RUNS_SUFFIX) and not name.startswith(".")

"""SQLite's log beside a file of runs, the `-wal` file, checked for damage that SQLite passes over.

SQLite reads a log up to the first frame whose checksum does not agree, and says nothing about the
rest: that is how it finds the end. Behind the last commit a killed writer may leave anything: a
frame of which only the head was written, frames whose checksums SQLite corrects before it commits,
and frames of an earlier turn, which have other salts. A frame with a wrong checksum is therefore
damage only if a commit of the current turn comes after it. If the last commit itself is damaged,
the number of commits in the lock of the file tells.

Files of runs as SQLite databases: made, and opened to look at.

Who reads opens a file anew for each access, read-only, and closes it after that: so it sees what is
committed now, holds nothing up, and survives a fork. It reads through SQLite alone, since to close
another descriptor of the file would end the locks that a writer in the same process has on it.

A file may come from anywhere. It is refused unless its tables are, to the letter, those that a
writer makes: then there is no view, trigger or expression in it that SQLite would evaluate. No text
or array can be larger than the file, and no look at it takes more steps than its size warrants.
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
from logax._runs.format import APPLICATION, PAGE, SCHEMA, SCHEMAS, SUFFIX, VERSION
from logax._support.messages import as_sentence

_HEADER, _FRAME = 32, 24  # bytes
_MAGIC = 0x377F0682  # its lowest bit: whether checksums take numbers as big-endian
_MAX_PAGE = 65536


class WalState(NamedTuple):
    """What a log holds.

    Attributes:
      damage: What is damaged in it; None if nothing is.
      pages: Numbers of the pages that it has.
    """

    damage: str | None
    pages: frozenset[int]


def check_wal(path: str) -> WalState:
    """Check a log; one that is empty, or not there, is whole."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
            if not header:
                return WalState(None, frozenset())
            if len(header) < _HEADER:
                return WalState("the header of its log is cut off", frozenset())
            magic, _, size, _, *salts, one, two = struct.unpack(">8I", header)
            order = ">" if magic & 1 else "<"
            if (
                magic & ~1 != _MAGIC
                or not 512 <= size <= _MAX_PAGE
                or size & (size - 1)
                or _checksum(header[:24], (0, 0), order) != (one, two)
            ):
                return WalState("the header of its log is damaged", frozenset())
            pages: set[int] = set()
            sums, number = (one, two), 0
            broken = None
            while len(frame := file.read(_FRAME + size)) == _FRAME + size:
                number += 1
                page, commits, salt_1, salt_2, one, two = struct.unpack_from(">6I", frame)
                if broken is None:
                    sums = _checksum(frame[:8] + frame[_FRAME:], sums, order)
                    if [salt_1, salt_2] == salts and sums == (one, two):
                        pages.add(page)
                        continue
                    broken = number
                elif commits and (salt_1 == salts[0] or salt_2 == salts[1]):
                    return WalState(f"its log is damaged from frame {broken} on", frozenset(pages))
            return WalState(None, frozenset(pages))
    except FileNotFoundError:
        return WalState(None, frozenset())


def _checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of a log, which runs on over pairs of numbers, modulo 2**32.

    With `s` and `t` after each pair `(a, b)`: `s += a + t; t += b + s`. These are sums with
    Fibonacci numbers as weights, taken for blocks at once.
    """
    s, t = start
    numbers = np.frombuffer(data, f"{order}u4").astype(np.uint64)
    for at in range(0, len(numbers), _BLOCK):
        block = numbers[at : at + _BLOCK]
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


_BLOCK = 2048
_MASK = 0xFFFFFFFF


def _fibonacci(number: int) -> list[int]:
    found = [0, 1]
    while len(found) < number:
        found.append((found[-1] + found[-2]) & _MASK)
    return found


_FIBONACCI = _fibonacci(_BLOCK + 3)
_WEIGHTS = np.array(_FIBONACCI[1 : _BLOCK + 1], np.uint64)  # from the last number on


PATIENCE = 10.0  # seconds: until whoever has a file locked for a moment must be done
_CHECKPOINT = 2**25  # bytes of the log beside the file, after which they go into it
_GROWTH = 2**26  # bytes
_LEAST = 512  # bytes: the smallest page, of which a database has one or more
_LOCKED_BYTE = 2**30
_STEPS = 10_000  # of SQLite's machine, between two counts


def make(path: str) -> sqlite3.Connection:
    """A new file, which nobody sees before it is whole, open for writing."""
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.part")
    try:
        with contextlib.closing(_connected(_address(part, "rwc"))) as made:
            made.execute("PRAGMA synchronous = OFF")
            made.execute(f"PRAGMA page_size = {PAGE}")
            made.execute(f"PRAGMA application_id = {APPLICATION}")
            made.execute(f"PRAGMA user_version = {VERSION}")
            made.execute("BEGIN")
            for statement in SCHEMA:
                made.execute(statement)
            made.execute("COMMIT")
            made.execute("PRAGMA journal_mode = WAL")
        os.rename(part, path)
    except BaseException:
        for name in (part, f"{part}-journal", f"{part}-wal", f"{part}-shm"):
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    connection = _connected(_address(path, "rw"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT // PAGE}")
    return connection


def end(connection: sqlite3.Connection) -> None:
    """Leave one file and nothing beside it.

    Where somebody looks at it now, or the disk is full, the log stays beside it, and what is in it
    is as safe there.
    """
    try:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # So that it can be read from a place that is read-only.
            connection.execute("PRAGMA journal_mode = DELETE")
    finally:
        connection.close()


def _connected(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True
    )


def _address(path: str, mode: str) -> str:
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[sqlite3.Connection, int]]:
    """Open a file to look at, in one transaction; with it comes the version of its format.

    Raises:
      RunsError: It is no file of runs, or what is looked at is damaged.
    """
    try:
        size = _size(path)
        _check_size(path, size)
        with contextlib.closing(_readable(path)) as connection:
            _limit(connection, size)
            yield connection, _check(connection)
    except RunsError:
        raise
    except (sqlite3.Error, sqlite3.Warning, OSError, RecursionError, ValueError) as error:
        raise _unreadable(path, str(error) or type(error).__name__) from error


def _unreadable(path: str, why: str) -> RunsError:
    return RunsError(
        f"{path} cannot be read as a file of runs: {as_sentence(why)} If it is one, it is damaged: "
        "take it out of its folder to read the others, or bring it back from a copy."
    )


def _check_size(path: str, size: int) -> None:
    """Refuse what SQLite would take for a new database, since it ends before its header does."""
    if size < _LEAST:
        raise RunsError(
            f"{path} is no file of runs: {size} byte{'s are' if size != 1 else ' is'} all there is."
        )


def _size(path: str) -> int:
    """How many bytes there are, if all that SQLite would open are plain files."""
    size = 0
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            found = os.stat(name) if name == path else os.lstat(name)
        except FileNotFoundError:
            if name == path:
                raise ValueError("there is no such file") from None
            continue
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{os.path.basename(name)} is no plain file")
        size += found.st_size
    return size


def _readable(path: str) -> sqlite3.Connection:
    """A connection that changes nothing."""
    connection = _connected(_address(path, "ro"))
    try:
        connection.execute("BEGIN")
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if os.access(os.path.dirname(os.path.abspath(path)), os.W_OK) or _has_log(path):
            raise
        # Where nothing may be written SQLite cannot note that it reads: nobody writes there.
        connection = _connected(_address(path, "ro") + "&immutable=1")
        connection.execute("BEGIN")
    except BaseException:
        connection.close()
        raise
    return connection


def _has_log(path: str) -> bool:
    return os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal") > 0


def _limit(connection: sqlite3.Connection, size: int) -> None:
    """Have nothing be larger, and nothing take longer, than a file of this size warrants."""
    # It may grow while it is read.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(size + _GROWTH, 2**30))
    left = 1_000 + size // 1_000

    def is_too_long() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(is_too_long, _STEPS)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def size_damage(path: str, connection: sqlite3.Connection) -> str | None:
    """Compare the pages that a database should have with those in the file and in its log.

    Only for a file that nobody writes. Returns what is damaged, or None.
    """
    log = check_wal(f"{path}-wal")
    if log.damage is not None:
        return f"{log.damage}, and the newest records may be missing"
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    size = os.stat(path).st_size
    if log.pages:  # the file itself may be behind
        unused = _LOCKED_BYTE // page + 1  # SQLite never writes the page of the byte that it locks
        missing = range(size // page + 1, pages + 1)
        is_whole = size % page == 0 and all(n in log.pages or n == unused for n in missing)
    else:
        is_whole = size == page * pages
    return None if is_whole else f"it has {size} bytes, and {pages} pages of {page} are expected"


def lacks_log(path: str, connection: sqlite3.Connection) -> bool:
    """Return whether a database that keeps its newest pages in a log has none beside it."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return bool(mode == "wal") and not _has_log(path)


def _check(connection: sqlite3.Connection) -> int:
    """Return the version of the format, or raise ValueError if the tables are not ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise ValueError("it is a database of another program")
    if version > VERSION:
        raise ValueError(
            f"its format is version {version}, and this logax reads up to {VERSION}; it takes a "
            "newer one"
        )
    expected = SCHEMAS.get(version, ())
    found = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL LIMIT ?", (len(expected) + 1,)
    ).fetchall()
    if not expected or sorted(str(sql) for (sql,) in found) != sorted(expected):
        raise ValueError("its tables are not those of runs")
    return int(version)


def is_candidate(name: str) -> bool:
    """Whether a name in a folder may be that of a file of runs."""
    return name.endswith(SUFFIX) and not name.startswith(".")

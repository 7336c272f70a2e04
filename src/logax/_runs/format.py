"""Layout of a file of runs, a SQLite database. The version counts changes of it.

    texts     configs of runs and facts of their machines, as JSON; each once
    runs      one row for each time that a run was opened here: its place among all parts of the
              run (`sequence`: 0, and one more for each time that it was resumed), when, its
              properties (JSON: id, name, group, lane, lanes, began, resumed), and the texts of its
              config and its machine. A row with `guest` is of a run that was opened in the process
              that this one was forked from.
    ends      when runs ended, and how: "finished" or "crashed"
    streams   families: the streams that log side by side, each with its place in the family, its
              run, its lane (JSON) and its shard
    layouts   form of the records of one `log` call, as JSON (see `layouts`)
    portions  batches of records: family and layout, number of streams and records, wall time of
              arrival, index of the process, statistics (see `statistics`), and bytes
    blobs     bytes of large arrays
    tally     one row, changed with each commit: number of commits, of records, and of the rows of
              each other table

Rows are only ever added, except that of `tally`, and everything that refers to another row stands
after it. Rows of a table are numbered from 1 on without gaps. Wall times are information only:
`sequence`, then `guest`, then the number of the row order the parts of a run.

**Checksums.** `crc` is the CRC-32 of the table's name and of all values before it (see
`checksums`). `data` stands last: `length` and `checks`, the CRC-32 of each of its blocks of 32 KiB,
are among those values.

**The bytes of a portion** are arrays one after the other, all little-endian and without gaps, each
with the streams first and then the records:

    counts    if `ragged` is 1: number of records of each stream, uint32
    steps     in the order of the layout; one that is alike for all streams, which bit `i` of
              `alike` says of step `i`, stands there once, without the axis of streams
    leaves    in the order of the layout: of the first key, of the second, ...

A typed PRNG key is its numbers. An array of `LARGE` bytes or more stands alone: in rows of `blobs`
of `CHUNK` bytes each, of which the last may have less. Smaller ones share `data`, as long as that
does not exceed `CHUNK`; arrays that do not fit stand alone too. Rows of `blobs` follow one another,
from the one that the portion calls `blob`; no two portions share one.

**Version 1**, which is still read, lacks `sequence`, the number of `streams`, arrival as such
(`written` is the time of the write), process, statistics, the tally and all checksums.

Where the bytes of each array of a portion stand. `format` says the rule.

Checksums of the rows of a file, and of the bytes in them.

A row has the CRC-32 of its table's name and its values. Bytes that may be long have one for each
block of `BLOCK_BYTES` bytes, so that a reader can check a part of them without reading the rest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from logax._runs.errors import ChecksumError

APPLICATION = 0x4C4F4758  # in the head of the file: "LOGX"
VERSION = 2
SUFFIX = ".sqlite"
LOCK = ".lock"

LARGE = 2**14
CHUNK = 2**20
PAGE = 2**13  # of SQLite: small enough for a commit of few numbers, large enough for many

FINISHED, CRASHED, RUNNING = "finished", "crashed", "running"

_ROW = "number INTEGER PRIMARY KEY"
_PORTION = (
    "family INTEGER NOT NULL, layout INTEGER NOT NULL, streams INTEGER NOT NULL, "
    "records INTEGER NOT NULL, ragged INTEGER NOT NULL, alike INTEGER NOT NULL, "
    "blob INTEGER NOT NULL"
)

# The tables that the tally counts.
COUNTED = ("texts", "runs", "ends", "streams", "layouts", "portions", "blobs")
SCHEMA = (
    f"CREATE TABLE texts ({_ROW}, content TEXT NOT NULL, crc INTEGER NOT NULL)",
    f"CREATE TABLE runs ({_ROW}, sequence INTEGER NOT NULL, opened REAL NOT NULL, "
    "guest INTEGER NOT NULL, content TEXT NOT NULL, config INTEGER NOT NULL, "
    "machine INTEGER NOT NULL, crc INTEGER NOT NULL)",
    f"CREATE TABLE ends ({_ROW}, run INTEGER NOT NULL, ended REAL NOT NULL, status TEXT NOT NULL, "
    "crc INTEGER NOT NULL)",
    f"CREATE TABLE streams ({_ROW}, run INTEGER NOT NULL, family INTEGER NOT NULL, "
    "place INTEGER NOT NULL, lane TEXT NOT NULL, shard INTEGER, crc INTEGER NOT NULL)",
    f"CREATE TABLE layouts ({_ROW}, content TEXT NOT NULL, crc INTEGER NOT NULL)",
    f"CREATE TABLE portions ({_ROW}, {_PORTION}, arrived REAL NOT NULL, process INTEGER NOT NULL, "
    "statistics TEXT NOT NULL, length INTEGER NOT NULL, checks BLOB NOT NULL, "
    "crc INTEGER NOT NULL, data BLOB NOT NULL)",
    f"CREATE TABLE blobs ({_ROW}, length INTEGER NOT NULL, checks BLOB NOT NULL, "
    "crc INTEGER NOT NULL, data BLOB NOT NULL)",
    f"CREATE TABLE tally ({_ROW}, commits INTEGER NOT NULL, records INTEGER NOT NULL, "
    + "".join(f"{table} INTEGER NOT NULL, " for table in COUNTED)
    + "crc INTEGER NOT NULL)",
)
SCHEMA_1 = (
    f"CREATE TABLE texts ({_ROW}, content TEXT NOT NULL)",
    f"CREATE TABLE runs ({_ROW}, opened REAL NOT NULL, guest INTEGER NOT NULL, "
    "content TEXT NOT NULL, config INTEGER NOT NULL, machine INTEGER NOT NULL)",
    f"CREATE TABLE ends ({_ROW}, run INTEGER NOT NULL, ended REAL NOT NULL, status TEXT NOT NULL)",
    "CREATE TABLE streams (run INTEGER NOT NULL, family INTEGER NOT NULL, place INTEGER NOT NULL, "
    "lane TEXT NOT NULL, shard INTEGER, PRIMARY KEY (run, family, place)) WITHOUT ROWID",
    f"CREATE TABLE layouts ({_ROW}, content TEXT NOT NULL)",
    f"CREATE TABLE portions ({_ROW}, {_PORTION}, written REAL NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX portions_of_family ON portions (family)",
    f"CREATE TABLE blobs ({_ROW}, data BLOB NOT NULL)",
)
SCHEMAS = {1: SCHEMA_1, VERSION: SCHEMA}


class Place(NamedTuple):
    """Where an array stands.

    Attributes:
      blob: The first of its rows in `blobs`, counted from that of the portion; None for `data`.
      offset: Where in `data` it begins.
      size: How many bytes it has.
    """

    blob: int | None
    offset: int
    size: int


class Plan(NamedTuple):
    """The places of all arrays, how many bytes `data` has, and how many rows `blobs`."""

    places: tuple[Place, ...]
    shared: int
    blobs: int


def planned(sizes: Sequence[int]) -> Plan:
    """Where arrays of these numbers of bytes stand."""
    places, shared, blobs = [], 0, 0
    for size in sizes:
        if size < LARGE and shared + size <= CHUNK:
            places.append(Place(None, shared, size))
            shared += size
        else:
            places.append(Place(blobs, 0, size))
            blobs += -(-size // CHUNK)
    return Plan(tuple(places), shared, blobs)


BLOCK_BYTES = 2**15
_ENTRY = struct.Struct("<I")


def row_checksum(table: str, *values: Any) -> int:
    """Return the CRC-32 of a row: of each value its length, a colon, and its bytes.

    Numbers and NULL are the text that Python's `repr` has for them.
    """
    parts = [table.encode()]
    for value in values:
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
        else:
            data = value if isinstance(value, bytes) else repr(value).encode()
        parts += (b"%d:" % len(data), data)
    return zlib.crc32(b"".join(parts))


def block_checksums(data: bytes | memoryview) -> bytes:
    """Return the CRC-32 of each block of the data, little-endian."""
    if len(data) <= BLOCK_BYTES:
        return _ENTRY.pack(zlib.crc32(data)) if data else b""
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    return b"".join(_ENTRY.pack(zlib.crc32(view[at : at + BLOCK_BYTES])) for at in starts)


def verify_blocks(data: bytes, first: int, checksums: bytes) -> None:
    """Raise ChecksumError unless the data, whole blocks from block `first` on, is as it was."""
    end = first + -(-len(data) // BLOCK_BYTES)
    if block_checksums(data) != checksums[first * _ENTRY.size : end * _ENTRY.size]:
        raise ChecksumError("the bytes of a batch differ from their checksum")

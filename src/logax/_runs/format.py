"""Format of a file of runs: a SQLite database, its tables, its checksums and its byte layout.

    texts     configs of runs and facts about their machines, as JSON; each once
    runs      one row for each time that this file opened a run: the number of this part among all
              parts of the run (`sequence`: 0, and one more each time that the run is resumed), the
              wall time, properties (JSON: id, name, group, lane, lanes, began, resumed), and the
              texts of config and machine. A row with `guest` is of a run that the parent of a
              forked process had opened.
    ends      wall time and status of ended runs: "finished" or "crashed"
    streams   families: streams that log side by side, each with its place in the family, its run,
              its lane (JSON) and its shard
    layouts   layout of the records of one `log` call, as JSON (see `layouts`)
    portions  batches of records: family and layout, number of streams and records, wall time of
              arrival, index of the process, statistics (see `batch_statistics`), and bytes
    blobs     bytes of large arrays
    tally     one row, replaced in each commit: number of commits, of records, and of the rows of
              each other table

Writers only add rows, except to `tally`, and a row refers only to earlier rows. The rows of a table
are numbered from 1 without gaps. Wall times are information only: `sequence`, then `guest`, then
the number of the row order the parts of a run.

**Checksums.** `crc` is the CRC-32 of the table's name and of all values before it (see
`row_checksum`). The column `data` comes after it; its length and the CRC-32 of each of its blocks
of `BLOCK_BYTES` are among those values, so that a reader can verify a part without reading the
rest.

**Bytes.** The bytes of a batch are arrays one after the other, little-endian and without gaps, each
with the streams first and then the records:

    counts    if `ragged` is 1: number of records of each stream, uint32
    steps     in the order of the layout. If bit `i` of `alike` is set, all streams have the same
              step `i`, which is stored once, without the axis of streams
    leaves    in the order of the layout: of the first key, of the second, ...

A typed PRNG key is stored as its key data. An array of `MIN_BLOB_ARRAY_BYTES` or more has its own
rows of `blobs`, each of `MAX_BLOB_BYTES` except the last. Smaller arrays share `data`, up to
`MAX_BLOB_BYTES`; arrays that do not fit there have their own blobs too. The blobs of a batch follow
one another, from the row whose number is `blob`; batches never share blobs.

**Version 1**, which is still read, lacks `sequence`, numbers of `streams`, the wall time of arrival
(`written` is the time of the write), process, statistics, the tally and all checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from logax._runs.errors import ChecksumError

APPLICATION_ID = 0x4C4F4758  # in the header of the file: "LOGX"
FORMAT_VERSION = 2
RUNS_SUFFIX = ".sqlite"
LOCK_SUFFIX = ".lock"

MIN_BLOB_ARRAY_BYTES = 2**14
MAX_BLOB_BYTES = 2**20
PAGE_BYTES = 2**13  # small enough for a commit of few values, large enough for many

FINISHED, CRASHED, RUNNING = "finished", "crashed", "running"

_ROW = "number INTEGER PRIMARY KEY"
_BATCH_COLUMNS = (
    "family INTEGER NOT NULL, layout INTEGER NOT NULL, streams INTEGER NOT NULL, "
    "records INTEGER NOT NULL, ragged INTEGER NOT NULL, alike INTEGER NOT NULL, "
    "blob INTEGER NOT NULL"
)

# The tables that the tally counts.
COUNTED_TABLES = ("texts", "runs", "ends", "streams", "layouts", "portions", "blobs")
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
    f"CREATE TABLE portions ({_ROW}, {_BATCH_COLUMNS}, arrived REAL NOT NULL, "
    "process INTEGER NOT NULL, statistics TEXT NOT NULL, length INTEGER NOT NULL, "
    "checks BLOB NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL)",
    f"CREATE TABLE blobs ({_ROW}, length INTEGER NOT NULL, checks BLOB NOT NULL, "
    "crc INTEGER NOT NULL, data BLOB NOT NULL)",
    f"CREATE TABLE tally ({_ROW}, commits INTEGER NOT NULL, records INTEGER NOT NULL, "
    + "".join(f"{table} INTEGER NOT NULL, " for table in COUNTED_TABLES)
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
    f"CREATE TABLE portions ({_ROW}, {_BATCH_COLUMNS}, written REAL NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX portions_of_family ON portions (family)",
    f"CREATE TABLE blobs ({_ROW}, data BLOB NOT NULL)",
)
SCHEMAS = {1: SCHEMA_1, FORMAT_VERSION: SCHEMA}


class ArrayLocation(NamedTuple):
    """Location of the bytes of an array.

    Attributes:
      blob: First row of the array in `blobs`, counted from the first blob of the batch; None if the
        array is in `data`.
      offset: Offset in `data`.
      size: Number of bytes.
    """

    blob: int | None
    offset: int
    size: int


class StoragePlan(NamedTuple):
    """Location of all arrays of a batch.

    Attributes:
      locations: Location of each array.
      shared: Number of bytes in `data`.
      blobs: Number of rows in `blobs`.
    """

    locations: tuple[ArrayLocation, ...]
    shared: int
    blobs: int


def plan_storage(sizes: Sequence[int]) -> StoragePlan:
    """Return the locations of arrays of these sizes, in bytes."""
    locations, shared, blobs = [], 0, 0
    for size in sizes:
        if size < MIN_BLOB_ARRAY_BYTES and shared + size <= MAX_BLOB_BYTES:
            locations.append(ArrayLocation(None, shared, size))
            shared += size
        else:
            locations.append(ArrayLocation(blobs, 0, size))
            blobs += -(-size // MAX_BLOB_BYTES)
    return StoragePlan(tuple(locations), shared, blobs)


BLOCK_BYTES = 2**15
_CHECKSUM = struct.Struct("<I")


def row_checksum(table: str, *values: Any) -> int:
    """Return the CRC-32 of the table's name and, for each value, its length, a colon and its bytes.

    Numbers and NULL count as their `repr` in Python.
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
        return _CHECKSUM.pack(zlib.crc32(data)) if data else b""
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    return b"".join(_CHECKSUM.pack(zlib.crc32(view[at : at + BLOCK_BYTES])) for at in starts)


def verify_blocks(data: bytes, first: int, checksums: bytes) -> None:
    """Raise ChecksumError unless data, whole blocks from block `first` on, has these checksums."""
    end = first + -(-len(data) // BLOCK_BYTES)
    if block_checksums(data) != checksums[first * _CHECKSUM.size : end * _CHECKSUM.size]:
        raise ChecksumError("the bytes of a batch differ from their checksum")

"""Read one file of runs: the runs in it, and its batches of records.

A `RunsFileReader` keeps a `FileCatalog` of everything in the file except values: runs and their
ends, streams, and the batches of each family of streams. Files only grow, so that a later access
reads only new rows. A file that no process writes, and whose size and times have not changed, is
not opened at all to find its runs. A file whose first run has changed is another file under the
same name; a newer copy of the same file counts as the same file.

The reader reports damaged rows and leaves them out. Rows are numbered without gaps, and the tally
has the number of rows of each table, so that it reports missing rows too.
"""

from __future__ import annotations

import array
import contextlib
import heapq
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from logax._runs.database import find_size_damage, lacks_wal, open_database
from logax._runs.errors import ChecksumError, Damage, DamageWarning, RemovedError
from logax._runs.format import COUNTED_TABLES, CRASHED, FINISHED, row_checksum
from logax._runs.layouts import LogLayout, parse_layout
from logax._runs.lock_files import is_being_written, read_progress
from logax._serialization.plain_config import from_json
from logax._support.messages import warn_user

_MAX_INLINE_BYTES = 4096  # data up to this size is read together with its row
_MAX_SINGLE_ROW_QUERIES = 100  # more batches are read with one query over their range
_MAX_EMPTY_RECORDS = 2**24  # records of a batch that take no bytes
_MAX_LANE_AXES = 32
_RUNS = {
    1: "SELECT number, 0, opened, guest, content, config, machine, 0 FROM runs",
    2: "SELECT number, sequence, opened, guest, content, config, machine, crc FROM runs",
}
_ENDS = {
    1: "SELECT number, run, ended, status, 0 FROM ends",
    2: "SELECT number, run, ended, status, crc FROM ends",
}
_STREAMS = {
    1: "SELECT row_number() OVER (), run, family, place, lane, shard, 0 FROM streams",
    2: "SELECT number, run, family, place, lane, shard, crc FROM streams",
}
_BATCHES = {
    1: "SELECT number, family, layout, streams, records, ragged, alike, blob, written, 0, '', "
    "length(data), x'', 0",
    2: "SELECT number, family, layout, streams, records, ragged, alike, blob, arrived, process, "
    "statistics, length, checks, crc",
}


class RunPart(NamedTuple):
    """A run as one file has it: all of it, or the part since it was resumed.

    Attributes:
      path: Path of the file.
      number: Number of the row.
      sequence: Number of this part among all parts of the run.
      opened: Wall time at which this part was opened.
      guest: True if a forked process wrote this part to a run that its parent had opened.
      content: Id, name, group, lane, lanes, wall time of the beginning, and whether it was resumed.
      config: Number of the text with its config.
      machine: Number of the text with the facts about its machine.
      ended: Wall time at which it ended; None if it has not.
      status: Status with which it ended; None if it has not.
    """

    path: str
    number: int
    sequence: int
    opened: float
    guest: bool
    content: dict[str, Any]
    config: int
    machine: int
    ended: float | None
    status: str | None

    @property
    def id(self) -> str:
        """Id of the run."""
        return str(self.content["id"])


class BatchRow(NamedTuple):
    """Row of a batch; `format` describes its columns."""

    number: int
    family: int
    layout: int
    streams: int
    records: int
    ragged: int
    alike: int
    blob: int
    arrived: float
    process: int
    statistics: str
    length: int
    checks: bytes
    crc: int
    data: bytes | None = None


class StoredStream(NamedTuple):
    """A stream of a run.

    Attributes:
      place: Index of the stream in its family.
      lane: Lane within the run; () if the run has no lanes.
      shard: Index of the shard; None if there is none.
      run: Number of the row of the run.
    """

    place: int
    lane: tuple[int, ...]
    shard: int | None
    run: int


def warn_of_damage(damage: Damage) -> None:
    """Issue a `DamageWarning`."""
    warn_user(str(damage), DamageWarning)


class RunsFileReader:
    """Reader of one file of runs.

    Args:
      path: Path of the file.
      report: Function that is called once for each damage found.

    Attributes:
      is_being_written: True if a process wrote to the file when `parts` was called last.
    """

    def __init__(self, path: str, report: Callable[[Damage], None] = warn_of_damage) -> None:
        self.path = path
        self.is_being_written = False
        self._report = report
        self._reported: set[Damage] = set()
        self._catalog = FileCatalog(path, self.report)
        self._seen_identity: tuple[int, ...] | None = None
        self._first_run: tuple[Any, ...] | None = None  # a file never changes its first run

    @property
    def is_damaged(self) -> bool:
        """True if the reader has found damage."""
        return bool(self._reported)

    def report(self, damage: Damage) -> None:
        """Report damage, once."""
        if damage not in self._reported:
            self._reported.add(damage)
            self._report(damage)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[RunsSnapshot]:
        """Open the file for as long as the context lasts.

        Raises:
          RunsError: The file cannot be read, or was replaced.
        """
        with self._open() as connection:
            self._catalog.update(connection)
            yield RunsSnapshot(self.path, connection, self._catalog, self.report)

    def parts(self) -> list[RunPart]:
        """Return all runs in the order in which they were opened; raises as `snapshot` does."""
        self.is_being_written = is_being_written(
            self.path
        )  # must precede reading, to see all that an ended writer wrote
        seen = None if self.is_being_written else self._file_identity()
        if seen is None or seen != self._seen_identity:
            noted = read_progress(self.path)
            with self._open() as connection:
                self._catalog.update(connection)
                if seen is not None:
                    self._check_complete(connection, noted.commits, noted.records)
            self._seen_identity = seen
        return self._catalog.parts

    def parts_of(self, identity: str) -> Sequence[RunPart]:
        """Return the parts of one run that the last call of `parts` found."""
        return self._catalog.by_run.get(identity, ())

    def _check_complete(self, connection: sqlite3.Connection, commits: int, records: int) -> None:
        """Report a missing end of a file that no process writes."""
        missing = records - self._catalog.records
        if commits > self._catalog.commits:
            which = f"the last {missing} of {records} records" if missing > 0 else "the last rows"
            self.report(Damage(self.path, f"{which} that its writer committed are missing"))
        elif not (self._catalog.parts or self.is_damaged) and lacks_wal(self.path, connection):
            why = (
                "it has no runs. Its process was killed before it wrote any, or its log, "
                f"{os.path.basename(self.path)}-wal, was not copied with it"
            )
            self.report(Damage(self.path, why))
        damage = find_size_damage(self.path, connection)
        if damage is not None:
            self.report(Damage(self.path, damage))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file; RemovedError if it is not the file that was opened first."""
        if self._first_run is not None and not os.path.exists(self.path):
            raise self._removed_error()
        with open_database(self.path) as (connection, version):
            rows = connection.execute("SELECT opened, content FROM runs ORDER BY number LIMIT 1")
            first = rows.fetchone()
            if self._first_run not in (None, first):
                raise self._removed_error()
            self._first_run = first
            self._catalog.version = version
            yield connection

    def _removed_error(self) -> RemovedError:
        return RemovedError(
            f"{self.path} was removed or replaced since its runs were listed. Call "
            "`runs.refresh()` to list them again."
        )

    def _file_identity(self) -> tuple[int, ...] | None:
        with contextlib.suppress(OSError):
            log = f"{self.path}-wal"
            found = [os.stat(self.path), *([os.stat(log)] if os.path.exists(log) else [])]
            return tuple(n for x in found for n in (x.st_ino, x.st_size, x.st_mtime_ns))
        return None


class FileCatalog:
    """Everything in a file except values; each update reads only new rows.

    Attributes:
      version: Version of the file's format.
      commits: Number of commits in the file.
      records: Number of records in the file.
      parts: Runs of the file.
      by_run: The same by id.
      layouts: Layouts by number, as far as they were read.
    """

    def __init__(self, path: str, report: Callable[[Damage], None]) -> None:
        self.version = 0
        self._path, self._report = path, report
        self._reset()

    def _reset(self) -> None:
        self.commits = self.records = 0
        self.parts: list[RunPart] = []
        self.by_run: dict[str, list[RunPart]] = {}
        self.layouts: dict[int, LogLayout] = {}
        self._last_numbers = dict.fromkeys(COUNTED_TABLES, 0)
        self._parts_by_number: dict[int, RunPart] = {}
        self._streams_by_run: dict[int, list[tuple[int, StoredStream]]] = {}
        self._batches_by_family: dict[int, array.array[int]] = {}
        self._lanes: dict[str, tuple[int, ...]] = {}
        self._batch_bytes = 0
        self._next_blob = 1

    def update(self, connection: sqlite3.Connection) -> None:
        """Read the rows that were added since the last update."""
        expected = self._read_tally(connection) if self.version > 1 else None
        if expected is not None:
            if self.commits == expected["commits"] and self.commits:
                return
            if self.commits > expected["commits"]:  # an older copy has taken its place
                self._reset()
        has_runs = self._read_new_rows(connection, "runs", _RUNS, self._add_run, expected)
        if self._read_new_rows(connection, "ends", _ENDS, self._add_end, expected) or has_runs:
            self.parts = list(self._parts_by_number.values())
            self.by_run = {}
            for part in self.parts:
                self.by_run.setdefault(part.id, []).append(part)
        if self.version == 1:
            self._streams_by_run, self._last_numbers["streams"] = {}, 0
        self._read_new_rows(connection, "streams", _STREAMS, self._add_stream, expected)
        size = _database_bytes(connection)

        def add_batch(row: Sequence[Any]) -> None:
            self._add_batch(connection, size, row)

        selects = {version: f"{select} FROM portions" for version, select in _BATCHES.items()}
        self._read_new_rows(connection, "portions", selects, add_batch, expected)
        if expected is not None:
            self.commits, self.records = expected["commits"], expected["records"]

    def streams_of(self, runs: Collection[int]) -> dict[int, list[StoredStream]]:
        """Return the streams of some runs by family, ordered by their place."""
        families: dict[int, list[StoredStream]] = {}
        for run in runs:
            for family, stream in self._streams_by_run.get(run, ()):
                families.setdefault(family, []).append(stream)
        for streams in families.values():
            streams.sort(key=lambda stream: stream.place)
        return families

    def batch_numbers(self, families: Collection[int]) -> list[int]:
        """Return the numbers of the batches of some families, in order."""
        return list(heapq.merge(*(self._batches_by_family.get(each, ()) for each in families)))

    def run_ids(self, runs: Collection[int]) -> tuple[str, ...]:
        """Return the ids of runs by the numbers of their rows."""
        return tuple(
            dict.fromkeys(
                self._parts_by_number[run].id for run in runs if run in self._parts_by_number
            )
        )

    def _read_tally(self, connection: sqlite3.Connection) -> dict[str, int] | None:
        row = connection.execute("SELECT * FROM tally ORDER BY number LIMIT 1").fetchone()
        if row is None:
            return dict.fromkeys(("commits", "records", *COUNTED_TABLES), 0)
        *values, crc = row
        if crc != row_checksum("tally", *values) or not all(map(is_count, values)):
            self._report(Damage(self._path, "its tally differs from its checksum"))
            return None
        return dict(zip(("commits", "records", *COUNTED_TABLES), values[1:], strict=True))

    def _read_new_rows(
        self,
        connection: sqlite3.Connection,
        table: str,
        selects: dict[int, str],
        add: Callable[[Sequence[Any]], None],
        expected: dict[str, int] | None,
    ) -> bool:
        """Read the new rows of a table, and return whether there are any."""
        first = last = self._last_numbers[table]
        column = "number > ?" if self.version > 1 or table != "streams" else "? = 0"
        select = f"{selects[self.version]} WHERE {column}"
        if self.version > 1 or table != "streams":
            select += " ORDER BY number"
        for row in connection.execute(select, (last,)):
            number = row[0]
            check_order(table, number, last)
            if number > last + 1:
                self._report_missing_rows(table, last + 1, number - 1)
            last = number
            if self.version > 1 and row[-1] != row_checksum(table, *row[:-1]):
                why = f"row {number} of its {table} differs from its checksum"
                self._report(Damage(self._path, why))
                continue
            add(row)
        self._last_numbers[table] = last
        if expected is not None and last < expected[table]:
            self._report_missing_rows(table, last + 1, expected[table])
        if expected is not None and last > expected[table]:
            self._report(Damage(self._path, f"its tally counts too few rows of its {table}"))
        return last > first

    def _report_missing_rows(self, table: str, first: int, last: int) -> None:
        which = f"row {first}" if first == last else f"rows {first} to {last}"
        verb = "is" if first == last else "are"
        self._report(Damage(self._path, f"{which} of its {table} {verb} missing"))

    def _add_run(self, row: Sequence[Any]) -> None:
        part = _parse_run_row(self._path, row)
        self._parts_by_number[part.number] = part

    def _add_end(self, row: Sequence[Any]) -> None:
        _, run, ended, status, _ = row
        if not (isinstance(ended, float) and status in (FINISHED, CRASHED)):
            raise ValueError("a row of its runs is damaged")
        if run in self._parts_by_number:
            self._parts_by_number[run] = self._parts_by_number[run]._replace(
                ended=ended, status=status
            )

    def _add_stream(self, row: Sequence[Any]) -> None:
        _, run, family, place, lane, shard, _ = row
        if lane not in self._lanes:
            self._lanes[lane] = _parse_lane(lane)
        if not (is_count(place) and (shard is None or is_count(shard))):
            raise ValueError("a row of its streams is damaged")
        stream = StoredStream(place, self._lanes[lane], shard, run)
        self._streams_by_run.setdefault(run, []).append((family, stream))

    def _add_batch(self, connection: sqlite3.Connection, size: int, row: Sequence[Any]) -> None:
        batch = parse_batch_row(row)
        try:
            plan = self.layout(connection, batch.layout).plan(
                batch.streams, batch.records, batch.ragged, batch.alike
            )
        except ChecksumError:
            pass  # reported when its records are read
        else:
            self._batch_bytes += sum(location.size for location in plan.locations)
            if plan.blobs and batch.blob < self._next_blob:
                raise ValueError("two of its batches share a blob")
            self._next_blob = max(self._next_blob, batch.blob + plan.blobs)
        # Refuse batches that would make a reader allocate more than the file holds.
        if self._batch_bytes > size or batch.streams * batch.records > _MAX_EMPTY_RECORDS + size:
            raise ValueError("its batches claim to have more than the file holds")
        self._batches_by_family.setdefault(batch.family, array.array("q")).append(batch.number)

    def layout(self, connection: sqlite3.Connection, number: int) -> LogLayout:
        """Return a layout, or raise ChecksumError."""
        if number not in self.layouts:
            text = self.content(connection, "layouts", number)
            self.layouts[number] = parse_layout(text)
        return self.layouts[number]

    def content(self, connection: sqlite3.Connection, table: str, number: int) -> str:
        """Return the content of a row of `texts` or `layouts`."""
        crc = "crc" if self.version > 1 else "0"
        select = f"SELECT content, {crc} FROM {table} WHERE number = ?"
        row = connection.execute(select, (number,)).fetchone()
        if row is None or not isinstance(row[0], str):
            raise ValueError(f"a row of its {table} is missing")
        if self.version > 1 and row[1] != row_checksum(table, number, row[0]):
            raise ChecksumError(f"row {number} of its {table} differs from its checksum")
        return str(row[0])


def _parse_run_row(path: str, row: Sequence[Any]) -> RunPart:
    number, sequence, opened_at, guest, content, config, machine, _ = row
    found = json.loads(content)
    kinds: dict[str, Any] = {
        "id": str,
        "name": str,
        "group": (str, type(None)),
        "lane": list,
        "lanes": (int, type(None)),
        "began": (int, float),
        "resumed": bool,
    }
    fits = isinstance(found, dict) and found.keys() == kinds.keys()
    if not (
        fits
        and all(isinstance(found[name], kind) for name, kind in kinds.items())
        and all(type(index) is int for index in found["lane"])
        and all(type(x) is int for x in (sequence, guest, config, machine))
        and isinstance(opened_at, float)
    ):
        raise ValueError("a row of its runs is damaged")
    return RunPart(
        path, number, sequence, opened_at, bool(guest), found, config, machine, None, None
    )


def parse_batch_row(row: Sequence[Any]) -> BatchRow:
    """Parse the row of a batch, without its data; ValueError if it is not valid."""
    batch = BatchRow(*row)
    whole = (*batch[:8], batch.process, batch.length)
    if not all(map(is_count, whole)) or batch.streams == 0 or batch.ragged > 1:
        raise ValueError("a row of its portions is damaged")
    if not (isinstance(batch.checks, bytes) and isinstance(batch.statistics, str)):
        raise ValueError("a row of its portions is damaged")
    return batch


class RunsSnapshot:
    """A file that is open for reading, in one transaction.

    Attributes:
      has_damaged_layouts: True once a damaged layout was read.
    """

    has_damaged_layouts = False

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        catalog: FileCatalog,
        report: Callable[[Damage], None],
    ) -> None:
        self.path, self.connection, self.catalog, self.report = path, connection, catalog, report

    @property
    def has_checksums(self) -> bool:
        """True if rows and bytes have checksums; files of version 1 have none."""
        return self.catalog.version > 1

    def text(self, number: int) -> dict[str, Any]:
        """Return the config of a run, or the facts about its machine."""
        found = from_json(self.catalog.content(self.connection, "texts", number))
        if not isinstance(found, dict):
            raise ValueError("one of its texts does not describe a run")
        return found

    def layout(self, number: int) -> LogLayout:
        """Return a layout, or raise ChecksumError."""
        return self.catalog.layout(self.connection, number)

    def intact_layout(self, number: int) -> LogLayout | None:
        """Return a layout; report it and return None if it is damaged."""
        try:
            return self.catalog.layout(self.connection, number)
        except ChecksumError as error:
            self.has_damaged_layouts = True
            self.report(Damage(self.path, f"{error}, and the batches that need it are left out"))
            return None

    def streams_of(self, runs: Collection[int]) -> dict[int, list[StoredStream]]:
        """Return the streams of some runs by family, ordered by their place."""
        return self.catalog.streams_of(runs)

    def layouts(self) -> list[LogLayout]:
        """Return all layouts that are not damaged."""
        numbers = [0]
        for (number,) in self.connection.execute("SELECT number FROM layouts ORDER BY number"):
            check_order("layouts", number, numbers[-1])
            numbers.append(number)
        return self._intact_layouts(numbers[1:])

    def layouts_of(self, families: Collection[int]) -> list[LogLayout]:
        """Return the layouts of the batches of families, in the order of the batches."""
        rows = self.batches(families)
        return self._intact_layouts(dict.fromkeys(row.layout for row in rows))

    def _intact_layouts(self, numbers: Iterable[int]) -> list[LogLayout]:
        found = (self.intact_layout(number) for number in numbers)
        return [layout for layout in found if layout is not None]

    def batches(self, families: Collection[int]) -> list[BatchRow]:
        """Return the batches of families without data, in the order in which they were written."""
        return self._read_batches(families, "")

    def batches_with_data(self, families: Collection[int]) -> list[BatchRow]:
        """Return the batches of families as `batches` does, with their data if it is small."""
        return self._read_batches(
            families, f", CASE WHEN length(data) <= {_MAX_INLINE_BYTES} THEN data END"
        )

    def last_written(self, families: Collection[int]) -> float | None:
        """Return the wall time of the newest records."""
        times = [row.arrived for row in self.batches(families)]
        return max((time for time in times if isinstance(time, float)), default=None)

    def _read_batches(self, families: Collection[int], more: str) -> list[BatchRow]:
        numbers = self.catalog.batch_numbers(families)
        select = f"{_BATCHES[self.catalog.version]}{more} FROM portions WHERE number"
        execute = self.connection.execute
        if len(numbers) <= _MAX_SINGLE_ROW_QUERIES:
            rows = [row for each in numbers for row in execute(f"{select} = ?", (each,))]
        else:
            wanted = set(numbers)
            found = execute(f"{select} BETWEEN ? AND ? ORDER BY number", (numbers[0], numbers[-1]))
            rows = [row for row in found if row[0] in wanted]
        if len(rows) != len(numbers):
            raise ValueError("some of its batches are missing")
        return [parse_batch_row(row) for row in rows]


def _database_bytes(connection: sqlite3.Connection) -> int:
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return int(page * pages)


def check_order(table: str, number: Any, last: int) -> None:
    """Raise ValueError unless a row follows the last one: damaged pages may form a cycle."""
    if not is_count(number) or number <= last:
        raise ValueError(f"the rows of its {table} are not in order")


def is_count(value: Any) -> bool:
    """Return whether a value is an integer that a file may contain: not negative, not too large."""
    return type(value) is int and 0 <= value < 2**62


def _parse_lane(text: Any) -> tuple[int, ...]:
    lane = json.loads(text) if isinstance(text, str) else None
    if not (isinstance(lane, list) and len(lane) <= _MAX_LANE_AXES and all(map(is_count, lane))):
        raise ValueError("one of its lanes is not valid")
    return tuple(lane)

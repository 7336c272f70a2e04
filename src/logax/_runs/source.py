"""One file of runs, to read: which runs are in it, and its portions.

A `Catalog` keeps what was read of the file once: its runs and their ends, its streams, and which
portions each family has. Files only grow, so a later look reads the rows that are new. A file that
nobody writes, and that looks as it did, is not even opened to find its runs. One whose first run
has changed is another file under the same name. A newer copy of the same file, in its place, is
the same file.

Rows that are damaged are reported and left out. Rows are numbered without gaps, and the tally says
how many there should be, so that rows which are missing are reported too.
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

from logax._runs.config_json import from_json
from logax._runs.database import lacks_log, opened, size_damage
from logax._runs.errors import ChecksumError, Damage, DamageWarning, RemovedError
from logax._runs.format import COUNTED, CRASHED, FINISHED, row_checksum
from logax._runs.layouts import Layout, layout_from
from logax._runs.locks import is_alive, noted_progress
from logax._support.messages import warn_user

_SMALL = 4096  # bytes that are read with the row, whatever is wanted of them
_FEW = 100  # portions that are asked for one by one
_MAX_EMPTY_RECORDS = 2**24  # records of a portion that have no bytes
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
_HEADS = {
    1: "SELECT number, family, layout, streams, records, ragged, alike, blob, written, 0, '', "
    "length(data), x'', 0",
    2: "SELECT number, family, layout, streams, records, ragged, alike, blob, arrived, process, "
    "statistics, length, checks, crc",
}


class Part(NamedTuple):
    """A run as one file has it: the whole of it, or from when it was resumed."""

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
        """That of the run."""
        return str(self.content["id"])


class Row(NamedTuple):
    """One portion, as its row says."""

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


class Member(NamedTuple):
    """A stream of a run: its place in a family, its lane and its shard."""

    place: int
    lane: tuple[int, ...]
    shard: int | None
    run: int


def warn_of_damage(damage: Damage) -> None:
    """Report damage to the user."""
    warn_user(str(damage), DamageWarning)


class Source:
    """One file.

    Args:
      path: The file.
      report: Called once for each damage that is found.
    """

    def __init__(self, path: str, report: Callable[[Damage], None] = warn_of_damage) -> None:
        self.path = path
        self.alive = False
        self._report = report
        self._reported: set[Damage] = set()
        self._catalog = Catalog(path, self.report)
        self._seen: tuple[int, ...] | None = None
        self._first: tuple[Any, ...] | None = None  # run of the file, which never changes

    @property
    def is_damaged(self) -> bool:
        """True if damage was found."""
        return bool(self._reported)

    def report(self, damage: Damage) -> None:
        """Report damage, unless that was done before."""
        if damage not in self._reported:
            self._reported.add(damage)
            self._report(damage)

    @contextlib.contextmanager
    def look(self) -> Iterator[Look]:
        """Open the file; RunsError if it cannot be read, or was replaced."""
        with self._opened() as connection:
            self._catalog.update(connection)
            yield Look(self.path, connection, self._catalog, self.report)

    def parts(self) -> list[Part]:
        """Return all runs, in the order in which they were opened; RunsError as in `look`."""
        self.alive = is_alive(self.path)  # first: what it wrote before it ended is there after that
        seen = None if self.alive else self._identity()
        if seen is None or seen != self._seen:
            noted = noted_progress(self.path)
            with self._opened() as connection:
                self._catalog.update(connection)
                if seen is not None:
                    self._check_end(connection, noted.commits, noted.records)
            self._seen = seen
        return self._catalog.parts

    def parts_of(self, identity: str) -> Sequence[Part]:
        """Return the parts of one run, as `parts` found them last."""
        return self._catalog.by_run.get(identity, ())

    def _check_end(self, connection: sqlite3.Connection, commits: int, records: int) -> None:
        """Report that the end of the file is missing, of one that nobody writes."""
        missing = records - self._catalog.records
        if commits > self._catalog.commits:
            which = f"the last {missing} of {records} records" if missing > 0 else "the last rows"
            self.report(Damage(self.path, f"{which} that its writer made safe are missing"))
        elif not (self._catalog.parts or self.is_damaged) and lacks_log(self.path, connection):
            why = (
                "it has no runs. Its process was killed before it wrote any, or its log, "
                f"{os.path.basename(self.path)}-wal, was not copied with it"
            )
            self.report(Damage(self.path, why))
        damage = size_damage(self.path, connection)
        if damage is not None:
            self.report(Damage(self.path, damage))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, or raise RemovedError if it is not the one that was opened first."""
        if self._first is not None and not os.path.exists(self.path):
            raise self._removed()
        with opened(self.path) as (connection, version):
            rows = connection.execute("SELECT opened, content FROM runs ORDER BY number LIMIT 1")
            first = rows.fetchone()
            if self._first not in (None, first):
                raise self._removed()
            self._first = first
            self._catalog.version = version
            yield connection

    def _removed(self) -> RemovedError:
        return RemovedError(
            f"{self.path} was removed or replaced since its runs were listed. Call "
            "`runs.refresh()` to list them again."
        )

    def _identity(self) -> tuple[int, ...] | None:
        with contextlib.suppress(OSError):
            log = f"{self.path}-wal"
            found = [os.stat(self.path), *([os.stat(log)] if os.path.exists(log) else [])]
            return tuple(n for x in found for n in (x.st_ino, x.st_size, x.st_mtime_ns))
        return None


class Catalog:
    """Everything in a file but values: kept, and read on from where it ended.

    Attributes:
      version: Version of the file's format.
      commits: Number of commits that the file has.
      records: Number of records that it has.
      parts: Its runs.
      by_run: The same by id.
      layouts: Layouts that were read.
    """

    def __init__(self, path: str, report: Callable[[Damage], None]) -> None:
        self.version = 0
        self._path, self._report = path, report
        self._reset()

    def _reset(self) -> None:
        self.commits = self.records = 0
        self.parts: list[Part] = []
        self.by_run: dict[str, list[Part]] = {}
        self.layouts: dict[int, Layout] = {}
        self._last = dict.fromkeys(COUNTED, 0)
        self._runs: dict[int, Part] = {}
        self._streams: dict[int, list[tuple[int, Member]]] = {}
        self._families: dict[int, array.array[int]] = {}
        self._lanes: dict[str, tuple[int, ...]] = {}
        self._bytes = 0
        self._next_blob = 1

    def update(self, connection: sqlite3.Connection) -> None:
        """Read what is new in the file."""
        expected = self._tally(connection) if self.version > 1 else None
        if expected is not None:
            if self.commits == expected["commits"] and self.commits:
                return
            if self.commits > expected["commits"]:  # an older copy
                self._reset()
        has_runs = self._read(connection, "runs", _RUNS, self._add_run, expected)
        if self._read(connection, "ends", _ENDS, self._add_end, expected) or has_runs:
            self.parts = list(self._runs.values())
            self.by_run = {}
            for part in self.parts:
                self.by_run.setdefault(part.id, []).append(part)
        if self.version == 1:
            self._streams, self._last["streams"] = {}, 0
        self._read(connection, "streams", _STREAMS, self._add_stream, expected)
        size = _size(connection)

        def add_portion(row: Sequence[Any]) -> None:
            self._add_portion(connection, size, row)

        heads = {version: f"{head} FROM portions" for version, head in _HEADS.items()}
        self._read(connection, "portions", heads, add_portion, expected)
        if expected is not None:
            self.commits, self.records = expected["commits"], expected["records"]

    def members(self, runs: Collection[int]) -> dict[int, list[Member]]:
        """Return by family the streams of some runs, in the order of their places."""
        families: dict[int, list[Member]] = {}
        for run in runs:
            for family, member in self._streams.get(run, ()):
                families.setdefault(family, []).append(member)
        for members in families.values():
            members.sort(key=lambda member: member.place)
        return families

    def portions(self, families: Collection[int]) -> list[int]:
        """Return the numbers of the portions of some families, in order."""
        return list(heapq.merge(*(self._families.get(each, ()) for each in families)))

    def run_ids(self, runs: Collection[int]) -> tuple[str, ...]:
        """Return the ids of runs."""
        return tuple(dict.fromkeys(self._runs[run].id for run in runs if run in self._runs))

    def _tally(self, connection: sqlite3.Connection) -> dict[str, int] | None:
        row = connection.execute("SELECT * FROM tally ORDER BY number LIMIT 1").fetchone()
        if row is None:
            return dict.fromkeys(("commits", "records", *COUNTED), 0)
        *values, crc = row
        if crc != row_checksum("tally", *values) or not all(map(is_whole, values)):
            self._report(Damage(self._path, "its tally differs from its checksum"))
            return None
        return dict(zip(("commits", "records", *COUNTED), values[1:], strict=True))

    def _read(
        self,
        connection: sqlite3.Connection,
        table: str,
        selects: dict[int, str],
        add: Callable[[Sequence[Any]], None],
        expected: dict[str, int] | None,
    ) -> bool:
        """Read the new rows of a table, and return whether there are any."""
        first = last = self._last[table]
        column = "number > ?" if self.version > 1 or table != "streams" else "? = 0"
        select = f"{selects[self.version]} WHERE {column}"
        if self.version > 1 or table != "streams":
            select += " ORDER BY number"
        for row in connection.execute(select, (last,)):
            number = row[0]
            check_order(table, number, last)
            if number > last + 1:
                self._missing(table, last + 1, number - 1)
            last = number
            if self.version > 1 and row[-1] != row_checksum(table, *row[:-1]):
                why = f"row {number} of its {table} differs from its checksum"
                self._report(Damage(self._path, why))
                continue
            add(row)
        self._last[table] = last
        if expected is not None and last < expected[table]:
            self._missing(table, last + 1, expected[table])
        if expected is not None and last > expected[table]:
            self._report(Damage(self._path, f"its tally counts too few rows of its {table}"))
        return last > first

    def _missing(self, table: str, first: int, last: int) -> None:
        which = f"row {first}" if first == last else f"rows {first} to {last}"
        verb = "is" if first == last else "are"
        self._report(Damage(self._path, f"{which} of its {table} {verb} missing"))

    def _add_run(self, row: Sequence[Any]) -> None:
        part = _part(self._path, row)
        self._runs[part.number] = part

    def _add_end(self, row: Sequence[Any]) -> None:
        _, run, ended, status, _ = row
        if not (isinstance(ended, float) and status in (FINISHED, CRASHED)):
            raise ValueError("a row of its runs is damaged")
        if run in self._runs:
            self._runs[run] = self._runs[run]._replace(ended=ended, status=status)

    def _add_stream(self, row: Sequence[Any]) -> None:
        _, run, family, place, lane, shard, _ = row
        if lane not in self._lanes:
            self._lanes[lane] = _lane(lane)
        if not (is_whole(place) and (shard is None or is_whole(shard))):
            raise ValueError("a row of its streams is damaged")
        member = Member(place, self._lanes[lane], shard, run)
        self._streams.setdefault(run, []).append((family, member))

    def _add_portion(self, connection: sqlite3.Connection, size: int, row: Sequence[Any]) -> None:
        head = portion_row(row)
        try:
            plan = self.layout(connection, head.layout).plan(
                head.streams, head.records, head.ragged, head.alike
            )
        except ChecksumError:
            pass  # reported where its records are asked for
        else:
            self._bytes += sum(place.size for place in plan.places)
            if plan.blobs and head.blob < self._next_blob:
                raise ValueError("two portions of it share a blob")
            self._next_blob = max(self._next_blob, head.blob + plan.blobs)
        # No more than the file holds can be asked for.
        if self._bytes > size or head.streams * head.records > _MAX_EMPTY_RECORDS + size:
            raise ValueError("its portions say that they have more than the file holds")
        self._families.setdefault(head.family, array.array("q")).append(head.number)

    def layout(self, connection: sqlite3.Connection, number: int) -> Layout:
        """Return the form of records."""
        if number not in self.layouts:
            text = self.content(connection, "layouts", number)
            self.layouts[number] = layout_from(text)
        return self.layouts[number]

    def content(self, connection: sqlite3.Connection, table: str, number: int) -> str:
        """Return the content of a text or a layout."""
        crc = "crc" if self.version > 1 else "0"
        select = f"SELECT content, {crc} FROM {table} WHERE number = ?"
        row = connection.execute(select, (number,)).fetchone()
        if row is None or not isinstance(row[0], str):
            raise ValueError(f"a row of its {table} is missing")
        if self.version > 1 and row[1] != row_checksum(table, number, row[0]):
            raise ChecksumError(f"row {number} of its {table} differs from its checksum")
        return str(row[0])


def _part(path: str, row: Sequence[Any]) -> Part:
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
    return Part(path, number, sequence, opened_at, bool(guest), found, config, machine, None, None)


def portion_row(row: Sequence[Any]) -> Row:
    """Return a portion without its data, or raise ValueError if it cannot be one."""
    head = Row(*row)
    whole = (*head[:8], head.process, head.length)
    if not all(map(is_whole, whole)) or head.streams == 0 or head.ragged > 1:
        raise ValueError("a row of its portions is damaged")
    if not (isinstance(head.checks, bytes) and isinstance(head.statistics, str)):
        raise ValueError("a row of its portions is damaged")
    return head


class Look:
    """A file while it is open.

    Attributes:
      has_damaged_layouts: True once a layout was asked for and is damaged.
    """

    has_damaged_layouts = False

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        catalog: Catalog,
        report: Callable[[Damage], None],
    ) -> None:
        self.path, self.connection, self.catalog, self.report = path, connection, catalog, report

    @property
    def has_checksums(self) -> bool:
        """Whether rows and bytes have checksums."""
        return self.catalog.version > 1

    def text(self, number: int) -> dict[str, Any]:
        """Return the config of a run, or the facts of its machine."""
        found = from_json(self.catalog.content(self.connection, "texts", number))
        if not isinstance(found, dict):
            raise ValueError("a text of it says nothing of a run")
        return found

    def layout(self, number: int) -> Layout:
        """Return the form of records."""
        return self.catalog.layout(self.connection, number)

    def intact_layout(self, number: int) -> Layout | None:
        """Return a layout, or report that it is damaged and return None."""
        try:
            return self.catalog.layout(self.connection, number)
        except ChecksumError as error:
            self.has_damaged_layouts = True
            self.report(Damage(self.path, f"{error}, and the batches that need it are left out"))
            return None

    def members(self, runs: Collection[int]) -> dict[int, list[Member]]:
        """Return by family the streams of some runs, in the order of their places."""
        return self.catalog.members(runs)

    def layouts(self) -> list[Layout]:
        """Return the layouts of all runs that can be read."""
        numbers = [0]
        for (number,) in self.connection.execute("SELECT number FROM layouts ORDER BY number"):
            check_order("layouts", number, numbers[-1])
            numbers.append(number)
        return self._whole_layouts(numbers[1:])

    def layouts_of(self, families: Collection[int]) -> list[Layout]:
        """Return the layouts of the portions of families, in the order in which they came."""
        rows = self.heads(families)
        return self._whole_layouts(dict.fromkeys(row.layout for row in rows))

    def _whole_layouts(self, numbers: Iterable[int]) -> list[Layout]:
        found = (self.intact_layout(number) for number in numbers)
        return [layout for layout in found if layout is not None]

    def heads(self, families: Collection[int]) -> list[Row]:
        """Return the portions of families without their data, in the order in which they came."""
        return self._portions(families, "")

    def portions(self, families: Collection[int]) -> list[Row]:
        """Return the portions of families, in the order in which they came, with data if small."""
        return self._portions(families, f", CASE WHEN length(data) <= {_SMALL} THEN data END")

    def last_written(self, families: Collection[int]) -> float | None:
        """Return the wall time of the newest records."""
        times = [row.arrived for row in self.heads(families)]
        return max((time for time in times if isinstance(time, float)), default=None)

    def _portions(self, families: Collection[int], more: str) -> list[Row]:
        numbers = self.catalog.portions(families)
        select = f"{_HEADS[self.catalog.version]}{more} FROM portions WHERE number"
        execute = self.connection.execute
        if len(numbers) <= _FEW:
            rows = [row for each in numbers for row in execute(f"{select} = ?", (each,))]
        else:
            wanted = set(numbers)
            found = execute(f"{select} BETWEEN ? AND ? ORDER BY number", (numbers[0], numbers[-1]))
            rows = [row for row in found if row[0] in wanted]
        if len(rows) != len(numbers):
            raise ValueError("some of its portions are missing")
        return [portion_row(row) for row in rows]


def _size(connection: sqlite3.Connection) -> int:
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return int(page * pages)


def check_order(table: str, number: Any, last: int) -> None:
    """Raise ValueError unless a row comes after the last one: pages may refer to one another."""
    if not is_whole(number) or number <= last:
        raise ValueError(f"the rows of its {table} are not in order")


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number that a file may have."""
    return type(value) is int and 0 <= value < 2**62


def _lane(text: Any) -> tuple[int, ...]:
    lane = json.loads(text) if isinstance(text, str) else None
    if not (isinstance(lane, list) and len(lane) <= 32 and all(map(is_whole, lane))):
        raise ValueError("a lane of it is none")
    return tuple(lane)

"""One file of runs, to read: which runs are in it, and its portions.

What was read of it once is kept: layouts never change, and whether there are new runs or ends is
seen from the numbers of the last ones. A file that nobody writes, and that looks as it did, is not
even opened to find its runs. Files only grow, so one whose first run has changed is another file
under the same name. A newer copy of the same file, in its place, is the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from logax._runs.alive import is_alive
from logax._runs.database import opened
from logax._runs.errors import RemovedError
from logax._runs.format import CRASHED, FINISHED
from logax._runs.layouts import Layout, layout_from
from logax._runs.texts import from_json

_SMALL = 4096  # bytes that are read with the row, whatever is wanted of them
_FEW = 100  # runs or families that are asked for one by one
_PORTIONS = (
    "SELECT number, family, layout, streams, records, ragged, alike, blob, length(data), "
    f"CASE WHEN length(data) <= {_SMALL} THEN data END FROM portions"
)


class Part(NamedTuple):
    """A run as one file has it: the whole of it, or from when it was resumed."""

    path: str
    number: int
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
    length: int
    data: bytes | None


class Member(NamedTuple):
    """A stream of a run: its place in a family, its lane and its shard."""

    place: int
    lane: tuple[int, ...]
    shard: int | None
    run: int


class Source:
    """One file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.alive = False
        self._parts: list[Part] = []
        self._by_run: dict[str, list[Part]] = {}
        self._last: tuple[int, int] | None = None
        self._seen: tuple[int, ...] | None = None
        self._layouts: dict[int, Layout] = {}
        self._first: tuple[Any, ...] | None = None  # run of the file, which never changes

    @contextlib.contextmanager
    def look(self) -> Iterator[Look]:
        """The file, open; RunsError if what is looked at is damaged, or the file was replaced."""
        with self._opened() as connection:
            yield Look(self.path, connection, self._layouts)

    def parts(self) -> list[Part]:
        """All runs, in the order in which they were opened; RunsError as in `look`."""
        self.alive = is_alive(self.path)  # first: what it wrote before it ended is there after that
        seen = None if self.alive else self._identity()
        if seen is None or seen != self._seen:
            with self._opened() as connection:
                self._read(connection)
            self._seen = seen
        return self._parts

    def parts_of(self, identity: str) -> Sequence[Part]:
        """Return the parts of one run, as `parts` found them last."""
        return self._by_run.get(identity, ())

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, or raise RemovedError if it is not the one that was opened first."""
        if self._first is not None and not os.path.exists(self.path):
            raise self._removed()
        with opened(self.path) as connection:
            rows = connection.execute("SELECT opened, content FROM runs ORDER BY number LIMIT 1")
            first = rows.fetchone()
            if self._first not in (None, first):
                raise self._removed()
            self._first = first
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

    def _read(self, connection: sqlite3.Connection) -> None:
        (runs,) = connection.execute("SELECT max(number) FROM runs").fetchone()
        (ends,) = connection.execute("SELECT max(number) FROM ends").fetchone()
        if (runs, ends) == self._last:
            return
        found = connection.execute("SELECT run, ended, status FROM ends ORDER BY number")
        ended = {number: (when, status) for number, when, status in found}
        rows = connection.execute(
            "SELECT number, opened, guest, content, config, machine FROM runs ORDER BY number"
        )
        self._parts = [
            _part(self.path, row, *ended.get(row[0], (None, None))) for row in rows.fetchall()
        ]
        self._by_run = {}
        for part in self._parts:
            self._by_run.setdefault(part.id, []).append(part)
        self._last = runs, ends


def _part(path: str, row: Sequence[Any], ended: Any, status: Any) -> Part:
    number, opened_at, guest, content, config, machine = row
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
        and all(type(x) is int for x in (guest, config, machine))
        and isinstance(opened_at, float)
        and (ended is None or (isinstance(ended, float) and status in (FINISHED, CRASHED)))
    ):
        raise ValueError("a row of its runs is damaged")
    return Part(path, number, opened_at, bool(guest), found, config, machine, ended, status)


class Look:
    """A file while it is open."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, layouts: dict[int, Layout]
    ) -> None:
        self.path, self.connection, self._layouts = path, connection, layouts

    def text(self, number: int) -> dict[str, Any]:
        """Return the config of a run, or the facts of its machine."""
        row = self.connection.execute("SELECT content FROM texts WHERE number = ?", (number,))
        found = from_json(_one(row.fetchone(), "a text"))
        if not isinstance(found, dict):
            raise ValueError("a text of it says nothing of a run")
        return found

    def layout(self, number: int) -> Layout:
        """What records look like."""
        if number not in self._layouts:
            row = self.connection.execute("SELECT content FROM layouts WHERE number = ?", (number,))
            self._layouts[number] = layout_from(_one(row.fetchone(), "a layout"))
        return self._layouts[number]

    def members(self, runs: Collection[int]) -> dict[int, list[Member]]:
        """By family, the streams of some runs, in the order of their places."""
        rows = self._rows("SELECT run, family, place, lane, shard FROM streams", "run", 0, runs)
        families: dict[int, list[Member]] = {}
        lanes: dict[str, tuple[int, ...]] = {}
        for run, family, place, lane, shard in rows:
            if lane not in lanes:
                lanes[lane] = _lane(lane)
            if not (_whole(place) and (shard is None or _whole(shard))):
                raise ValueError("a row of its streams is damaged")
            families.setdefault(family, []).append(Member(place, lanes[lane], shard, run))
        for members in families.values():
            members.sort(key=lambda member: member.place)
        return families

    def layouts(self) -> list[Layout]:
        """Those of all runs."""
        rows = self.connection.execute("SELECT number FROM layouts ORDER BY number")
        return [self.layout(number) for (number,) in rows.fetchall()]

    def layouts_of(self, families: Collection[int]) -> list[Layout]:
        """The layouts that portions of these families have, in the order in which they came."""
        first: dict[int, int] = {}
        for row in self._of_families("SELECT number, family, layout FROM portions", families):
            first.setdefault(row[2], row[0])
        return [self.layout(number) for number in sorted(first, key=lambda n: first[n])]

    def portions(self, families: Collection[int]) -> list[Row]:
        """The portions of these families, in the order in which they came."""
        rows = [Row(*row) for row in self._of_families(_PORTIONS, families)]
        for row in rows:
            if not all(map(_whole, row[:9])) or row.streams == 0:
                raise ValueError("a row of its portions is damaged")
        return rows

    def last_written(self, families: Collection[int]) -> float | None:
        """When the last of their records were."""
        rows = self._of_families("SELECT number, family, written FROM portions", families)
        return max((row[2] for row in rows if isinstance(row[2], float)), default=None)

    def _of_families(self, select: str, families: Collection[int]) -> list[Any]:
        """Rows that begin with their number and their family, in the order of numbers."""
        return sorted(self._rows(select, "family", 1, families), key=lambda row: row[0])

    def _rows(self, select: str, column: str, at: int, wanted: Collection[int]) -> list[Any]:
        """The rows that have one of the wanted numbers in a column, which is their item `at`."""
        if len(wanted) > _FEW:
            return [row for row in self.connection.execute(select) if row[at] in wanted]
        where = f"{select} WHERE {column} = ?"
        return [row for each in wanted for row in self.connection.execute(where, (each,))]


def _one(row: Any, what: str) -> str:
    if row is None or not isinstance(row[0], str):
        raise ValueError(f"{what} of it is missing")
    return row[0]


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _lane(text: Any) -> tuple[int, ...]:
    lane = json.loads(text) if isinstance(text, str) else None
    if not (isinstance(lane, list) and len(lane) <= 32 and all(map(_whole, lane))):
        raise ValueError("a lane of it is none")
    return tuple(lane)

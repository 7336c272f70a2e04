"""The records of a key, as they stand in the portions of a file.

Only the blocks of bytes that are wanted are read: of one run out of a thousand, and of one key out
of many, about a thousandth of what the portion has. Before anything is read the sizes that a
portion says are compared with those of its blobs. Bytes that differ from their checksum are
reported, and the records of the streams that have bytes in the same block are left out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from logax._runs.errors import ChecksumError, Damage
from logax._runs.format import BLOCK_BYTES, CHUNK, Place, row_checksum, verify_blocks
from logax._runs.layouts import Key, Layout, Leaf
from logax._runs.source import Look, Member, Row

Cell = tuple[int, ...]
Bytes = bytes | memoryview


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Some records of one key, of one or several streams.

    Attributes:
      key: What they look like.
      layout: Those of all keys that were logged with it.
      cells: For each stream its place in the array of all.
      records: How many each has, at most.
      counts: How many each has; None for all.
      arrays: For each leaf the bytes of (streams, records, ...).
      steps: For each step its type and bytes, and whether these are of one stream for all.
      origin: Two pieces of the same origin have the same steps and counts.
    """

    key: Key
    layout: Layout
    cells: tuple[Cell, ...]
    records: int
    counts: np.ndarray[Any, Any] | None
    arrays: list[Bytes]
    steps: dict[str, tuple[Leaf, Bytes, bool]]
    origin: tuple[Any, ...]


def pieces_of(
    look: Look,
    families: Mapping[int, Sequence[Member]],
    cell: Callable[[Member], Cell],
    wanted: Callable[[str], bool],
) -> Iterator[Piece]:
    """The records of the keys that are wanted, of the streams in these families, in order."""
    cells = {
        number: tuple(cell(member) for member in members) for number, members in families.items()
    }
    if any(len({len(each) for each in own}) > 1 for own in cells.values()):
        raise ValueError("streams of it that log side by side differ in their number of axes")
    chosen: dict[int, list[tuple[int, Key]]] = {}
    rows = look.portions(families)
    for at, row in enumerate(rows):
        layout = look.intact_layout(row.layout)
        if layout is None:
            continue
        if row.layout not in chosen:
            chosen[row.layout] = [each for name, each in layout.places.items() if wanted(name)]
        if not chosen[row.layout]:
            continue
        members, own = families[row.family], cells[row.family]
        portion = _Portion(look, layout, row, [member.place for member in members])
        for first, key in chosen[row.layout]:
            try:
                found = [portion.piece(first, key, own)]
            except ChecksumError:
                found, damaged = _intact_pieces(look, layout, row, members, own, first, key)
                for why, runs in damaged.items():
                    look.report(_damage(look, families, rows[: at + 1], runs, key.name, why))
            yield from found


def _intact_pieces(
    look: Look,
    layout: Layout,
    row: Row,
    members: Sequence[Member],
    cells: Sequence[Cell],
    first: int,
    key: Key,
) -> tuple[list[Piece], dict[str, set[int]]]:
    """Read each stream by itself; return the intact ones, and by reason the runs of the others."""
    found: list[Piece] = []
    damaged: dict[str, set[int]] = {}
    for member, cell in zip(members, cells, strict=True):
        try:
            found.append(_Portion(look, layout, row, [member.place]).piece(first, key, (cell,)))
        except ChecksumError as error:
            damaged.setdefault(str(error), set()).add(member.run)
    return found, damaged


def _damage(
    look: Look,
    families: Mapping[int, Sequence[Member]],
    rows: Sequence[Row],
    owners: Collection[int],
    key: str,
    why: str,
) -> Damage:
    """Describe damage in the last of these portions, which hides records of a key of some runs."""
    before = 0
    for row in rows[:-1]:
        has_own = any(member.run in owners for member in families[row.family])
        if has_own and _has_key(look, row, key):
            before += row.records
    last = before + max(rows[-1].records, 1) - 1
    return Damage(look.path, why, look.catalog.run_ids(owners), key, before, last)


def _has_key(look: Look, row: Row, key: str) -> bool:
    layout = look.intact_layout(row.layout)
    return layout is not None and key in layout.places


class _Portion:
    """The bytes of one portion that belong to some of its streams."""

    def __init__(self, look: Look, layout: Layout, row: Row, places: Sequence[int]) -> None:
        self._look, self._layout, self._row, self._places = look, layout, row, places
        plan = layout.plan(row.streams, row.records, row.ragged, row.alike)
        if plan.shared != row.length or places[-1] >= row.streams:
            raise ValueError("a portion of it has another size than it says")
        self._plan = plan
        self._is_range = places[-1] - places[0] == len(places) - 1

    def piece(self, first: int, key: Key, cells: tuple[Cell, ...]) -> Piece:
        """Read the records of a key, whose leaves begin at `first`; ChecksumError if damaged."""
        return Piece(
            key,
            self._layout,
            cells,
            self.most,
            self.counts,
            self._leaves(first, len(key.leaves)),
            self.steps,
            (self._look.path, self._row.number, cells),
        )

    @functools.cached_property
    def most(self) -> int:
        """Number of records of the stream that has most."""
        return self._row.records if self.counts is None else int(self.counts.max())

    @functools.cached_property
    def counts(self) -> np.ndarray[Any, Any] | None:
        """Number of records of each stream; None if all have all."""
        if not self._row.ragged:
            return None
        found = np.frombuffer(self._rows(self._plan.places[0], 4, 4), "<u4").astype(np.int64)
        if (found > self._row.records).any():
            raise ValueError("a portion of it has more records than it says")
        return found

    @functools.cached_property
    def steps(self) -> dict[str, tuple[Leaf, Bytes, bool]]:
        """For each step its type, its bytes, and whether these are of one stream for all."""
        found = {}
        for at, (name, leaf) in enumerate(self._layout.steps):
            alike = bool(self._row.alike >> at & 1)
            place = self._plan.places[self._row.ragged + at]
            if alike:
                found[name] = leaf, self._read(place, 0, self.most * leaf.size), True
            else:
                found[name] = leaf, self._leaf(place, leaf), False
        return found

    def _leaves(self, first: int, number: int) -> list[Bytes]:
        """The bytes of so many leaves."""
        before = self._row.ragged + len(self._layout.steps) + first
        leaves = self._layout.leaves[first : first + number]
        places = self._plan.places[before : before + number]
        return [self._leaf(place, leaf) for place, leaf in zip(places, leaves, strict=True)]

    def _leaf(self, place: Place, leaf: Leaf) -> Bytes:
        return self._rows(place, self._row.records * leaf.size, self.most * leaf.size)

    def _rows(self, place: Place, stride: int, size: int) -> Bytes:
        """Of each stream that is wanted the first so many bytes."""
        places = self._places
        if len(places) == 1:
            return self._read(place, places[0] * stride, size)
        if len(places) * 8 < places[-1] - places[0]:
            return b"".join(self._read(place, each * stride, size) for each in places)
        start, end = places[0] * stride, (places[-1] + 1) * stride
        whole = self._read(place, start, end - start)
        if (self._is_range and size == stride) or not stride:
            return whole
        rows = np.frombuffer(whole, np.uint8).reshape(-1, stride)
        return np.ascontiguousarray(rows[np.asarray(places) - places[0], :size]).reshape(-1).data

    def _read(self, place: Place, start: int, size: int) -> Bytes:
        if place.blob is None:
            return self._shared(place.offset + start, size)
        if not size:
            return b""
        parts = []
        for chunk in range(start // CHUNK, -(-(start + size) // CHUNK)):
            low = max(start - chunk * CHUNK, 0)
            high = min(start + size - chunk * CHUNK, CHUNK)
            expected = min(place.size - chunk * CHUNK, CHUNK)
            number = self._row.blob + place.blob + chunk
            checks = self._blob_checks(number, expected)
            parts.append(self._bytes("blobs", number, expected, checks, low, high - low))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _shared(self, start: int, size: int) -> Bytes:
        row = self._row
        if row.data is None:
            return self._bytes("portions", row.number, row.length, row.checks, start, size)
        if not self._is_checked:
            if not isinstance(row.data, bytes) or len(row.data) != row.length:
                raise self._wrong("a portion of it has no bytes, or not as many as it says")
            if self._look.has_checksums:
                verify_blocks(row.data, 0, row.checks)
            self._is_checked = True
        return row.data[start : start + size]

    _is_checked = False  # whether the data that came with the row is as it was

    def _blob_checks(self, number: int, length: int) -> bytes:
        """Return the checksums of a blob."""
        if not self._look.has_checksums:
            return b""
        select = "SELECT number, length, checks, crc FROM blobs WHERE number = ?"
        row = self._look.connection.execute(select, (number,)).fetchone()
        if row is None or row[-1] != row_checksum("blobs", *row[:-1]):
            what = "is missing" if row is None else "differs from its checksum"
            raise ChecksumError(f"row {number} of its blobs {what}")
        if row[1] != length or not isinstance(row[2], bytes):
            raise ValueError("a blob of it has another size than it should")
        return bytes(row[2])

    def _bytes(
        self, table: str, number: int, length: int, checks: bytes, start: int, size: int
    ) -> bytes:
        """Read some bytes, with the rest of their blocks if these have checksums."""
        with self._look.connection.blobopen(table, "data", number, readonly=True) as blob:
            if len(blob) != length:
                raise self._wrong("a blob of it has another size than it should")
            if not self._look.has_checksums:
                blob.seek(start)
                return blob.read(size)
            first = start // BLOCK_BYTES
            blob.seek(first * BLOCK_BYTES)
            end = min(-(-(start + size) // BLOCK_BYTES) * BLOCK_BYTES, length)
            data = blob.read(end - first * BLOCK_BYTES)
        verify_blocks(data, first, checks)
        skip = start - first * BLOCK_BYTES
        return data[skip : skip + size]

    def _wrong(self, why: str) -> ValueError:
        """Return the error for bytes that are not there: with checksums only damage explains it."""
        return ChecksumError(why) if self._look.has_checksums else ValueError(why)

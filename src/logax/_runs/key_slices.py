"""Read the records of a key from the batches of a file, as slices.

A reader fetches only the blocks of bytes that it needs: for one run out of a thousand, or one key
out of many, about a thousandth of a batch. Before it reads, it compares the sizes that a batch
claims with the sizes of its blobs. It reports bytes that differ from their checksum, and leaves out
the records of all streams that have bytes in the same block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from logax._runs.errors import ChecksumError, Damage
from logax._runs.file_reader import BatchRow, RunsSnapshot, StoredStream
from logax._runs.format import (
    BLOCK_BYTES,
    MAX_BLOB_BYTES,
    ArrayLocation,
    row_checksum,
    verify_blocks,
)
from logax._runs.layouts import KeyLayout, LogLayout, StoredLeaf

Cell = tuple[int, ...]  # index of a stream in the grid of runs, lanes and shards
Bytes = bytes | memoryview


@dataclasses.dataclass(frozen=True, eq=False)
class KeySlice:
    """Records of one key in one batch, of one or several streams.

    Attributes:
      key: Layout of the key.
      layout: Layout of the `log` call, with all of its keys.
      cells: Cell of each stream.
      records: Maximum number of records of a stream.
      counts: Number of records of each stream; None if all have `records`.
      arrays: Bytes of each leaf, of shape (streams, records, ...).
      steps: Type and bytes of each step, and whether one row holds for all streams.
      origin: Identity of batch and streams; slices of equal origin share steps and counts.
    """

    key: KeyLayout
    layout: LogLayout
    cells: tuple[Cell, ...]
    records: int
    counts: np.ndarray[Any, Any] | None
    arrays: list[Bytes]
    steps: dict[str, tuple[StoredLeaf, Bytes, bool]]
    origin: tuple[Any, ...]


def read_key_slices(
    snapshot: RunsSnapshot,
    families: Mapping[int, Sequence[StoredStream]],
    cell: Callable[[StoredStream], Cell],
    is_selected: Callable[[str], bool],
) -> Iterator[KeySlice]:
    """Yield the records of the selected keys of these streams, in the order of their batches."""
    cells = {
        number: tuple(cell(stream) for stream in streams) for number, streams in families.items()
    }
    if any(len({len(each) for each in own}) > 1 for own in cells.values()):
        raise ValueError("streams of one family differ in their number of axes")
    chosen: dict[int, list[tuple[int, KeyLayout]]] = {}
    rows = snapshot.batches_with_data(families)
    for at, row in enumerate(rows):
        layout = snapshot.intact_layout(row.layout)
        if layout is None:
            continue
        if row.layout not in chosen:
            chosen[row.layout] = [
                each for name, each in layout.keys_by_name.items() if is_selected(name)
            ]
        if not chosen[row.layout]:
            continue
        streams, own = families[row.family], cells[row.family]
        batch = _BatchReader(snapshot, layout, row, [stream.place for stream in streams])
        for first, key in chosen[row.layout]:
            try:
                found = [batch.read_key(first, key, own)]
            except ChecksumError:
                found, damaged = _read_intact_slices(
                    snapshot, layout, row, streams, own, first, key
                )
                for why, runs in damaged.items():
                    snapshot.report(
                        _describe_damage(snapshot, families, rows[: at + 1], runs, key.name, why)
                    )
            yield from found


def _read_intact_slices(
    snapshot: RunsSnapshot,
    layout: LogLayout,
    row: BatchRow,
    streams: Sequence[StoredStream],
    cells: Sequence[Cell],
    first: int,
    key: KeyLayout,
) -> tuple[list[KeySlice], dict[str, set[int]]]:
    """Read each stream separately; return the intact ones, and the runs of the others by reason."""
    found: list[KeySlice] = []
    damaged: dict[str, set[int]] = {}
    for stream, cell in zip(streams, cells, strict=True):
        try:
            batch = _BatchReader(snapshot, layout, row, [stream.place])
            found.append(batch.read_key(first, key, (cell,)))
        except ChecksumError as error:
            damaged.setdefault(str(error), set()).add(stream.run)
    return found, damaged


def _describe_damage(
    snapshot: RunsSnapshot,
    families: Mapping[int, Sequence[StoredStream]],
    rows: Sequence[BatchRow],
    owners: Collection[int],
    key: str,
    why: str,
) -> Damage:
    """Describe damage in the last of these batches that hides records of a key of some runs."""
    before = 0
    for row in rows[:-1]:
        has_own = any(stream.run in owners for stream in families[row.family])
        if has_own and _has_key(snapshot, row, key):
            before += row.records
    last = before + max(rows[-1].records, 1) - 1
    return Damage(snapshot.path, why, snapshot.catalog.run_ids(owners), key, before, last)


def _has_key(snapshot: RunsSnapshot, row: BatchRow, key: str) -> bool:
    layout = snapshot.intact_layout(row.layout)
    return layout is not None and key in layout.keys_by_name


class _BatchReader:
    """Reader of the bytes of one batch that belong to some of its streams."""

    def __init__(
        self, snapshot: RunsSnapshot, layout: LogLayout, row: BatchRow, places: Sequence[int]
    ) -> None:
        self._snapshot, self._layout, self._row, self._places = snapshot, layout, row, places
        plan = layout.plan(row.streams, row.records, row.ragged, row.alike)
        if plan.shared != row.length or places[-1] >= row.streams:
            raise ValueError("one of its batches has another size than it claims")
        self._plan = plan
        self._is_range = places[-1] - places[0] == len(places) - 1

    def read_key(self, first: int, key: KeyLayout, cells: tuple[Cell, ...]) -> KeySlice:
        """Read the records of a key whose first leaf is `first`; ChecksumError if damaged."""
        return KeySlice(
            key,
            self._layout,
            cells,
            self.max_records,
            self.counts,
            self._read_leaves(first, len(key.leaves)),
            self.steps,
            (self._snapshot.path, self._row.number, cells),
        )

    @functools.cached_property
    def max_records(self) -> int:
        """Maximum number of records of a stream."""
        return self._row.records if self.counts is None else int(self.counts.max())

    @functools.cached_property
    def counts(self) -> np.ndarray[Any, Any] | None:
        """Number of records of each stream; None if all have `max_records`."""
        if not self._row.ragged:
            return None
        data = self._read_rows(self._plan.locations[0], 4, 4)
        found = np.frombuffer(data, "<u4").astype(np.int64)
        if (found > self._row.records).any():
            raise ValueError("one of its batches has more records than it claims")
        return found

    @functools.cached_property
    def steps(self) -> dict[str, tuple[StoredLeaf, Bytes, bool]]:
        """Type and bytes of each step, and whether one row holds for all streams."""
        found = {}
        for at, (name, leaf) in enumerate(self._layout.steps):
            is_shared = bool(self._row.alike >> at & 1)
            location = self._plan.locations[self._row.ragged + at]
            if is_shared:
                found[name] = leaf, self._read(location, 0, self.max_records * leaf.size), True
            else:
                found[name] = leaf, self._read_leaf(location, leaf), False
        return found

    def _read_leaves(self, first: int, number: int) -> list[Bytes]:
        """Return the bytes of some leaves."""
        before = self._row.ragged + len(self._layout.steps) + first
        leaves = self._layout.leaves[first : first + number]
        locations = self._plan.locations[before : before + number]
        pairs = zip(locations, leaves, strict=True)
        return [self._read_leaf(location, leaf) for location, leaf in pairs]

    def _read_leaf(self, location: ArrayLocation, leaf: StoredLeaf) -> Bytes:
        return self._read_rows(
            location, self._row.records * leaf.size, self.max_records * leaf.size
        )

    def _read_rows(self, location: ArrayLocation, stride: int, size: int) -> Bytes:
        """Return the first `size` bytes of each stream; streams are `stride` bytes apart."""
        places = self._places
        if len(places) == 1:
            return self._read(location, places[0] * stride, size)
        if len(places) * 8 < places[-1] - places[0]:
            return b"".join(self._read(location, each * stride, size) for each in places)
        start, end = places[0] * stride, (places[-1] + 1) * stride
        whole = self._read(location, start, end - start)
        if (self._is_range and size == stride) or not stride:
            return whole
        rows = np.frombuffer(whole, np.uint8).reshape(-1, stride)
        return np.ascontiguousarray(rows[np.asarray(places) - places[0], :size]).reshape(-1).data

    def _read(self, location: ArrayLocation, start: int, size: int) -> Bytes:
        if location.blob is None:
            return self._read_shared(location.offset + start, size)
        if not size:
            return b""
        parts = []
        for chunk in range(start // MAX_BLOB_BYTES, -(-(start + size) // MAX_BLOB_BYTES)):
            low = max(start - chunk * MAX_BLOB_BYTES, 0)
            high = min(start + size - chunk * MAX_BLOB_BYTES, MAX_BLOB_BYTES)
            expected = min(location.size - chunk * MAX_BLOB_BYTES, MAX_BLOB_BYTES)
            number = self._row.blob + location.blob + chunk
            checks = self._read_blob_checksums(number, expected)
            parts.append(self._read_bytes("blobs", number, expected, checks, low, high - low))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_shared(self, start: int, size: int) -> Bytes:
        row = self._row
        if row.data is None:
            return self._read_bytes("portions", row.number, row.length, row.checks, start, size)
        if not self._is_verified:
            if not isinstance(row.data, bytes) or len(row.data) != row.length:
                raise self._size_error("one of its batches has another size than it claims")
            if self._snapshot.has_checksums:
                verify_blocks(row.data, 0, row.checks)
            self._is_verified = True
        return row.data[start : start + size]

    _is_verified = False  # True once the data that came with the row was verified

    def _read_blob_checksums(self, number: int, length: int) -> bytes:
        """Return the checksums of the blocks of a blob."""
        if not self._snapshot.has_checksums:
            return b""
        select = "SELECT number, length, checks, crc FROM blobs WHERE number = ?"
        row = self._snapshot.connection.execute(select, (number,)).fetchone()
        if row is None or row[-1] != row_checksum("blobs", *row[:-1]):
            what = "is missing" if row is None else "differs from its checksum"
            raise ChecksumError(f"row {number} of its blobs {what}")
        if row[1] != length or not isinstance(row[2], bytes):
            raise ValueError("one of its blobs has an unexpected size")
        return bytes(row[2])

    def _read_bytes(
        self, table: str, number: int, length: int, checks: bytes, start: int, size: int
    ) -> bytes:
        """Read some bytes; if they have checksums, read their whole blocks and verify them."""
        with self._snapshot.connection.blobopen(table, "data", number, readonly=True) as blob:
            if len(blob) != length:
                raise self._size_error("one of its blobs has an unexpected size")
            if not self._snapshot.has_checksums:
                blob.seek(start)
                return blob.read(size)
            first = start // BLOCK_BYTES
            blob.seek(first * BLOCK_BYTES)
            end = min(-(-(start + size) // BLOCK_BYTES) * BLOCK_BYTES, length)
            data = blob.read(end - first * BLOCK_BYTES)
        verify_blocks(data, first, checks)
        skip = start - first * BLOCK_BYTES
        return data[skip : skip + size]

    def _size_error(self, why: str) -> ValueError:
        """Return the error for a wrong size: in a file with checksums it can only be damage."""
        return ChecksumError(why) if self._snapshot.has_checksums else ValueError(why)

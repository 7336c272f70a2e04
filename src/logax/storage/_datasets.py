"""The datasets of a new file, before the first row.

What the rows of a group are is in them too, so that others than logax can read the file: the axes
of each array have scales, as netCDF and xarray have it, and numbers that are stored as bits have
the name of their type beside them.

The datasets of one group, as they are written: blocks of rows, each chunk once.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax.storage._checksums import fletcher32
from logax.storage._commits import Stand
from logax.storage._layout import COMMITS, NO_STEP, SCHEMA, STEP, Group, Layout, axis_names
from logax.storage._view import Leaf, View

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."  # the words are netCDF's
_STEPS_LEVEL = 1  # of compression: steps grow evenly, and take next to nothing then

Filters = dict[str, Any]


def create_datasets(file: Any, layout: Layout, extents: Sequence[int], level: int | None) -> None:
    """Lay out the file: all datasets, with so many rows of each group to begin with."""
    file.attrs["logax_layout"] = layout.version
    text = np.frombuffer(layout.to_json(), np.uint8)
    file.create_dataset(SCHEMA, data=text, chunks=text.shape, fletcher32=True)
    file.create_dataset(COMMITS, layout.commits_shape, np.uint8)[...] = 0
    filters = _filters(level)
    for group, extent in zip(layout.groups, extents, strict=True):
        file.require_group(group.name)
        if group.is_once:
            _create_once(file, group, filters)
        else:
            _create_rows(file, group, extent, filters)


def _create_once(file: Any, group: Group, filters: Filters) -> None:
    for path, leaf in zip(group.paths, group.leaves, strict=True):
        own = filters | {"chunks": True} if leaf.shape and leaf.row_bytes else {}
        dataset = file.create_dataset(path, leaf.stored_shape, leaf.kind.stored, **own)
        _describe(dataset, leaf)


def _create_rows(file: Any, group: Group, extent: int, filters: Filters) -> None:
    steps = file.create_dataset(
        group.step_path,
        (extent,),
        STEP,
        maxshape=(None,),
        chunks=(group.block,),
        fillvalue=NO_STEP,
        **_filters(_STEPS_LEVEL if group.block > 1 else None),
    )
    steps.make_scale("step")
    axes = _Axes(file, group)
    for path, leaf in zip(group.paths, group.leaves, strict=True):
        if not leaf.row_bytes:
            dataset = file.create_dataset(path, (0, *leaf.stored_shape), leaf.kind.stored)
        else:
            dataset = file.create_dataset(
                path,
                (extent, *leaf.stored_shape),
                leaf.kind.stored,
                maxshape=(None, *leaf.stored_shape),
                chunks=(group.block, *leaf.stored_shape),
                **filters,
            )
            dataset.dims[0].attach_scale(steps)
            axes.attach(dataset)
        dataset.dims[0].label = "step"
        _describe(dataset, leaf)


class _Axes:
    """Scales for the axes of rows: xarray wants one for each axis of an array, or none.

    They hold nothing, as netCDF has it for axes that have a length only.
    """

    def __init__(self, file: Any, group: Group) -> None:
        self._file, self._group = file, group
        self._scales: dict[str, Any] = {}

    def attach(self, dataset: Any) -> None:
        """Give scales to the axes after the first one."""
        lengths = dataset.shape[1:]
        for axis, (name, length) in enumerate(zip(axis_names(lengths), lengths, strict=True), 1):
            if name not in self._scales:
                scale = self._file.create_dataset(self._group.free(name), (length,), "<f4")
                scale.make_scale(f"{_NO_VARIABLE}{length:>10}")
                self._scales[name] = scale
            dataset.dims[axis].attach_scale(self._scales[name])


def _filters(level: int | None) -> Filters:
    """A checksum for each chunk, and where there is a level, compression."""
    if level is None:
        return {"fletcher32": True}
    return {"fletcher32": True, "shuffle": True, "compression": "gzip", "compression_opts": level}


def _describe(dataset: Any, leaf: Leaf) -> None:
    """Say beside what is stored as bits of which type it is."""
    if leaf.kind.true != leaf.kind.stored or leaf.kind.is_key:
        dataset.attrs["dtype"] = leaf.kind.name


Numbers = np.ndarray[Any, Any]

_CHECKSUM = 4  # bytes


class RowStore:
    """A group with an axis for rows."""

    def __init__(self, file: Any, group: Group, view: View, stand: Stand) -> None:
        self._group, self._view = group, view
        self._datasets = [file[path] for path in group.paths]
        self._steps_dataset = file[group.step_path]
        self._levels = [_level_of(dataset) for dataset in self._datasets]
        self._steps_level = _level_of(self._steps_dataset)
        self._extent: int = self._steps_dataset.shape[0]
        self._rows = self._flushed = stand.rows
        self._cuts, self._void = stand.cuts, stand.void
        # The rows of this block: those that were there when the file was opened, and then others.
        self._head, self._old = stand.columns, len(stand.steps)
        self._steps = np.empty(group.block, STEP)
        self._steps[: self._old] = stand.steps
        self._count = self._old
        self._parcels: list[Numbers] = []
        largest = max([STEP.itemsize, *(leaf.row_bytes for leaf in group.leaves)])
        self._scratch = np.zeros(group.block * largest + _CHECKSUM, np.uint8)

    def append(self, row: Sequence[Numbers], step: int) -> None:
        """Add a row to the block in memory, which must not be full."""
        if self._group.block == 1:
            self._parcels = [x[None] for x in row]
        else:
            if not self._parcels:
                self._parcels = [np.empty((self._group.block, *x.shape), x.dtype) for x in row]
            place = self._count - self._old
            for parcel, x in zip(self._parcels, row, strict=True):
                parcel[place] = x
        self._steps[self._count] = step
        self._count += 1

    @property
    def is_full(self) -> bool:
        """Whether the block must be written before another row fits."""
        return self._count == self._group.block

    def write(self) -> None:
        """Write the block to the datasets, full or not."""
        end = self._rows + self._count
        if end > self._extent:
            self._resize(end)
        whole = self._view.chunks(self._parcels) if self._group.block == 1 else {}
        columns = self._columns()
        for i, (dataset, level) in enumerate(zip(self._datasets, self._levels, strict=True)):
            if i in whole and level is None:
                dataset.id.write_direct_chunk(self._place(columns[i]), whole[i])
            elif self._group.leaves[i].row_bytes:
                self._write_chunk(dataset, columns[i], 0, level)
        steps = self._steps[: self._count]
        self._write_chunk(self._steps_dataset, steps, NO_STEP, self._steps_level)
        self._head, self._old = [x[:0] for x in self._head], 0
        self._rows, self._count = end, 0

    @property
    def is_flushed(self) -> bool:
        """Whether a commit may count all rows: HDF5 has passed on those that it was given.

        A row that is a block by itself has no room in a commit.
        """
        return self._flushed == self._rows and not (self.is_full and self._group.block == 1)

    def flushed(self) -> None:
        """Note that HDF5 has passed on all that it was given."""
        self._flushed = self._rows

    def finish(self) -> None:
        """Write the last block, whole or not, and cut off what was never filled."""
        if self._count:
            self.write()
        if self._extent > self._rows:
            self._resize(self._rows)

    def stand(self) -> Stand:
        """Return all rows, for a commit."""
        if self._group.block == 1:  # there is no room in a commit
            return dataclasses.replace(
                Stand.at_start(self._group), rows=self._rows, cuts=self._cuts, void=self._void
            )
        steps = self._steps[: self._count].copy()
        columns = [column.copy() for column in self._columns()]
        return Stand(self._rows, steps, columns, self._cuts, None, self._void)

    def _columns(self) -> list[Numbers]:
        """The rows of the block."""
        if self._count == self._old:
            return self._head
        new = self._view.columns([x[: self._count - self._old] for x in self._parcels])
        if not self._old:
            return new
        return [np.concatenate(pair) for pair in zip(self._head, new, strict=True)]

    def _write_chunk(self, dataset: Any, column: Numbers, blank: int, level: int | None) -> None:
        """Write rows as one chunk, filled up if they are fewer, past HDF5's own filters.

        These are the shuffle filter and deflate, where it is compressed, and Fletcher-32.
        """
        size = self._group.block * column[:1].nbytes
        chunk = self._scratch[: size + _CHECKSUM]
        rows = chunk[:size].view(column.dtype).reshape(self._group.block, *column.shape[1:])
        rows[: len(column)] = column
        rows[len(column) :] = np.array(blank).astype(column.dtype)
        place = self._place(column)
        if level is None:
            chunk[size:] = np.array([fletcher32(chunk[:size])], "<u4").view(np.uint8)
            dataset.id.write_direct_chunk(place, chunk)
            return
        shuffled = np.ascontiguousarray(chunk[:size].reshape(-1, column.dtype.itemsize).T)
        packed = np.frombuffer(zlib.compress(shuffled.data, level), np.uint8)
        check = np.array([fletcher32(packed)], "<u4").view(np.uint8)
        dataset.id.write_direct_chunk(place, np.concatenate([packed, check]))

    def _place(self, column: Numbers) -> tuple[int, ...]:
        """Where the next chunk of a dataset stands."""
        return (self._rows, *(0 for _ in column.shape[1:]))

    def _resize(self, rows: int) -> None:
        for dataset, leaf in zip(self._datasets, self._group.leaves, strict=True):
            if leaf.row_bytes:
                dataset.resize(rows, axis=0)
        self._steps_dataset.resize(rows, axis=0)
        self._extent = rows


class OnceStore:
    """A group that is written once, without an axis for rows."""

    def __init__(self, file: Any, group: Group, view: View, stand: Stand) -> None:
        self._group, self._view = group, view
        self._datasets = [file[path] for path in group.paths]
        self._checks = stand.checks
        self._waiting: Sequence[Numbers] | None = None
        self.is_flushed = True

    def append(self, row: Sequence[Numbers], step: int) -> None:
        """Keep the row for `write`, unless there is one already."""
        if self._checks is None:
            self._waiting, self.is_flushed = row, False

    @property
    def is_full(self) -> bool:
        """Whether the row waits to be written."""
        return self._waiting is not None

    def write(self) -> None:
        """Write the row to the datasets."""
        columns = self._view.columns([x[None] for x in self._waiting or ()])
        for dataset, column in zip(self._datasets, columns, strict=True):
            if column.size:
                dataset[...] = column[0]
        self._waiting = None
        self._checks = [zlib.crc32(x.tobytes()) for x in columns]

    def flushed(self) -> None:
        """Note that HDF5 has passed on the row."""
        self.is_flushed = self._waiting is None

    def finish(self) -> None:
        """Nothing is left to write."""

    def stand(self) -> Stand:
        """Return the row, for a commit."""
        return dataclasses.replace(Stand.at_start(self._group), checks=self._checks)


def _level_of(dataset: Any) -> int | None:
    """How much a dataset is compressed."""
    return dataset.compression_opts if dataset.compression == "gzip" else None

"""Create the datasets of a file, and write rows to them.

Other programs can read the file too: the axes of each array have dimension scales, as netCDF and
xarray expect, and an attribute names the dtype of numbers that are stored as raw bits.

Rows are written in blocks, and every chunk is written once.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax.storage._checksums import fletcher32
from logax.storage._commits import GroupCommit
from logax.storage._layout import (
    COMMITS_PATH,
    NO_STEP,
    SCHEMA_PATH,
    STEP_DTYPE,
    FileLayout,
    GroupLayout,
    axis_names,
)
from logax.storage._view import ArrayLayout, View

# netCDF prescribes this text for a dimension without values.
_NETCDF_DIMENSION_TEXT = "This is a netCDF dimension but not a netCDF variable."
_STEPS_GZIP_LEVEL = 1  # steps increase evenly, and compress to almost nothing
_CHECKSUM_BYTES = 4

Filters = dict[str, Any]
Numbers = np.ndarray[Any, Any]


def create_datasets(
    file: Any, layout: FileLayout, extents: Sequence[int], gzip_level: int | None
) -> None:
    """Create all datasets of a new file.

    Args:
      file: The h5py file.
      layout: Layout of the file.
      extents: Initial number of rows of each group.
      gzip_level: Compression level of the arrays, None for no compression.
    """
    file.attrs["logax_layout"] = layout.version
    text = np.frombuffer(layout.to_json(), np.uint8)
    file.create_dataset(SCHEMA_PATH, data=text, chunks=text.shape, fletcher32=True)
    file.create_dataset(COMMITS_PATH, layout.commits_shape, np.uint8)[...] = 0
    filters = _filter_options(gzip_level)
    for group, extent in zip(layout.groups, extents, strict=True):
        file.require_group(group.name)
        if group.is_once:
            _create_once(file, group, filters)
        else:
            _create_rows(file, group, extent, filters)


def _create_once(file: Any, group: GroupLayout, filters: Filters) -> None:
    for path, leaf in zip(group.paths, group.leaves, strict=True):
        options = filters | {"chunks": True} if leaf.shape and leaf.row_bytes else {}
        dataset = file.create_dataset(path, leaf.stored_shape, leaf.kind.stored_dtype, **options)
        _write_dtype_name(dataset, leaf)


def _create_rows(file: Any, group: GroupLayout, extent: int, filters: Filters) -> None:
    steps = file.create_dataset(
        group.step_path,
        (extent,),
        STEP_DTYPE,
        maxshape=(None,),
        chunks=(group.block_rows,),
        fillvalue=NO_STEP,
        **_filter_options(_STEPS_GZIP_LEVEL if group.block_rows > 1 else None),
    )
    steps.make_scale("step")
    scales = _AxisScales(file, group)
    for path, leaf in zip(group.paths, group.leaves, strict=True):
        if not leaf.row_bytes:
            dataset = file.create_dataset(path, (0, *leaf.stored_shape), leaf.kind.stored_dtype)
        else:
            dataset = file.create_dataset(
                path,
                (extent, *leaf.stored_shape),
                leaf.kind.stored_dtype,
                maxshape=(None, *leaf.stored_shape),
                chunks=(group.block_rows, *leaf.stored_shape),
                **filters,
            )
            dataset.dims[0].attach_scale(steps)
            scales.attach(dataset)
        dataset.dims[0].label = "step"
        _write_dtype_name(dataset, leaf)


class _AxisScales:
    """Dimension scales for the axes of rows; xarray requires one for each axis, or none at all.

    The scales hold no values, as netCDF specifies for a dimension that only has a length.
    """

    def __init__(self, file: Any, group: GroupLayout) -> None:
        self._file, self._group = file, group
        self._scales: dict[str, Any] = {}

    def attach(self, dataset: Any) -> None:
        """Attach a scale to every axis after the first one."""
        lengths = dataset.shape[1:]
        for axis, (name, length) in enumerate(zip(axis_names(lengths), lengths, strict=True), 1):
            if name not in self._scales:
                scale = self._file.create_dataset(self._group.unused_path(name), (length,), "<f4")
                scale.make_scale(f"{_NETCDF_DIMENSION_TEXT}{length:>10}")
                self._scales[name] = scale
            dataset.dims[axis].attach_scale(self._scales[name])


def _filter_options(gzip_level: int | None) -> Filters:
    """Return the options of h5py for a checksum per chunk, and for compression if requested."""
    if gzip_level is None:
        return {"fletcher32": True}
    return {
        "fletcher32": True,
        "shuffle": True,
        "compression": "gzip",
        "compression_opts": gzip_level,
    }


def _write_dtype_name(dataset: Any, leaf: ArrayLayout) -> None:
    """Write the name of the dtype as an attribute of a dataset that holds raw bits."""
    if leaf.kind.dtype != leaf.kind.stored_dtype or leaf.kind.is_key:
        dataset.attrs["dtype"] = leaf.kind.name


class RowStore:
    """Write the rows of a group to its datasets, in blocks.

    Args:
      file: The h5py file.
      group: Layout of the group.
      view: View that computes the rows.
      commit: Commit of the group to continue from.
    """

    def __init__(self, file: Any, group: GroupLayout, view: View, commit: GroupCommit) -> None:
        self._group, self._view = group, view
        self._datasets = [file[path] for path in group.paths]
        self._steps_dataset = file[group.step_path]
        self._gzip_levels = [_gzip_level(dataset) for dataset in self._datasets]
        self._steps_gzip_level = _gzip_level(self._steps_dataset)
        self._extent: int = self._steps_dataset.shape[0]
        self._rows = self._flushed_rows = commit.rows
        self._cuts, self._void_rows = commit.cuts, commit.void_rows
        # The block in memory begins with the rows of the commit; `append` adds new ones to it.
        self._old_columns, self._old_count = commit.columns, len(commit.steps)
        self._steps = np.empty(group.block_rows, STEP_DTYPE)
        self._steps[: self._old_count] = commit.steps
        self._count = self._old_count
        self._new_rows: list[Numbers] = []
        largest = max([STEP_DTYPE.itemsize, *(leaf.row_bytes for leaf in group.leaves)])
        self._scratch = np.zeros(group.block_rows * largest + _CHECKSUM_BYTES, np.uint8)

    def append(self, row: Sequence[Numbers], step: int) -> None:
        """Add a row to the block in memory, which must not be full."""
        if self._group.block_rows == 1:
            self._new_rows = [x[None] for x in row]
        else:
            if not self._new_rows:
                rows = self._group.block_rows
                self._new_rows = [np.empty((rows, *x.shape), x.dtype) for x in row]
            index = self._count - self._old_count
            for array, x in zip(self._new_rows, row, strict=True):
                array[index] = x
        self._steps[self._count] = step
        self._count += 1

    @property
    def is_full(self) -> bool:
        """True if the block must be written before another row fits."""
        return self._count == self._group.block_rows

    def write(self) -> None:
        """Write the block to the datasets, full or not."""
        end = self._rows + self._count
        if end > self._extent:
            self._resize(end)
        chunks = self._view.unpack_chunks(self._new_rows) if self._group.block_rows == 1 else {}
        columns = self._block_columns()
        for i, (dataset, level) in enumerate(zip(self._datasets, self._gzip_levels, strict=True)):
            if i in chunks and level is None:
                dataset.id.write_direct_chunk(self._chunk_offset(columns[i]), chunks[i])
            elif self._group.leaves[i].row_bytes:
                self._write_chunk(dataset, columns[i], 0, level)
        steps = self._steps[: self._count]
        self._write_chunk(self._steps_dataset, steps, NO_STEP, self._steps_gzip_level)
        self._old_columns, self._old_count = [x[:0] for x in self._old_columns], 0
        self._rows, self._count = end, 0

    @property
    def is_flushed(self) -> bool:
        """True if a commit may count all rows, as HDF5 has passed them on to the system.

        A commit has no room for a row that is a block by itself.
        """
        is_waiting = self.is_full and self._group.block_rows == 1
        return self._flushed_rows == self._rows and not is_waiting

    def mark_flushed(self) -> None:
        """Note that HDF5 has passed on all written rows to the system."""
        self._flushed_rows = self._rows

    def finish(self) -> None:
        """Write the last block, full or not, and truncate the datasets to the rows."""
        if self._count:
            self.write()
        if self._extent > self._rows:
            self._resize(self._rows)

    def group_commit(self) -> GroupCommit:
        """Return a commit of all rows."""
        if self._group.block_rows == 1:  # a commit has no room for such a row
            return dataclasses.replace(
                GroupCommit.empty(self._group),
                rows=self._rows,
                cuts=self._cuts,
                void_rows=self._void_rows,
            )
        steps = self._steps[: self._count].copy()
        columns = [column.copy() for column in self._block_columns()]
        return GroupCommit(self._rows, steps, columns, self._cuts, None, self._void_rows)

    def _block_columns(self) -> list[Numbers]:
        """Return the rows of the block, as one array per leaf."""
        if self._count == self._old_count:
            return self._old_columns
        count = self._count - self._old_count
        new = self._view.unpack_columns([x[:count] for x in self._new_rows])
        if not self._old_count:
            return new
        return [np.concatenate(pair) for pair in zip(self._old_columns, new, strict=True)]

    def _write_chunk(
        self, dataset: Any, column: Numbers, fill_value: int, gzip_level: int | None
    ) -> None:
        """Write rows as one chunk, padded to a whole block.

        The chunk bypasses the filters of HDF5: this method applies shuffle and deflate, if the
        dataset is compressed, and Fletcher-32.
        """
        size = self._group.block_rows * column[:1].nbytes
        chunk = self._scratch[: size + _CHECKSUM_BYTES]
        rows = chunk[:size].view(column.dtype).reshape(self._group.block_rows, *column.shape[1:])
        rows[: len(column)] = column
        rows[len(column) :] = np.array(fill_value).astype(column.dtype)
        offset = self._chunk_offset(column)
        if gzip_level is None:
            chunk[size:] = np.array([fletcher32(chunk[:size])], "<u4").view(np.uint8)
            dataset.id.write_direct_chunk(offset, chunk)
            return
        shuffled = np.ascontiguousarray(chunk[:size].reshape(-1, column.dtype.itemsize).T)
        packed = np.frombuffer(zlib.compress(shuffled.data, gzip_level), np.uint8)
        check = np.array([fletcher32(packed)], "<u4").view(np.uint8)
        dataset.id.write_direct_chunk(offset, np.concatenate([packed, check]))

    def _chunk_offset(self, column: Numbers) -> tuple[int, ...]:
        """Return the offset of the next chunk in a dataset."""
        return (self._rows, *(0 for _ in column.shape[1:]))

    def _resize(self, rows: int) -> None:
        for dataset, leaf in zip(self._datasets, self._group.leaves, strict=True):
            if leaf.row_bytes:
                dataset.resize(rows, axis=0)
        self._steps_dataset.resize(rows, axis=0)
        self._extent = rows


class OnceStore:
    """Write a group that is stored once, without an axis for rows.

    The arguments are those of `RowStore`.
    """

    def __init__(self, file: Any, group: GroupLayout, view: View, commit: GroupCommit) -> None:
        self._group, self._view = group, view
        self._datasets = [file[path] for path in group.paths]
        self._checksums = commit.checksums
        self._waiting: Sequence[Numbers] | None = None
        self.is_flushed = True

    def append(self, row: Sequence[Numbers], step: int) -> None:
        """Keep the row for `write`, unless the file has one already."""
        if self._checksums is None:
            self._waiting, self.is_flushed = row, False

    @property
    def is_full(self) -> bool:
        """True if a row waits to be written."""
        return self._waiting is not None

    def write(self) -> None:
        """Write the row to the datasets."""
        columns = self._view.unpack_columns([x[None] for x in self._waiting or ()])
        for dataset, column in zip(self._datasets, columns, strict=True):
            if column.size:
                dataset[...] = column[0]
        self._waiting = None
        self._checksums = [zlib.crc32(x.tobytes()) for x in columns]

    def mark_flushed(self) -> None:
        """Note that HDF5 has passed on the row to the system."""
        self.is_flushed = self._waiting is None

    def finish(self) -> None:
        """Do nothing: `write` has written everything."""

    def group_commit(self) -> GroupCommit:
        """Return a commit of the row."""
        return dataclasses.replace(GroupCommit.empty(self._group), checksums=self._checksums)


def _gzip_level(dataset: Any) -> int | None:
    return dataset.compression_opts if dataset.compression == "gzip" else None

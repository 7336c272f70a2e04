"""The datasets of a new file, before the first row.

What the rows of a group are is in them too, so that others than logax can read the file: the axes
of each array have scales, as netCDF and xarray have it, and numbers that are stored as bits have
the name of their type beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from logax.storage._layout import COMMITS, NO_STEP, SCHEMA, STEP, Group, Layout, axis_names
from logax.storage._view import Leaf

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

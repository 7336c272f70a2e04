"""Turn the ordered batches of delivery into columns by site, and join columns to record batches.

An `OrderedBatch` lists its records as (site, row, lane) in the order of the program. If all lanes
log side by side, one row stands for all lanes, and columns are slices of the delivered arrays. If
lanes differ, each lane has its own rows, which are gathered with a mask.

Columns with the same keys and streams are joined to one `RecordBatch`, so that a sink is called
once for all records that have arrived meanwhile. Records of several `log` calls with the same keys
and shapes are merged in the order of the program. If two calls share a key but differ in others, a
batch ends when the other call logs the key, so that every key stays in order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.packet import Site
from logax._delivery.record_batch import RecordBatch, Stream
from logax._delivery.routes import OrderedBatch


@dataclasses.dataclass(eq=False)
class SiteColumns:
    """Records of one site: arrays (streams, records, ...), or (records, ...) for one stream.

    Attributes:
      site: The `log` call.
      streams: Stream of each index along the first axis.
      arrays: The leaves, then the steps.
      order: Position of each record among all of the logger: (streams, records) or (records,).
      real: Mask of the records that exist; None if all do.
      is_single: True if there is one stream, without an axis.
    """

    site: Site
    streams: tuple[Stream, ...]
    arrays: list[Any]
    order: Any
    real: Any
    is_single: bool

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(x.nbytes for x in self.arrays)

    def of_open_runs(self) -> SiteColumns | None:
        """Return the columns without streams of finished runs; None if no stream is left."""
        if None not in [stream.run for stream in self.streams]:
            return self
        kept = [i for i, stream in enumerate(self.streams) if stream.run is not None]
        if not kept:
            return None
        streams = tuple(self.streams[i] for i in kept)
        real = None if self.real is None else self.real[kept]
        arrays = [x[kept] for x in self.arrays]
        return SiteColumns(self.site, streams, arrays, self.order[kept], real, False)

    def to_batch(self, sites: Sequence[str]) -> RecordBatch:
        """Return the records as a batch for sinks, logged at these source lines."""
        arrays, order, real = self.arrays, self.order, self.real
        if self.is_single:
            arrays, order = [x[None] for x in arrays], order[None]
        spec = self.site.spec
        values = dict(self.site.values(arrays))
        steps = dict(zip(spec.steps, arrays[len(arrays) - len(spec.steps) :], strict=True))
        return RecordBatch(self.streams, values, steps, order, real, ", ".join(sites), spec.tags)


def split_by_site(
    batch: OrderedBatch, streams: tuple[Stream, ...], first: int
) -> Iterator[SiteColumns]:
    """Yield the records of a batch as columns of one site each.

    Args:
      batch: The batch.
      streams: Stream of each lane.
      first: Position of the first record among all of the logger.
    """
    order = batch.order
    place = np.arange(first, first + len(order))
    for number, own in _select_sites(batch, order, streams):
        rows, lanes, places = order[own, 1], order[own, 2], place[own]
        if not batch.lanes:
            yield _single_stream(batch, number, _as_slice(rows), streams, places)
        elif (lanes < 0).all():
            yield _side_by_side(batch, number, _as_slice(rows), streams, places)
        else:
            yield _gather_lanes(batch, number, (rows, lanes, places), streams)


def signature(site: Site, arrays: Sequence[Any], axes: int) -> Any:
    """Return a key that is equal for columns that can be joined.

    Args:
      site: The site.
      arrays: Its arrays.
      axes: Number of leading axes of the arrays that index records.
    """
    spec = site.spec
    types = tuple((x.shape[axes:], x.dtype) for x in arrays)
    return spec.entries, spec.steps, spec.tags, types


def _select_sites(batch: OrderedBatch, order: Any, streams: Any) -> Iterator[tuple[int, Any]]:
    """Yield sites, each with the selection of its records.

    Sites that share a key and cannot be joined alternate, so that every key stays in order.
    """
    column = order[:, 0]
    if (column == column[0]).all():
        yield int(column[0]), slice(None)
    elif _have_conflict(batch, np.unique(column).tolist(), _are_joinable(order, streams)):
        changes = np.flatnonzero(np.diff(column)) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist(), len(column)]):
            yield int(column[begin]), slice(begin, end)
    else:
        for number in dict.fromkeys(column.tolist()):
            yield number, column == number


def _are_joinable(order: Any, streams: Any) -> bool:
    """Return whether each record is of all lanes, of open runs: others are never joined."""
    return bool((order[:, 2] < 0).all()) and all(stream.run is not None for stream in streams)


def _have_conflict(batch: OrderedBatch, numbers: Sequence[int], are_joinable: bool) -> bool:
    """Return whether sites share a key and cannot be joined."""
    known: dict[str, Any] = {}
    for number in numbers:
        site, over = batch.sites[number], batch.over_lanes[number]
        arrays = [x[0] if v else x for x, v in zip(batch.columns[number], over, strict=True)]
        own = signature(site, arrays, 1) if are_joinable else number
        if any(known.setdefault(key, own) != own for key in site.keys):
            return True
    return False


def _as_slice(rows: Any) -> Any:
    """Return consecutive rows as a slice, so that indexing copies nothing."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(first, last + 1)
    return rows


def _single_stream(
    batch: OrderedBatch, number: int, rows: Any, streams: Any, places: Any
) -> SiteColumns:
    arrays = [x[rows] for x in batch.columns[number]]
    return SiteColumns(batch.sites[number], streams, arrays, places, None, True)


def _side_by_side(
    batch: OrderedBatch, number: int, rows: Any, streams: Any, places: Any
) -> SiteColumns:
    lanes = len(streams)
    arrays = []
    for x, over in zip(batch.columns[number], batch.over_lanes[number], strict=True):
        own = x[:, rows] if over else x[rows]
        arrays.append(own if over else np.broadcast_to(own, (lanes, *own.shape)))
    order = np.broadcast_to(places, (lanes, len(places)))
    return SiteColumns(batch.sites[number], streams, arrays, order, None, False)


def _gather_lanes(batch: OrderedBatch, number: int, entries: Any, streams: Any) -> SiteColumns:
    """Return the records of lanes that differ, aligned at the first record of each lane."""
    rows, lanes, places = entries
    together = np.flatnonzero(lanes < 0)
    if len(together):  # expand the records that stand for all lanes
        each = np.where(lanes < 0, len(streams), 1)
        every = np.concatenate([np.arange(len(streams)) if n < 0 else [n] for n in lanes])
        rows, places, lanes = np.repeat(rows, each), np.repeat(places, each), every
    own, counts = np.unique(lanes, return_counts=True)
    by_lane = np.argsort(lanes, kind="stable")
    real = np.arange(counts.max()) < counts[:, None]
    index, order = np.zeros(real.shape, np.int64), np.zeros(real.shape, np.int64)
    index[real], order[real] = rows[by_lane], places[by_lane]
    arrays = [
        x[own[:, None], index] if over else x[index]
        for x, over in zip(batch.columns[number], batch.over_lanes[number], strict=True)
    ]
    mask = None if real.all() else real
    which = tuple(streams[lane] for lane in own.tolist())
    return SiteColumns(batch.sites[number], which, arrays, order, mask, False)


class BatchBuffer:
    """Columns that wait for the sinks of one logger.

    Attributes:
      size: Number of bytes that wait.
    """

    def __init__(self) -> None:
        self._sites: dict[int, tuple[Site, int]] = {}
        self._signatures: dict[Any, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[list[SiteColumns]] = []
        self._open: dict[Any, list[SiteColumns]] = {}
        self._last: dict[str, list[SiteColumns]] = {}
        self.size = 0

    def add(self, columns: SiteColumns) -> None:
        """Add columns."""
        self.size += columns.size
        # Equal streams are one object, which the columns keep alive.
        name = (self._signature(columns), id(columns.streams), columns.is_single)
        group = self._open.get(name)
        keys = columns.site.keys
        if group is None or any(self._last.get(key) is not group for key in keys):
            group = self._open[name] = []
            self._waiting.append(group)
            self._last.update(dict.fromkeys(keys, group))
        group.append(columns)

    def _signature(self, columns: SiteColumns) -> int:
        """Return a number that is equal for columns that can share a batch."""
        site = columns.site
        known = self._sites.get(id(site))
        if known is None or known[0] is not site:
            if len(self._sites) > _MAX_CACHED_SITES:
                self._sites.clear()
            own = signature(site, columns.arrays, 1 if columns.is_single else 2)
            number = self._signatures.setdefault(own, len(self._signatures))
            known = self._sites[id(site)] = (site, number)
        return known[1]

    def take_batches(self) -> list[RecordBatch]:
        """Remove all columns, and return them as batches in order."""
        waiting = self._waiting
        self._clear()
        return [_join_columns(group) for group in waiting]


_MAX_CACHED_SITES = 4096


def _join_columns(group: list[SiteColumns]) -> RecordBatch:
    sites = list(dict.fromkeys(columns.site.spec.site for columns in group))
    first = group[0]
    if len(group) == 1:
        return first.to_batch(sites)
    axis = 0 if first.is_single else 1
    arrays = [
        np.concatenate(parts, axis)
        for parts in zip(*(columns.arrays for columns in group), strict=True)
    ]
    order = np.concatenate([columns.order for columns in group], axis)
    # Columns with a mask have their own streams object, and so are alone in their group.
    whole = dataclasses.replace(first, arrays=arrays, order=order)
    return (whole if _is_sorted(group) else _sort_records(whole)).to_batch(sites)


def _is_sorted(group: list[SiteColumns]) -> bool:
    """Return whether columns follow each other in the order of the program."""
    last = [int(columns.order.max()) for columns in group]
    first = [int(columns.order.min()) for columns in group]
    return all(end < begin for end, begin in zip(last[:-1], first[1:], strict=True))


def _sort_records(columns: SiteColumns) -> SiteColumns:
    """Return the columns with the records of each stream in the order of the program."""
    axis = 0 if columns.is_single else 1
    index = np.argsort(columns.order, axis=axis, kind="stable")

    def reorder(x: Any) -> Any:
        shape = index.shape + (1,) * (x.ndim - index.ndim)
        return np.take_along_axis(x, index.reshape(shape), axis)

    arrays = [reorder(x) for x in columns.arrays]
    return dataclasses.replace(columns, arrays=arrays, order=reorder(columns.order))

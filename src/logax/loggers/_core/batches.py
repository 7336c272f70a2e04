"""Turn the packets of delivery into record batches by site, and join those for sinks.

The index of a packet lists its records as (site, row, lane) in the order of the program. If all
lanes log side by side, one row stands for all lanes, and the arrays of a batch are slices of those
of the packet. If lanes differ, each lane has its own rows, which are gathered with a mask.

Batches with the same keys and streams are joined to one, so that a sink is called once for all
records that have arrived meanwhile. Records of several `log` calls with the same keys and shapes
are merged in the order of the program. If two calls share a key but differ in others, a batch ends
when the other call logs the key, so that every key stays in order.

Until batches are joined, the value of a key is the list of its leaves, typed PRNG keys as key data:
NumPy joins these much faster than pytrees and JAX arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.packet import Packet, Site
from logax._delivery.record_batch import RecordBatch, Stream


def split_by_site(
    packet: Packet, streams: tuple[Stream, ...], first: int
) -> Iterator[tuple[Site, RecordBatch]]:
    """Yield the records of a packet by site, with the leaves of each key.

    Args:
      packet: The packet, with its records in order.
      streams: Stream of each lane.
      first: Position of the first record among all of the logger.
    """
    index = packet.record_index
    place = np.arange(first, first + len(index))
    columns, over_lanes = packet.columns(), packet.over_lanes()
    for number, own in _select_sites(packet, columns, over_lanes, streams):
        rows, lanes, places = index[own, 1], index[own, 2], place[own]
        site, arrays, over = packet.schema.sites[number], columns[number], over_lanes[number]
        if not packet.lanes:
            rows = _as_slice(rows)
            own_arrays = [x[None, rows] for x in arrays]
            yield site, _make_batch(site, streams, own_arrays, places[None])
        elif (lanes < 0).all():
            yield site, _side_by_side(site, arrays, over, _as_slice(rows), streams, places)
        else:
            yield site, _gather_lanes(site, arrays, over, (rows, lanes, places), streams)


def signature(site: Site, arrays: Sequence[Any], axes: int) -> Any:
    """Return a key that is equal for sites whose records can be joined.

    Args:
      site: The site.
      arrays: Its arrays.
      axes: Number of leading axes of the arrays that index records.
    """
    spec = site.spec
    types = tuple((x.shape[axes:], x.dtype) for x in arrays)
    return spec.entries, spec.steps, spec.tags, types


def _select_sites(
    packet: Packet, columns: Any, over_lanes: Any, streams: Any
) -> Iterator[tuple[int, Any]]:
    """Yield sites, each with the selection of its records.

    Sites that share a key and cannot be joined alternate, so that every key stays in order.
    """
    column = packet.record_index[:, 0]
    if (column == column[0]).all():
        yield int(column[0]), slice(None)
    elif _have_conflict(packet, columns, over_lanes, streams):
        changes = np.flatnonzero(np.diff(column)) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist(), len(column)]):
            yield int(column[begin]), slice(begin, end)
    else:
        for number in dict.fromkeys(column.tolist()):
            yield number, column == number


def _have_conflict(packet: Packet, columns: Any, over_lanes: Any, streams: Any) -> bool:
    """Return whether sites share a key and cannot be joined."""
    # Records of single lanes or of finished runs are never joined.
    are_joinable = bool((packet.record_index[:, 2] < 0).all())
    are_joinable = are_joinable and all(stream.run is not None for stream in streams)
    known: dict[str, Any] = {}
    for number in np.unique(packet.record_index[:, 0]).tolist():
        site = packet.schema.sites[number]
        both = zip(columns[number], over_lanes[number], strict=True)
        arrays = [x[0] if over else x for x, over in both]
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


def _side_by_side(
    site: Site, arrays: Sequence[Any], over_lanes: Any, rows: Any, streams: Any, places: Any
) -> RecordBatch:
    """Return the records of lanes that do not differ."""
    lanes = len(streams)
    found = []
    for x, over in zip(arrays, over_lanes, strict=True):
        own = x[:, rows] if over else x[rows]
        found.append(own if over else np.broadcast_to(own, (lanes, *own.shape)))
    order = np.broadcast_to(places, (lanes, len(places)))
    return _make_batch(site, streams, found, order)


def _gather_lanes(
    site: Site, arrays: Sequence[Any], over_lanes: Any, entries: Any, streams: Any
) -> RecordBatch:
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
    found = [
        x[own[:, None], index] if over else x[index]
        for x, over in zip(arrays, over_lanes, strict=True)
    ]
    mask = None if real.all() else real
    which = tuple(streams[lane] for lane in own.tolist())
    return _make_batch(site, which, found, order, mask)


def _make_batch(
    site: Site, streams: tuple[Stream, ...], arrays: Sequence[Any], order: Any, real: Any = None
) -> RecordBatch:
    spec, values, at = site.spec, {}, 0
    for entry in spec.entries:
        end = at + len(entry.leaves)
        values[entry.key] = arrays[at:end]
        at = end
    steps = dict(zip(spec.steps, arrays[at:], strict=True))
    return RecordBatch(streams, values, steps, order, real, spec.site, spec.tags)


def _leaves(batch: RecordBatch) -> list[Any]:
    return list(itertools.chain.from_iterable(batch.values.values()))


class BatchBuffer:
    """Record batches that wait for the sinks of one logger.

    Attributes:
      size: Number of bytes that wait.
    """

    def __init__(self) -> None:
        self._sites: dict[int, tuple[Site, int]] = {}
        self._signatures: dict[Any, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[tuple[Site, list[RecordBatch]]] = []
        self._open: dict[Any, list[RecordBatch]] = {}
        self._last: dict[str, list[RecordBatch]] = {}
        self.size = 0

    def add(self, site: Site, batch: RecordBatch) -> None:
        """Add records of a site, from `split_by_site`."""
        arrays = [*_leaves(batch), *batch.steps.values()]
        self.size += sum(x.nbytes for x in arrays)
        # Equal streams are one object, which the batch keeps alive.
        name = (self._signature(site, arrays), id(batch.streams))
        group = self._open.get(name)
        if group is None or any(self._last.get(key) is not group for key in site.keys):
            group = self._open[name] = []
            self._waiting.append((site, group))
            self._last.update(dict.fromkeys(site.keys, group))
        group.append(batch)

    def _signature(self, site: Site, arrays: Sequence[Any]) -> int:
        """Return a number that is equal for sites whose records can share a batch."""
        known = self._sites.get(id(site))
        if known is None or known[0] is not site:
            if len(self._sites) > _MAX_CACHED_SITES:
                self._sites.clear()
            own = signature(site, arrays, 2)
            number = self._signatures.setdefault(own, len(self._signatures))
            known = self._sites[id(site)] = (site, number)
        return known[1]

    def take_batches(self) -> list[RecordBatch]:
        """Remove all records, and return them as batches for sinks, in order."""
        waiting = self._waiting
        self._clear()
        return [_join_batches(site, group) for site, group in waiting]


_MAX_CACHED_SITES = 4096


def _join_batches(site: Site, group: Sequence[RecordBatch]) -> RecordBatch:
    """Return one batch for sinks from batches of the leaves of such a site."""
    first = group[0]
    leaves, steps, order = _leaves(first), first.steps, first.order
    if len(group) > 1:
        # Batches with a mask have their own streams object, and so are alone in their group.
        order = np.concatenate([batch.order for batch in group], axis=1)
        index = None if _is_sorted(group) else np.argsort(order, axis=1, kind="stable")
        order = order if index is None else _reorder(order, index)

        def join(parts: Sequence[Any]) -> Any:
            whole = np.concatenate(parts, axis=1)
            return whole if index is None else _reorder(whole, index)

        leaves = list(map(join, zip(*map(_leaves, group), strict=True)))
        steps = {name: join([batch.steps[name] for batch in group]) for name in steps}
    values = dict(site.values(leaves))
    sources = ", ".join(dict.fromkeys(batch.site for batch in group))
    return RecordBatch(first.streams, values, steps, order, first.real, sources, first.tags)


def _is_sorted(group: Sequence[RecordBatch]) -> bool:
    """Return whether batches follow each other in the order of the program."""
    last = [int(batch.order.max()) for batch in group]
    first = [int(batch.order.min()) for batch in group]
    return all(end < begin for end, begin in zip(last[:-1], first[1:], strict=True))


def _reorder(x: Any, index: Any) -> Any:
    """Return an array with the records of each stream at an index."""
    return np.take_along_axis(x, index.reshape(index.shape + (1,) * (x.ndim - 2)), axis=1)

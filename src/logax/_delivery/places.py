"""Which records a parcel holds, and where each of them stands in the order of the program.

A program promises no order between its emissions, so every record carries its place. Rows that are
not real have none; where all lanes say the same, one row is for all of them.
"""

from __future__ import annotations

import graphlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.packets import Parcel, Rows
from logax._delivery.routes import Batch


class Places(NamedTuple):
    """The records of a parcel in order: the place of each, its site, row and lane (-1: all)."""

    place: Any
    site: Any
    row: Any
    lane: Any

    def only(self, which: Any) -> Places:
        """Some of them."""
        return Places(*(x[which] for x in self))

    def by_lane(self, lanes: int) -> Places:
        """Each lane named."""
        if not len(self.lane) or self.lane[0] >= 0:
            return self
        place, site, row = (np.repeat(x, lanes) for x in self[:3])
        return Places(place, site, row, np.tile(np.arange(lanes), len(self.lane)))


def batch_of(parcel: Parcel) -> Batch | None:
    """All records of a parcel that belongs to no call, if there are any."""
    parcel = parcel.opened().spread()
    rows = single(parcel)
    if rows is not None:
        return batch_of_one(parcel, rows)
    places = places_of(parcel)
    return batch_at(parcel, places) if len(places.place) else None


def single(parcel: Parcel) -> Rows | None:
    """The arrays of a parcel that is nothing but one real record, the same one in all lanes."""
    if len(parcel.packet.sites) != 1:
        return None
    (rows,) = parcel.packet.rows(parcel.operands)
    if rows.order.shape != (1,) or (rows.gate is not None and not rows.gate.all()):
        return None
    if not parcel.lanes:
        return rows
    (over,) = parcel.packet.rows(parcel.batched)
    return None if any(over.order) or (over.gate is not None and any(over.gate)) else rows


def batch_of_one(parcel: Parcel, rows: Rows) -> Batch:
    """The record of a parcel that is nothing but one."""
    over = [(False,) * len(rows.arrays)]
    if parcel.lanes:
        over = [tuple(map(any, each.arrays)) for each in parcel.packet.rows(parcel.batched)]
    order = [(0, 0, -1)]
    return Batch(parcel.packet, parcel.lanes, parcel.shard(), [rows], over, order, parcel.owner())


def ends_of(parcel: Parcel) -> dict[tuple[int, int], Any] | None:
    """For each stream and shard how many records it has, if that is known by now."""
    packet = parcel.packet
    given: Sequence[Any]
    if packet.last:
        given = packet.ends(parcel.operands)
    elif all(stream.total is not None for stream in packet.streams):
        given = [np.asarray(stream.total) for stream in packet.streams]
    else:
        return None
    ends = {}
    for number, (stream, end) in enumerate(zip(packet.streams, given, strict=True)):
        if not stream.shards:
            ends[number, 0] = end
            continue
        for shard in range(math.prod(stream.shards)):
            ends[number, shard] = end[..., shard] if packet.last else end
    return ends


def places_of(parcel: Parcel) -> Places:
    """All real records of a parcel, in order."""
    packet, lanes = parcel.packet, math.prod(parcel.lanes)
    rows, over = packet.rows(parcel.operands), packet.rows(list(parcel.over_lanes()))
    uniform = not any(o.order or o.gate for o in over)
    columns = []
    for number, r in enumerate(rows):
        real = _mask(r)
        if uniform:
            row = np.flatnonzero(real)
            lane, place = np.full(len(row), -1), r.order[row]
        else:
            shape = (lanes, r.order.shape[-1])
            lane, row = np.nonzero(np.broadcast_to(real, shape))
            place = np.broadcast_to(r.order, shape)[lane, row]
        columns.append((place.astype(np.int64), np.full(len(row), number), row, lane))
    if not columns:
        return Places(*[np.zeros(0, np.int64)] * 4)
    places = Places(*map(np.concatenate, zip(*columns, strict=True)))
    return places.only(np.lexsort((places.lane, places.place)))


def in_order(parcels: Sequence[tuple[Parcel, Places]]) -> Iterator[tuple[Parcel, Places]]:
    """Parcels of one call, of which some may be missing, so that every lane is in order.

    Which of two comes first shows only in a lane that both have records of.
    """
    lanes: dict[Any, list[tuple[int, int]]] = {}
    most = max((math.prod(parcel.lanes) for parcel, _ in parcels), default=0)
    for number, (parcel, places) in enumerate(parcels):
        own = places.by_lane(most)  # one that has no lanes is of all
        each, first = np.unique(own.lane, return_index=True)
        for lane, place in zip(each.tolist(), own.place[first].tolist(), strict=True):
            lanes.setdefault((parcel.stream(), lane), []).append((place, number))
    order: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for chain in lanes.values():
        numbers = [number for _, number in sorted(chain)]
        order.add(numbers[0])
        for before, after in itertools.pairwise(numbers):
            order.add(after, before)
    return (parcels[number] for number in order.static_order())


def _mask(rows: Any) -> Any:
    """Which rows are real."""
    number = rows.order.shape[-1]
    if rows.gate is None:
        return np.ones(number, bool)
    if rows.gate.dtype == bool:
        return rows.gate
    return np.arange(number) < rows.gate[..., None]


def batch_at(parcel: Parcel, places: Places) -> Batch:
    """The records of a parcel that stand at these places."""
    packet = parcel.packet
    order = list(zip(places.site.tolist(), places.row.tolist(), places.lane.tolist(), strict=True))
    over = [each.arrays for each in packet.rows(list(parcel.over_lanes()))]
    rows = packet.rows(parcel.operands)
    return Batch(packet, parcel.lanes, parcel.shard(), rows, over, order, parcel.owner())

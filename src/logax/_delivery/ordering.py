"""Which records parcels hold, and the order in which they are delivered.

A program promises no order between its emissions, so every record carries its place in the order of
the program. Rows that are not real have none; where all lanes say the same, one row is for all of
them. Records of many parcels are put in order at once, as arrays: what it takes per record in
Python is what limits a stream.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.packet import Parcel, Site
from logax._delivery.routes import Batch

Numbers = np.ndarray[Any, Any]


class Places(NamedTuple):
    """Some records: where each stands, and when it arrived; lane -1 stands for all lanes."""

    place: Numbers
    arrival: Numbers
    parcel: Numbers
    site: Numbers
    row: Numbers
    lane: Numbers

    def only(self, which: Any) -> Places:
        """Return some of the records."""
        return Places(*(x[which] for x in self))

    def by_lane(self, lanes: int) -> Places:
        """Return the records with each lane named."""
        everywhere = self.lane < 0
        if not everywhere.any():
            return self
        times = np.where(everywhere, lanes, 1)
        each = Places(*(np.repeat(x, times) for x in self))
        each.lane[each.lane < 0] = np.tile(np.arange(lanes), int(everywhere.sum()))
        return each


def places_of(parcels: Sequence[Parcel]) -> Places:
    """Return all real records of opened parcels, in the order in which they lie there."""
    columns = []
    for number, parcel in enumerate(parcels):
        packet, lanes = parcel.packet, math.prod(parcel.lanes)
        rows, over = packet.rows(parcel.operands), packet.rows(parcel.over_lanes())
        uniform = not any(o.order or o.gate for o in over)
        for site, r in enumerate(rows):
            real = _mask(r)
            if uniform:
                row = np.flatnonzero(real)
                lane, place = np.full(len(row), -1), r.order[row]
            else:
                shape = (lanes, r.order.shape[-1])
                lane, row = np.nonzero(np.broadcast_to(real, shape))
                place = np.broadcast_to(r.order, shape)[lane, row]
            size = len(row)
            runs = np.array(parcel.arrivals)
            arrival = runs[row // max(r.order.shape[-1] // len(runs), 1)]
            same = (np.full(size, number), np.full(size, site))
            columns.append((place.astype(np.int64), arrival, *same, row, lane))
    if not columns:
        return Places(*[np.zeros(0, np.int64)] * 6)
    return Places(*map(np.concatenate, zip(*columns, strict=True)))


def next_in_order(places: Places, expected: Numbers, late: bool = False) -> tuple[Places, Places]:
    """Return the records that are due, in order, and those that must wait for one before them.

    Records that were delivered before, and second copies, are in neither.

    Args:
      places: The records.
      expected: For each lane the place that comes next. It is moved on.
      late: Whether nothing more will come, so that nothing waits.
    """
    if (places.lane >= 0).any() or (expected != expected[0]).any():
        places = places.by_lane(len(expected))
    uniform = not len(places.lane) or places.lane[0] < 0
    order = np.argsort(places.place, kind="stable") if uniform else _by_lane_and_place(places)
    places = places.only(order)
    lane = np.maximum(places.lane, 0)  # one lane is as good as any where all are alike
    first = np.ones(len(lane), bool)
    first[1:] = lane[1:] != lane[:-1]
    fresh = places.place >= expected[lane]
    fresh[1:] &= first[1:] | (places.place[1:] != places.place[:-1])
    if not fresh.all():
        places, lane = places.only(fresh), lane[fresh]
        first = np.ones(len(lane), bool)
        first[1:] = lane[1:] != lane[:-1]
    due = np.ones(len(lane), bool)
    if not late and len(lane):
        starts = np.flatnonzero(first)
        number = np.arange(len(lane)) - np.repeat(starts, np.diff([*starts, len(lane)]))
        due = places.place == expected[lane] + number
    ready = places.only(due)
    if uniform and len(ready.place):
        expected[:] = ready.place[-1] + 1
    else:
        np.maximum.at(expected, ready.lane, ready.place + 1)
        ready = ready.only(np.lexsort((ready.lane, ready.place, _seen(ready))))
    return ready, places.only(~due)


def _seen(places: Places) -> Numbers:
    """Return when each record could first be delivered: after those before it in its lane.

    Between lanes, records come in the order in which they arrived.
    """
    begins = np.flatnonzero(np.diff(places.lane, prepend=-2))
    parts = np.split(places.arrival, begins[1:])
    return np.concatenate([np.maximum.accumulate(part) for part in parts])


def batches_of(parcels: Sequence[Parcel], places: Places) -> Iterator[Batch]:
    """Return the records of opened parcels in this order, as few batches as can be.

    Records of parcels that differ in their lanes or owner are in batches of their own.
    """
    kinds: dict[Any, int] = {}
    kind_of = [kinds.setdefault(_kind(parcel), len(kinds)) for parcel in parcels]
    if len(kinds) > 1:
        # A parcel without lanes has each record once, in a call whose other parcels have lanes.
        without = np.array([not parcel.lanes for parcel in parcels])
        places = places.only((places.lane < 1) | ~without[places.parcel])
    kind = np.array(kind_of)[places.parcel]
    turns = np.flatnonzero(np.diff(kind)) + 1
    for begin, end in itertools.pairwise([0, *turns.tolist(), len(kind)]):
        if begin < end:
            yield _batch(parcels, places.only(slice(begin, end)))


def _kind(parcel: Parcel) -> Any:
    owner = parcel.owner()
    own = None if owner is None else (owner.number.tobytes(), owner.over)
    return parcel.lanes, parcel.shard(), own


def _batch(parcels: Sequence[Parcel], places: Places) -> Batch:
    """Return the batch of records whose parcels have the same lanes and owner."""
    used = np.unique(places.parcel).tolist()
    offsets = np.zeros(len(parcels), np.int64)
    sites: list[Site] = []
    columns, over_lanes = [], []
    for number in used:
        parcel = parcels[number]
        offsets[number] = len(sites)
        sites += parcel.packet.sites
        columns += [rows.arrays for rows in parcel.packet.rows(parcel.operands)]
        over_lanes += [rows.arrays for rows in parcel.packet.rows(parcel.over_lanes())]
    one = parcels[used[0]]
    lane = places.lane if one.lanes else np.full(len(places.lane), -1)
    order = np.stack([offsets[places.parcel] + places.site, places.row, lane], axis=1)
    return Batch(tuple(sites), one.lanes, one.shard(), columns, over_lanes, order, one.owner())


def ends_of(parcel: Parcel) -> dict[tuple[int, int], Any] | None:
    """Return for each stream and shard its number of records, if that is known by now."""
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


def _mask(rows: Any) -> Any:
    """Return which rows are real."""
    number = rows.order.shape[-1]
    if rows.gate is None:
        return np.ones(number, bool)
    if rows.gate.dtype == bool:
        return rows.gate
    return np.arange(number) < rows.gate[..., None]


def _by_lane_and_place(places: Places) -> Any:
    return np.lexsort((places.place, places.lane))

"""Put the records of packets into the order of the program.

A program promises no order between its emissions, so every record carries its position in the order
of the program. Rows that are not real have none. If all lanes log the same rows, one row stands for
all lanes. Records of many packets are sorted together, as arrays: the cost per record in Python
limits the rate of a stream.

Arrays stay where they are: packets come in, and packets with a `record_index` go out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.packet import Packet, Site, select_sites

Numbers = np.ndarray[Any, Any]


class StreamOrder:
    """The order of the records of one stream of a call.

    It remembers the next position of each lane, holds records that arrive too early, and ignores
    records that it has returned already.
    """

    def __init__(self) -> None:
        self._next: Numbers | None = None
        self._early: tuple[list[Packet], _RecordIndex] | None = None

    def add(self, packets: Sequence[Packet]) -> Iterable[Packet]:
        """Return the records that are due, of unpacked packets and of those held before.

        Dropped records are in packets of their own.
        """
        packets, index = list(packets), _index_records(packets)
        if self._early is not None:
            packets, index = _merge_held(*self._early, packets, index)
        return self._take_due(packets, index, is_complete=False)

    def settle(self) -> Iterable[Packet]:
        """Return all held records, because no earlier ones will arrive."""
        return () if self._early is None else self._take_due(*self._early, is_complete=True)

    def is_at(self, end: Any) -> bool:
        """Return whether each lane has had a number of records."""
        position = np.zeros(1, np.int64) if self._next is None else self._next
        return bool((position == end).all())

    def _take_due(
        self, packets: list[Packet], index: _RecordIndex, is_complete: bool
    ) -> Iterable[Packet]:
        """Return the records that are due, and hold the others."""
        self._early = None
        lanes = max(math.prod(packet.lanes) for packet in packets)
        if self._next is None:
            self._next = np.zeros(lanes, np.int64)
        elif len(self._next) < lanes:
            # Values that vary only by `axis_index` have lanes, even if their call has none.
            self._next = np.full(lanes, self._next.max(initial=0))
        if not lanes:
            return ()
        due, early = _split_due(index, self._next, is_complete)
        if len(early.position):
            self._early = (packets, early)
        is_dropped = np.array([packet.is_dropped for packet in packets])[due.packet]
        if not is_dropped.any():
            return _join_packets(packets, due)
        parts = [due.select(is_dropped), due.select(~is_dropped)]
        return itertools.chain.from_iterable(_join_packets(packets, part) for part in parts)


def order_by_arrival(packets: Sequence[Packet]) -> Iterator[Packet]:
    """Yield the records of unpacked packets in the order of arrival, in few packets."""
    index = _index_records(packets)
    order = np.lexsort((index.lane, index.position, index.arrival))
    return _join_packets(packets, index.select(order))


class _RecordIndex(NamedTuple):
    """Index into a list of packets, without values; each attribute is an array over records.

    Attributes:
      position: Position in the order of the program.
      arrival: Position of its packet in the order of arrival.
      packet: Index of the packet.
      site: Index of the site in the packet.
      row: Row of the site.
      lane: Lane, or -1 for all lanes.
    """

    position: Numbers
    arrival: Numbers
    packet: Numbers
    site: Numbers
    row: Numbers
    lane: Numbers

    def select(self, which: Any) -> _RecordIndex:
        """Return the records at an index, slice or mask."""
        return _RecordIndex(*(x[which] for x in self))

    def expand_lanes(self, lanes: int) -> _RecordIndex:
        """Return the index with an entry for each lane instead of -1."""
        everywhere = self.lane < 0
        if not everywhere.any():
            return self
        times = np.where(everywhere, lanes, 1)
        each = _RecordIndex(*(np.repeat(x, times) for x in self))
        each.lane[each.lane < 0] = np.tile(np.arange(lanes), int(everywhere.sum()))
        return each


def _index_records(packets: Sequence[Packet]) -> _RecordIndex:
    """Return the index of all real records of unpacked packets, in storage order."""
    columns = []
    for number, packet in enumerate(packets):
        spans, operands, over = packet.schema.spans, packet.operands, packet.batched
        uniform = not any(
            any(each) for _, end, gated in spans for each in over[end : end + 1 + gated]
        )
        for site, (_, end, gated) in enumerate(spans):
            positions = operands[end]
            num_rows = positions.shape[-1]
            real = _mask(num_rows, operands[end + 1] if gated else None)
            if uniform:
                row = np.flatnonzero(real)
                lane, position = np.full(len(row), -1), positions[row]
            else:
                shape = (math.prod(packet.lanes), num_rows)
                lane, row = np.nonzero(np.broadcast_to(real, shape))
                position = np.broadcast_to(positions, shape)[lane, row]
            size = len(row)
            runs = np.array(packet.arrivals)
            arrival = runs[row // max(num_rows // len(runs), 1)]
            same = (np.full(size, number), np.full(size, site))
            columns.append((position.astype(np.int64), arrival, *same, row, lane))
    if not columns:
        return _RecordIndex(*[np.zeros(0, np.int64)] * 6)
    return _RecordIndex(*map(np.concatenate, zip(*columns, strict=True)))


def _split_due(
    index: _RecordIndex, expected: Numbers, is_complete: bool = False
) -> tuple[_RecordIndex, _RecordIndex]:
    """Return the records that are due, in order, and those that must wait for an earlier record.

    Records that were delivered before, and second copies, are in neither.

    Args:
      index: The records.
      expected: The next position of each lane. This function advances it.
      is_complete: True if no more records will arrive, so that no record waits.
    """
    if (index.lane >= 0).any() or (expected != expected[0]).any():
        index = index.expand_lanes(len(expected))
    uniform = not len(index.lane) or index.lane[0] < 0
    order = np.argsort(index.position, kind="stable") if uniform else _sort_by_lane(index)
    index = index.select(order)
    lane = np.maximum(index.lane, 0)  # -1: all lanes are alike, so any lane will do
    first = np.ones(len(lane), bool)
    first[1:] = lane[1:] != lane[:-1]
    fresh = index.position >= expected[lane]
    fresh[1:] &= first[1:] | (index.position[1:] != index.position[:-1])
    if not fresh.all():
        index, lane = index.select(fresh), lane[fresh]
        first = np.ones(len(lane), bool)
        first[1:] = lane[1:] != lane[:-1]
    due = np.ones(len(lane), bool)
    if not is_complete and len(lane):
        starts = np.flatnonzero(first)
        number = np.arange(len(lane)) - np.repeat(starts, np.diff([*starts, len(lane)]))
        due = index.position == expected[lane] + number
    ready = index.select(due)
    if uniform and len(ready.position):
        expected[:] = ready.position[-1] + 1
    else:
        np.maximum.at(expected, ready.lane, ready.position + 1)
        ready = ready.select(np.lexsort((ready.lane, ready.position, _delivery_times(ready))))
    return ready, index.select(~due)


def _merge_held(
    held: list[Packet], early: _RecordIndex, new: list[Packet], index: _RecordIndex
) -> tuple[list[Packet], _RecordIndex]:
    """Return all packets that are used, and one index of all records."""
    used, number = np.unique(early.packet, return_inverse=True)
    # Held records arrived before all new ones.
    arrival = np.full(len(number), -1)
    early = early._replace(packet=number.reshape(-1), arrival=arrival)
    index = index._replace(packet=index.packet + len(used))
    packets = [*(held[i] for i in used.tolist()), *new]
    return packets, _RecordIndex(*map(np.concatenate, zip(early, index, strict=True)))


def _delivery_times(index: _RecordIndex) -> Numbers:
    """Return for each record the latest arrival in its lane up to it, its delivery time.

    Records of different lanes are delivered in the order of arrival.
    """
    begins = np.flatnonzero(np.diff(index.lane, prepend=-2))
    parts = np.split(index.arrival, begins[1:])
    return np.concatenate([np.maximum.accumulate(part) for part in parts])


def _join_packets(packets: Sequence[Packet], index: _RecordIndex) -> Iterator[Packet]:
    """Yield the records of unpacked packets in the order of the index, in few packets.

    Only packets with the same lanes, shard and owner are joined.
    """
    kinds: dict[Any, int] = {}
    kind_of = [kinds.setdefault(_kind(packet), len(kinds)) for packet in packets]
    if len(kinds) > 1:
        # Packets without lanes hold each record once, even if others of the call have lanes.
        without = np.array([not packet.lanes for packet in packets])
        index = index.select((index.lane < 1) | ~without[index.packet])
    kind = np.array(kind_of)[index.packet]
    changes = np.flatnonzero(np.diff(kind)) + 1
    for begin, end in itertools.pairwise([0, *changes.tolist(), len(kind)]):
        if begin < end:
            yield _join_same_kind(packets, index.select(slice(begin, end)))


def _kind(packet: Packet) -> Any:
    owner = packet.owner()
    own = None if owner is None else (owner.number.tobytes(), owner.over)
    return packet.lanes, packet.shard(), own


def _join_same_kind(packets: Sequence[Packet], index: _RecordIndex) -> Packet:
    """Return one packet of records whose packets have the same lanes, shard and owner."""
    used: list[int] = np.unique(index.packet).tolist()
    one = packets[used[0]]
    lane = index.lane if one.lanes else np.full(len(index.lane), -1)
    if len(used) == 1:
        return one._replace(record_index=np.stack([index.site, index.row, lane], axis=1))
    offsets = np.zeros(len(packets), np.int64)
    parts: list[tuple[Packet, int, Site, None]] = []
    for number in used:
        packet = packets[number]
        offsets[number] = len(parts)
        parts += [(packet, at, site, None) for at, site in enumerate(packet.schema.sites)]
    numbers = offsets[index.packet] + index.site
    return select_sites(parts, np.stack([numbers, index.row, lane], axis=1))


def stream_ends(packet: Packet) -> dict[tuple[int, int], Any] | None:
    """Return the number of records by stream and shard, if it is known by now."""
    schema = packet.schema
    totals: Sequence[Any]
    if schema.is_last:
        totals = schema.stream_ends(packet.operands)
    elif all(stream.total is not None for stream in schema.streams):
        totals = [np.asarray(stream.total) for stream in schema.streams]
    else:
        return None
    ends = {}
    for number, (stream, end) in enumerate(zip(schema.streams, totals, strict=True)):
        if not stream.shards:
            ends[number, 0] = end
            continue
        for shard in range(math.prod(stream.shards)):
            ends[number, shard] = end[..., shard] if schema.is_last else end
    return ends


def _mask(number: int, gate: Any) -> Any:
    """Return the mask of the real rows."""
    if gate is None:
        return np.ones(number, bool)
    if gate.dtype == bool:
        return gate
    return np.arange(number) < gate[..., None]


def _sort_by_lane(index: _RecordIndex) -> Any:
    return np.lexsort((index.position, index.lane))

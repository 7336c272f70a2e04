"""Track the running calls of tapped functions, and deliver their records in order.

Every record carries its position in the order of the program (see `ordering`). Each call remembers
the next position of each lane, holds records that arrive too early, and ignores records that it has
delivered already: a program that recomputes a part of itself emits the same records again.

Without a `buffer` from the user, the host chooses the number of records that leave a program
together (`BlockSize`). A compiled program has no clock: whenever records leave, the host compares
the time since the last ones with `TARGET_SECONDS`, and answers with the size of the next block.

Some records need no reordering. Those of `live` belong to no call: each leaves the program right
where it is logged. The records of a logger's `spool` are the only emission of their call, so that
the call is complete when they arrive (`receive_whole_call`). So both are delivered in the order of
arrival.
"""

from __future__ import annotations

import array
import collections
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree, make_effects_barrier
from logax._delivery.control import register_flush_hook
from logax._delivery.emit import current_shard, emit, lane_marker, owner_operands
from logax._delivery.errors import delivery_errors
from logax._delivery.ordering import StreamOrder, order_by_arrival, stream_ends
from logax._delivery.packet import (
    Packet,
    PacketLayout,
    PacketSchema,
    RecordStream,
    Site,
    site_operands,
    stack_packets,
)
from logax._delivery.routes import Route
from logax._delivery.shutdown import run_at_termination, watcher
from logax._delivery.worker import attempt, worker
from logax._log_spec import LogSpec

TARGET_SECONDS = 0.02
MAX_BLOCK_RECORDS = 4096
SMALL_BLOCK_RECORDS = 32


class BlockSize:
    """Number of records that leave one compiled program together.

    A call begins with the size that the last call of the program has reached.
    """

    def __init__(self) -> None:
        self.records = 1

    def at_most(self, max_records: float) -> int:
        """Return the size, limited to `max_records` but at least 1."""
        return max(1, int(min(self.records, max_records)))

    def adapt(self, records: int, seconds: float) -> None:
        """Adapt the size, given the time in which the program made some records.

        The size doubles while a whole block takes less than half of the target, or less than nine
        tenths if the block is small: an emission has a fixed cost. The size shrinks in proportion
        once a block takes more than twice the target.
        """
        fraction = 0.9 if self.records < SMALL_BLOCK_RECORDS else 0.5
        if seconds > 2 * TARGET_SECONDS:
            allowed = int(records * TARGET_SECONDS / seconds)
            self.records = max(1, min(self.records, allowed))
        elif seconds < fraction * TARGET_SECONDS and records >= self.records:
            self.records = min(2 * self.records, MAX_BLOCK_RECORDS)


class Call:
    """One execution of a tapped function.

    Args:
      route: Destination of the records.
      block_size: Block size of the compiled program, which this call adapts.

    Attributes:
      thread: Thread that called the function.
      running: Set once that thread has started the program.
      result: An array that the program returns, to wait for; None if there is none.
      failed: True if the program is known to have failed.
    """

    def __init__(self, route: Route, block_size: BlockSize | None = None) -> None:
        self.thread = threading.current_thread()
        self.running = threading.Event()
        self.result: Any = None
        self.failed = False
        self.route = route
        self._block_size = BlockSize() if block_size is None else block_size
        self._block_started: float | None = None  # time at which the program resumed
        self._streams: dict[tuple[int, int], StreamOrder] = {}
        self._ends: dict[tuple[int, int], Any] | None = None

    def receive(self, packets: Sequence[Packet]) -> bool:
        """Deliver the records that are due, of unpacked packets and of those held before.

        Returns:
          True if the call is complete.
        """
        streams: dict[tuple[int, int], list[Packet]] = {}
        for packet in packets:
            if self._ends is None:
                self._ends = stream_ends(packet)
            streams.setdefault(packet.stream(), []).append(packet)
        for stream, own in streams.items():
            self._deliver(self._streams.setdefault(stream, StreamOrder()).add(own))
        return self._is_complete()

    def settle(self) -> bool:
        """Deliver all held records, because no earlier ones will arrive.

        Returns:
          True if the call is complete.
        """
        for stream in list(self._streams.values()):
            self._deliver(stream.settle())
        return self._is_complete()

    def _deliver(self, packets: Iterable[Packet]) -> None:
        """Deliver records that are due, and count those that were dropped."""
        for packet in packets:
            if packet.is_dropped:
                _count_dropped([packet])
            else:
                self.route.deliver(packet)

    def measure_block(self, records: int) -> int:
        """Return the size of the next block, given the number of records that leave now.

        It is limited to what the worker delivers soon, which may be far slower than the program.
        """
        if self._block_started is not None:  # the first may have waited for other programs
            self._block_size.adapt(records, time.perf_counter() - self._block_started)
        return self._block_size.at_most(worker.job_records if worker.blocks_when_full else math.inf)

    def start_block_timer(self) -> None:
        """Start to measure the next block, because the program continues now."""
        self._block_started = time.perf_counter()

    def await_program(self) -> None:
        """Wait until the program has ended, if it returns an array to wait for."""
        self.running.wait()
        result = self.result
        if result is not None and not result.is_deleted():
            try:
                result.block_until_ready()
            except jax.errors.JaxRuntimeError:  # raised again where the result is used
                self.failed = True
            except RuntimeError:  # pragma: no cover - the result was donated meanwhile
                pass

    def _is_complete(self) -> bool:
        if self._ends is None:
            return False
        return all(
            self._streams.get(key, _NO_RECORDS).is_at(end) for key, end in self._ends.items()
        )


def begin_call(route: Route, block_size: BlockSize | None = None) -> int:
    """Register a new call, and return its number, for `mark_started` or `forget_call`."""
    worker.start()
    watcher.start()
    number = next(_numbers) % 2**32
    _calls[number] = Call(route, block_size)
    return number


def begin_nested_call(route: Route) -> int:
    """Register a new call that is part of a running program, and return its number."""
    number = begin_call(route)
    _calls[number].running.set()
    return number


def mark_started(number: int, result: Tree) -> None:
    """Mark the program of a call as running, with the result to wait for."""
    call = _calls.get(number)
    if call is not None:
        arrays = (x for x in jax.tree.leaves(result) if isinstance(x, jax.Array))
        call.result = next(arrays, None)
        call.running.set()


def find_call(number: int) -> Call | None:
    """Return the call with a number, unless it is complete."""
    return _calls.get(number)


def forget_call(number: int) -> Call | None:
    """Remove a call that will emit no more records; return it if it is known."""
    call = _calls.pop(number, None)
    if call is not None:
        call.running.set()
    return call


def abandon_call(number: int) -> None:
    """Remove a call whose program failed, and deliver the records that it emitted before."""
    call = forget_call(number)
    if call is not None:
        worker.put(0, call.settle, waits=False)


def receive_packet(packet: Packet) -> None:
    """Queue a packet for its call, on any XLA thread."""
    number = packet.operands[0].item(0)
    call = _calls.get(number)
    if call is not None:  # otherwise the program recomputes a part of a complete call
        layout = packet.layout
        _queue(number, call, packet, layout.size, layout.records)


def receive_block(packet: Packet) -> int:
    """Queue the content of a buffer, and return the size of the next block."""
    number = packet.operands[0].item(0)
    call = _calls.get(number)
    if call is None:
        return MAX_BLOCK_RECORDS
    packet = packet.unpack()
    records = call.measure_block(packet.pending_rows())
    packet, size, real = packet.trim()
    if real:
        _queue(number, call, packet, size, real)  # may wait, which is not the program's time
    call.start_block_timer()
    return records


def _queue(number: int, call: Call, packet: Packet, size: int, records: int) -> None:
    """Queue a packet for its call; if the queue is full, queue only its record positions."""
    if worker.add(size, _receive_all, (number, call, packet), records):
        return
    if not worker.extend_last(
        lambda job: isinstance(job, _DroppedRecords) and job.add(call, packet)
    ):
        dropped = _DroppedRecords(number, call)
        dropped.add(call, packet)
        worker.put(0, dropped, waits=False)


def _receive_all(arrived: collections.deque[tuple[int, Call, Packet]]) -> None:
    """Give each call its packets, stacking those of one emission."""
    by_call: dict[Call, tuple[int, list[Packet]]] = {}
    for number, call, packet in arrived:
        by_call.setdefault(call, (number, []))[1].append(packet)
    arrived.clear()
    for call, (number, packets) in by_call.items():
        attempt(_receive, number, call, stack_packets(packets))


def _receive(number: int, call: Call, packets: Sequence[Packet]) -> None:
    if call.receive(packets):
        forget_call(number)


class _DroppedRecords:
    """A job that tells a call the positions of dropped records. There may be very many of them."""

    def __init__(self, number: int, call: Call) -> None:
        self._number, self._call = number, call
        self._packets: list[Packet] = []
        self._layouts: dict[int, PacketLayout] = {}
        self._singles = array.array("q")  # layout, shard and position of packets with one record

    def add(self, call: Call, packet: Packet) -> bool:
        """Add the records of a packet, if it belongs to the same call."""
        if call is not self._call:
            return False
        bare = packet.drop_values()
        position = None if packet.schema.is_last or packet.lanes else _only_position(bare)
        if position is None:
            self._packets.append(bare)
        else:
            self._layouts[id(packet.layout)] = packet.layout
            self._singles.extend((id(packet.layout), bare.shard() or 0, position))
        return True

    def __call__(self) -> None:
        for packet in itertools.chain(self._single_packets(), self._packets):
            _receive(self._number, self._call, [packet])

    def _single_packets(self) -> Iterator[Packet]:
        numbers = iter(self._singles)
        for layout_id, shard, position in zip(numbers, numbers, numbers, strict=True):
            layout = self._layouts[layout_id]
            schema = layout.schema
            values = [_EMPTY] * schema.sites[0].num_arrays
            gate = np.ones(1, bool) if schema.has_gate[0] else None
            rows = site_operands(values, np.array([position]), gate)
            number, owner = np.asarray(self._number), (np.zeros((), np.uint32), _EMPTY)
            operands = schema.to_operands(number, np.asarray(shard), owner, [rows])
            yield Packet(layout, operands, is_unpacked=True, is_dropped=True)


def _only_position(packet: Packet) -> int | None:
    """Return the position of the only record of a packet; None if it holds none or several."""
    if len(packet.schema.sites) != 1:
        return None
    ((_, end, gated),) = packet.schema.spans
    positions = packet.operands[end]
    is_real = not gated or bool(np.asarray(packet.operands[end + 1]).all())
    return int(positions[0]) if positions.shape == (1,) and is_real else None


def _settle(before: int) -> None:
    """Settle all calls with a smaller number, and forget those that are complete or failed."""
    for number, call in list(_calls.items()):
        if number < before and (call.settle() or call.failed):
            forget_call(number)


def _await_programs(deadline: float | None) -> bool:
    """Wait for the programs that have begun; return False if the deadline passes before."""
    begun = list(_calls.values())
    awaited = [call for call in begun if call.running.is_set() or _will_run(call.thread)]
    await_effects = make_effects_barrier()

    def await_all() -> None:
        await_effects()
        for call in awaited:
            call.await_program()

    if deadline is None:
        await_all()
    else:
        waiting = threading.Thread(target=await_all, name="logax-flush", daemon=True)
        waiting.start()
        waiting.join(max(deadline - time.monotonic(), 0))
        if waiting.is_alive():
            return False
    if begun:
        worker.put(0, _settle, next(_numbers) % 2**32, waits=False)
    return True


def _will_run(thread: threading.Thread) -> bool:
    """Return whether a thread will start its program, so that it can be waited for."""
    is_left_behind = worker.is_exiting and thread.daemon
    return thread is not threading.current_thread() and not is_left_behind


def _reset() -> None:
    _calls.clear()


_EMPTY = np.zeros(0, bool)
_NO_RECORDS = StreamOrder()
_numbers = itertools.count(1)
_calls: dict[int, Call] = {}
register_flush_hook(_await_programs)
run_at_termination(worker, "safe", lambda: _settle(2**32))
os.register_at_fork(after_in_child=_reset)


def send_record(
    spec: LogSpec,
    operands: Sequence[Array],
    receive: Callable[[Packet], None],
    gate: Array | None = None,
    owner: Array | None = None,
) -> None:
    """Send one record to `receive` on the host, unless `gate` is false."""
    rows = site_operands(
        [jnp.expand_dims(x, 0) for x in operands],
        jnp.zeros(1, jnp.int32),
        None if gate is None else jnp.expand_dims(gate, 0),
    )
    zero = jnp.zeros((), jnp.int32)
    lanes = zero if owner is None else lane_marker([*operands, owner])
    send_records([(spec, rows)], receive, zero, lanes, owner)


def send_records(
    columns: Sequence[tuple[LogSpec, Sequence[Any]]],
    receive: Callable[[Packet], None],
    number: Array,
    lanes: Array,
    owner: Array | None,
) -> None:
    """Send records of several sites to `receive` on the host, in one packet.

    Args:
      columns: The specification and the operands of each site, from `site_operands`.
      receive: Host function.
      number: Number of the call, or zero.
      lanes: Lanes of the call, from `lane_marker`.
      owner: Number of the run that the records belong to, if any.
    """
    worker.start()
    shard = current_shard()
    sites = tuple(Site(spec) for spec, _ in columns)
    schema = PacketSchema(
        sites,
        tuple(site.has_gate(rows) for site, (_, rows) in zip(sites, columns, strict=True)),
        0,
        (RecordStream(),),
        is_last=False,
        on_shard=shard is not None,
        has_owner=owner is not None,
    )
    owners = () if owner is None else owner_operands(owner, lanes)
    operands = schema.to_operands(number, shard, owners, [rows for _, rows in columns])
    emit(schema, lanes, operands, receive)


def receive_whole_call(packet: Packet) -> None:
    """Queue the only packet of a call, on any XLA thread."""
    number = packet.call_number()
    call = find_call(number)
    if call is not None:
        queue_packet(packet, call.route)
        forget_call(number)  # after queueing: a `flush` waits for calls, then for the queue


def queue_packet(packet: Packet, route: Route) -> None:
    """Queue a packet for delivery on the worker thread.

    Consecutive packets for the same route object are delivered together.
    """
    layout = packet.layout
    if not worker.add(layout.size, _deliver_all, (route, packet), layout.records):
        _count_dropped(order_by_arrival([packet.drop_values()]))


def _count_dropped(packets: Iterable[Packet]) -> None:
    for packet in packets:
        for site, number in zip(packet.schema.sites, packet.count_records(), strict=True):
            if number:
                delivery_errors.count_dropped(site.describe(), number)


def _deliver_all(arrived: collections.deque[tuple[Route, Packet]]) -> None:
    for _, group in itertools.groupby(arrived, key=lambda each: id(each[0])):
        same_route = list(group)
        attempt(_deliver, same_route[0][0], [packet for _, packet in same_route])
    arrived.clear()


def _deliver(route: Route, packets: Sequence[Packet]) -> None:
    """Deliver the records of packets in the order of arrival."""
    for packet in order_by_arrival(stack_packets(packets)):
        route.deliver(packet)

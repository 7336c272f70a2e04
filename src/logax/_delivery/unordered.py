"""Deliver records that need no reordering: one emission is all there is, or they belong to no call.

The records of `live` belong to no call: each leaves the program right where it is logged. The
records of a logger's `spool` are the only emission of their call, so that the call is complete when
they arrive (`receive_whole_call`). So both are delivered in the order of arrival.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._delivery.calls import find_call, forget_call
from logax._delivery.emit import current_shard, emit, lane_marker, owner_operands
from logax._delivery.errors import delivery_errors
from logax._delivery.ordering import index_records, make_batches
from logax._delivery.packet import Packet, PacketSchema, RecordStream, Site, SiteRows, stack_packets
from logax._delivery.routes import Route
from logax._delivery.worker import attempt, worker
from logax._log_spec import LogSpec


def send_record(
    spec: LogSpec,
    operands: Sequence[Array],
    receive: Callable[[Packet], None],
    gate: Array | None = None,
    owner: Array | None = None,
) -> None:
    """Send one record to `receive` on the host, unless `gate` is false."""
    rows = SiteRows(
        [jnp.expand_dims(x, 0) for x in operands],
        jnp.zeros(1, jnp.int32),
        None if gate is None else jnp.expand_dims(gate, 0),
    )
    zero = jnp.zeros((), jnp.int32)
    lanes = zero if owner is None else lane_marker([*operands, owner])
    send_records([(spec, rows)], receive, zero, lanes, owner)


def send_records(
    columns: Sequence[tuple[LogSpec, SiteRows]],
    receive: Callable[[Packet], None],
    number: Array,
    lanes: Array,
    owner: Array | None,
) -> None:
    """Send records of several sites to `receive` on the host, in one packet.

    Args:
      columns: The specification and the rows of each site.
      receive: Host function.
      number: Number of the call, or zero.
      lanes: Lanes of the call, from `lane_marker`.
      owner: Number of the run that the records belong to, if any.
    """
    worker.start()
    shard = current_shard()
    schema = PacketSchema(
        tuple(Site(spec) for spec, _ in columns),
        tuple(rows.gate is not None for _, rows in columns),
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
        _count_dropped(packet.drop_values())


def _count_dropped(packet: Packet) -> None:
    index = index_records([packet])
    for number, site in enumerate(packet.schema.sites):
        own = index.lane[index.site == number]
        total = int(np.where(own < 0, math.prod(packet.lanes), 1).sum())
        if total:
            delivery_errors.count_dropped(site.describe(), total)


def _deliver_all(arrived: collections.deque[tuple[Route, Packet]]) -> None:
    for _, group in itertools.groupby(arrived, key=lambda each: id(each[0])):
        same_route = list(group)
        attempt(_deliver, same_route[0][0], [packet for _, packet in same_route])
    arrived.clear()


def _deliver(route: Route, packets: Sequence[Packet]) -> None:
    """Deliver the records of packets in the order of arrival."""
    stacked = stack_packets(packets)
    index = index_records(stacked)
    in_order = index.select(np.lexsort((index.lane, index.position, index.arrival)))
    for batch in make_batches(stacked, in_order):
        route.deliver(batch)

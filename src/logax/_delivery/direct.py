"""Records that leave the program in one emission, and are delivered as they arrive.

They belong to no call, as those of `live`, which leave right where they are made; or they are all
that there is of one, as those of a logger's `spool`, and it is over when they arrive
(`receive_whole`). So there is nothing to wait for, and nothing to put in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from logax._compat import Array
from logax._delivery.calls import called, forget
from logax._delivery.emit import emit, lanes_of, owned, shard_here
from logax._delivery.packets import Packet, Parcel, Rows, Site, Stream
from logax._delivery.places import batch_of
from logax._delivery.routes import Batch
from logax._delivery.troubles import troubles
from logax._delivery.worker import worker
from logax._entries import LogSpec


def send(
    spec: LogSpec,
    operands: Sequence[Array],
    take: Callable[[Parcel], None],
    gate: Array | None = None,
    owner: Array | None = None,
) -> None:
    """Hand one record to `take` on the host, unless `gate` is false."""
    rows = Rows(
        [jnp.expand_dims(x, 0) for x in operands],
        jnp.zeros(1, jnp.int32),
        None if gate is None else jnp.expand_dims(gate, 0),
    )
    zero = jnp.zeros((), jnp.int32)
    lanes = zero if owner is None else lanes_of([*operands, owner])
    send_rows([(spec, rows)], take, zero, lanes, owner, in_turn=True)


def send_rows(
    columns: Sequence[tuple[LogSpec, Rows]],
    take: Callable[[Parcel], None],
    number: Array,
    lanes: Array,
    owner: Array | None,
    *,
    in_turn: bool = False,
) -> None:
    """Hand records of several sites to `take` on the host, all at once.

    Args:
      columns: What each site logs, and its arrays.
      take: Takes the parcel.
      number: Of the call that they are of, or zero.
      lanes: What has a lane axis wherever one of them may have (`lanes_of`).
      owner: The number of their owner, if they have one.
      in_turn: Whether it matters when they arrive.
    """
    worker.start()
    shard = shard_here()
    packet = Packet(
        tuple(Site(spec) for spec, _ in columns),
        tuple(rows.gate is not None for _, rows in columns),
        0,
        (Stream(),),
        last=False,
        on_shard=shard is not None,
        owned=owner is not None,
    )
    owners = () if owner is None else owned(owner, lanes)
    operands = packet.flat(number, shard, owners, [rows for _, rows in columns])
    emit(packet, lanes, operands, take, in_turn=in_turn)


def receive_whole(parcel: Parcel) -> None:
    """Take in a parcel that is all there is of its call, on whatever thread of XLA's."""
    number = parcel.number()
    call = called(number)
    if call is not None:
        deliver_soon(parcel, call.route.deliver)
        forget(number)  # not before they are queued: a `flush` waits for calls and for the queue


def deliver_soon(parcel: Parcel, deliver: Callable[[Batch], None]) -> None:
    """Have the records of a parcel delivered on the thread of the worker."""
    if not worker.put(parcel.size(), _deliver, parcel, deliver):
        batch = batch_of(parcel.without_values())
        for site, _, lane in batch.order if batch is not None else ():
            number = math.prod(parcel.lanes) if lane < 0 else 1
            troubles.dropped(parcel.packet.sites[site].named(), number)


def _deliver(parcel: Parcel, deliver: Callable[[Batch], None]) -> None:
    batch = batch_of(parcel)
    if batch is not None:
        deliver(batch)

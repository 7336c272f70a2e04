"""Records that leave the program right where they are made, with nothing wrapped around it.

There is no call that they belong to, so none is waited for: they are delivered as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from logax._compat import Array
from logax._delivery.calls import batch_of
from logax._delivery.emit import emit, shard_here
from logax._delivery.packets import Packet, Parcel, Rows, Site, Stream
from logax._delivery.routes import Batch
from logax._delivery.worker import troubles, worker
from logax._log import LogSpec


def send(
    spec: LogSpec,
    operands: Sequence[Array],
    take: Callable[[Parcel], None],
    gate: Array | None = None,
) -> None:
    """Hand one record to `take` on the host, unless `gate` is false."""
    worker.start()
    rows = Rows(
        [jnp.expand_dims(x, 0) for x in operands],
        jnp.zeros(1, jnp.int32),
        None if gate is None else jnp.expand_dims(gate, 0),
    )
    shard = shard_here()
    packet = Packet(
        (Site(spec),), (gate is not None,), 0, (Stream(),), last=False, on_shard=shard is not None
    )
    zero = jnp.zeros((), jnp.int32)
    emit(packet, zero, packet.flat(zero, shard, [rows], []), take)


def deliver_soon(parcel: Parcel, deliver: Callable[[Batch], None]) -> None:
    """Have the records of a parcel delivered on the thread of the worker."""
    if not worker.put(parcel.size(), _deliver, parcel, deliver):
        batch = batch_of(parcel.without_values())
        if batch is not None:
            troubles.dropped(batch.packet.sites[0].named(), len(batch.order))


def _deliver(parcel: Parcel, deliver: Callable[[Batch], None]) -> None:
    batch = batch_of(parcel)
    if batch is not None:
        deliver(batch)

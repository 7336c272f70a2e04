"""Records that leave the program in one emission, and are delivered as they arrive.

They belong to no call, as those of `live`, which leave right where they are made; or they are all
that there is of one, as those of a logger's `spool`, and it is over when they arrive
(`receive_whole`). So there is nothing to wait for, and they are delivered in the order of arrival.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._delivery.calls import called, forget
from logax._delivery.emit import emit, lanes_of, owned, shard_here
from logax._delivery.errors import troubles
from logax._delivery.ordering import batches_of, places_of
from logax._delivery.packet import Packet, Parcel, Rows, Site, Stream, stack
from logax._delivery.routes import Takes
from logax._delivery.worker import attempt, worker
from logax._log_spec import LogSpec


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
    send_rows([(spec, rows)], take, zero, lanes, owner)


def send_rows(
    columns: Sequence[tuple[LogSpec, Rows]],
    take: Callable[[Parcel], None],
    number: Array,
    lanes: Array,
    owner: Array | None,
) -> None:
    """Hand records of several sites to `take` on the host, all at once.

    Args:
      columns: What each site logs, and its arrays.
      take: Takes the parcel.
      number: Of the call that they are of, or zero.
      lanes: What has a lane axis wherever one of them may have (`lanes_of`).
      owner: The number of their owner, if they have one.
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
    emit(packet, lanes, operands, take)


def receive_whole(parcel: Parcel) -> None:
    """Take in a parcel that is all there is of its call, on whatever thread of XLA's."""
    number = parcel.number()
    call = called(number)
    if call is not None:
        deliver_soon(parcel, call.route)
        forget(number)  # not before they are queued: a `flush` waits for calls and for the queue


def deliver_soon(parcel: Parcel, route: Takes) -> None:
    """Have the records of a parcel delivered on the thread of the worker.

    Parcels that arrive in a row for the same route, not only an equal one, are delivered together.
    """
    emission = parcel.emission
    if not worker.add(emission.size, _deliver_all, (route, parcel), emission.records):
        _count_dropped(parcel.without_values())


def _count_dropped(parcel: Parcel) -> None:
    places = places_of([parcel])
    for number, site in enumerate(parcel.packet.sites):
        own = places.lane[places.site == number]
        total = int(np.where(own < 0, math.prod(parcel.lanes), 1).sum())
        if total:
            troubles.dropped(site.named(), total)


def _deliver_all(arrived: collections.deque[tuple[Takes, Parcel]]) -> None:
    for _, stretch in itertools.groupby(arrived, key=lambda each: id(each[0])):
        taken = list(stretch)
        attempt(_deliver, taken[0][0], [parcel for _, parcel in taken])
    arrived.clear()


def _deliver(route: Takes, parcels: Sequence[Parcel]) -> None:
    """Deliver the records of some parcels in the order in which these arrived."""
    stacked = stack(parcels)
    places = places_of(stacked)
    in_order = places.only(np.lexsort((places.lane, places.place, places.arrival)))
    for batch in batches_of(stacked, in_order):
        route.deliver(batch)

"""Where records go: a route takes batches of them, in order, on the thread of the worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.packets import Packet, Rows
from logax._delivery.records import made, record
from logax._delivery.worker import DeliveryError, described, troubles, worker


class Batch(NamedTuple):
    """Some records of a call, in the order of the program.

    Attributes:
      packet: What the arrays mean.
      lanes: How many lanes there are at each level of `vmap`.
      shard: Which shard of a `shard_map` this is of.
      rows: The arrays of each site.
      over_lanes: For each array of each site, whether lanes are its first axis.
      order: Of which site, row and lane each record is; lane -1 stands for all of them.
    """

    packet: Packet
    lanes: tuple[int, ...]
    shard: int | None
    rows: list[Rows]
    over_lanes: Sequence[Sequence[bool]]
    order: list[tuple[int, int, int]]


class Route:
    """To a callback, one record at a time.

    Two routes to the same callback are equal, so that an error of one is known to the other.
    """

    def __init__(self, callback: Callable[[record], Any], lanes: str, on_error: str) -> None:
        self.callback, self.lanes, self.on_error = callback, lanes, on_error
        try:
            self._key: Any = (hash(callback), lanes, on_error)
        except TypeError:
            self._key = (id(callback), lanes, on_error)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Route)
            and self._key == other._key
            and (self.callback is other.callback or bool(self.callback == other.callback))
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def deliver(self, batch: Batch) -> None:
        """Call the callback with each record; what it raises is kept until somebody asks."""
        for one in _split(batch) if self.lanes == "split" else _whole(batch):
            worker.done += 1
            if worker.discards:
                worker.discarded += 1
                continue
            try:
                self.callback(one)
            except BaseException as error:  # noqa: BLE001 - even an exit, which would end the thread
                self._failed(one, error)

    def _failed(self, one: record, error: BaseException) -> None:
        name = getattr(self.callback, "__qualname__", repr(self.callback))
        failure = DeliveryError(
            f"The callback `{name}` raised {described(error)} It was given the "
            f"record of {', '.join(f'`{key}`' for key in one)} logged at {one.site} ({one})."
        )
        failure.__cause__ = error
        troubles.failed(self, failure, raises=self.on_error == "raise")


def _split(batch: Batch) -> Iterator[record]:
    """Each record of each lane."""
    sites = batch.packet.sites
    if not batch.lanes:
        # Scalars are taken out of an array faster all at once.
        columns = [[list(x) if x.ndim == 1 else x for x in rows.arrays] for rows in batch.rows]
        for site, row, _ in batch.order:
            yield made(sites[site], [x[row] for x in columns[site]], (), batch.shard)
        return
    numbers = list(itertools.product(*map(range, batch.lanes)))
    for site, row, lane in batch.order:
        varying, arrays = batch.over_lanes[site], batch.rows[site].arrays
        for one in range(len(numbers)) if lane < 0 else (lane,):
            own = [x[one, row] if v else x[row] for x, v in zip(arrays, varying, strict=True)]
            yield made(sites[site], own, numbers[one], batch.shard)


def _whole(batch: Batch) -> Iterator[record]:
    """Each record with all its lanes in front of every value and step."""
    number = int(np.prod(batch.lanes))
    real: dict[tuple[int, int], Any] = {}
    for site, row, lane in batch.order:
        if lane < 0:
            real[site, row] = None
        else:
            real.setdefault((site, row), np.zeros(number, bool))[lane] = True
    for (site, row), which in real.items():
        varying, arrays = batch.over_lanes[site], batch.rows[site].arrays
        own = []
        for x, v in zip(arrays, varying, strict=True):
            value = x[:, row] if v else np.broadcast_to(x[row], (number, *x.shape[1:]))
            own.append(value.reshape((*batch.lanes, *value.shape[1:])))
        one = made(batch.packet.sites[site], own, (), batch.shard)
        if which is not None and not which.all():
            one.real = which.reshape(batch.lanes)
        yield one

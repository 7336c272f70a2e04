"""Records out of a logdict, each with the steps that it was logged with.

A column of a logdict has all steps that its key has anywhere; a record that lacks one holds what
`missing_step` gives. Here such a record becomes one of a site that has no such step, as it is where
the same program streams its records. What destinations still meet is a step that a user has
streamed as NaN, which is no place on an x-axis either: those that show one must know of it.

Where the records of a run come from: calls of `tap` and `spool`, and blocks of `live`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.packet import Owner, Parcel, Site
from logax._delivery.routes import Batch
from logax._delivery.unordered import deliver_soon
from logax._harvest.tap import Ticket
from logax._support.arrays import is_missing
from logax.loggers._core.inbox import Inbox

Numbers = np.ndarray[Any, Any]


def with_own_steps(batch: Batch) -> Batch:
    """The same records, those that lack steps as records of sites without these."""
    sites = enumerate(batch.sites)
    every = {number: _lacking(batch, number) for number, site in sites if site.spec.steps}
    lacking = {number: own for number, own in every.items() if own.any()}
    if not lacking:
        return batch
    order = _told_apart(batch.order, lacking)
    parts, of_part = _parts(batch, order, lacking)
    # Those of one row kind by kind, and not lane by lane: so the fewest portions come of them.
    row = np.cumsum((np.diff(order[:, :2], axis=0, prepend=order[:1, :2]) != 0).any(axis=1))
    found = np.stack([of_part, order[:, 1], order[:, 2]], axis=1)[np.lexsort((of_part, row))]
    return batch._replace(
        sites=tuple(part.site for part in parts),
        columns=[part.arrays for part in parts],
        over_lanes=[part.over_lanes for part in parts],
        order=found,
    )


class _Part(NamedTuple):
    """The records of a site that have the same of its steps.

    Attributes:
      site: The same with these steps only.
      arrays: All of its rows, without the columns of other steps.
      over_lanes: Which of the columns vary over lanes.
    """

    site: Site
    arrays: list[Any]
    over_lanes: list[bool]


def _parts(
    batch: Batch, order: Numbers, lacking: Mapping[int, Numbers]
) -> tuple[list[_Part], Numbers]:
    """The parts of all sites, and of which of them each record is."""
    parts: list[_Part] = []
    of_part = np.zeros(len(order), np.int64)
    for number, site in enumerate(batch.sites):
        mine = order[:, 0] == number
        kinds, of_part[mine] = np.ones((1, len(site.spec.steps)), bool), len(parts)
        if number in lacking:
            kinds, kind = _distinct(~_at(lacking[number], order[mine]))
            of_part[mine] += kind
        parts += [_part(batch, number, tuple(has)) for has in kinds.tolist()]
    return parts, of_part


def _part(batch: Batch, number: int, has: tuple[bool, ...]) -> _Part:
    site, columns = batch.sites[number], batch.columns[number]
    values = site.width - len(has)
    kept = [*range(values), *(values + i for i, there in enumerate(has) if there)]
    arrays = [columns[i] for i in kept]
    over = [batch.over_lanes[number][i] for i in kept]
    types = tuple((x.dtype, x.shape[1 + varies :]) for x, varies in zip(arrays, over, strict=True))
    return _Part(_site_with_steps(site, has, types), arrays, over)


def _lacking(batch: Batch, number: int) -> Numbers:
    """Which steps which rows of a site lack: (lanes, rows, steps).

    There is one lane where no step varies over lanes.
    """
    site, columns = batch.sites[number], batch.columns[number]
    found = []
    for at in range(site.width - len(site.spec.steps), site.width):
        x = columns[at]
        own = is_missing(x if batch.over_lanes[number][at] else x[None])
        found.append(own.all(axis=tuple(range(2, own.ndim))))
    return np.stack(np.broadcast_arrays(*found), axis=-1)


def _at(lacking: Numbers, order: Numbers) -> Numbers:
    """Which steps records of one site lack: (records, steps)."""
    _, row, lane = order.T
    found: Numbers = lacking[np.clip(lane, 0, len(lacking) - 1), row]
    return found


def _told_apart(order: Numbers, lacking: Mapping[int, Numbers]) -> Numbers:
    """The order, with each lane named of rows whose lanes lack different steps."""
    which = np.zeros(len(order), bool)
    for number, own in lacking.items():
        mine = np.flatnonzero((order[:, 0] == number) & (order[:, 2] < 0))
        which[mine] = (own != own[:1]).any(axis=(0, 2))[order[mine, 1]]
    lanes = max(map(len, lacking.values()))
    times = np.where(which, lanes, 1)
    found = np.repeat(order, times, axis=0)
    found[np.repeat(which, times), 2] = np.tile(np.arange(lanes), int(which.sum()))
    return found


def _distinct(rows: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct rows, in the order in which they come, and which of them each one is."""
    kinds, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    return kinds[by_first], np.argsort(by_first)[kind.reshape(-1)]


@functools.lru_cache(maxsize=1024)
def _site_with_steps(site: Site, has: tuple[bool, ...], types: Any) -> Site:
    """The site with some of its steps; the same object for the same types of arrays.

    So records join quickly: all of one object have the same types.
    """
    steps = tuple(name for name, there in zip(site.spec.steps, has, strict=True) if there)
    return dataclasses.replace(site, spec=dataclasses.replace(site.spec, steps=steps))


class LogdictRoute:
    """To a run, for records that were a logdict before they left the program.

    Such records may lack steps of their keys.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox, self.check = inbox, inbox.check

    def take(self, parcel: Parcel) -> None:
        """Take in a parcel that is of no call, on whatever thread of XLA's."""
        deliver_soon(parcel, self)

    def deliver(self, batch: Batch) -> None:
        """Take in a batch."""
        self._inbox.deliver(with_own_steps(batch))


@dataclasses.dataclass(frozen=True, eq=False)
class RunTicket(Ticket):
    """Numbers for calls whose records are a run's."""

    route: Inbox | LogdictRoute
    owner: Any

    def check(self) -> None:
        self.route.check()

    def take(self, parcel: Parcel) -> None:
        """Take in what is of no call."""
        self.route.take(parcel)


class LiveRoute:
    """To a run, with nothing wrapped that could say whose the records are."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._owner = inbox, Owner(np.asarray(number))

    def deliver(self, batch: Batch) -> None:
        self._inbox.deliver(batch._replace(owner=self._owner))


class LiveTarget:
    """A run that is open, as `live` takes it."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._number = inbox, number

    @contextlib.contextmanager
    def streamed_live(self) -> Iterator[LiveRoute]:
        """Where records go for the length of the block."""
        yield LiveRoute(self._inbox, self._number)

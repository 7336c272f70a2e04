"""The routes from harvests to a run: `tap` and `spool` calls, `live` blocks, and logdicts.

A column of a logdict has all steps that its key has anywhere; a record that lacks one holds the
value of `missing_step`. `split_missing_steps` turns such a record into one of a site without that
step, the same as when the program streams its records. A step that the user logs as NaN remains: it
has no place on an x-axis either, so destinations that draw one must handle it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from logax._delivery.calls import queue_packet
from logax._delivery.packet import Packet, RecordOwner, Site, select_sites
from logax._harvest.tap import RouteTicket
from logax._support.arrays import is_missing
from logax.loggers._core.inbox import Inbox

Numbers = np.ndarray[Any, Any]


def split_missing_steps(packet: Packet) -> Packet:
    """Return the same records, with records that lack steps as records of sites without them."""
    missing = {number: own for number, own in _missing_masks(packet) if own.any()}
    if not missing:
        return packet
    index = _expand_mixed_rows(packet.record_index, missing)
    subsets, subset_of = _split_sites(packet, index, missing)
    # Sort the lanes of one row by subset, so that fewer batches result.
    row = np.cumsum((np.diff(index[:, :2], axis=0, prepend=index[:1, :2]) != 0).any(axis=1))
    found = np.stack([subset_of, index[:, 1], index[:, 2]], axis=1)[np.lexsort((subset_of, row))]
    return select_sites(subsets, found)


_StepSubset = tuple[Packet, int, Site, Sequence[int]]  # an argument of `select_sites`


def _split_sites(
    packet: Packet, index: Numbers, missing: Mapping[int, Numbers]
) -> tuple[list[_StepSubset], Numbers]:
    """Return a subset of each site for each set of steps, and the subset of each record."""
    subsets: list[_StepSubset] = []
    subset_of = np.zeros(len(index), np.int64)
    for number, site in enumerate(packet.schema.sites):
        mine = index[:, 0] == number
        kinds, subset_of[mine] = np.ones((1, len(site.spec.steps)), bool), len(subsets)
        if number in missing:
            kinds, kind = _unique_rows(~_missing_of_records(missing[number], index[mine]))
            subset_of[mine] += kind
        subsets += [_make_subset(packet, number, tuple(has)) for has in kinds.tolist()]
    return subsets, subset_of


def _make_subset(packet: Packet, number: int, has: tuple[bool, ...]) -> _StepSubset:
    """Return the site with only these steps."""
    site, columns = packet.schema.sites[number], packet.columns()[number]
    over = packet.over_lanes()[number]
    values = site.num_arrays - len(has)
    kept = [*range(values), *(values + i for i, there in enumerate(has) if there)]
    types = tuple((columns[i].dtype, columns[i].shape[1 + over[i] :]) for i in kept)
    return packet, number, _site_with_steps(site, has, types), kept


def _missing_masks(packet: Packet) -> Iterator[tuple[int, Numbers]]:
    """Yield each site with the mask of the steps that its rows lack, (lanes, rows, steps).

    There is one lane if no step varies over lanes.
    """
    columns, over_lanes = packet.columns(), packet.over_lanes()
    for number, site in enumerate(packet.schema.sites):
        found = []
        for at in range(site.num_arrays - len(site.spec.steps), site.num_arrays):
            x = columns[number][at]
            own = is_missing(x if over_lanes[number][at] else x[None])
            found.append(own.all(axis=tuple(range(2, own.ndim))))
        if found:
            yield number, np.stack(np.broadcast_arrays(*found), axis=-1)


def _missing_of_records(missing: Numbers, index: Numbers) -> Numbers:
    """Return the mask of the steps that records of one site lack, of shape (records, steps)."""
    _, row, lane = index.T
    found: Numbers = missing[np.clip(lane, 0, len(missing) - 1), row]
    return found


def _expand_mixed_rows(index: Numbers, missing: Mapping[int, Numbers]) -> Numbers:
    """Return the index with an entry per lane for rows whose lanes lack different steps."""
    which = np.zeros(len(index), bool)
    for number, own in missing.items():
        mine = np.flatnonzero((index[:, 0] == number) & (index[:, 2] < 0))
        which[mine] = (own != own[:1]).any(axis=(0, 2))[index[mine, 1]]
    lanes = max(map(len, missing.values()))
    times = np.where(which, lanes, 1)
    found = np.repeat(index, times, axis=0)
    found[np.repeat(which, times), 2] = np.tile(np.arange(lanes), int(which.sum()))
    return found


def _unique_rows(rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct rows in order of first occurrence, and the index of each row."""
    kinds, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    return kinds[by_first], np.argsort(by_first)[kind.reshape(-1)]


@functools.lru_cache(maxsize=1024)
def _site_with_steps(site: Site, has: tuple[bool, ...], types: Any) -> Site:
    """Return the site with some of its steps, cached.

    One object has one set of array types, so that columns are compared and joined quickly.
    """
    steps = tuple(name for name, there in zip(site.spec.steps, has, strict=True) if there)
    return dataclasses.replace(site, spec=dataclasses.replace(site.spec, steps=steps))


class LogdictRoute:
    """The route to a run for records of a logdict, which may lack steps of their keys."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox, self.check = inbox, inbox.check

    def receive(self, packet: Packet) -> None:
        """Queue a packet that belongs to no call, on any thread."""
        queue_packet(packet, self)

    def deliver(self, packet: Packet) -> None:
        """Deliver a packet to the inbox."""
        self._inbox.deliver(split_missing_steps(packet))


@dataclasses.dataclass(frozen=True, eq=False)
class RunTicket(RouteTicket):
    """A ticket for calls whose records belong to a run."""

    route: Inbox | LogdictRoute
    owner: Any

    def check(self) -> None:
        self.route.check()

    def receive(self, packet: Packet) -> None:
        """Queue a packet that belongs to no call."""
        self.route.receive(packet)


class LiveRoute:
    """The route to a run for records of `live`, whose programs do not know the run."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._owner = inbox, RecordOwner(np.asarray(number))

    def deliver(self, packet: Packet) -> None:
        """Deliver a packet to the inbox, as records of the run."""
        self._inbox.deliver(packet, self._owner)


class LiveTarget:
    """An open run as a target of `live`."""

    def __init__(self, inbox: Inbox, number: Any) -> None:
        self._inbox, self._number = inbox, number

    @contextlib.contextmanager
    def streamed_live(self) -> Iterator[LiveRoute]:
        """Yield the route of the block."""
        yield LiveRoute(self._inbox, self._number)

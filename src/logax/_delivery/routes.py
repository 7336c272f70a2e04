"""What a callback is given: one record, as a dictionary of NumPy values.

Where records go: a route takes batches of them, in order, on the thread of the worker.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from logax._delivery.errors import DeliveryError, troubles
from logax._delivery.packet import Owner, Site
from logax._delivery.worker import worker
from logax._support.arrays import leaf_name
from logax._support.messages import described


class record(dict[str, Any]):  # noqa: N801 - a kind of dictionary, as `logdict` is
    """What one execution of one `log` call said: its keys with their values.

    Attributes:
      steps: The step counters of the call, by name. Each is an attribute too, where its name is
        free: `record.step`.
      lane: Under `vmap`, the indices of this lane, outermost first; () elsewhere.
      shard: Under `shard_map`, the index of this shard; None elsewhere.
      site: File and line of the `log` call.
      tags: Its tags.
      total: How many records there will be of its first key in this call, for each lane, where the
        program says so; else None.
      real: With `lanes="batch"`, which lanes the record is of, or None for all of them.
    """

    __slots__ = ("lane", "real", "shard", "site", "steps", "tags", "total")
    steps: dict[str, Any]
    lane: tuple[int, ...]
    shard: int | None
    site: str
    tags: tuple[str, ...]
    total: int | None
    real: Any

    def __getattr__(self, name: str) -> Any:
        steps = object.__getattribute__(self, "steps")
        if name in steps:
            return steps[name]
        raise AttributeError(
            f"A `record` has no attribute {name!r}, and this one no step of that name: its steps "
            f"are {list(steps)}."
        )

    def copy(self) -> record:
        """The same once more, with all that is known of it."""
        return copy.copy(self)

    def __repr__(self) -> str:
        return f"record({dict.__repr__(self)}, steps={self.steps!r}, lane={self.lane!r})"

    def __str__(self) -> str:
        """One line: lane, steps, values."""
        words = [f"lane={','.join(map(str, self.lane))}"] if self.lane else []
        words += [f"shard={self.shard}"] if self.shard is not None else []
        words += [f"{name}={_short(step)}" for name, step in self.steps.items()]
        for key, value in self.items():
            leaves = jax.tree_util.tree_leaves_with_path(value)
            words += [f"{leaf_name(key, path)}={_short(leaf)}" for path, leaf in leaves]
            words += [] if leaves else [f"{key}={{}}"]
        return " ".join(words)


_FEW = 8  # elements of an array that is shown whole


def _short(value: Any) -> str:
    if value.ndim == 0 and not isinstance(value, jax.Array):  # those are PRNG keys
        number = value.item()
        return f"{number:.6g}" if isinstance(number, (float, complex)) else str(number)
    if value.size <= _FEW and not isinstance(value, jax.Array):
        shown = np.array2string(value, precision=6, separator=" ", max_line_width=10**6)
        return " ".join(shown.split())
    return f"{value.dtype.name}{list(value.shape)}"


def made(
    site: Site, arrays: Sequence[Any], lane: tuple[int, ...], shard: int | None, real: Any
) -> record:
    """One record of a site, given its arrays: leaves, then steps."""
    spec = site.spec
    one = record(site.values(arrays))
    one.steps = dict(zip(spec.steps, arrays[len(arrays) - len(spec.steps) :], strict=True))
    one.lane, one.shard, one.real = lane, shard, real
    one.site, one.tags, one.total = spec.site, spec.tags, site.total
    return one


class Batch(NamedTuple):
    """Some records of a call, in the order of the program.

    Attributes:
      sites: The `log` calls that made them.
      lanes: Number of lanes at each level of `vmap`.
      shard: Index of the shard of a `shard_map` that this is of.
      columns: For each site its arrays, which have a record axis, after that of lanes if any.
      over_lanes: For each array of each site, whether lanes are its first axis.
      order: Integers (records, 3): the site, row and lane of each; lane -1 stands for all of them.
      owner: Whose records these are, where they have owners.
    """

    sites: tuple[Site, ...]
    lanes: tuple[int, ...]
    shard: int | None
    columns: Sequence[Sequence[Any]]
    over_lanes: Sequence[Sequence[bool]]
    order: Any
    owner: Owner | None = None


class Takes(Protocol):
    """Where batches go. It must be hashable, to be told from others."""

    def deliver(self, batch: Batch) -> None:
        """Take a batch, on the thread of the worker; nothing is raised."""


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
        callback, shard = self.callback, batch.shard
        each = _whole(batch) if self.lanes == "batch" and batch.lanes else _split(batch)
        worker.running = ("the callback", callback)
        for site, arrays, lane, real in each:
            worker.done += 1
            if worker.discards:
                worker.discarded += 1
                continue
            one = None
            try:
                one = made(site, arrays, lane, shard, real)
                callback(one)
            except BaseException as error:  # noqa: BLE001 - even an exit, which would end the thread
                self._failed(site, one, error)
        worker.running = None

    def _failed(self, site: Site, one: record | None, error: BaseException) -> None:
        name = getattr(self.callback, "__qualname__", repr(self.callback))
        if one is None:
            message = (
                f"A record of {site.named()} could not be made for the callback `{name}`: "
                f"{described(error)}"
            )
        else:
            message = (
                f"The callback `{name}` raised {described(error)} It was given the record of "
                f"{', '.join(f'`{key}`' for key in one)} logged at {one.site} ({one})."
            )
        failure = DeliveryError(message)
        failure.__cause__ = error
        troubles.failed(self, failure, raises=self.on_error == "raise")


_One = tuple[Site, Sequence[Any], tuple[int, ...], Any]  # a site, arrays, the lane, which are real


def _split(batch: Batch) -> Iterator[_One]:
    """Yield each record of each lane."""
    sites = batch.sites
    if not batch.lanes:
        # Scalars are taken out of an array faster all at once.
        rows = [
            list(zip(*(list(x) if x.ndim == 1 else x for x in arrays), strict=True))
            for arrays in batch.columns
        ]
        for site, row, _ in batch.order.tolist():
            # A log without leaves or steps has no arrays, and so no rows either.
            yield sites[site], rows[site][row] if batch.columns[site] else (), (), None
        return
    numbers = list(itertools.product(*map(range, batch.lanes)))
    for site, row, lane in batch.order.tolist():
        varying, arrays = batch.over_lanes[site], batch.columns[site]
        for one in range(len(numbers)) if lane < 0 else (lane,):
            own = [x[one, row] if v else x[row] for x, v in zip(arrays, varying, strict=True)]
            yield sites[site], own, numbers[one], None


def _whole(batch: Batch) -> Iterator[_One]:
    """Yield each record of a batch with lanes, with all lanes in front of every value and step."""
    number = int(np.prod(batch.lanes))
    order = batch.order.tolist()
    together = [(site, row, None) for site, row, lane in order if lane < 0]
    for site, row, real in together or _side_by_side(order, number):
        varying, arrays = batch.over_lanes[site], batch.columns[site]
        own = []
        for x, v in zip(arrays, varying, strict=True):
            if isinstance(row, int):
                value = x[:, row] if v else np.broadcast_to(x[row], (number, *x.shape[1:]))
            else:
                value = x[np.arange(number), row] if v else x[row]
            own.append(value.reshape((*batch.lanes, *value.shape[1:])))
        which = None if real is None or real.all() else real.reshape(batch.lanes)
        yield batch.sites[site], own, (), which


def _side_by_side(
    order: Sequence[tuple[int, int, int]], number: int
) -> Iterator[tuple[int, Any, Any]]:
    """Records of lanes that differ, those of one site together, with the order of each lane kept.

    Gives the site, for each lane the row, and which lanes have one.
    """
    of_lane: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    for site, row, lane in order:
        of_lane[lane].append((site, row))
    lengths = np.array([len(own) for own in of_lane])
    sites = np.full((number, lengths.max() + 1), -1)
    rows = np.zeros_like(sites)
    for lane, own in enumerate(of_lane):
        if own:
            sites[lane, : len(own)], rows[lane, : len(own)] = np.transpose(own)
    lanes, at = np.arange(number), np.zeros(number, int)
    while (at < lengths).any():
        heads = sites[lanes, at]
        behind = np.where(at < lengths, at - lengths, 0).argmin()
        real = heads == heads[behind]
        yield int(heads[behind]), np.where(real, rows[lanes, at], 0), real
        at = at + real

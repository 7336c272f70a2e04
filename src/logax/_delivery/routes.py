"""The destinations of records: the `Route` protocol, and the route to a callback.

A route receives packets whose records are in order (`Packet.record_index`), on the worker thread.
`CallbackRoute` splits them into single records, the dictionaries that the callbacks of `tap` and
`live` get.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from logax._delivery.errors import DeliveryError, delivery_errors
from logax._delivery.packet import Packet, Site
from logax._delivery.worker import worker
from logax._support.arrays import leaf_name
from logax._support.messages import describe_error


class record(dict[str, Any]):  # noqa: N801 - a kind of dictionary, as `logdict` is
    """One record: the values of one execution of a `log` call, as a dictionary by key.

    Callbacks of `tap` and `live` get one `record` at a time. Its values are NumPy arrays and
    scalars, or pytrees of them. `print(record)` shows it as one line.

        def callback(record):
            print(record.step, record["loss"])

    Attributes:
      steps: Step counters of the `log` call, by name. Each is also an attribute, `record.step`,
        unless the name is one of those listed here or a method of dictionaries.
      lane: Indices of the lane under `vmap`, outermost first; () elsewhere.
      shard: Index of the shard under `shard_map`; None elsewhere.
      site: File and line of the `log` call.
      tags: Tags of the `log` call.
      total: Number of records that each lane logs under its first key in this call, if the program
        determines it; otherwise None.
      real: With `lanes="batch"`, the mask of the lanes that logged, or None if all did.
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
        """Return a shallow copy, with all attributes."""
        return copy.copy(self)

    def __repr__(self) -> str:
        return f"record({dict.__repr__(self)}, steps={self.steps!r}, lane={self.lane!r})"

    def __str__(self) -> str:
        """Return one line with the lane, the steps and the values."""
        words = [f"lane={','.join(map(str, self.lane))}"] if self.lane else []
        words += [f"shard={self.shard}"] if self.shard is not None else []
        words += [f"{name}={_format_value(step)}" for name, step in self.steps.items()]
        for key, value in self.items():
            leaves = jax.tree_util.tree_leaves_with_path(value)
            words += [f"{leaf_name(key, path)}={_format_value(leaf)}" for path, leaf in leaves]
            words += [] if leaves else [f"{key}={{}}"]
        return " ".join(words)


_MAX_SHOWN_ELEMENTS = 8  # larger arrays are shown as dtype and shape


def _format_value(value: Any) -> str:
    if value.ndim == 0 and not isinstance(value, jax.Array):  # JAX arrays are PRNG keys
        number = value.item()
        return f"{number:.6g}" if isinstance(number, (float, complex)) else str(number)
    if value.size <= _MAX_SHOWN_ELEMENTS and not isinstance(value, jax.Array):
        shown = np.array2string(value, precision=6, separator=" ", max_line_width=10**6)
        return " ".join(shown.split())
    return f"{value.dtype.name}{list(value.shape)}"


def make_record(
    site: Site, arrays: Sequence[Any], lane: tuple[int, ...], shard: int | None, real: Any
) -> record:
    """Return one record of a site from its arrays: leaves, then steps."""
    spec = site.spec
    one = record(site.values(arrays))
    one.steps = dict(zip(spec.steps, arrays[len(arrays) - len(spec.steps) :], strict=True))
    one.lane, one.shard, one.real = lane, shard, real
    one.site, one.tags, one.total = spec.site, spec.tags, site.total
    return one


class Route(Protocol):
    """A destination of records. Its errors are stored under it, so it must be hashable."""

    def deliver(self, packet: Packet) -> None:
        """Deliver the records of a packet, on the worker thread.

        Must not raise: see `delivery_errors`.
        """


class CallbackRoute:
    """A route to a callback, which gets one record at a time.

    Two routes to the same callback are equal, so that a call with one raises the errors of the
    other.

    Args:
      callback: The callback.
      lanes: "split" for a record for each lane; "batch" for one record of all lanes.
      on_error: "raise" or "warn", for the errors of the callback.
    """

    def __init__(self, callback: Callable[[record], Any], lanes: str, on_error: str) -> None:
        self.callback, self.lanes, self.on_error = callback, lanes, on_error
        try:
            self._key: Any = (hash(callback), lanes, on_error)
        except TypeError:
            self._key = (id(callback), lanes, on_error)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CallbackRoute)
            and self._key == other._key
            and (self.callback is other.callback or bool(self.callback == other.callback))
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def deliver(self, packet: Packet) -> None:
        """Call the callback with each record, and store its errors."""
        callback, shard = self.callback, packet.shard()
        merges = self.lanes == "batch" and packet.lanes
        rows = _merge_lanes(packet) if merges else _split_lanes(packet)
        worker.running = ("the callback", callback)
        for site, arrays, lane, real in rows:
            worker.progress += 1
            if worker.is_discarding:
                worker.num_discarded += 1
                continue
            one = None
            try:
                one = make_record(site, arrays, lane, shard, real)
                callback(one)
            except BaseException as error:  # noqa: BLE001 - a SystemExit too, it would end the thread
                self._store_error(site, one, error)
        worker.running = None

    def _store_error(self, site: Site, one: record | None, error: BaseException) -> None:
        name = getattr(self.callback, "__qualname__", repr(self.callback))
        if one is None:
            message = (
                f"A record of {site.describe()} could not be made for the callback `{name}`: "
                f"{describe_error(error)}"
            )
        else:
            message = (
                f"The callback `{name}` raised {describe_error(error)} It was given the record of "
                f"{', '.join(f'`{key}`' for key in one)} logged at {one.site} ({one})."
            )
        failure = DeliveryError(message)
        failure.__cause__ = error
        delivery_errors.add(self, failure, raises=self.on_error == "raise")


_RecordParts = tuple[Site, Sequence[Any], tuple[int, ...], Any]  # site, arrays, lane, real lanes


def _split_lanes(packet: Packet) -> Iterator[_RecordParts]:
    """Yield each record of each lane."""
    sites, columns = packet.schema.sites, packet.columns()
    if not packet.lanes:
        # It is faster to convert a whole array to a list of scalars than to index it.
        rows = [
            list(zip(*(list(x) if x.ndim == 1 else x for x in arrays), strict=True))
            for arrays in columns
        ]
        for site, row, _ in packet.record_index.tolist():
            # A log without leaves and steps has no arrays, and so no rows.
            yield sites[site], rows[site][row] if columns[site] else (), (), None
        return
    over_lanes = packet.over_lanes()
    numbers = list(itertools.product(*map(range, packet.lanes)))
    for site, row, lane in packet.record_index.tolist():
        varying, arrays = over_lanes[site], columns[site]
        for one in range(len(numbers)) if lane < 0 else (lane,):
            own = [x[one, row] if v else x[row] for x, v in zip(arrays, varying, strict=True)]
            yield sites[site], own, numbers[one], None


def _merge_lanes(packet: Packet) -> Iterator[_RecordParts]:
    """Yield each record of all lanes, with axes for lanes in front of every value and step."""
    number = int(np.prod(packet.lanes))
    columns, over_lanes = packet.columns(), packet.over_lanes()
    index = packet.record_index.tolist()
    together = [(site, row, None) for site, row, lane in index if lane < 0]
    for site, row, real in together or _side_by_side(index, number):
        varying, arrays = over_lanes[site], columns[site]
        own = []
        for x, v in zip(arrays, varying, strict=True):
            if isinstance(row, int):
                value = x[:, row] if v else np.broadcast_to(x[row], (number, *x.shape[1:]))
            else:
                value = x[np.arange(number), row] if v else x[row]
            own.append(value.reshape((*packet.lanes, *value.shape[1:])))
        which = None if real is None or real.all() else real.reshape(packet.lanes)
        yield packet.schema.sites[site], own, (), which


def _side_by_side(
    index: Sequence[tuple[int, int, int]], number: int
) -> Iterator[tuple[int, Any, Any]]:
    """Merge the records of lanes that log differently, keeping the order of each lane.

    Yields:
      A site, the row of each lane, and the mask of the lanes that have a row.
    """
    of_lane: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    for site, row, lane in index:
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

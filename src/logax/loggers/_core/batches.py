"""The records of a batch as columns, one for each site.

In a batch the order of the program is a list of (site, row, lane). Where all lanes log side by side
there is one row for all of them, and columns are slices of what came from the device. Where lanes
differ, each lane has rows of its own, which are gathered with a mask.

Columns that wait until there are enough of them, then given as portions.

Columns of the same keys and streams become one portion, so that a sink is called for all that came
meanwhile and not for each record. Of `log` calls that log the same keys in the same shapes the
records are merged in the order of the program. Where calls share a key but differ in others, a
portion ends when the other call logs the key: every key is in order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.packet import Site
from logax._delivery.record_batch import RecordBatch, Stream
from logax._delivery.routes import Batch


@dataclasses.dataclass(eq=False)
class Columns:
    """Some records of one site: arrays (streams, records, ...), or (records, ...) of one stream.

    Attributes:
      site: What was logged, and where.
      streams: Whose records these are.
      arrays: The leaves, then the steps.
      order: (streams, records) or (records,): where each stands among all.
      real: Which there are; None for all.
      single: Whether there is one stream, and no axis for it.
    """

    site: Site
    streams: tuple[Stream, ...]
    arrays: list[Any]
    order: Any
    real: Any
    single: bool

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(x.nbytes for x in self.arrays)

    def of_open_runs(self) -> Columns | None:
        """Without the streams whose run has ended; None if there are no others."""
        if None not in [stream.run for stream in self.streams]:
            return self
        kept = [i for i, stream in enumerate(self.streams) if stream.run is not None]
        if not kept:
            return None
        streams = tuple(self.streams[i] for i in kept)
        real = None if self.real is None else self.real[kept]
        arrays = [x[kept] for x in self.arrays]
        return Columns(self.site, streams, arrays, self.order[kept], real, False)

    def portion(self, sites: Sequence[str]) -> RecordBatch:
        """As a sink takes it."""
        arrays, order, real = self.arrays, self.order, self.real
        if self.single:
            arrays, order = [x[None] for x in arrays], order[None]
        spec = self.site.spec
        values = dict(self.site.values(arrays))
        steps = dict(zip(spec.steps, arrays[len(arrays) - len(spec.steps) :], strict=True))
        return RecordBatch(self.streams, values, steps, order, real, ", ".join(sites), spec.tags)


def columns_of(batch: Batch, streams: tuple[Stream, ...], first: int) -> Iterator[Columns]:
    """The records of a batch, given the stream of each lane and the place of the first record."""
    order = batch.order
    place = np.arange(first, first + len(order))
    for number, own in _stretches(batch, order, streams):
        rows, lanes, places = order[own, 1], order[own, 2], place[own]
        if not batch.lanes:
            yield _single(batch, number, _sliced(rows), streams, places)
        elif (lanes < 0).all():
            yield _side_by_side(batch, number, _sliced(rows), streams, places)
        else:
            yield _gathered(batch, number, (rows, lanes, places), streams)


def signature(site: Site, arrays: Sequence[Any], axes: int) -> Any:
    """What columns that can be joined have in common, given how many axes count records."""
    spec = site.spec
    types = tuple((x.shape[axes:], x.dtype) for x in arrays)
    return spec.entries, spec.steps, spec.tags, types


def _stretches(batch: Batch, order: Any, streams: Any) -> Iterator[tuple[int, Any]]:
    """Each site, and which records are of it.

    Sites that share a key and cannot be joined take turns, so that every key is in order.
    """
    column = order[:, 0]
    if (column == column[0]).all():
        yield int(column[0]), slice(None)
    elif _clash(batch, np.unique(column).tolist(), _are_of_all(order, streams)):
        turns = np.flatnonzero(np.diff(column)) + 1
        for begin, end in itertools.pairwise([0, *turns.tolist(), len(column)]):
            yield int(column[begin]), slice(begin, end)
    else:
        for number in dict.fromkeys(column.tolist()):
            yield number, column == number


def _are_of_all(order: Any, streams: Any) -> bool:
    """Whether each record is of all lanes, and every lane of a run: others are never joined."""
    return bool((order[:, 2] < 0).all()) and all(stream.run is not None for stream in streams)


def _clash(batch: Batch, numbers: Sequence[int], are_joined: bool) -> bool:
    """Whether sites share a key and cannot be joined: where none are, or where they differ."""
    known: dict[str, Any] = {}
    for number in numbers:
        site, over = batch.sites[number], batch.over_lanes[number]
        arrays = [x[0] if v else x for x, v in zip(batch.columns[number], over, strict=True)]
        own = signature(site, arrays, 1) if are_joined else number
        if any(known.setdefault(key, own) != own for key in site.keys):
            return True
    return False


def _sliced(rows: Any) -> Any:
    """Rows as a slice where they are one, so that nothing is copied."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(first, last + 1)
    return rows


def _single(batch: Batch, number: int, rows: Any, streams: Any, places: Any) -> Columns:
    arrays = [x[rows] for x in batch.columns[number]]
    return Columns(batch.sites[number], streams, arrays, places, None, True)


def _side_by_side(batch: Batch, number: int, rows: Any, streams: Any, places: Any) -> Columns:
    lanes = len(streams)
    arrays = []
    for x, over in zip(batch.columns[number], batch.over_lanes[number], strict=True):
        own = x[:, rows] if over else x[rows]
        arrays.append(own if over else np.broadcast_to(own, (lanes, *own.shape)))
    order = np.broadcast_to(places, (lanes, len(places)))
    return Columns(batch.sites[number], streams, arrays, order, None, False)


def _gathered(batch: Batch, number: int, entries: Any, streams: Any) -> Columns:
    """Rows of lanes that differ, side by side from the first of each lane on."""
    rows, lanes, places = entries
    together = np.flatnonzero(lanes < 0)
    if len(together):  # of some records all lanes are meant
        each = np.where(lanes < 0, len(streams), 1)
        every = np.concatenate([np.arange(len(streams)) if n < 0 else [n] for n in lanes])
        rows, places, lanes = np.repeat(rows, each), np.repeat(places, each), every
    own, counts = np.unique(lanes, return_counts=True)
    by_lane = np.argsort(lanes, kind="stable")
    real = np.arange(counts.max()) < counts[:, None]
    index, order = np.zeros(real.shape, np.int64), np.zeros(real.shape, np.int64)
    index[real], order[real] = rows[by_lane], places[by_lane]
    arrays = [
        x[own[:, None], index] if over else x[index]
        for x, over in zip(batch.columns[number], batch.over_lanes[number], strict=True)
    ]
    mask = None if real.all() else real
    which = tuple(streams[lane] for lane in own.tolist())
    return Columns(batch.sites[number], which, arrays, order, mask, False)


class Bundles:
    """What waits for the sinks of one logger.

    Attributes:
      size: Of all that waits, in bytes.
    """

    def __init__(self) -> None:
        self._sites: dict[int, tuple[Site, int]] = {}
        self._signatures: dict[Any, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[list[Columns]] = []
        self._open: dict[Any, list[Columns]] = {}
        self._last: dict[str, list[Columns]] = {}
        self.size = 0

    def add(self, columns: Columns) -> None:
        """Have some more wait."""
        self.size += columns.size
        # Streams that are the same are one object, which its columns keep alive.
        name = (self._signature(columns), id(columns.streams), columns.single)
        bundle = self._open.get(name)
        keys = columns.site.keys
        if bundle is None or any(self._last.get(key) is not bundle for key in keys):
            bundle = self._open[name] = []
            self._waiting.append(bundle)
            self._last.update(dict.fromkeys(keys, bundle))
        bundle.append(columns)

    def _signature(self, columns: Columns) -> int:
        """A number for what the columns of one portion have in common."""
        site = columns.site
        known = self._sites.get(id(site))
        if known is None or known[0] is not site:
            if len(self._sites) > _MANY:
                self._sites.clear()
            own = signature(site, columns.arrays, 1 if columns.single else 2)
            number = self._signatures.setdefault(own, len(self._signatures))
            known = self._sites[id(site)] = (site, number)
        return known[1]

    def taken(self) -> list[RecordBatch]:
        """All that waits, in order; then nothing does."""
        waiting = self._waiting
        self._clear()
        return [_joined(bundle) for bundle in waiting]


_MANY = 4096  # sites


def _joined(bundle: list[Columns]) -> RecordBatch:
    sites = list(dict.fromkeys(columns.site.spec.site for columns in bundle))
    first = bundle[0]
    if len(bundle) == 1:
        return first.portion(sites)
    axis = 0 if first.single else 1
    arrays = [
        np.concatenate(parts, axis)
        for parts in zip(*(columns.arrays for columns in bundle), strict=True)
    ]
    order = np.concatenate([columns.order for columns in bundle], axis)
    # Columns with a mask have streams of their own, and are alone in their bundle.
    whole = dataclasses.replace(first, arrays=arrays, order=order)
    return (whole if _is_sorted(bundle) else _sorted(whole)).portion(sites)


def _is_sorted(bundle: list[Columns]) -> bool:
    """Whether columns follow each other in the order of the program, as those of one call do."""
    last = [int(columns.order.max()) for columns in bundle]
    first = [int(columns.order.min()) for columns in bundle]
    return all(end < begin for end, begin in zip(last[:-1], first[1:], strict=True))


def _sorted(columns: Columns) -> Columns:
    """With the records of each stream in the order of the program."""
    axis = 0 if columns.single else 1
    index = np.argsort(columns.order, axis=axis, kind="stable")

    def moved(x: Any) -> Any:
        shape = index.shape + (1,) * (x.ndim - index.ndim)
        return np.take_along_axis(x, index.reshape(shape), axis)

    arrays = [moved(x) for x in columns.arrays]
    return dataclasses.replace(columns, arrays=arrays, order=moved(columns.order))

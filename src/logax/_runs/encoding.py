"""A portion as the bytes that go into a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from logax._runs.layouts import layout_of
from logax._runs.statistics import statistics_of
from logax._support.arrays import is_key_array

if TYPE_CHECKING:
    from logax._delivery.record_batch import RecordBatch
    from logax._runs.layouts import Layout


Array = np.ndarray[Any, Any]
_MOST_LAYOUTS = 1000  # that are remembered
_MOST_ALIKE = 62  # steps of which a bit can say it


class Layouts:
    """The layouts of portions, each made once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Layout, str]] = {}

    def of(self, portion: RecordBatch) -> tuple[Layout, str]:
        """That of a portion, and the same as JSON."""
        leaves, structure = jax.tree.flatten(list(portion.values.values()))
        arrays = [*leaves, *portion.steps.values()]
        identity = (
            portion.site,
            tuple(portion.tags),
            tuple(portion.values),
            tuple(portion.steps),
            structure,
            tuple([(x.dtype, x.shape[2:]) for x in arrays]),
        )
        found = self._known.get(identity)
        if found is None:
            found = layout_of(portion.values, portion.steps, portion.site, tuple(portion.tags))
            if len(self._known) >= _MOST_LAYOUTS:
                self._known.clear()
            self._known[identity] = found
        return found


class Packed:
    """The rows of one portion.

    Attributes:
      streams: Whose records these are.
      layout: What they look like, as JSON.
      records: How many there are of the stream that has most.
      ragged: Whether some streams have fewer.
      alike: Which steps are the same for all streams, by bits.
      shared: The bytes of small arrays.
      alone: The bytes of each large array.
      number: How many records there are, of all streams together.
      arrived: Wall time of arrival, in seconds since the epoch.
      statistics: Statistics of its scalars and steps, as JSON.
      size: How many bytes.
    """

    def __init__(self, portion: RecordBatch, layout: Layout, text: str, arrived: float) -> None:
        self.streams, self.layout, self.arrived = tuple(portion.streams), text, arrived
        leaves = [_numbers(x) for x in jax.tree.leaves(list(portion.values.values()))]
        steps = [np.asarray(step) for step in portion.steps.values()]
        streams, self.records = np.shape(portion.order)
        counts = None
        if portion.real is not None:
            counts, rows = _real_rows(np.asarray(portion.real, bool))
            if rows is not None:
                leaves, steps = ([x[rows] for x in arrays] for arrays in (leaves, steps))
                self.records = rows[1].shape[1]
            counts = None if (counts == self.records).all() else counts
        self.ragged = counts is not None
        self.number = streams * self.records if counts is None else int(counts.sum())
        self.alike = sum(
            1 << at for at, step in enumerate(steps[:_MOST_ALIKE]) if streams > 1 and _alike(step)
        )
        steps = [x[:1] if self.alike >> at & 1 else x for at, x in enumerate(steps)]
        arrays = [*([] if counts is None else [counts]), *steps, *leaves]
        places = layout.plan(streams, self.records, int(self.ragged), self.alike).places
        pairs = list(zip(places, arrays, strict=True))
        self.shared = b"".join([x.tobytes() for place, x in pairs if place.blob is None])
        self.alone = [_bytes(x) for place, x in pairs if place.blob is not None]
        self.size = sum(place.size for place in places)
        if len(self.shared) + sum(map(len, self.alone)) != self.size:
            raise ValueError(
                "A `RecordBatch` has arrays of the shape (streams, records, ...), and those of one "
                f"with {streams} streams and {self.records} records do not have it."
            )
        self.statistics = statistics_of(layout, steps, leaves, counts)


def _numbers(x: Any) -> Array:
    return np.asarray(jax.random.key_data(x) if is_key_array(x) else x)


def _bytes(x: Array) -> memoryview:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def _real_rows(real: Array) -> tuple[Array, tuple[Array, Array] | None]:
    """How many records each stream has, and where they are; None if all are real."""
    counts = real.sum(axis=1, dtype="<u4")
    if real.all():
        return counts, None
    most = int(counts.max(initial=0))
    first = np.argsort(~real, axis=1, kind="stable")[:, :most]
    return counts, (np.arange(len(real))[:, None], first)


def _alike(x: Array) -> bool:
    """Whether all streams have the same bits."""
    if not x.size:
        return False
    if x.strides[0] == 0:
        return True
    rows = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())

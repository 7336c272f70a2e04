"""Encode a batch of records as the bytes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from logax._runs.batch_statistics import statistics_of
from logax._runs.layouts import layout_of
from logax._support.arrays import is_key_array

if TYPE_CHECKING:
    from logax._delivery.record_batch import RecordBatch
    from logax._runs.layouts import LogLayout


Array = np.ndarray[Any, Any]
_MAX_CACHED_LAYOUTS = 1000
_MAX_SHARED_STEPS = 62  # bits of an integer in SQLite


class LayoutCache:
    """Layouts of batches, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[LogLayout, str]] = {}

    def layout_of(self, batch: RecordBatch) -> tuple[LogLayout, str]:
        """Return the layout of a batch, and the same as JSON."""
        leaves, structure = jax.tree.flatten(list(batch.values.values()))
        arrays = [*leaves, *batch.steps.values()]
        identity = (
            batch.site,
            tuple(batch.tags),
            tuple(batch.values),
            tuple(batch.steps),
            structure,
            tuple([(x.dtype, x.shape[2:]) for x in arrays]),
        )
        found = self._known.get(identity)
        if found is None:
            found = layout_of(batch.values, batch.steps, batch.site, tuple(batch.tags))
            if len(self._known) >= _MAX_CACHED_LAYOUTS:
                self._known.clear()
            self._known[identity] = found
        return found


def encode_batch(
    batch: RecordBatch, layout: LogLayout
) -> tuple[tuple[int, int, int, int], str, bytes, list[memoryview]]:
    """Return a batch as values and bytes of the rows of a file; see `format`.

    Returns:
      The columns `streams`, `records`, `ragged` and `alike` of the row in `portions`; the
      statistics of scalars and steps, as JSON; the bytes of all small arrays together; and the
      bytes of each large array, which has its own blobs.
    """
    leaves = [_numbers(x) for x in jax.tree.leaves(list(batch.values.values()))]
    steps = [np.asarray(step) for step in batch.steps.values()]
    streams, records = np.shape(batch.order)
    counts = None
    if batch.real is not None:
        counts, rows = _real_rows(np.asarray(batch.real, bool))
        if rows is not None:
            leaves, steps = ([x[rows] for x in arrays] for arrays in (leaves, steps))
            records = rows[1].shape[1]
        counts = None if (counts == records).all() else counts
    alike = sum(
        1 << at
        for at, step in enumerate(steps[:_MAX_SHARED_STEPS])
        if streams > 1 and _has_equal_rows(step)
    )
    steps = [x[:1] if alike >> at & 1 else x for at, x in enumerate(steps)]
    arrays = [*([] if counts is None else [counts]), *steps, *leaves]
    shape = (streams, records, int(counts is not None), alike)
    locations = layout.plan(*shape).locations
    pairs = list(zip(locations, arrays, strict=True))
    shared = b"".join([x.tobytes() for location, x in pairs if location.blob is None])
    alone = [_bytes(x) for location, x in pairs if location.blob is not None]
    if len(shared) + sum(map(len, alone)) != sum(location.size for location in locations):
        raise ValueError(
            "The arrays of a `RecordBatch` must have the shape (streams, records, ...), but a "
            f"batch with {streams} streams and {records} records has other arrays."
        )
    return shape, statistics_of(layout, steps, leaves, counts), shared, alone


def _numbers(x: Any) -> Array:
    return np.asarray(jax.random.key_data(x) if is_key_array(x) else x)


def _bytes(x: Array) -> memoryview:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def _real_rows(real: Array) -> tuple[Array, tuple[Array, Array] | None]:
    """Return the number of records of each stream, and their indices; None if all are real."""
    counts = real.sum(axis=1, dtype="<u4")
    if real.all():
        return counts, None
    most = int(counts.max(initial=0))
    first = np.argsort(~real, axis=1, kind="stable")[:, :most]
    return counts, (np.arange(len(real))[:, None], first)


def _has_equal_rows(x: Array) -> bool:
    """Return whether all streams have the same bits."""
    if not x.size:
        return False
    if x.strides[0] == 0:
        return True
    rows = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return bool((rows[-1] == rows[0]).all() and (rows == rows[0]).all())

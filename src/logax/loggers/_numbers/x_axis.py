"""Assign an x to each record, and group scalars that share it into tables."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._support.arrays import is_missing
from logax.loggers._numbers.extraction import (
    Array,
    MediaColumn,
    ScalarColumn,
    UniqueNames,
    as_plain_numbers,
    extract_values,
)


class RecordCounter:
    """Count records by stream and key. Each open stream has a row in the arrays."""

    def __init__(self) -> None:
        self._rows_by_run: dict[RunInfo, dict[Stream, int]] = {}
        self._free: list[int] = []
        self._size = 0
        self._counts: dict[str, Array] = {}
        self._last: tuple[tuple[Stream, ...], Array] = ((), np.zeros(0, np.intp))

    def number_records(self, streams: tuple[Stream, ...], key: str, real: Array) -> Array:
        """Number the records of a key, continuing the earlier ones: (streams, records)."""
        rows = self._rows_of(streams)
        counts = self._counts.get(key, np.zeros(0, np.int64))
        if len(counts) < self._size:
            counts = np.append(counts, np.zeros(self._size - len(counts), np.int64))
            self._counts[key] = counts
        numbers = counts[rows][:, None] + np.cumsum(real, 1, dtype=np.int64) - real
        counts[rows] += real.sum(1)
        return np.asarray(numbers)

    def forget(self, runs: Iterable[RunInfo]) -> None:
        """Free the rows of runs for other streams."""
        gone = [row for run in runs for row in self._rows_by_run.pop(run, {}).values()]
        if not gone:
            return
        self._free += gone
        self._last = ((), np.zeros(0, np.intp))
        for counts in self._counts.values():
            counts[[row for row in gone if row < len(counts)]] = 0
        if not self._rows_by_run:  # no open run uses these keys
            self._counts.clear()

    def _rows_of(self, streams: tuple[Stream, ...]) -> Array:
        if self._last[0] is not streams:
            rows = np.fromiter(map(self._row_of, streams), np.intp, len(streams))
            self._last = (streams, rows)
        return self._last[1]

    def _row_of(self, stream: Stream) -> int:
        rows = self._rows_by_run.setdefault(stream.run, {})
        row = rows.get(stream)
        if row is None:
            if not self._free:
                self._free.append(self._size)
                self._size += 1
            row = rows[stream] = self._free.pop()
        return row


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarTable:
    """Scalars that share their x.

    Attributes:
      names: Names of the scalars.
      x: Array (streams, records): integers, or floats if not all are whole.
      columns: One array (streams, records) per name.
      real: Mask of the existing records, (streams, records); None for all.
    """

    names: tuple[str, ...]
    x: Array
    columns: tuple[Array, ...]
    real: Array | None

    def lists(self, stream: int) -> tuple[list[float], list[list[float]]]:
        """Return x and one list per name as Python numbers, for one stream."""
        own = [column[stream] for column in self._columns_as_lists]
        if self._mask is not None:
            own = [list(itertools.compress(column, self._mask[stream])) for column in own]
        return own[0], own[1:]

    def rows(self, stream: int) -> Iterator[tuple[float, tuple[float, ...]]]:
        """Iterate over the records of one stream: x, and the scalars in the order of `names`."""
        x, columns = self.lists(stream)
        return zip(x, zip(*columns, strict=True), strict=True)

    @functools.cached_property
    def _columns_as_lists(self) -> list[list[list[float]]]:
        return [column.tolist() for column in (self.x, *self.columns)]

    @functools.cached_property
    def _mask(self) -> list[list[bool]] | None:
        return None if self.real is None or self.real.all() else self.real.tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class MetricBatch:
    """Records of a batch that have the same steps, as metrics.

    Attributes:
      streams: Streams of the records, along the first axis of every array.
      records: Number of records, along the second axis of every array.
      real: Mask of the existing records, (streams, records); None for all.
      step: Name of the step that is the x-axis; None if records are counted.
      step_name: Name for that step as a scalar, which differs from all keys.
      tables: All scalars.
      histograms: `MediaColumn`s of `HistogramBins`.
      images: `MediaColumn`s of `ImagePixels`.
    """

    streams: tuple[Stream, ...]
    records: int
    real: Array | None
    step: str | None
    step_name: str | None
    tables: tuple[ScalarTable, ...]
    histograms: tuple[MediaColumn, ...]
    images: tuple[MediaColumn, ...]

    def record_indices(self, stream: int) -> Sequence[int]:
        """Return the indices of the records of one stream."""
        if self.real is None:
            return range(self.records)
        return [int(row) for row in np.flatnonzero(self.real[stream])]


class XAxis:
    """The x-axis of a sink: assigns an x to each record, continuing earlier batches.

    Args:
      whole: True if x must be an integer.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._counter = RecordCounter()
        self._counted_keys: set[str] = set()  # keys that had a step that is not whole

    def metric_batches(self, batch: RecordBatch) -> Iterator[MetricBatch]:
        """Yield the records of a batch as metrics, grouped by the steps that they have."""
        shape = np.shape(batch.order)
        real = None if batch.real is None else np.asarray(batch.real)
        if 0 in shape or (real is not None and not real.any()):
            return
        columns = {name: np.asarray(step) for name, step in batch.steps.items()}
        for steps, own in _group_by_steps(columns, real):
            yield self._metric_batch(batch, steps, own)

    def forget(self, runs: Iterable[RunInfo]) -> None:
        """Drop the counts of runs that are closed."""
        self._counter.forget(runs)

    def _metric_batch(
        self, batch: RecordBatch, steps: Mapping[str, Array], real: Array | None
    ) -> MetricBatch:
        names = UniqueNames()
        found = extract_values(batch.values, names)
        step = self._x_axis_step(batch, steps, real)
        step_name = None if step is None else names.unique(_step_name(step, names))
        scalars = list(found.scalars)
        for name, column in steps.items():
            if name != step:
                own = names.unique(_step_name(name, names))
                scalars.append(ScalarColumn(own, own, _as_integers(column, real)))
        x_of: Callable[[str], Array]
        if step is None:
            x_of = self._count_records(batch, real)
            tables = list(_tables(scalars, x_of, real))
        else:
            x = _as_integers(steps[step], real)
            x_of = lambda _: x  # noqa: E731
            tables = [_table(scalars, x, real)] if scalars else []
        return MetricBatch(
            batch.streams,
            np.shape(batch.order)[1],
            real,
            step,
            step_name,
            tuple(tables),
            tuple(media._replace(x=x_of(media.key)) for media in found.histograms),
            tuple(media._replace(x=x_of(media.key)) for media in found.images),
        )

    def _x_axis_step(
        self, batch: RecordBatch, steps: Mapping[str, Array], real: Array | None
    ) -> str | None:
        """Return the name of the step that is the x-axis, if any."""
        step = "step" if "step" in steps else next(iter(steps), None)
        if step is None or not self._whole:
            return step
        if not _has_whole_numbers(steps[step], real):
            self._counted_keys.update(batch.values)
        return None if self._counted_keys.intersection(batch.values) else step

    def _count_records(self, batch: RecordBatch, real: Array | None) -> Callable[[str], Array]:
        shape = np.shape(batch.order)
        which = np.ones(shape, bool) if real is None else real
        return functools.cache(lambda key: self._counter.number_records(batch.streams, key, which))


def _group_by_steps(
    columns: dict[str, Array], real: Array | None
) -> Iterator[tuple[dict[str, Array], Array | None]]:
    """Yield the records grouped by the steps that they have."""
    lacks = {name: is_missing(column) for name, column in columns.items()}
    some = [name for name, missing in lacks.items() if missing.any()]
    if not some:
        yield columns, real
        return
    for pattern in itertools.product((False, True), repeat=len(some)):
        own = np.logical_and.reduce(
            [lacks[name] == absent for name, absent in zip(some, pattern, strict=True)]
        )
        own = own if real is None else own & real
        if own.any():
            gone = {name for name, absent in zip(some, pattern, strict=True) if absent}
            yield {name: step for name, step in columns.items() if name not in gone}, own


def _tables(
    scalars: Sequence[ScalarColumn], x_of: Callable[[str], Array], real: Array | None
) -> Iterator[ScalarTable]:
    """Group the scalars that have the same x."""
    groups: list[tuple[Array, list[ScalarColumn]]] = []
    for scalar in scalars:
        x = x_of(scalar.key)
        group = next((own for other, own in groups if _are_equal(other, x)), None)
        if group is None:
            group = []
            groups.append((x, group))
        group.append(scalar)
    return (_table(group, x, real) for x, group in groups)


def _table(scalars: Sequence[ScalarColumn], x: Array, real: Array | None) -> ScalarTable:
    return ScalarTable(
        tuple(own.name for own in scalars), x, tuple(own.column for own in scalars), real
    )


def _are_equal(a: Array, b: Array) -> bool:
    return a is b or np.array_equal(a, b)


def _step_name(name: str, names: UniqueNames) -> str:
    return f"steps/{name}" if name in names else name


def _has_whole_numbers(steps: Array, real: Array | None) -> bool:
    """Return whether all steps are integers of at most 64 bits."""
    if jnp.issubdtype(steps.dtype, jnp.integer):
        return not (steps.dtype == np.uint64 and bool((steps > np.iinfo(np.int64).max).any()))
    own = np.asarray(steps if real is None else steps[real], np.float64)
    return bool((np.isfinite(own) & (np.floor(own) == own) & (np.abs(own) < 2.0**63)).all())


def _as_integers(steps: Array, real: Array | None) -> Array:
    """Return the steps as integers if all are whole, else unchanged."""
    if _has_whole_numbers(steps, real):
        with np.errstate(invalid="ignore"):  # masked elements are arbitrary
            return np.asarray(steps, np.int64)
    plain = as_plain_numbers(steps)
    return steps if plain is None else plain

"""How many records each key of each stream had, for all streams of a portion at once.

The x of each record, and tables of the scalars that share it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._support.arrays import is_missing
from logax.loggers._numbers.values import Column, Names, Picture, Scalar, plain_numbers, values_of


class Counts:
    """Counts by stream and key. A stream has a place in the arrays, from its first record on."""

    def __init__(self) -> None:
        self._places: dict[RunInfo, dict[Stream, int]] = {}
        self._free: list[int] = []
        self._size = 0
        self._counts: dict[str, Column] = {}
        self._last: tuple[tuple[Stream, ...], Column] = ((), np.zeros(0, np.intp))

    def next(self, streams: tuple[Stream, ...], key: str, real: Column) -> Column:
        """Number the records of a key, each after those that came before: (streams, records)."""
        places = self._places_of(streams)
        counts = self._counts.get(key, np.zeros(0, np.int64))
        if len(counts) < self._size:
            counts = np.append(counts, np.zeros(self._size - len(counts), np.int64))
            self._counts[key] = counts
        numbers = counts[places][:, None] + np.cumsum(real, 1, dtype=np.int64) - real
        counts[places] += real.sum(1)
        return np.asarray(numbers)

    def forget(self, runs: Iterable[RunInfo]) -> None:
        """Let go of what is known of runs: their places are free for others."""
        gone = [place for run in runs for place in self._places.pop(run, {}).values()]
        if not gone:
            return
        self._free += gone
        self._last = ((), np.zeros(0, np.intp))
        for counts in self._counts.values():
            counts[[place for place in gone if place < len(counts)]] = 0
        if not self._places:  # nobody knows these keys any more
            self._counts.clear()

    def _places_of(self, streams: tuple[Stream, ...]) -> Column:
        if self._last[0] is not streams:
            places = np.fromiter(map(self._place, streams), np.intp, len(streams))
            self._last = (streams, places)
        return self._last[1]

    def _place(self, stream: Stream) -> int:
        places = self._places.setdefault(stream.run, {})
        place = places.get(stream)
        if place is None:
            if not self._free:
                self._free.append(self._size)
                self._size += 1
            place = places[stream] = self._free.pop()
        return place


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Scalars that share their x.

    Attributes:
      names: Of the scalars.
      x: An array (streams, records): integers, or floats where not all are whole.
      columns: For each name an array (streams, records).
      real: Which records there are, (streams, records); None for all.
    """

    names: tuple[str, ...]
    x: Column
    columns: tuple[Column, ...]
    real: Column | None

    def lists(self, stream: int) -> tuple[list[float], list[list[float]]]:
        """For one stream x, and a list for each name, of Python numbers."""
        own = [column[stream] for column in self._plain]
        if self._mask is not None:
            own = [list(itertools.compress(column, self._mask[stream])) for column in own]
        return own[0], own[1:]

    def rows(self, stream: int) -> Iterator[tuple[float, tuple[float, ...]]]:
        """The records of one stream, in order: x, and the scalars in the order of their names."""
        x, columns = self.lists(stream)
        return zip(x, zip(*columns, strict=True), strict=True)

    @functools.cached_property
    def _plain(self) -> list[list[list[float]]]:
        return [column.tolist() for column in (self.x, *self.columns)]

    @functools.cached_property
    def _mask(self) -> list[list[bool]] | None:
        return None if self.real is None or self.real.all() else self.real.tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Records of a portion that have the same steps.

    Attributes:
      streams: Whose records these are, along the first axis of every array.
      records: How many rows there are in every array, along its second axis.
      real: Which records there are, (streams, records); None for all.
      step: The name of the step that is the x-axis; None where records are counted.
      step_name: The same as it stands beside the scalars, where no key has that name.
      tables: All scalars.
      histograms: Each a `Picture` of `HistogramBins`.
      images: Each a `Picture` of `ImagePixels`.
    """

    streams: tuple[Stream, ...]
    records: int
    real: Column | None
    step: str | None
    step_name: str | None
    tables: tuple[Table, ...]
    histograms: tuple[Picture, ...]
    images: tuple[Picture, ...]

    def rows_of(self, stream: int) -> Sequence[int]:
        """The indices of the records of one stream."""
        if self.real is None:
            return range(self.records)
        return [int(row) for row in np.flatnonzero(self.real[stream])]


class Axis:
    """The x-axis of a sink: knows the x of each record, whatever came before it.

    Args:
      whole: Whether x must be an integer.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._counts = Counts()
        self._counted: set[str] = set()  # keys that had a step which is not whole

    def parts(self, portion: RecordBatch) -> Iterator[Part]:
        """The records of a portion as numbers, in parts whose records have the same steps."""
        shape = np.shape(portion.order)
        real = None if portion.real is None else np.asarray(portion.real)
        if 0 in shape or (real is not None and not real.any()):
            return
        columns = {name: np.asarray(step) for name, step in portion.steps.items()}
        for steps, own in _by_steps(columns, real):
            yield self._part(portion, steps, own)

    def forget(self, runs: Iterable[RunInfo]) -> None:
        """Let go of what is known of runs that are closed."""
        self._counts.forget(runs)

    def _part(self, portion: RecordBatch, steps: Mapping[str, Column], real: Column | None) -> Part:
        names = Names()
        found = values_of(portion.values, names)
        step = self._step_of(portion, steps, real)
        step_name = None if step is None else names.new(_beside(step, names))
        scalars = list(found.scalars)
        for name, column in steps.items():
            if name != step:
                own = names.new(_beside(name, names))
                scalars.append(Scalar(own, own, _integers(column, real)))
        x_of: Callable[[str], Column]
        if step is None:
            x_of = self._counted_x(portion, real)
            tables = list(_tables(scalars, x_of, real))
        else:
            x = _integers(steps[step], real)
            x_of = lambda _: x  # noqa: E731
            tables = [_table(scalars, x, real)] if scalars else []
        return Part(
            portion.streams,
            np.shape(portion.order)[1],
            real,
            step,
            step_name,
            tuple(tables),
            tuple(picture._replace(x=x_of(picture.key)) for picture in found.histograms),
            tuple(picture._replace(x=x_of(picture.key)) for picture in found.images),
        )

    def _step_of(
        self, portion: RecordBatch, steps: Mapping[str, Column], real: Column | None
    ) -> str | None:
        """Which step is the x-axis, if any."""
        step = "step" if "step" in steps else next(iter(steps), None)
        if step is None or not self._whole:
            return step
        if not _are_whole(steps[step], real):
            self._counted.update(portion.values)
        return None if self._counted.intersection(portion.values) else step

    def _counted_x(self, portion: RecordBatch, real: Column | None) -> Callable[[str], Column]:
        shape = np.shape(portion.order)
        which = np.ones(shape, bool) if real is None else real
        return functools.cache(lambda key: self._counts.next(portion.streams, key, which))


def _by_steps(
    columns: dict[str, Column], real: Column | None
) -> Iterator[tuple[dict[str, Column], Column | None]]:
    """The records by which of the steps they have."""
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
    scalars: Sequence[Scalar], x_of: Callable[[str], Column], real: Column | None
) -> Iterator[Table]:
    """The scalars, those with the same x together."""
    groups: list[tuple[Column, list[Scalar]]] = []
    for scalar in scalars:
        x = x_of(scalar.key)
        group = next((own for other, own in groups if _same(other, x)), None)
        if group is None:
            group = []
            groups.append((x, group))
        group.append(scalar)
    return (_table(group, x, real) for x, group in groups)


def _table(scalars: Sequence[Scalar], x: Column, real: Column | None) -> Table:
    return Table(tuple(own.name for own in scalars), x, tuple(own.column for own in scalars), real)


def _same(a: Column, b: Column) -> bool:
    return a is b or np.array_equal(a, b)


def _beside(name: str, names: Names) -> str:
    return f"steps/{name}" if name in names else name


def _are_whole(steps: Column, real: Column | None) -> bool:
    """Whether all are integers that 64 bits hold."""
    if jnp.issubdtype(steps.dtype, jnp.integer):
        return not (steps.dtype == np.uint64 and bool((steps > np.iinfo(np.int64).max).any()))
    own = np.asarray(steps if real is None else steps[real], np.float64)
    return bool((np.isfinite(own) & (np.floor(own) == own) & (np.abs(own) < 2.0**63)).all())


def _integers(steps: Column, real: Column | None) -> Column:
    """Steps as integers where all are whole, else as they are."""
    if _are_whole(steps, real):
        with np.errstate(invalid="ignore"):  # what stands where there is no record may be anything
            return np.asarray(steps, np.int64)
    plain = plain_numbers(steps)
    return steps if plain is None else plain

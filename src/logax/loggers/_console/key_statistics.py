"""Running statistics of one key: the last records of each stream, extremes and counts.

All arrays have one row per stream. An update processes a whole record batch without a Python loop
over streams or records; `summary` is called only when something is drawn.

| class | values |
| --- | --- |
| `NumberStatistics` | scalars; the mean of an array's elements, the magnitude of complex numbers |
| `HistogramStatistics` | histograms, of which the last one of each stream is shown |
| `ShapeStatistics` | images and empty arrays, of which only a description is shown |

`ValidRecords` holds the indices of the real records of a batch, which all keys share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logax._media import HistogramBins
from logax._support.formatting import KeySummary, Spread, divide_or_nan


class ValidRecords:
    """Indices of the real records of a batch, and of the last ones of each stream.

    Args:
      rows: Row of each stream in the statistics.
      shape: Number of streams and of records.
      real: Mask of the real records, or None for all.
      window: Maximum number of records selected per stream, counted from the last.

    Attributes:
      rows: As given.
      real: As given, but None if all records are real.
      count: Number of real records of each stream.
      last: Index of the last real record of each stream; arbitrary for a stream without records.
      stream, record: Indices of the selected records in the batch. They broadcast.
      rank: Number of real records of the same stream before each selected one. It broadcasts too.
    """

    def __init__(self, rows: Any, shape: tuple[int, int], real: Any, window: int) -> None:
        self.rows = rows
        self.real = None if real is None or bool(np.all(real)) else np.asarray(real)
        streams, records = shape
        if self.real is None:
            self.count = np.full(streams, records)
            self.last = self.count - 1
            self.stream = np.arange(streams)[:, None]
            self.record = self.rank = np.arange(max(records - window, 0), records)[None]
            return
        self.count = self.real.sum(axis=1)
        self.last = records - 1 - np.argmax(self.real[:, ::-1], axis=1)
        rank = np.cumsum(self.real, axis=1) - 1
        wanted = self.real & (rank >= (self.count - window)[:, None])
        self.stream, self.record = np.nonzero(wanted)
        self.rank = rank[self.stream, self.record]


_INITIAL_ROWS = 1
_KEPT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class KeyStatistics:
    """Statistics of one key over all streams.

    Attributes:
      suffix: Text after the key that describes its numbers.
      count: Number of records of each stream.
    """

    suffix = ""

    def __init__(self) -> None:
        self.count = np.zeros(_INITIAL_ROWS, np.int64)

    def grow(self, rows: int) -> None:
        """Grow all arrays to at least this number of rows."""
        have = len(self.count)
        if rows <= have:
            return
        for name, blank in self._row_defaults().items():
            array = getattr(self, name)
            grown = np.full((max(rows, 2 * have), *array.shape[1:]), blank, array.dtype)
            grown[:have] = array
            setattr(self, name, grown)

    def select_rows(self, rows: Any) -> None:
        """Keep only these rows, in this order."""
        for name in self._row_defaults():
            setattr(self, name, getattr(self, name)[rows])

    def update(self, valid: ValidRecords, value: Any) -> None:
        """Update with the values of a batch: arrays (streams, records, ...)."""
        raise NotImplementedError

    def summary(self, rows: Any) -> KeySummary:
        """Summarize these rows, at least one of which has records."""
        raise NotImplementedError

    def _row_defaults(self) -> dict[str, Any]:
        """Return the names of the per-stream arrays, with the value of a row without records.

        Every subclass adds its arrays.
        """
        return {"count": 0}

    def _rows_with_records(self, rows: Any) -> Any:
        """Return those of the rows that have records."""
        rows = np.asarray(rows, np.intp)
        return rows[self.count[rows] > 0]


class ShapeStatistics(KeyStatistics):
    """A record count and a description, for values without numbers to show."""

    def __init__(self, remark: str) -> None:
        super().__init__()
        self.remark = remark

    def update(self, valid: ValidRecords, value: Any) -> None:
        """Count the records."""
        self.count[valid.rows] += valid.count

    def summary(self, rows: Any) -> KeySummary:
        """Return the description."""
        return KeySummary(self.suffix, remark=self.remark)


class NumberStatistics(KeyStatistics):
    """Numbers: the last `window` of each stream, and the extremes of all."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = window
        self.ring = np.zeros((_INITIAL_ROWS, window), np.float32)
        self.low = np.full(_INITIAL_ROWS, np.inf)
        self.high = np.full(_INITIAL_ROWS, -np.inf)
        self.nonfinite = np.zeros(_INITIAL_ROWS, np.int64)

    def _row_defaults(self) -> dict[str, Any]:
        return {
            **super()._row_defaults(),
            "ring": 0,
            "low": np.inf,
            "high": -np.inf,
            "nonfinite": 0,
        }

    def update(self, valid: ValidRecords, value: Any) -> None:
        """Add the numbers of a batch."""
        x, rows = as_numbers(value), valid.rows
        if x.dtype != np.float32 and self.ring.dtype == np.float32:
            self.ring = self.ring.astype(np.float64)
        before = self.count[rows]
        slots = (before[valid.stream] + valid.rank) % self._window
        self.ring[rows[valid.stream], slots] = x[valid.stream, valid.record]
        self.count[rows] = before + valid.count
        low, high, nonfinite = _extremes(x, valid)
        self.low[rows] = np.minimum(self.low[rows], low)
        self.high[rows] = np.maximum(self.high[rows], high)
        if nonfinite is not None:
            self.nonfinite[rows] += nonfinite

    def summary(self, rows: Any) -> KeySummary:
        """Average over streams: the last record, and mean and history of the last `window`."""
        rows = self._rows_with_records(rows)
        count = self.count[rows]
        ring = self.ring[rows, : min(int(count.max()), self._window)].astype(np.float64)
        there = np.arange(ring.shape[1]) < count[:, None]
        finite = there & np.isfinite(ring)
        number = finite.sum(axis=1)
        average = divide_or_nan(np.sum(ring, axis=1, where=finite), number)
        last = ring[np.arange(len(rows)), (count - 1) % self._window]
        return KeySummary(
            self.suffix,
            last=Spread.of(last),
            mean=Spread.of(average[number > 0]),
            low=float(self.low[rows].min()),
            high=float(self.high[rows].max()),
            history=_history(np.where(finite, ring, np.nan), count),
            nonfinite=int(self.nonfinite[rows].sum()),
        )


class HistogramStatistics(KeyStatistics):
    """Histograms: the last one of each stream."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.counts = np.zeros((_INITIAL_ROWS, bins))
        self.edges = np.zeros((_INITIAL_ROWS, bins + 1))
        self.nonfinite = np.zeros(_INITIAL_ROWS, np.int64)

    def _row_defaults(self) -> dict[str, Any]:
        return {**super()._row_defaults(), "counts": 0, "edges": 0, "nonfinite": 0}

    def fits(self, value: HistogramBins) -> bool:
        """Return whether a histogram has the same number of bins."""
        return bool(value.counts.shape[2] == self.counts.shape[1])

    def update(self, valid: ValidRecords, value: HistogramBins) -> None:
        """Store the last histogram of each stream that has one."""
        some = valid.count > 0
        rows, streams, last = valid.rows[some], np.flatnonzero(some), valid.last[some]
        self.count[valid.rows] += valid.count
        self.counts[rows] = value.counts[streams, last]
        self.edges[rows] = value.edges[streams, last]
        beside = np.asarray(value.nonfinite)
        real = True if valid.real is None else valid.real
        self.nonfinite[valid.rows] += beside.sum(axis=1, where=real, dtype=np.int64)

    def summary(self, rows: Any) -> KeySummary:
        """Merge the histograms of all streams into one between the outermost edges."""
        rows = self._rows_with_records(rows)
        counts, edges = self.counts[rows], self.edges[rows]
        low, high = float(edges.min()), float(edges.max())
        middles = edges[:, :-1] / 2 + edges[:, 1:] / 2
        number = counts.sum(axis=1)
        average = divide_or_nan((counts * middles).sum(axis=1), number)
        along = np.clip((middles / 2 - low / 2) / ((high / 2 - low / 2) or 1.0), 0, 1)
        place = np.minimum((along * counts.shape[1]).astype(np.intp), counts.shape[1] - 1)
        return KeySummary(
            self.suffix,
            remark=f"{counts.shape[1]} bins",
            mean=Spread.of(average[number > 0]),
            low=low,
            high=high,
            history=np.bincount(place.ravel(), counts.ravel(), counts.shape[1]),
            nonfinite=int(self.nonfinite[rows].sum()),
        )


def as_numbers(x: Any) -> Any:
    """Return one real number per stream and record, as `float32` or `float64`."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        x = np.abs(x)
    if x.dtype not in _KEPT_DTYPES:
        x = x.astype(np.float64)
    if x.ndim == 2:
        return x
    return x.reshape(*x.shape[:2], -1).mean(axis=2)


def _extremes(x: Any, valid: ValidRecords) -> tuple[Any, Any, Any]:
    """Return the finite minimum and maximum of each stream, and its number of nonfinite values."""
    if valid.real is None:
        low, high = x.min(axis=1), x.max(axis=1)
        # A NaN or an infinity always appears in the minimum or the maximum.
        if np.isfinite(low).all() and np.isfinite(high).all():
            return low, high, None
    there = np.isfinite(x) if valid.real is None else np.isfinite(x) & valid.real
    low = np.min(x, axis=1, initial=np.inf, where=there)
    high = np.max(x, axis=1, initial=-np.inf, where=there)
    return low, high, valid.count - there.sum(axis=1)


def _history(ring: Any, count: Any) -> Any:
    """Return the mean over streams of each of the last records, oldest first.

    Positions where no stream has a finite number are NaN.
    """
    width = ring.shape[1]
    if (count == count[0]).all():
        finite = np.isfinite(ring)
        total, number = np.sum(ring, axis=0, where=finite), finite.sum(axis=0)
        shift = -int(count[0]) % width
        total, number = np.roll(total, shift), np.roll(number, shift)
    else:
        age = np.arange(width)
        slots = (count[:, None] - 1 - age) % width
        aligned = np.take_along_axis(ring, slots, axis=1)
        finite = np.isfinite(aligned) & (age < count[:, None])
        total, number = np.sum(aligned, axis=0, where=finite), finite.sum(axis=0)
        total, number = total[::-1], number[::-1]
    return divide_or_nan(total, number)

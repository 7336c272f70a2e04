"""Which records of a portion there are, found once for all of its keys.

What is shown of one key, in numbers.

What is known of one key: of each stream the last records, the extremes, and how many there were.

A column has a row for each stream. It takes in a portion at a time without a loop over streams or
records, and is asked for a summary only when something is drawn.

- Numbers: scalars. Of an array the mean of its elements, of a complex number the magnitude.
- Bins: histograms, of which the last one of each stream counts.
- Remark: what has a size and nothing else to say: images, and arrays without elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logax._media import HistogramBins
from logax._support.summary import Spread, Summary, means


class Picked:
    """The records of a portion that are real, and the last ones of each stream.

    Args:
      rows: Where each stream stands in a table of streams.
      shape: Streams and records.
      real: Which records there are, or None for all.
      window: How many of the last ones of a stream are wanted at most.

    Attributes:
      rows: As given.
      real: As given, but None if all records are real.
      count: Of each stream, how many there are.
      last: Of each stream, the index of its last one; any index where it has none.
      stream, record, rank: Of each record that is wanted its indices in the portion, and how many
        real ones of its stream were before it in the portion. They broadcast.
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


_ROWS = 1  # at first
_AS_THEY_ARE = (np.dtype(np.float32), np.dtype(np.float64))


class Column:
    """One key of all streams.

    Attributes:
      suffix: What stands after the key, to say what the numbers are.
      count: Of each stream, how many records it has made.
    """

    suffix = ""

    def __init__(self) -> None:
        self.count = np.zeros(_ROWS, np.int64)

    def grow(self, rows: int) -> None:
        """Have at least so many rows."""
        have = len(self.count)
        if rows <= have:
            return
        for name, blank in self._blanks().items():
            array = getattr(self, name)
            grown = np.full((max(rows, 2 * have), *array.shape[1:]), blank, array.dtype)
            grown[:have] = array
            setattr(self, name, grown)

    def keep(self, rows: Any) -> None:
        """Keep only these rows, in this order."""
        for name in self._blanks():
            setattr(self, name, getattr(self, name)[rows])

    def take(self, picked: Picked, value: Any) -> None:
        """Take in a portion: arrays (streams, records, ...)."""
        raise NotImplementedError

    def summary(self, rows: Any) -> Summary:
        """What there is to show of these rows, of which some have records."""
        raise NotImplementedError

    def _blanks(self) -> dict[str, Any]:
        """The arrays with a row for each stream, by name, and what stands in a row without records.

        Every subclass adds its own.
        """
        return {"count": 0}

    def _heard(self, rows: Any) -> Any:
        """Those of these rows that have records."""
        rows = np.asarray(rows, np.intp)
        return rows[self.count[rows] > 0]


class Remark(Column):
    """Says what kind of thing a key is, and nothing more."""

    def __init__(self, remark: str) -> None:
        super().__init__()
        self.remark = remark

    def take(self, picked: Picked, value: Any) -> None:
        """Count."""
        self.count[picked.rows] += picked.count

    def summary(self, rows: Any) -> Summary:
        """The remark."""
        return Summary(self.suffix, remark=self.remark)


class Numbers(Column):
    """Numbers: the last `window` of each stream, and the extremes of all."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = window
        self.ring = np.zeros((_ROWS, window), np.float32)
        self.low = np.full(_ROWS, np.inf)
        self.high = np.full(_ROWS, -np.inf)
        self.nonfinite = np.zeros(_ROWS, np.int64)

    def _blanks(self) -> dict[str, Any]:
        return {**super()._blanks(), "ring": 0, "low": np.inf, "high": -np.inf, "nonfinite": 0}

    def take(self, picked: Picked, value: Any) -> None:
        """Take in real numbers, whatever they stand for."""
        x, rows = as_numbers(value), picked.rows
        if x.dtype != np.float32 and self.ring.dtype == np.float32:
            self.ring = self.ring.astype(np.float64)
        before = self.count[rows]
        slots = (before[picked.stream] + picked.rank) % self._window
        self.ring[rows[picked.stream], slots] = x[picked.stream, picked.record]
        self.count[rows] = before + picked.count
        low, high, nonfinite = _extremes(x, picked)
        self.low[rows] = np.minimum(self.low[rows], low)
        self.high[rows] = np.maximum(self.high[rows], high)
        if nonfinite is not None:
            self.nonfinite[rows] += nonfinite

    def summary(self, rows: Any) -> Summary:
        """Means over the streams; of the records of each the last one, and the last `window`."""
        rows = self._heard(rows)
        count = self.count[rows]
        ring = self.ring[rows, : min(int(count.max()), self._window)].astype(np.float64)
        there = np.arange(ring.shape[1]) < count[:, None]
        finite = there & np.isfinite(ring)
        number = finite.sum(axis=1)
        average = means(np.sum(ring, axis=1, where=finite), number)
        last = ring[np.arange(len(rows)), (count - 1) % self._window]
        return Summary(
            self.suffix,
            last=Spread.of(last),
            mean=Spread.of(average[number > 0]),
            low=float(self.low[rows].min()),
            high=float(self.high[rows].max()),
            history=_history(np.where(finite, ring, np.nan), count),
            nonfinite=int(self.nonfinite[rows].sum()),
        )


class Bins(Column):
    """Histograms: the last one of each stream."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.counts = np.zeros((_ROWS, bins))
        self.edges = np.zeros((_ROWS, bins + 1))
        self.nonfinite = np.zeros(_ROWS, np.int64)

    def _blanks(self) -> dict[str, Any]:
        return {**super()._blanks(), "counts": 0, "edges": 0, "nonfinite": 0}

    def fits(self, value: HistogramBins) -> bool:
        """Whether these have as many bins."""
        return bool(value.counts.shape[2] == self.counts.shape[1])

    def take(self, picked: Picked, value: HistogramBins) -> None:
        """Take in the last histogram of each stream that has one."""
        some = picked.count > 0
        rows, streams, last = picked.rows[some], np.flatnonzero(some), picked.last[some]
        self.count[picked.rows] += picked.count
        self.counts[rows] = value.counts[streams, last]
        self.edges[rows] = value.edges[streams, last]
        beside = np.asarray(value.nonfinite)
        real = True if picked.real is None else picked.real
        self.nonfinite[picked.rows] += beside.sum(axis=1, where=real, dtype=np.int64)

    def summary(self, rows: Any) -> Summary:
        """All streams together, as one histogram between the outermost edges."""
        rows = self._heard(rows)
        counts, edges = self.counts[rows], self.edges[rows]
        low, high = float(edges.min()), float(edges.max())
        middles = edges[:, :-1] / 2 + edges[:, 1:] / 2
        number = counts.sum(axis=1)
        average = means((counts * middles).sum(axis=1), number)
        along = np.clip((middles / 2 - low / 2) / ((high / 2 - low / 2) or 1.0), 0, 1)
        place = np.minimum((along * counts.shape[1]).astype(np.intp), counts.shape[1] - 1)
        return Summary(
            self.suffix,
            remark=f"{counts.shape[1]} bins",
            mean=Spread.of(average[number > 0]),
            low=low,
            high=high,
            history=np.bincount(place.ravel(), counts.ravel(), counts.shape[1]),
            nonfinite=int(self.nonfinite[rows].sum()),
        )


def as_numbers(x: Any) -> Any:
    """One real number for each stream and record, of `float32` or `float64`."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        x = np.abs(x)
    if x.dtype not in _AS_THEY_ARE:
        x = x.astype(np.float64)
    if x.ndim == 2:
        return x
    return x.reshape(*x.shape[:2], -1).mean(axis=2)


def _extremes(x: Any, picked: Picked) -> tuple[Any, Any, Any]:
    """Of each stream the least and the greatest finite number, and how many are not finite."""
    if picked.real is None:
        low, high = x.min(axis=1), x.max(axis=1)
        # A NaN or an infinity shows in one of them.
        if np.isfinite(low).all() and np.isfinite(high).all():
            return low, high, None
    there = np.isfinite(x) if picked.real is None else np.isfinite(x) & picked.real
    low = np.min(x, axis=1, initial=np.inf, where=there)
    high = np.max(x, axis=1, initial=-np.inf, where=there)
    return low, high, picked.count - there.sum(axis=1)


def _history(ring: Any, count: Any) -> Any:
    """The mean over streams of the last record, of the one before it, ..., oldest first.

    NaN where no stream has a finite number.
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
    return means(total, number)

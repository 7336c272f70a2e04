"""State of the runs that `ConsoleLogger` shows together: keys, steps, status and rate.

A `Dashboard` receives record batches and answers queries from a view (`LiveTable` or
`PlainLines`). Updates cost no Python loop over streams or records; statistics are computed when a
view asks for them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import leaf_name, matches
from logax._media import HistogramBins, ImagePixels, is_media
from logax._support.arrays import is_key_array, is_missing
from logax._support.formatting import Glyphs, KeySummary, format_text
from logax.loggers._console.key_statistics import (
    HistogramStatistics,
    KeyStatistics,
    NumberStatistics,
    ShapeStatistics,
    ValidRecords,
)

_MAX_SAMPLES = 40


class RateMeter:
    """Measure the rate of a quantity that advances, recently and on average.

    A quantity that decreases has started over, and its total keeps growing.

    Args:
      now: Start time in seconds.
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self._total = 0.0
        self._last = 0.0
        self._seen: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MAX_SAMPLES)

    def update(self, now: float, mean_progress: float) -> None:
        """Record the current value of the quantity."""
        self._total += max(mean_progress - self._last, 0.0)
        self._last = mean_progress
        self._seen.append((now, self._total))

    def recent(self) -> float | None:
        """Return the rate per second over the last samples, or the average if there is only one."""
        return _rate(self._seen[0], self._seen[-1]) if len(self._seen) > 1 else self.average()

    def average(self) -> float | None:
        """Return the rate per second since the start."""
        return _rate((self.began, 0.0), self._seen[-1]) if self._seen else None


def _rate(a: tuple[float, float], b: tuple[float, float]) -> float | None:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] and b[1] > a[1] else None


RUNNING = "running"


class Dashboard:
    """Statistics of the runs that are shown together, with one row per stream.

    Runs that ended stay until other runs open.

    Args:
      patterns: Names or globs of the keys and leaves to show; None for all.
      window: Number of most recent records of each stream that mean and history cover.

    Attributes:
      has_chosen_keys: True if the user chose the keys.
      status: Status of each run.
      step_name: Name of the step that is shown: `step`, else the first one named, else "".
    """

    def __init__(self, patterns: tuple[str, ...] | None, window: int) -> None:
        self._patterns, self._window = patterns, window
        self.has_chosen_keys = patterns is not None
        self.status: dict[RunInfo, str] = {}
        self.step_name = ""
        self._rows: dict[Stream, int] = {}
        self._statistics_by_key: dict[str, KeyStatistics] = {}
        self._is_selected_by_name: dict[str, bool] = {}
        self._steps, self._first = np.full(1, np.nan), np.full(1, np.nan)
        self._orders = np.full(1, -1)  # program order of `_steps`, since the last `reset_order`
        self._last_rows: tuple[tuple[Stream, ...], Any] = ((), np.zeros(0, np.intp))

    @property
    def is_open(self) -> bool:
        """True while a run has not ended."""
        return RUNNING in self.status.values()

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Add runs, and drop those that ended."""
        ended = [run for run, status in self.status.items() if status != RUNNING]
        if ended:
            self._forget(ended)
        self.status.update(dict.fromkeys(runs, RUNNING))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Set the status of runs that ended."""
        self.status.update(dict.fromkeys(runs, status))

    def _forget(self, runs: Sequence[RunInfo]) -> None:
        for run in runs:
            del self.status[run]
        stay = {stream: row for stream, row in self._rows.items() if stream.run in self.status}
        if len(stay) == len(self._rows):
            return
        rows = np.fromiter(stay.values(), np.intp, len(stay))
        for statistics in self._statistics_by_key.values():
            statistics.grow(len(self._rows))
            statistics.select_rows(rows)
        self._steps, self._first = self._steps[rows], self._first[rows]
        self._orders = self._orders[rows]
        self._rows = {stream: row for row, stream in enumerate(stay)}
        self._last_rows = ((), np.zeros(0, np.intp))

    def update(self, batch: RecordBatch) -> None:
        """Update the statistics with a batch of records."""
        if not batch.number:
            return
        rows = self._rows_of(batch.streams)
        valid = ValidRecords(rows, np.shape(batch.order), batch.real, self._window)
        with np.errstate(all="ignore"):
            for name, value in self._values(batch.values):
                statistics = self._statistics_of(name, value)
                statistics.grow(len(self._rows))
                statistics.update(valid, value)
            self._update_steps(batch, valid)

    def _rows_of(self, streams: tuple[Stream, ...]) -> Any:
        if streams is not self._last_rows[0]:
            rows = [self._rows.setdefault(stream, len(self._rows)) for stream in streams]
            self._last_rows = (streams, np.asarray(rows, np.intp))
            more = len(self._rows) - len(self._steps)
            if more > 0:
                more = max(more, len(self._steps))
                self._steps = np.append(self._steps, np.full(more, np.nan))
                self._first = np.append(self._first, np.full(more, np.nan))
                self._orders = np.append(self._orders, np.full(more, -1))
        return self._last_rows[1]

    def _values(self, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the values to show by name: leaves, and histograms and images as a whole."""
        for key, value in values.items():
            if type(value) is np.ndarray:
                leaves: list[tuple[str, Any]] = [(key, value)]
            else:
                found = jax.tree_util.tree_leaves_with_path(value, is_leaf=is_media)
                leaves = [(leaf_name(key, path), leaf) for path, leaf in found]
            for name, leaf in leaves:
                if self._is_selected(key, name) and not _is_key(leaf):
                    yield name, leaf

    def _is_selected(self, key: str, name: str) -> bool:
        if self._patterns is None:
            return True
        is_selected = self._is_selected_by_name.get(name)
        if is_selected is None:
            is_selected = matches(key, self._patterns) or matches(name, self._patterns)
            self._is_selected_by_name[name] = is_selected
        return is_selected

    def _statistics_of(self, name: str, value: Any) -> KeyStatistics:
        """Return the statistics of a key; new ones if the kind of its values changed."""
        statistics = self._statistics_by_key.get(name)
        kind: type[KeyStatistics]
        if isinstance(value, HistogramBins):
            kind = HistogramStatistics
            fits = isinstance(statistics, HistogramStatistics) and statistics.fits(value)
        else:
            has_numbers = not isinstance(value, ImagePixels) and _elements_per_record(value)
            kind = NumberStatistics if has_numbers else ShapeStatistics
            fits = isinstance(statistics, kind)
        if statistics is None or not fits:
            statistics = self._statistics_by_key[name] = _new_statistics(kind, value, self._window)
        if isinstance(statistics, NumberStatistics):
            statistics.suffix = _suffix(value)
        elif isinstance(statistics, ShapeStatistics):
            statistics.remark = _describe(value)
        return statistics

    def reset_order(self) -> None:
        """Treat all later batches as later in the program.

        Between two calls the batches arrive key by key, and their order in the program decides
        which step is the last.
        """
        self._orders[:] = -1

    def _update_steps(self, batch: RecordBatch, valid: ValidRecords) -> None:
        steps = batch.steps
        name = "step" if "step" in steps else self.step_name or next(iter(steps), "")
        if name not in steps:
            return
        if name != self.step_name:
            self.step_name = name
            self._steps[:] = self._first[:] = np.nan
        streams = np.flatnonzero(valid.count)
        last = np.asarray(steps[name])[streams, valid.last[streams]]
        place = np.asarray(batch.order)[streams, valid.last[streams]]
        there = ~is_missing(last) & (place >= self._orders[valid.rows[streams]])
        rows = valid.rows[streams][there]
        before = self._steps[rows]
        self._steps[rows], self._orders[rows] = last[there], place[there]
        new = np.isnan(before)
        if new.any():
            real = valid.real
            first = 0 if real is None else np.argmax(real, axis=1)[streams[there][new]]
            self._first[rows[new]] = np.asarray(steps[name])[streams[there][new], first]

    def rows(self, runs: Sequence[RunInfo] | None = None) -> Any:
        """Return the rows of the given runs, or of all."""
        wanted = None if runs is None else set(runs)
        rows = [row for each, row in self._rows.items() if wanted is None or each.run in wanted]
        return np.asarray(rows, np.intp)

    def keys(self, rows: Any) -> list[str]:
        """Return the keys that have records in these rows, in order of arrival."""
        for statistics in self._statistics_by_key.values():
            statistics.grow(len(self._rows))
        every = self._statistics_by_key.items()
        return [key for key, statistics in every if statistics.count[rows].any()]

    def summary(self, key: str, rows: Any) -> KeySummary:
        """Return the summary of a key that has records in these rows."""
        with np.errstate(all="ignore"):
            return self._statistics_by_key[key].summary(rows)

    def step_range(self, rows: Any) -> tuple[float, float] | None:
        """Return the steps of the slowest and the fastest stream; without steps, record counts."""
        if self.step_name:
            at = self._steps[rows]
            at = at[~np.isnan(at)]
        else:
            at = self._record_counts(rows)
            at = at[at > 0]
        return (float(at.min()), float(at.max())) if at.size else None

    def mean_progress(self, rows: Any) -> float:
        """Return the mean number of steps since the first record of each stream."""
        if not self.step_name:
            records = self._record_counts(rows)
            return float(records.mean()) if records.size else 0.0
        by = self._steps[rows] - self._first[rows]
        by = by[~np.isnan(by)]
        return float(by.mean()) if by.size else 0.0

    def _record_counts(self, rows: Any) -> Any:
        """Return the number of records of each row, for the key that has the most."""
        most = np.zeros(len(rows), np.int64)
        for statistics in self._statistics_by_key.values():
            statistics.grow(len(self._rows))
            most = np.maximum(most, statistics.count[rows])
        return most


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_key_array(leaf)


def _elements_per_record(value: Any) -> int:
    """Return the number of elements of one record."""
    return int(np.prod(np.shape(value)[2:]))


def _new_statistics(kind: type[KeyStatistics], value: Any, window: int) -> KeyStatistics:
    if kind is HistogramStatistics:
        return HistogramStatistics(value.counts.shape[2])
    return NumberStatistics(window) if kind is NumberStatistics else ShapeStatistics("")


def _suffix(value: Any) -> str:
    """Describe how the numbers of a leaf derive from its values; empty if they are the values."""
    shape = np.shape(value)[2:]
    size = f"[{','.join(map(str, shape))}] mean" if shape else ""
    return size + (" abs" if np.asarray(value).dtype.kind == "c" else "")


def _describe(value: Any) -> str:
    if isinstance(value, ImagePixels):
        return f"image {'x'.join(map(str, np.shape(value.pixels)[2:]))}"
    return f"empty [{','.join(map(str, np.shape(value)[2:]))}]"


def runs_label(dashboard: Dashboard, runs: Sequence[RunInfo], glyphs: Glyphs) -> str:
    """Return the name of the run, or the number of runs."""
    names = {run.name for run in runs}
    name = format_text(names.pop(), glyphs) if len(names) == 1 else ""
    if len(runs) > 1:
        return f"{len(runs)} runs of {name}" if name else f"{len(runs)} runs"
    lanes = runs[0].lanes if runs and runs[0].lanes else len(dashboard.rows(runs))
    return f"run {name} ({lanes} lanes)" if lanes > 1 else f"run {name}"


def status_label(each: Iterable[str]) -> str:
    """Return the status of the runs: one word if all agree, else a count of each."""
    counts = collections.Counter(each)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {word}" for word, number in counts.items())

"""How fast runs advance.

Which records of a portion there are, found once for all of its keys.

All that is known of the runs that are shown together: their keys, steps and status.

Whose numbers these are, and how they are doing, in words.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import leaf_name, matches
from logax._media import HistogramBins, ImagePixels, is_shown
from logax._support.arrays import is_key_array, is_missing
from logax._support.formatting import Glyphs, plain
from logax._support.summary import Summary
from logax.loggers._console.statistics import Bins, Column, Numbers, Picked, Remark

_SAMPLES = 40


class Pace:
    """How fast something advances: lately while it goes on, and all in all.

    Args:
      now: When it began.
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self._total = 0.0
        self._last = 0.0
        self._seen: collections.deque[tuple[float, float]] = collections.deque(maxlen=_SAMPLES)

    def see(self, now: float, advanced: float) -> None:
        """It has advanced so far now; what goes back has begun again."""
        self._total += max(advanced - self._last, 0.0)
        self._last = advanced
        self._seen.append((now, self._total))

    def lately(self) -> float | None:
        """A second, over the last few times that were seen; overall if there was but one."""
        return _rate(self._seen[0], self._seen[-1]) if len(self._seen) > 1 else self.overall()

    def overall(self) -> float | None:
        """A second, from the beginning on."""
        return _rate((self.began, 0.0), self._seen[-1]) if self._seen else None


def _rate(a: tuple[float, float], b: tuple[float, float]) -> float | None:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] and b[1] > a[1] else None


RUNNING = "running"


class Board:
    """Runs that are shown together, each stream of theirs in a row.

    Runs that have ended stay on it until others begin.

    Args:
      patterns: Names or globs of the keys and leaves that count; None for all.
      window: How many of the last records of each stream are kept.

    Attributes:
      are_chosen: Whether somebody said which keys count.
      status: Of each run.
      step_name: What the steps are called: `step`, else the first one named, else "".
    """

    def __init__(self, patterns: tuple[str, ...] | None, window: int) -> None:
        self._patterns, self._window = patterns, window
        self.are_chosen = patterns is not None
        self.status: dict[RunInfo, str] = {}
        self.step_name = ""
        self._rows: dict[Stream, int] = {}
        self._columns: dict[str, Column] = {}
        self._wanted: dict[str, bool] = {}
        self._steps, self._first = np.full(1, np.nan), np.full(1, np.nan)
        self._places = np.full(1, -1)  # of the records whose steps these are, since `settle`
        self._known: tuple[tuple[Stream, ...], Any] = ((), np.zeros(0, np.intp))

    @property
    def is_open(self) -> bool:
        """Whether a run goes on."""
        return RUNNING in self.status.values()

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Runs begin; those that have ended are forgotten."""
        ended = [run for run, status in self.status.items() if status != RUNNING]
        if ended:
            self._forget(ended)
        self.status.update(dict.fromkeys(runs, RUNNING))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Runs end."""
        self.status.update(dict.fromkeys(runs, status))

    def _forget(self, runs: Sequence[RunInfo]) -> None:
        for run in runs:
            del self.status[run]
        stay = {stream: row for stream, row in self._rows.items() if stream.run in self.status}
        if len(stay) == len(self._rows):
            return
        rows = np.fromiter(stay.values(), np.intp, len(stay))
        for column in self._columns.values():
            column.grow(len(self._rows))
            column.keep(rows)
        self._steps, self._first = self._steps[rows], self._first[rows]
        self._places = self._places[rows]
        self._rows = {stream: row for row, stream in enumerate(stay)}
        self._known = ((), np.zeros(0, np.intp))

    def take(self, portion: RecordBatch) -> None:
        """Take in records."""
        if not portion.number:
            return
        rows = self._rows_of(portion.streams)
        picked = Picked(rows, np.shape(portion.order), portion.real, self._window)
        with np.errstate(all="ignore"):
            for name, value in self._values(portion.values):
                column = self._column(name, value)
                column.grow(len(self._rows))
                column.take(picked, value)
            self._take_steps(portion, picked)

    def _rows_of(self, streams: tuple[Stream, ...]) -> Any:
        if streams is not self._known[0]:
            rows = [self._rows.setdefault(stream, len(self._rows)) for stream in streams]
            self._known = (streams, np.asarray(rows, np.intp))
            more = len(self._rows) - len(self._steps)
            if more > 0:
                more = max(more, len(self._steps))
                self._steps = np.append(self._steps, np.full(more, np.nan))
                self._first = np.append(self._first, np.full(more, np.nan))
                self._places = np.append(self._places, np.full(more, -1))
        return self._known[1]

    def _values(self, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """What is shown of a portion: leaves by name, histograms and images as they are."""
        for key, value in values.items():
            if type(value) is np.ndarray:
                leaves: list[tuple[str, Any]] = [(key, value)]
            else:
                found = jax.tree_util.tree_leaves_with_path(value, is_leaf=is_shown)
                leaves = [(leaf_name(key, path), leaf) for path, leaf in found]
            for name, leaf in leaves:
                if self._is_wanted(key, name) and not _is_key(leaf):
                    yield name, leaf

    def _is_wanted(self, key: str, name: str) -> bool:
        if self._patterns is None:
            return True
        wanted = self._wanted.get(name)
        if wanted is None:
            wanted = matches(key, self._patterns) or matches(name, self._patterns)
            self._wanted[name] = wanted
        return wanted

    def _column(self, name: str, value: Any) -> Column:
        """The column of a key; a new one where it is of another kind than before."""
        column = self._columns.get(name)
        kind: type[Column]
        if isinstance(value, HistogramBins):
            kind, fits = Bins, isinstance(column, Bins) and column.fits(value)
        else:
            kind = Remark if isinstance(value, ImagePixels) or not _elements(value) else Numbers
            fits = isinstance(column, kind)
        if column is None or not fits:
            column = self._columns[name] = _made(kind, value, self._window)
        if isinstance(column, Numbers):
            column.suffix = _suffix(value)
        elif isinstance(column, Remark):
            column.remark = _remark(value)
        return column

    def settle(self) -> None:
        """What comes now comes after what there is: portions of one time come key by key."""
        self._places[:] = -1

    def _take_steps(self, portion: RecordBatch, picked: Picked) -> None:
        steps = portion.steps
        name = "step" if "step" in steps else self.step_name or next(iter(steps), "")
        if name not in steps:
            return
        if name != self.step_name:
            self.step_name = name
            self._steps[:] = self._first[:] = np.nan
        streams = np.flatnonzero(picked.count)
        last = np.asarray(steps[name])[streams, picked.last[streams]]
        place = np.asarray(portion.order)[streams, picked.last[streams]]
        there = ~is_missing(last) & (place >= self._places[picked.rows[streams]])
        rows = picked.rows[streams][there]
        before = self._steps[rows]
        self._steps[rows], self._places[rows] = last[there], place[there]
        new = np.isnan(before)
        if new.any():
            real = picked.real
            first = 0 if real is None else np.argmax(real, axis=1)[streams[there][new]]
            self._first[rows[new]] = np.asarray(steps[name])[streams[there][new], first]

    # What there is to show.

    def rows(self, runs: Sequence[RunInfo] | None = None) -> Any:
        """The rows of some runs, or of all."""
        wanted = None if runs is None else set(runs)
        rows = [row for each, row in self._rows.items() if wanted is None or each.run in wanted]
        return np.asarray(rows, np.intp)

    def keys(self, rows: Any) -> list[str]:
        """The keys that have records in these rows, in the order in which they came."""
        for column in self._columns.values():
            column.grow(len(self._rows))
        return [key for key, column in self._columns.items() if column.count[rows].any()]

    def summary(self, key: str, rows: Any) -> Summary:
        """What is known of a key that has records in these rows."""
        with np.errstate(all="ignore"):
            return self._columns[key].summary(rows)

    def reached(self, rows: Any) -> tuple[float, float] | None:
        """Where the slowest and the fastest stream are: their steps, else numbers of records."""
        if self.step_name:
            at = self._steps[rows]
            at = at[~np.isnan(at)]
        else:
            at = self._records(rows)
            at = at[at > 0]
        return (float(at.min()), float(at.max())) if at.size else None

    def advanced(self, rows: Any) -> float:
        """By how many steps the streams have advanced since their first record, in the mean."""
        if not self.step_name:
            records = self._records(rows)
            return float(records.mean()) if records.size else 0.0
        by = self._steps[rows] - self._first[rows]
        by = by[~np.isnan(by)]
        return float(by.mean()) if by.size else 0.0

    def _records(self, rows: Any) -> Any:
        """Of each row, the records of the key that has most."""
        most = np.zeros(len(rows), np.int64)
        for column in self._columns.values():
            column.grow(len(self._rows))
            most = np.maximum(most, column.count[rows])
        return most


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_key_array(leaf)


def _elements(value: Any) -> int:
    """How many elements one record has."""
    return int(np.prod(np.shape(value)[2:]))


def _made(kind: type[Column], value: Any, window: int) -> Column:
    if kind is Bins:
        return Bins(value.counts.shape[2])
    return Numbers(window) if kind is Numbers else Remark("")


def _suffix(value: Any) -> str:
    """What the numbers of a leaf are, if not the values themselves."""
    shape = np.shape(value)[2:]
    size = f"[{','.join(map(str, shape))}] mean" if shape else ""
    return size + (" abs" if np.asarray(value).dtype.kind == "c" else "")


def _remark(value: Any) -> str:
    if isinstance(value, ImagePixels):
        return f"image {'x'.join(map(str, np.shape(value.pixels)[2:]))}"
    return f"empty [{','.join(map(str, np.shape(value)[2:]))}]"


def who(board: Board, runs: Sequence[RunInfo], glyphs: Glyphs) -> str:
    """The run by its name, or how many there are."""
    names = {run.name for run in runs}
    name = plain(names.pop(), glyphs) if len(names) == 1 else ""
    if len(runs) > 1:
        return f"{len(runs)} runs of {name}" if name else f"{len(runs)} runs"
    lanes = runs[0].lanes if runs and runs[0].lanes else len(board.rows(runs))
    return f"run {name} ({lanes} lanes)" if lanes > 1 else f"run {name}"


def status(each: Iterable[str]) -> str:
    """How the runs are doing: one word if all are alike."""
    counts = collections.Counter(each)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {word}" for word, number in counts.items())

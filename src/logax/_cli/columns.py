"""Read the records of a run as columns, one per key and leaf, and summarize them.

Each leaf of a pytree is a column with its flat name (`grad/w`); a histogram or image is one column.
A key whose records changed shape midway has several columns, in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._cli.options import CommandError
from logax._cli.terminal import escape, stdout_glyphs
from logax._logdict.logdict import logdict, matches
from logax._media import HistogramBins, ImagePixels, is_media
from logax._runs.errors import AllDamagedError, RunsError
from logax._runs.run import Run
from logax._serialization.record_text import json_cells
from logax._support.arrays import is_key_array, is_missing, leaf_name, shape_name
from logax._support.formatting import Spread, divide_or_nan, format_number, format_spread

Array = np.ndarray[Any, Any]
_MAX_LISTED_KEYS = 12
_MAX_SHOWN_ELEMENTS = 6  # of an array


@dataclasses.dataclass(frozen=True, eq=False)
class LoggedColumn:
    """All records of one leaf. Arrays have the lane axes first, then the record axis.

    Attributes:
      name: Flat name of the leaf.
      value: Array, typed PRNG keys, or a histogram or image of arrays.
      steps: Steps of the records, by name.
      real: Mask of the rows that are records; the others are padding.
    """

    name: str
    value: Any
    steps: dict[str, Array]
    real: Array

    @property
    def lanes(self) -> tuple[int, ...]:
        """Shape of the lane axes; () without lanes."""
        return tuple(self.real.shape[:-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(jax.tree.leaves(self.value)[0].shape[self.real.ndim :])

    @property
    def kind(self) -> str:
        """Description of one record: dtype and shape, bins, image size, or key."""
        if isinstance(self.value, HistogramBins):
            return f"{self.shape[0]} bins"
        if isinstance(self.value, ImagePixels):
            return f"image {'x'.join(map(str, self.shape))}"
        if is_key_array(self.value):
            return "key" + (str(list(self.shape)) if self.shape else "")
        return shape_name(self.value.dtype, self.shape)

    def numbers(self) -> Array | None:
        """Return one number per record, NaN for padding; None for images and PRNG keys.

        The number is the mean of the elements of an array, the magnitude of a complex number, or
        the mean of a histogram.
        """
        if isinstance(self.value, HistogramBins):
            found = _mean_of_bins(self.value)
        elif isinstance(self.value, ImagePixels) or is_key_array(self.value):
            return None
        else:
            found = _plain_numbers(self.value)
            if self.shape:
                rows = found.reshape(*self.real.shape, math.prod(self.shape))
                found = rows.mean(axis=-1) if rows.shape[-1] else np.full(self.real.shape, np.nan)
        return np.where(self.real, found, np.nan)

    def elements(self) -> Array | None:
        """Return all logged numbers in one dimension; the outermost edges of histograms."""
        if isinstance(self.value, HistogramBins):
            edges = _plain_numbers(self.value.edges)[self.real]
            return edges[:, [0, -1]].ravel()
        if isinstance(self.value, ImagePixels) or is_key_array(self.value):
            return None
        return _plain_numbers(self.value)[self.real].ravel()

    def axis(self, name: str | None = None) -> tuple[str, Array]:
        """Return name and values of the x-axis.

        It is the step `name` or, by default, the step called `step`, otherwise the first step,
        otherwise the number of the record.
        """
        for each in [name] if name else ["step", *self.steps]:
            step = self.steps.get(each)
            if step is not None and step.ndim == self.real.ndim:
                known = self.real & ~is_missing(step)
                return each, np.where(known, step.astype(np.float64), np.nan)
        count = np.broadcast_to(np.arange(self.real.shape[-1], dtype=np.float64), self.real.shape)
        return "record", np.where(self.real, count, np.nan)


def read_columns(run: Run, wanted: Sequence[str] = ()) -> list[LoggedColumn]:
    """Return the columns of a run, or those that names and globs of keys or leaves select.

    Raises:
      CommandError: A name selects nothing.
    """
    keys = list(run)
    likely = [key for key in keys if not wanted or any(_may_select(key, name) for name in wanted)]
    read = read_logs(run, likely)
    found = [(key, column) for key in likely for column in _key_columns(key, read.get(key, []))]
    if not wanted:
        return [column for _, column in found]
    chosen = {}
    for name in wanted:
        own = [x for key, x in found if matches(key, [name]) or matches(x.name, [name])]
        if not own and not any(_may_select(key, name) for key in likely if key not in read):
            raise CommandError(_missing_key_message(run, name, keys))
        chosen.update({id(column): column for column in own})
    return list(chosen.values())


def read_logs(run: Run, keys: Sequence[str]) -> dict[str, list[logdict]]:
    """Return the logs of each key: one logdict, or several if its records changed shape midway.

    Keys whose records are all damaged are left out; a `DamageWarning` has reported them.

    Raises:
      RunsError: No key or no file can be read.
    """
    if not keys:
        return {}
    try:
        logs = run.logdict(*keys)
    except ValueError as error:  # a key has changed, or all of its records are damaged
        if isinstance(error, RunsError) and not isinstance(error, AllDamagedError):
            raise
        found = {}
        for key in keys:
            with contextlib.suppress(AllDamagedError):
                found[key] = run.parts(key)
        if not found:
            raise
        return found
    return {key: [logs] for key in keys}


def match_keys(run: Run, wanted: Sequence[str]) -> list[str]:
    """Return the keys of a run, or those that names and globs select.

    Raises:
      CommandError: A name selects no key.
    """
    keys = list(run)
    for name in wanted:
        if not any(matches(key, [name]) for key in keys):
            raise CommandError(_missing_key_message(run, name, keys))
    return [key for key in keys if not wanted or matches(key, wanted)]


def flatten_lanes(x: Any, lanes: int) -> Any:
    """Reshape the first `lanes` axes of an array to one axis."""
    return x.reshape(math.prod(x.shape[:lanes]), *x.shape[lanes:])


def record_mask(logs: logdict, key: str) -> Array:
    """Return the mask of the rows of a key that are records, lane axes first."""
    count = np.asarray(logs.count[key])
    leaves = jax.tree.leaves(logs[key])
    length = leaves[0].shape[count.ndim] if leaves else int(count.max(initial=0))
    return np.arange(length) < count[..., None]


def key_steps(logs: logdict, key: str) -> dict[str, Array]:
    """Return the steps of a key by name."""
    return {name: np.asarray(own[key]) for name, own in logs.steps.items() if key in own}


def _key_columns(key: str, read: Sequence[logdict]) -> Iterator[LoggedColumn]:
    for logs in read:
        real, steps = record_mask(logs, key), key_steps(logs, key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(logs[key], is_leaf=is_media):
            yield LoggedColumn(leaf_name(key, path), leaf, steps, real)


def _may_select(key: str, name: str) -> bool:
    return matches(key, [name]) or name.startswith(f"{key}/") or any(x in name for x in "*?[")


def _missing_key_message(run: Run, name: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [key for key in keys if len(key) < 200], 3)
    shown = [escape(key) for key in near or keys[:_MAX_LISTED_KEYS]]
    more = f" and {len(keys) - len(shown)} more" if not near and len(keys) > len(shown) else ""
    called = escape(run.name)
    if not keys:
        return f"nothing was logged in run {called}, and so not {escape(name)!r}."
    hint = "Did you mean" if near else "There is"
    end = "?" if near else "."
    return f"{escape(name)!r} was not logged in run {called}. {hint} {', '.join(shown)}{more}{end}"


def _plain_numbers(x: Any) -> Array:
    array = np.asarray(x)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = np.abs(array)
    return array.astype(np.float64)


def _mean_of_bins(bins: HistogramBins) -> Array:
    counts, edges = _plain_numbers(bins.counts), _plain_numbers(bins.edges)
    weighted = (counts * (edges[..., :-1] / 2 + edges[..., 1:] / 2)).sum(axis=-1)
    mean: Array = divide_or_nan(weighted, counts.sum(axis=-1))
    return mean


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """Statistics of one column.

    Attributes:
      name: Flat name of the leaf.
      kind: Description of one record.
      records: Number of records of all lanes.
      lanes: Shape of the lane axes.
      last: Last value as parsed JSON; with lanes a list of the last values.
      last_text: Short text of the last value; with lanes their mean and standard deviation.
      low: Minimum of the finite numbers; None if there is none.
      high: Maximum of the finite numbers; None if there is none.
      nonfinite: Number of numbers that are not finite.
      steps: Last step by name; with lanes the maximum.
    """

    name: str
    kind: str
    records: int
    lanes: tuple[int, ...]
    last: Any
    last_text: str
    low: float | None
    high: float | None
    nonfinite: int
    steps: dict[str, Any]

    def json_fields(self) -> dict[str, Any]:
        """Return the fields that `--json` prints."""
        found = dataclasses.asdict(self)
        del found["name"], found["last_text"]
        return found


def summarize_column(column: LoggedColumn) -> ColumnSummary:
    """Compute the statistics of a column."""
    found = column.elements()
    elements = np.zeros(0) if found is None else found
    finite = elements[np.isfinite(elements)]
    last = _last(column)
    return ColumnSummary(
        column.name,
        column.kind,
        int(column.real.sum()),
        column.lanes,
        last,
        _last_text(column, last),
        float(finite.min()) if finite.size else None,
        float(finite.max()) if finite.size else None,
        elements.size - finite.size,
        _last_steps(column),
    )


def _last_rows(column: LoggedColumn) -> tuple[Any, ...]:
    """Return the index of the last record of each lane that has records."""
    count = column.real.sum(axis=-1)
    if not column.lanes:
        return (np.array([count - 1] if count else [], np.intp),)
    lanes = np.nonzero(count)
    return (*lanes, count[lanes] - 1)


def _last(column: LoggedColumn) -> Any:
    index = _last_rows(column)
    if not index[-1].size:
        return None
    texts = json_cells(jax.tree.map(lambda x: x[index], column.value))
    found = [json.loads(text) for text in texts]
    return found if column.lanes else found[0]


def _last_text(column: LoggedColumn, last: Any) -> str:
    if last is None:
        return ""
    numbers = column.numbers()
    if column.lanes:
        found = None if numbers is None else Spread.of(numbers[_last_rows(column)])
        return format_spread(found, stdout_glyphs())
    if isinstance(last, (bool, int, float)):
        return format_number(last)
    if isinstance(last, list) and len(column.shape) == 1:
        shown = [
            format_number(x) if isinstance(x, (bool, int, float)) else "?"
            for x in last[:_MAX_SHOWN_ELEMENTS]
        ]
        return f"[{', '.join(shown)}{', ...' * (len(last) > _MAX_SHOWN_ELEMENTS)}]"
    if isinstance(last, dict) and last.keys() == {"real", "imag"} and not column.shape:
        return format_number(complex(last["real"], last["imag"]))
    return escape(column.kind)


def _last_steps(column: LoggedColumn) -> dict[str, Any]:
    index = _last_rows(column)
    found = {}
    for name, step in column.steps.items():
        _, x = column.axis(name)
        if step.ndim == column.real.ndim and np.isfinite(x[index]).any():
            reached = step[index][np.isfinite(x[index])]
            found[name] = reached.max().item()
    return found

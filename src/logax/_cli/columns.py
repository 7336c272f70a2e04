"""What a run has logged: by key and leaf one array of all records.

A pytree is a column for each leaf, called by its flat name (`grad/w`); histograms and images are
one value. A key whose records changed their shape midway is several columns, one after the other.

What a table says of one column: how many records, the last value, the least and the greatest.
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
from logax._cli.terminal import glyphs, number, safe
from logax._logdict.logdict import logdict, matches
from logax._media import HistogramBins, ImagePixels, is_shown
from logax._runs.errors import AllDamagedError, RunsError
from logax._runs.run import Run
from logax._support.arrays import is_key_array, is_missing, leaf_name, shape_name
from logax._support.formatting import spread
from logax._support.summary import Spread, means
from logax.loggers._text.cells import cells

Numbers = np.ndarray[Any, Any]
_LISTED = 12


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """All records of one leaf; in every array the lanes come first, then the records.

    Attributes:
      name: The flat name.
      value: An array, typed PRNG keys, or a histogram or image of arrays.
      steps: By name the step of each record.
      real: Which rows are records.
    """

    name: str
    value: Any
    steps: dict[str, Numbers]
    real: Numbers

    @property
    def lanes(self) -> tuple[int, ...]:
        """The shape of the lanes; () where there are none."""
        return tuple(self.real.shape[:-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one record."""
        return tuple(jax.tree.leaves(self.value)[0].shape[self.real.ndim :])

    @property
    def kind(self) -> str:
        """What one record is."""
        if isinstance(self.value, HistogramBins):
            return f"{self.shape[0]} bins"
        if isinstance(self.value, ImagePixels):
            return f"image {'x'.join(map(str, self.shape))}"
        if is_key_array(self.value):
            return "key" + (str(list(self.shape)) if self.shape else "")
        return shape_name(self.value.dtype, self.shape)

    def numbers(self) -> Numbers | None:
        """One number for each record, NaN for padding; None where there is none.

        Of arrays it is the mean of the elements, of complex numbers the magnitude, of histograms
        their mean.
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

    def elements(self) -> Numbers | None:
        """All real numbers that were logged, in one row; of histograms the outermost edges."""
        if isinstance(self.value, HistogramBins):
            edges = _plain_numbers(self.value.edges)[self.real]
            return edges[:, [0, -1]].ravel()
        if isinstance(self.value, ImagePixels) or is_key_array(self.value):
            return None
        return _plain_numbers(self.value)[self.real].ravel()

    def axis(self, name: str | None = None) -> tuple[str, Numbers]:
        """The x of each record: the step called `step`, else the first, else a count."""
        for each in [name] if name else ["step", *self.steps]:
            step = self.steps.get(each)
            if step is not None and step.ndim == self.real.ndim:
                known = self.real & ~is_missing(step)
                return each, np.where(known, step.astype(np.float64), np.nan)
        count = np.broadcast_to(np.arange(self.real.shape[-1], dtype=np.float64), self.real.shape)
        return "record", np.where(self.real, count, np.nan)


def columns_of(run: Run, wanted: Sequence[str] = ()) -> list[Column]:
    """All columns of a run, or those that these names and globs of keys or leaves choose.

    Raises:
      CommandError: There is nothing of such a name.
    """
    keys = list(run)
    likely = [key for key in keys if not wanted or any(_may_hold(key, name) for name in wanted)]
    read = logs_of(run, likely)
    found = [(key, column) for key in likely for column in _of_key(key, read.get(key, []))]
    if not wanted:
        return [column for _, column in found]
    chosen = {}
    for name in wanted:
        own = [x for key, x in found if matches(key, [name]) or matches(x.name, [name])]
        if not own and not any(_may_hold(key, name) for key in likely if key not in read):
            raise CommandError(_no_key(run, name, keys))
        chosen.update({id(column): column for column in own})
    return list(chosen.values())


def logs_of(run: Run, keys: Sequence[str]) -> dict[str, list[logdict]]:
    """Return by key its records; of a key that changed midway one logdict for each form.

    Keys whose records are all damaged are left out: a `DamageWarning` has reported them.

    Raises:
      RunsError: No key can be read, or a file cannot.
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


def keys_of(run: Run, wanted: Sequence[str]) -> list[str]:
    """The keys that names and globs choose, whole.

    Raises:
      CommandError: There is no such key.
    """
    keys = list(run)
    for name in wanted:
        if not any(matches(key, [name]) for key in keys):
            raise CommandError(_no_key(run, name, keys))
    return [key for key in keys if not wanted or matches(key, wanted)]


def in_one_row(x: Any, lanes: int) -> Any:
    """An array with its first axes, so many, as one: all lanes in a row, if only of no records."""
    return x.reshape(math.prod(x.shape[:lanes]), *x.shape[lanes:])


def real_rows(logs: logdict, key: str) -> Numbers:
    """Which rows of a key are records, lanes first."""
    count = np.asarray(logs.count[key])
    leaves = jax.tree.leaves(logs[key])
    length = leaves[0].shape[count.ndim] if leaves else int(count.max(initial=0))
    return np.arange(length) < count[..., None]


def steps_of(logs: logdict, key: str) -> dict[str, Numbers]:
    """By name the steps of a key."""
    return {name: np.asarray(own[key]) for name, own in logs.steps.items() if key in own}


def _of_key(key: str, read: Sequence[logdict]) -> Iterator[Column]:
    for logs in read:
        real, steps = real_rows(logs, key), steps_of(logs, key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(logs[key], is_leaf=is_shown):
            yield Column(leaf_name(key, path), leaf, steps, real)


def _may_hold(key: str, name: str) -> bool:
    return matches(key, [name]) or name.startswith(f"{key}/") or any(x in name for x in "*?[")


def _no_key(run: Run, name: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [key for key in keys if len(key) < 200], 3)
    shown = [safe(key) for key in near or keys[:_LISTED]]
    more = f" and {len(keys) - len(shown)} more" if not near and len(keys) > len(shown) else ""
    called = safe(run.name)
    if not keys:
        return f"nothing was logged in run {called}, and so not {safe(name)!r}."
    hint = "Did you mean" if near else "There is"
    end = "?" if near else "."
    return f"{safe(name)!r} was not logged in run {called}. {hint} {', '.join(shown)}{more}{end}"


def _plain_numbers(x: Any) -> Numbers:
    array = np.asarray(x)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = np.abs(array)
    return array.astype(np.float64)


def _mean_of_bins(bins: HistogramBins) -> Numbers:
    counts, edges = _plain_numbers(bins.counts), _plain_numbers(bins.edges)
    weighted = (counts * (edges[..., :-1] / 2 + edges[..., 1:] / 2)).sum(axis=-1)
    mean: Numbers = means(weighted, counts.sum(axis=-1))
    return mean


_ELEMENTS = 6  # that are shown of an array


@dataclasses.dataclass(frozen=True)
class Summary:
    """One column in a few numbers.

    Attributes:
      name: The flat name.
      kind: What one record is.
      records: How many there are, of all lanes together.
      lanes: The shape of the lanes.
      last: The last value, as JSON has it; with lanes a list with that of each.
      last_text: The same in a few letters; with lanes the mean, and how far they are apart.
      low: The least finite number; None if there is none.
      high: The greatest.
      nonfinite: How many numbers are not finite.
      steps: By name the last step, of lanes the greatest.
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

    def as_json(self) -> dict[str, Any]:
        """What `--json` says of it."""
        found = dataclasses.asdict(self)
        del found["name"], found["last_text"]
        return found


def summary_of(column: Column) -> Summary:
    """The few numbers of a column."""
    found = column.elements()
    elements = np.zeros(0) if found is None else found
    finite = elements[np.isfinite(elements)]
    last = _last(column)
    return Summary(
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


def _rows_of_last(column: Column) -> tuple[Any, ...]:
    """The index of the last record of each lane that has one."""
    count = column.real.sum(axis=-1)
    if not column.lanes:
        return (np.array([count - 1] if count else [], np.intp),)
    lanes = np.nonzero(count)
    return (*lanes, count[lanes] - 1)


def _last(column: Column) -> Any:
    index = _rows_of_last(column)
    if not index[-1].size:
        return None
    texts = cells(jax.tree.map(lambda x: x[index], column.value))
    found = [json.loads(text) for text in texts]
    return found if column.lanes else found[0]


def _last_text(column: Column, last: Any) -> str:
    if last is None:
        return ""
    numbers = column.numbers()
    if column.lanes:
        found = None if numbers is None else Spread.of(numbers[_rows_of_last(column)])
        return spread(found, glyphs())
    if isinstance(last, (bool, int, float)):
        return number(last)
    if isinstance(last, list) and len(column.shape) == 1:
        shown = [number(x) if isinstance(x, (bool, int, float)) else "?" for x in last[:_ELEMENTS]]
        return f"[{', '.join(shown)}{', ...' * (len(last) > _ELEMENTS)}]"
    if isinstance(last, dict) and last.keys() == {"real", "imag"} and not column.shape:
        return number(complex(last["real"], last["imag"]))
    return safe(column.kind)


def _last_steps(column: Column) -> dict[str, Any]:
    index = _rows_of_last(column)
    found = {}
    for name, step in column.steps.items():
        _, x = column.axis(name)
        if step.ndim == column.real.ndim and np.isfinite(x[index]).any():
            reached = step[index][np.isfinite(x[index])]
            found[name] = reached.max().item()
    return found

"""How runs print: short, one line for each.

Runs as one table, one below the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logax._logdict.export import free_name, with_utf8_names
from logax._runs.layouts import Key, number_of_arrays
from logax._serialization.trees import Node, children_of
from logax._support.arrays import as_utf8, shape_name
from logax._support.imports import imported

if TYPE_CHECKING:
    from logax._runs.run import Run


_MOST_ROWS = 20
_MOST_KEYS = 30
_WIDEST = 40


def of_runs(path: str, rows: Sequence[Sequence[str]], total: int) -> str:
    """A table of some of the runs: id, name, status, when it began and how long it took."""
    if not total:
        return f"No runs in {path}."
    head = [f"{total} run{'s' if total > 1 else ''} in {path}"]
    titles = ("id", "name", "status", "began", "lasted")
    lines = _aligned([titles, *rows])
    if total > len(rows):
        half = len(rows) // 2 + 1
        lines = [*lines[:half], f"... {total - len(rows)} more", *lines[half:]]
    return "\n".join(head + lines)


def shown(total: int) -> list[int]:
    """Which of so many rows a table shows: the first and the last."""
    if total <= _MOST_ROWS:
        return list(range(total))
    return [*range(_MOST_ROWS // 2), *range(total - _MOST_ROWS // 2, total)]


def row(run: Run) -> list[str]:
    """What a table says of a run."""
    status, began, ended = run.status, run.began, run.ended
    lasted = "" if ended is None else span(ended - began)
    return [run.id, "" if run.name == run.id else run.name, status, moment(began), lasted]


def of_run(run: Run, keys: Sequence[Key]) -> str:
    """A run, and what its keys look like."""
    identity, name, status, began, lasted = row(run)
    called = f" {short(name)}" if name else ""
    took = f", lasted {lasted}" if lasted else ""
    lines = [f"run {identity}{called}: {status}, began {began}{took}"]
    lines += [f"  {short(key.name)}: {form(key)}" for key in keys[:_MOST_KEYS]]
    if len(keys) > _MOST_KEYS:
        lines.append(f"  ... and {len(keys) - _MOST_KEYS} keys more")
    return "\n".join(lines)


def form(key: Key, lanes: int = 0) -> str:
    """What one record of a key is."""
    arrays = iter([shape_name(leaf.kind.name, leaf.shape) for leaf in key.leaves])

    def leaf(show: str) -> str:
        first, *_ = itertools.islice(arrays, number_of_arrays(show))
        return f"{show} of {first}" if show else first

    text = short(_tree(key.outline, map(leaf, key.shows)), 2 * _WIDEST)
    return text + (f" with {lanes} axes of lanes" if lanes else "")


def _tree(node: Node, leaves: Iterator[str]) -> str:
    if node[0] == "leaf":
        return next(leaves)
    if node[0] == "none":
        return "None"
    parts = [(key, _tree(child, leaves)) for key, child in children_of(node)]
    if node[0] in ("dict", "namespace"):
        return "{" + ", ".join(f"{key}: {part}" for key, part in parts) + "}"
    return "(" + ", ".join(part for _, part in parts) + ")"


def short(text: str, most: int = _WIDEST) -> str:
    """A text on one line and not too long, whatever is in it."""
    plain = text if text.isprintable() else repr(text)
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def moment(seconds: float) -> str:
    """A time, in words of the place where one is."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # of a file that says something absurd
        return "?"


def span(seconds: Any) -> str:
    """How long something took."""
    if not 0 <= seconds < 1e9:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[short(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    used = [at for at in range(len(widths)) if any(row[at] for row in cells[1:])]
    return [
        "  " + "  ".join(row[column].ljust(widths[column]) for column in used).rstrip()
        for row in cells
    ]


_SCALARS = (bool, int, float, str)


def table_of(frames: Mapping[Run, Any]) -> Any:
    """The tables of runs as one: see `Runs.to_pandas`."""
    pandas = imported("pandas", "runs.to_pandas()")
    there = {run: frame for run, frame in frames.items() if len(frame)}
    lengths = [len(frame) for frame in there.values()]
    logged = dict.fromkeys(name for frame in there.values() for name in frame)
    table: dict[str, Any] = {}
    for name, values in _known(list(there)).items():
        column = pandas.Series(values, dtype=_type_of(values))
        table[free_name(name, {*logged, *table})] = column.repeat(lengths).array
    for name in logged:
        own = [frame.get(name) for frame in there.values()]
        table[name] = _stacked(own, lengths, pandas).array
    return pandas.DataFrame(with_utf8_names(table))


def _known(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the columns that describe runs: id, name and config; None where a run lacks one."""
    configs = [_flat(run.config, "config") for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    columns = {name: [config.get(name) for config in configs] for name in names}
    return {"run": [run.id for run in runs], "name": [as_utf8(run.name) for run in runs], **columns}


def _flat(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, each in value.items():
            found |= _flat(each, f"{name}/{key}")
        return found
    if type(value) is str:
        return {name: as_utf8(value)}
    return {name: value} if type(value) in _SCALARS else {}


def _type_of(values: Sequence[Any]) -> Any:
    """The type of a column; None where pandas finds it. Integers stay so, though some lack."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if types == {bool}:
        return "bool" if len(known) == len(values) else "boolean"
    if types == {int} and all(-(2**63) <= value < 2**63 for value in known):
        return "int64" if len(known) == len(values) else "Int64"
    return None if types <= {float} or types == {str} else object


def _stacked(columns: Sequence[Any], lengths: Sequence[int], pandas: Any) -> Any:
    """One column below the other, with nothing where a table has none."""
    like = next(column for column in columns if column is not None)
    pairs = zip(columns, lengths, strict=True)
    whole = [_absent(like, n, pandas) if column is None else column for column, n in pairs]
    return pandas.concat(whole, ignore_index=True)


def _absent(like: Any, length: int, pandas: Any) -> Any:
    """As many rows of nothing, of a type that goes with another column."""
    dtype = like.dtype
    if not isinstance(dtype, np.dtype):
        return pandas.Series([None] * length, dtype=dtype)
    if dtype.kind in "fc":
        return pandas.Series(np.full(length, np.nan, dtype))
    if dtype.kind in "iub":
        return pandas.Series([None] * length, dtype=pandas.array(like.to_numpy()).dtype)
    return pandas.Series([None] * length, dtype=object)

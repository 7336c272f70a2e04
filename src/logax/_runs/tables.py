"""Tables of runs: the text that `print(runs)` shows, and one pandas table of all runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logax._logdict.export import free_name, with_utf8_names
from logax._runs.layouts import KeyLayout, number_of_arrays
from logax._serialization.trees import Node, children_of
from logax._support.arrays import replace_surrogates, shape_name
from logax._support.formatting import align_table, format_duration, format_time, truncate
from logax._support.imports import import_optional

if TYPE_CHECKING:
    from logax._runs.run import Run


_MAX_ROWS = 20
_MAX_KEYS = 30
_MAX_CELL_CHARACTERS = 40


def format_runs(path: str, rows: Sequence[Sequence[str]], total: int) -> str:
    """Return a table of some runs: id, name, status, beginning and duration."""
    if not total:
        return f"No runs in {path}."
    head = [f"{total} run{'s' if total > 1 else ''} in {path}"]
    titles = ("id", "name", "status", "began", "lasted")
    lines = _align_cells([titles, *rows])
    if total > len(rows):
        half = len(rows) // 2 + 1
        lines = [*lines[:half], f"... {total - len(rows)} more", *lines[half:]]
    return "\n".join(head + lines)


def visible_rows(total: int) -> list[int]:
    """Return the indices of the rows that a table shows: the first and the last ones."""
    if total <= _MAX_ROWS:
        return list(range(total))
    return [*range(_MAX_ROWS // 2), *range(total - _MAX_ROWS // 2, total)]


def run_cells(run: Run) -> list[str]:
    """Return the cells of a run in a table."""
    status, began, ended = run.status, run.began, run.ended
    lasted = "" if ended is None else format_duration(ended - began)
    return [run.id, "" if run.name == run.id else run.name, status, format_time(began), lasted]


def format_run(run: Run, keys: Sequence[KeyLayout]) -> str:
    """Return a description of a run and its keys."""
    identity, name, status, began, lasted = run_cells(run)
    called = f" {shorten(name)}" if name else ""
    took = f", lasted {lasted}" if lasted else ""
    lines = [f"run {identity}{called}: {status}, began {began}{took}"]
    lines += [f"  {shorten(key.name)}: {describe_key(key)}" for key in keys[:_MAX_KEYS]]
    if len(keys) > _MAX_KEYS:
        lines.append(f"  ... and {len(keys) - _MAX_KEYS} keys more")
    return "\n".join(lines)


def describe_key(key: KeyLayout, lanes: int = 0) -> str:
    """Return a description of one record of a key: dtypes, shapes and tree."""
    arrays = iter([shape_name(leaf.kind.name, leaf.shape) for leaf in key.leaves])

    def leaf(media_kind: str) -> str:
        first, *_ = itertools.islice(arrays, number_of_arrays(media_kind))
        return f"{media_kind} of {first}" if media_kind else first

    text = shorten(_format_tree(key.outline, map(leaf, key.media_kinds)), 2 * _MAX_CELL_CHARACTERS)
    return text + (f" with {lanes} axes of lanes" if lanes else "")


def _format_tree(node: Node, leaves: Iterator[str]) -> str:
    if node[0] == "leaf":
        return next(leaves)
    if node[0] == "none":
        return "None"
    parts = [(key, _format_tree(child, leaves)) for key, child in children_of(node)]
    if node[0] in ("dict", "namespace"):
        return "{" + ", ".join(f"{key}: {part}" for key, part in parts) + "}"
    return "(" + ", ".join(part for _, part in parts) + ")"


def shorten(text: str, max_chars: int = _MAX_CELL_CHARACTERS) -> str:
    """Return a text on one line, at most `max_chars` long; its `repr` if it is not printable."""
    return truncate(text if text.isprintable() else repr(text), max_chars)


def _align_cells(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *cells = [[shorten(cell) for cell in row] for row in rows]
    return [f"  {line}" for line in align_table(header, cells)]


_CONFIG_TYPES = (bool, int, float, str)


def concat_run_tables(frames: Mapping[Run, Any]) -> Any:
    """Stack the tables of runs; see `Runs.to_pandas`."""
    pandas = import_optional("pandas", "runs.to_pandas()")
    there = {run: frame for run, frame in frames.items() if len(frame)}
    lengths = [len(frame) for frame in there.values()]
    logged = dict.fromkeys(name for frame in there.values() for name in frame)
    table: dict[str, Any] = {}
    for name, values in _describe_runs(list(there)).items():
        column = pandas.Series(values, dtype=_column_dtype(values))
        table[free_name(name, {*logged, *table})] = column.repeat(lengths).array
    for name in logged:
        own = [frame.get(name) for frame in there.values()]
        table[name] = _concatenate(own, lengths, pandas).array
    return pandas.DataFrame(with_utf8_names(table))


def _describe_runs(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the columns that describe runs: id, name and config; None if a run lacks one."""
    configs = [_flatten_config(run.config, "config") for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    columns = {name: [config.get(name) for config in configs] for name in names}
    return {
        "run": [run.id for run in runs],
        "name": [replace_surrogates(run.name) for run in runs],
        **columns,
    }


def _flatten_config(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, each in value.items():
            found |= _flatten_config(each, f"{name}/{key}")
        return found
    if type(value) is str:
        return {name: replace_surrogates(value)}
    return {name: value} if type(value) in _CONFIG_TYPES else {}


def _column_dtype(values: Sequence[Any]) -> Any:
    """Return the dtype of a column; None to let pandas choose. Integers stay integers."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if types == {bool}:
        return "bool" if len(known) == len(values) else "boolean"
    if types == {int} and all(-(2**63) <= value < 2**63 for value in known):
        return "int64" if len(known) == len(values) else "Int64"
    return None if types <= {float} or types == {str} else object


def _concatenate(columns: Sequence[Any], lengths: Sequence[int], pandas: Any) -> Any:
    """Stack columns; a table without the column gets missing values."""
    like = next(column for column in columns if column is not None)
    pairs = zip(columns, lengths, strict=True)
    whole = [_missing_values(like, n, pandas) if column is None else column for column, n in pairs]
    return pandas.concat(whole, ignore_index=True)


def _missing_values(like: Any, length: int, pandas: Any) -> Any:
    """Return a column of missing values whose dtype fits another column."""
    dtype = like.dtype
    if not isinstance(dtype, np.dtype):
        return pandas.Series([None] * length, dtype=dtype)
    if dtype.kind in "fc":
        return pandas.Series(np.full(length, np.nan, dtype))
    if dtype.kind in "iub":
        return pandas.Series([None] * length, dtype=pandas.array(like.to_numpy()).dtype)
    return pandas.Series([None] * length, dtype=object)

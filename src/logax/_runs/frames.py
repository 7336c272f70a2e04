"""Runs as one table, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logax._columns.export import free_name, with_utf8_names
from logax._columns.rows import as_utf8
from logax._extras import imported

if TYPE_CHECKING:
    from logax._runs.run import Run

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

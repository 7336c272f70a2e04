"""How a logdict prints: short, one line for each key, never a whole array, never padding.

    loss: 1000 records of float32, last 0.25 at step=999
    grad: 1000 records of {b: float32, w: float32[64]}
    x: 1.0

Where every key has one scalar record it prints like a dictionary, `{'x': 1.0}`. Only what is shown
is fetched, in one go; where there are no numbers to see, under a trace for instance, there are
shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.records import Records
from logax._support.arrays import (
    is_concrete,
    is_key_array,
    is_missing,
    is_tangent,
    leaf_name,
    shape_name,
)

_MOST_KEYS = 30
_MOST_LEAVES = 4
_MOST_ELEMENTS = 4
_SMALL = 1 << 16  # bytes: to fetch so many is cheaper than to compile a program that cuts them


def text(columns: Mapping[str, Records]) -> str:
    """What `print(logs)` shows."""
    shown = dict(list(columns.items())[:_MOST_KEYS])
    counts = jax.device_get({key: _count(records) for key, records in shown.items()})
    wanted = {key: _wanted(records, counts[key]) for key, records in shown.items()}
    fetched = _fetched(wanted)
    lines = {key: _line(key, records, counts[key], fetched[key]) for key, records in shown.items()}
    if all(line.alone for line in lines.values()) and len(columns) == len(shown):
        return f"{{{', '.join(f'{key!r}: {line}' for key, line in lines.items())}}}"
    rows = [f"{key}: {line}" for key, line in lines.items()]
    if len(columns) > len(shown):
        rows.append(f"... and {len(columns) - len(shown)} keys more")
    return "\n".join(rows)


class Line(str):
    """What is said about one key; `alone` if it is nothing but a scalar."""

    alone = False


def _count(records: Records) -> Any:
    """The number of records by lane as far as it can be seen."""
    if not _has_rows(records):
        return None
    count = records.counted()
    return count if is_concrete(count) and not is_tangent(count) else None


def _has_rows(records: Records) -> bool:
    """Whether this is a column at all: a mapped logdict may hold anything."""
    leaves = jax.tree.leaves(records.value)
    return all(hasattr(x, "shape") for x in leaves) and (
        leaves[0].ndim > records.rank if leaves else records.count is not None
    )


def _wanted(records: Records, count: Any) -> dict[str, Any]:
    """The few elements to fetch: of the last record, or of that of each of the first lanes."""
    leaves = jax.tree.leaves(records.value)
    if len(leaves) != 1 or not records.shown() or is_key_array(leaves[0]) or is_tangent(leaves[0]):
        return {}
    (x,) = leaves
    if not _has_rows(records):
        return {"value": _part(x, ())} if x.ndim == 0 else {}
    if count is None:  # all rows can be seen, and not which of them are real
        return {}
    axis, length = records.axis, x.shape[records.axis]
    rows = np.minimum(count, length) - 1
    if np.min(rows, initial=0) < 0 or axis > 1 or records.rank > 1 - axis:
        return {}
    if axis == 1:
        lanes = range(min(x.shape[0], _MOST_ELEMENTS + 1))
        return {"lanes": [_part(x, (lane, int(rows[lane]))) for lane in lanes]}
    row = int(rows)
    steps = {name: _part(s, (row,)) for name, s in records.steps.items() if s.ndim == 1}
    cut = (row, slice(_MOST_ELEMENTS + 1)) if x.ndim == 2 else (row,)
    return {"value": _part(x, cut), "steps": steps}


@dataclasses.dataclass
class _Part:
    """Of an array to fetch, the part to show."""

    array: Array
    index: tuple[Any, ...]


def _part(x: Array, index: tuple[Any, ...]) -> _Part:
    return _Part(x, index) if x.nbytes <= _SMALL else _Part(x[index], ())


def _fetched(wanted: Tree) -> Tree:
    """All parts, their transfers side by side."""
    parts, structure = jax.tree.flatten(wanted)
    arrays = jax.device_get([part.array for part in parts])
    shown = [array[part.index] for part, array in zip(parts, arrays, strict=True)]
    return jax.tree.unflatten(structure, shown)


def _line(key: str, records: Records, count: Any, fetched: dict[str, Any]) -> Line:
    leaves = jax.tree.leaves(records.value)
    if not _has_rows(records):
        line = Line(_number(fetched["value"]) if fetched else _described(key, records, 0))
        line.alone = bool(fetched)
        return line
    axis = records.axis
    only = axis == 0 and count is not None and int(count) == 1
    value = fetched.get("value")
    if value is not None and only:
        line = Line(_elements(value, leaves[0].shape[1:]))
        line.alone = value.ndim == 0
        return line
    said = f"{_how_many(records, count)} of {_described(key, records, axis + 1)}"
    if value is not None:
        said += f", last {_elements(value, leaves[0].shape[1:])}"
    elif "lanes" in fetched:
        said += f", last {_elements(np.stack(fetched['lanes']), leaves[0].shape[:1])}"
    known = {n: s for n, s in fetched.get("steps", {}).items() if not is_missing(np.asarray(s))}
    if known:
        said += " at " + ", ".join(f"{name}={_number(step)}" for name, step in known.items())
    return Line(said)


def _how_many(records: Records, count: Any) -> str:
    length, lanes = records.length, records.lanes
    before = f"{'x'.join(map(str, lanes))} lane{'s' * (math.prod(lanes) != 1)} of " if lanes else ""
    if count is None:
        return f"{before}up to {length} records"
    least, most = int(np.min(count)), int(np.max(count))
    if length is not None and most > length:
        many = f"the last {length} of {most} records"
        return before + (
            many if least == most else f"at most the last {length} of up to {most} records"
        )
    if least < most:
        return f"{before}{least} to {most} records"
    return f"{before}{most or 'no'} record{'s' * (most != 1)}"


def _described(key: str, records: Records, first: int) -> str:
    """The type of one record, whose axes begin at `first`."""
    named = [
        (leaf_name(key, path)[len(key) + 1 :], _type(x, first))
        for path, x in jax.tree_util.tree_leaves_with_path(records.value)
    ]
    if len(named) == 1 and not named[0][0]:
        return named[0][1]
    parts = [f"{name}: {kind}" for name, kind in named[:_MOST_LEAVES]]
    more = [f"{len(named) - _MOST_LEAVES} more"] if len(named) > _MOST_LEAVES else []
    return f"{{{', '.join(parts + more)}}}"


def _type(x: Any, first: int) -> str:
    return shape_name(x.dtype, x.shape[first:]) if hasattr(x, "dtype") else type(x).__name__


def _elements(value: Any, shape: tuple[int, ...]) -> str:
    """A scalar, or the beginning of a vector of this shape."""
    if not shape:
        return _number(value)
    some = value if shape[0] <= _MOST_ELEMENTS else value[: _MOST_ELEMENTS - 1]
    parts = [_brief(x) for x in some] + ["..."] * (len(some) < shape[0])
    return f"[{', '.join(parts)}]"


def _number(x: Any) -> str:
    return str(np.asarray(x)[()])


def _brief(x: Any) -> str:
    return f"{float(x):.4g}" if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else str(x)

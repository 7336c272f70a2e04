"""Format a logdict for printing: one short line per key, never a whole array, never padding.

    loss: 1000 records of float32, last 0.25 at step=999
    grad: 1000 records of {b: float32, w: float32[64]}
    x: 1.0

If every key has one scalar record, a logdict prints like a dictionary, `{'x': 1.0}`. Only the
printed elements are transferred, all of them at once. If the arrays are not concrete, for instance
inside `jit`, shapes are printed instead of numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.records import KeyRecords
from logax._support.arrays import (
    is_concrete,
    is_float0,
    is_key_array,
    is_missing,
    leaf_name,
    shape_name,
)

_MAX_KEYS = 30
_MAX_LEAVES = 4
_MAX_ELEMENTS = 4
# Up to this size, fetching a whole array is cheaper than compiling a program that slices it.
_MAX_WHOLE_FETCH_BYTES = 1 << 16


def format_logdict(columns: Mapping[str, KeyRecords]) -> str:
    """Return the text that `print(logs)` prints."""
    shown = dict(list(columns.items())[:_MAX_KEYS])
    counts = jax.device_get({key: _concrete_count(records) for key, records in shown.items()})
    excerpts = {key: _select_excerpts(records, counts[key]) for key, records in shown.items()}
    fetched = _fetch(excerpts)
    lines = {
        key: _format_key(key, records, counts[key], fetched[key]) for key, records in shown.items()
    }
    if all(line.is_scalar for line in lines.values()) and len(columns) == len(shown):
        return f"{{{', '.join(f'{key!r}: {line}' for key, line in lines.items())}}}"
    rows = [f"{key}: {line}" for key, line in lines.items()]
    if len(columns) > len(shown):
        rows.append(f"... and {len(columns) - len(shown)} more keys")
    return "\n".join(rows)


class KeyLine(str):
    """Text of one key. `is_scalar` is set if it is only the value of a scalar."""

    is_scalar = False


def _concrete_count(records: KeyRecords) -> Any:
    """Return the number of records of each lane, or None if it is not concrete."""
    if not _has_record_axis(records):
        return None
    count = records.total_count()
    return count if is_concrete(count) and not is_float0(count) else None


def _has_record_axis(records: KeyRecords) -> bool:
    """Return whether the value has a record axis.

    `jax.tree.map` may have replaced the arrays by arbitrary objects.
    """
    leaves = jax.tree.leaves(records.value)
    return all(hasattr(x, "shape") for x in leaves) and (
        leaves[0].ndim > records.rank if leaves else records.count is not None
    )


def _select_excerpts(records: KeyRecords, count: Any) -> dict[str, Any]:
    """Select the elements to fetch: the last record, or that of each of the first lanes."""
    leaves = jax.tree.leaves(records.value)
    if (
        len(leaves) != 1
        or not records.has_concrete_arrays()
        or is_key_array(leaves[0])
        or is_float0(leaves[0])
    ):
        return {}
    (x,) = leaves
    if not _has_record_axis(records):
        return {"value": _excerpt(x, ())} if x.ndim == 0 else {}
    if count is None:  # the arrays are concrete, but not the number of real rows
        return {}
    axis, length = records.axis, x.shape[records.axis]
    rows = np.minimum(count, length) - 1
    if np.min(rows, initial=0) < 0 or axis > 1 or records.rank > 1 - axis:
        return {}
    if axis == 1:
        lanes = range(min(x.shape[0], _MAX_ELEMENTS + 1))
        return {"lanes": [_excerpt(x, (lane, int(rows[lane]))) for lane in lanes]}
    row = int(rows)
    steps = {name: _excerpt(s, (row,)) for name, s in records.steps.items() if s.ndim == 1}
    cut = (row, slice(_MAX_ELEMENTS + 1)) if x.ndim == 2 else (row,)
    return {"value": _excerpt(x, cut), "steps": steps}


@dataclasses.dataclass
class _Excerpt:
    """An array to fetch and the index of the part to print."""

    array: Array
    index: tuple[Any, ...]


def _excerpt(x: Array, index: tuple[Any, ...]) -> _Excerpt:
    return _Excerpt(x, index) if x.nbytes <= _MAX_WHOLE_FETCH_BYTES else _Excerpt(x[index], ())


def _fetch(excerpts: Tree) -> Tree:
    """Fetch all excerpts in one batch of transfers."""
    parts, structure = jax.tree.flatten(excerpts)
    arrays = jax.device_get([part.array for part in parts])
    shown = [array[part.index] for part, array in zip(parts, arrays, strict=True)]
    return jax.tree.unflatten(structure, shown)


def _format_key(key: str, records: KeyRecords, count: Any, fetched: dict[str, Any]) -> KeyLine:
    leaves = jax.tree.leaves(records.value)
    if not _has_record_axis(records):
        line = KeyLine(
            _format_number(fetched["value"]) if fetched else _format_type(key, records, 0)
        )
        line.is_scalar = bool(fetched)
        return line
    axis = records.axis
    only = axis == 0 and count is not None and int(count) == 1
    value = fetched.get("value")
    if value is not None and only:
        line = KeyLine(_format_elements(value, leaves[0].shape[1:]))
        line.is_scalar = value.ndim == 0
        return line
    text = f"{_format_count(records, count)} of {_format_type(key, records, axis + 1)}"
    if value is not None:
        text += f", last {_format_elements(value, leaves[0].shape[1:])}"
    elif "lanes" in fetched:
        text += f", last {_format_elements(np.stack(fetched['lanes']), leaves[0].shape[:1])}"
    known = {n: s for n, s in fetched.get("steps", {}).items() if not is_missing(np.asarray(s))}
    if known:
        text += " at " + ", ".join(f"{name}={_format_number(step)}" for name, step in known.items())
    return KeyLine(text)


def _format_count(records: KeyRecords, count: Any) -> str:
    length, lanes = records.length, records.lanes
    before = f"{'x'.join(map(str, lanes))} lane{'s' * (math.prod(lanes) != 1)} of " if lanes else ""
    if count is None:
        return f"{before}up to {length} records"
    low, high = int(np.min(count)), int(np.max(count))
    if length is not None and high > length:
        many = f"the last {length} of {high} records"
        return before + (
            many if low == high else f"at most the last {length} of up to {high} records"
        )
    if low < high:
        return f"{before}{low} to {high} records"
    return f"{before}{high or 'no'} record{'s' * (high != 1)}"


def _format_type(key: str, records: KeyRecords, first: int) -> str:
    """Format the type of one record, whose axes begin at `first`."""
    named = [
        (leaf_name(key, path)[len(key) + 1 :], _leaf_type(x, first))
        for path, x in jax.tree_util.tree_leaves_with_path(records.value)
    ]
    if len(named) == 1 and not named[0][0]:
        return named[0][1]
    parts = [f"{name}: {kind}" for name, kind in named[:_MAX_LEAVES]]
    more = [f"{len(named) - _MAX_LEAVES} more"] if len(named) > _MAX_LEAVES else []
    return f"{{{', '.join(parts + more)}}}"


def _leaf_type(x: Any, first: int) -> str:
    return shape_name(x.dtype, x.shape[first:]) if hasattr(x, "dtype") else type(x).__name__


def _format_elements(value: Any, shape: tuple[int, ...]) -> str:
    """Format a scalar, or the beginning of a vector of this shape."""
    if not shape:
        return _format_number(value)
    some = value if shape[0] <= _MAX_ELEMENTS else value[: _MAX_ELEMENTS - 1]
    parts = [_format_briefly(x) for x in some] + ["..."] * (len(some) < shape[0])
    return f"[{', '.join(parts)}]"


def _format_number(x: Any) -> str:
    return str(np.asarray(x)[()])


def _format_briefly(x: Any) -> str:
    return f"{float(x):.4g}" if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else str(x)

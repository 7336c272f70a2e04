"""Statistics of a batch of records, stored beside its values so that readers can skip the values.

A file stores them as JSON: `{"steps": [[number, first, last], ...], "scalars": [[number, count,
nans, minimum, maximum], ...]}`. The number is the index of the step, or of the array among all
arrays of the layout. The statistics combine all streams of the batch. They omit steps that have a
shape, and arrays other than scalars of real numbers or booleans. `first` and `last` are the minimum
and maximum of the steps that are not missing; null if all are missing. NaNs are counted, and do not
affect minimum and maximum, which are null if all values are NaN. Infinities are the strings "inf"
and "-inf".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from logax._runs.layouts import LogLayout, StoredLeaf
from logax._support.arrays import is_missing

Array = np.ndarray[Any, Any]
Number = int | float


@dataclasses.dataclass(frozen=True)
class ScalarStatistics:
    """Statistics of one scalar leaf in a batch.

    Attributes:
      count: Number of values, NaNs included.
      nans: Number of NaNs.
      minimum: Minimum without NaNs; None if all values are NaN.
      maximum: Maximum without NaNs; None if all values are NaN.
    """

    count: int
    nans: int
    minimum: Number | None
    maximum: Number | None


class StepRange(NamedTuple):
    """First and last step of a batch; None if no record has a step."""

    first: Number | None
    last: Number | None


def is_scalar(leaf: StoredLeaf) -> bool:
    """Return whether a leaf has statistics."""
    dtype = leaf.kind.dtype
    if leaf.shape or leaf.kind.is_key or leaf.kind.extra_axes or dtype.kind in "mM":
        return False
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    return bool(real or dtype == np.bool_)


def statistics_of(
    layout: LogLayout, steps: Sequence[Array], leaves: Sequence[Array], counts: Array | None
) -> str:
    """Return the statistics of a batch, as JSON.

    Args:
      layout: Layout of the batch.
      steps: Array of each step, (streams or 1, records).
      leaves: All arrays of the layout, (streams, records, ...).
      counts: Number of records of each stream; None if all have the same number.
    """
    chosen = [number for number, leaf in enumerate(layout.leaves) if is_scalar(leaf)]
    by_type: dict[np.dtype[Any], list[int]] = {}
    for number in chosen:
        by_type.setdefault(leaves[number].dtype, []).append(number)
    scalars: dict[int, list[Any]] = {}
    for numbers in by_type.values():
        rows = np.stack([_real(leaves[number], counts) for number in numbers])
        scalars |= dict(zip(numbers, _summaries(rows), strict=True))
    ranges = [
        [number, *_range(_real(steps[number], counts))]
        for number, (_, leaf) in enumerate(layout.steps)
        if is_scalar(leaf)
    ]
    content = {"steps": ranges, "scalars": [[number, *scalars[number]] for number in chosen]}
    return json.dumps(content, separators=(",", ":"))


def statistics_from(
    text: str, steps: Sequence[str], leaves: Sequence[str]
) -> tuple[dict[str, StepRange], dict[str, ScalarStatistics]]:
    """Return the ranges of steps and the statistics of scalars, by name.

    Args:
      text: The statistics of a batch.
      steps: Names of the steps of its layout.
      leaves: Names of the arrays of its layout.

    Raises:
      ValueError: The text does not contain statistics.
    """
    try:
        found = json.loads(text)
        ranges = {
            steps[_whole(number)]: StepRange(_value(a), _value(b))
            for number, a, b in found["steps"]
        }
        scalars = {
            leaves[_whole(number)]: ScalarStatistics(
                _whole(count), _whole(nans), _value(low), _value(high)
            )
            for number, count, nans, low, high in found["scalars"]
        }
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError("the statistics of a batch are not valid") from error
    return ranges, scalars


def _whole(number: Any) -> int:
    """Return a number if it is a count, or raise ValueError."""
    if type(number) is not int or number < 0:
        raise ValueError("the statistics of a batch are not valid")
    return number


def _real(x: Array, counts: Array | None) -> Array:
    """Return the values of real records in one row, of a dtype that NumPy can compare."""
    if counts is not None:
        own = counts if len(x) == len(counts) else counts.max(initial=0, keepdims=True)
        x = x[np.arange(x.shape[1]) < own[:, None]]
    flat = x.reshape(-1)
    return flat.astype(np.float32) if flat.dtype.kind == "V" else flat


def _summaries(rows: Array) -> list[list[Any]]:
    """Return count, NaNs, minimum and maximum of each row."""
    count = rows.shape[1]
    if not count:
        return [[0, 0, None, None]] * len(rows)
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(rows, axis=1), np.fmax.reduce(rows, axis=1)
    if rows.dtype.kind == "f":
        nans = np.count_nonzero(np.isnan(rows), axis=1).tolist()
    else:
        nans = [0] * len(rows)
    return [
        [count, number, _plain(a), _plain(b)]
        for number, a, b in zip(nans, low.tolist(), high.tolist(), strict=True)
    ]


def _range(steps: Array) -> list[Any]:
    known = steps[~is_missing(steps)]
    return [_plain(known.min().item()), _plain(known.max().item())] if known.size else [None, None]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else repr(value)
    return int(value) if isinstance(value, bool) else value


def _value(plain: Any) -> Number | None:
    if isinstance(plain, str):
        return float(plain)
    if plain is None or type(plain) in (int, float):
        found: Number | None = plain
        return found
    raise ValueError("the statistics of a batch contain a value that is not a number")

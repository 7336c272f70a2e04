"""Build the records of a key from user input, with errors that name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.records import KeyRecords
from logax._support.arrays import leaf_name, record_ndim
from logax._support.messages import describe_value


def normalize_steps(steps: Any, keys: Iterable[str]) -> dict[str, Mapping[str, Array]]:
    """Return the step columns by step name and key. An array stands for the steps of every key.

    Raises:
      TypeError: `steps` is not a mapping.
    """
    if steps is None:
        return {}
    if not isinstance(steps, Mapping):
        raise TypeError(
            "`logdict` takes as `steps` a mapping from step names to arrays, and got "
            f'{describe_value(steps)}. Write `steps={{"step": array}}`.'
        )
    return {
        name: each if isinstance(each, Mapping) else dict.fromkeys(keys, _as_column(each))
        for name, each in steps.items()
    }


def _as_column(x: Any) -> Array:
    return x if hasattr(x, "ndim") else np.asarray(x)


def make_records(
    key: str,
    value: Tree,
    *,
    steps: dict[str, Array] | None = None,
    count: Array | None = None,
    site: str | tuple[str, ...] | None = None,
    rank: int | None = None,
) -> KeyRecords:
    """Return the records of one key. The arguments are those of `logdict`, for this key.

    Raises:
      TypeError: A leaf is not an array with a record axis.
      ValueError: The arrays differ in their lanes or their number of records.
    """
    _check_leaves(key, value)
    leaves = jax.tree.leaves(value)
    if count is not None and not hasattr(count, "ndim"):
        count = np.asarray(count, np.int32)[()]
    if not leaves and count is None:
        raise ValueError(f"`logdict` needs a `count` for {key!r}, since its value has no arrays.")
    rank = (leaves[0].ndim - 1 if leaves else 0) if rank is None else rank
    columns = {name: _as_column(x) for name, x in (steps or {}).items()}
    records = KeyRecords(
        value, columns, count, (site,) if isinstance(site, str) else site or (), rank
    )
    axis = records.axis
    if records.length is None:
        return records
    rows = (*records.lanes, records.length)
    named = {leaf_name(key, path): x for path, x in jax.tree_util.tree_leaves_with_path(value)}
    named |= {f"the step {name!r} of {key!r}": x for name, x in columns.items()}
    for name, x in named.items():
        if x.shape[: axis + 1] != rows:
            raise ValueError(
                "The arrays of one key of a `logdict` begin with the same lanes and records: those "
                f"of {key!r} with {rows}, and {name} has the shape {x.shape}."
            )
    if count is not None and count.shape != records.lanes:
        raise ValueError(
            f"The `count` of {key!r} has the shape of its lanes, {records.lanes}, and got "
            f"{count.shape}."
        )
    return records


def assign_records(
    key: str, value: Tree, old: KeyRecords | None, lanes: tuple[int, ...]
) -> KeyRecords:
    """Return the records that `logs[key] = value` stores.

    Args:
      key: The key.
      value: Pytree of arrays.
      old: Previous records of the key. If they have the same lanes and number of records, their
        steps, count and sites are kept.
      lanes: Shape of the lanes that the value of a new key must have.
    """
    _check_leaves(key, value)
    leaves = jax.tree.leaves(value)
    if old is not None and old.length is not None:
        rows, axis = (*old.lanes, old.length), old.axis
        if all(x.shape[: axis + 1] == rows for x in leaves) and (leaves or old.count is not None):
            return KeyRecords(value, old.steps, old.count, old.site, record_ndim(value, axis))
    if not leaves:
        raise TypeError(f"`logs[{key!r}] = value` takes arrays, and got {value!r}.")
    axis = len(lanes)
    if leaves[0].shape[:axis] != lanes or leaves[0].ndim == axis:
        raise ValueError(
            f"`logs[{key!r}] = value` takes arrays that begin with the lanes of the other keys, "
            f"{lanes}, and then count records, and got the shape {leaves[0].shape}. To have keys "
            f"without these lanes beside them write `logs | logdict({{{key!r}: value}})`."
        )
    return make_records(key, value, rank=record_ndim(value, axis))


def _check_leaves(key: Any, value: Tree) -> None:
    if not isinstance(key, str):
        raise TypeError(f"A `logdict` has strings as keys, and got {key!r}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if not getattr(leaf, "shape", ()):
            raise TypeError(
                "A `logdict` holds arrays whose axis 0 counts records, and got "
                f"{describe_value(leaf)} for {leaf_name(key, path)!r}. Write one record as "
                "`jnp.asarray([value])`."
            )

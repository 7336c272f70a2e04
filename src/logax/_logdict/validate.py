"""The records of a key from what a user gives, checked so that errors name the key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.records import Records
from logax._support.arrays import leaf_name, record_rank
from logax._support.messages import received


def step_columns(steps: Any, keys: Iterable[str]) -> dict[str, Mapping[str, Array]]:
    """Return the steps by name and key. An array in place of a mapping holds for all keys.

    Raises:
      TypeError: `steps` is not a mapping.
    """
    if steps is None:
        return {}
    if not isinstance(steps, Mapping):
        raise TypeError(
            "`logdict` takes as `steps` a mapping from step names to arrays, and got "
            f'{received(steps)}. Write `steps={{"step": array}}`.'
        )
    return {
        name: each if isinstance(each, Mapping) else dict.fromkeys(keys, _as_column(each))
        for name, each in steps.items()
    }


def _as_column(x: Any) -> Array:
    return x if hasattr(x, "ndim") else np.asarray(x)


def records_of(
    key: str,
    value: Tree,
    *,
    steps: dict[str, Array] | None = None,
    count: Array | None = None,
    site: str | tuple[str, ...] | None = None,
    rank: int | None = None,
) -> Records:
    """The records of one key, as the arguments of `logdict` describe them.

    Raises:
      TypeError: a leaf is no array with a record axis.
      ValueError: its arrays do not agree about lanes and records.
    """
    _check_leaves(key, value)
    leaves = jax.tree.leaves(value)
    if count is not None and not hasattr(count, "ndim"):
        count = np.asarray(count, np.int32)[()]
    if not leaves and count is None:
        raise ValueError(f"`logdict` needs a `count` for {key!r}, since its value has no arrays.")
    rank = (leaves[0].ndim - 1 if leaves else 0) if rank is None else rank
    columns = {name: _as_column(x) for name, x in (steps or {}).items()}
    records = Records(value, columns, count, (site,) if isinstance(site, str) else site or (), rank)
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


def assigned(key: str, value: Tree, old: Records | None, lanes: tuple[int, ...]) -> Records:
    """The records of `logs[key] = value`.

    Args:
      key: Where the value goes.
      value: A pytree of arrays.
      old: What was there. Where it has as many lanes and records, its steps, count and sites stay.
      lanes: Those that a value with nothing before it has.
    """
    _check_leaves(key, value)
    leaves = jax.tree.leaves(value)
    if old is not None and old.length is not None:
        rows, axis = (*old.lanes, old.length), old.axis
        if all(x.shape[: axis + 1] == rows for x in leaves) and (leaves or old.count is not None):
            return Records(value, old.steps, old.count, old.site, record_rank(value, axis))
    if not leaves:
        raise TypeError(f"`logs[{key!r}] = value` takes arrays, and got {value!r}.")
    axis = len(lanes)
    if leaves[0].shape[:axis] != lanes or leaves[0].ndim == axis:
        raise ValueError(
            f"`logs[{key!r}] = value` takes arrays that begin with the lanes of the other keys, "
            f"{lanes}, and then count records, and got the shape {leaves[0].shape}. To have keys "
            f"without these lanes beside them write `logs | logdict({{{key!r}: value}})`."
        )
    return records_of(key, value, rank=record_rank(value, axis))


def _check_leaves(key: Any, value: Tree) -> None:
    if not isinstance(key, str):
        raise TypeError(f"A `logdict` has strings as keys, and got {key!r}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if not getattr(leaf, "shape", ()):
            raise TypeError(
                f"A `logdict` holds arrays whose axis 0 counts records, and got {received(leaf)} "
                f"for {leaf_name(key, path)!r}. Write one record as "
                "`jnp.asarray([value])`."
            )

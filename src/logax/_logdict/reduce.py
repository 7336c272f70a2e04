"""Apply reducers to records that are already arrays: `logs.reduce(...)`.

Inside a program a reducer sees one record after the other. Here all records are available, so they
are split into about sqrt(n) pieces of about sqrt(n) records. The pieces are folded in parallel,
then their states are merged in order: O(sqrt(n)) sequential steps, with memory for the states of
all pieces.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.records import ColumnCache, KeyRecords
from logax._reducers import RecordArrays, ReducerAdapter, as_reducer
from logax._support.arrays import array_module, is_concrete, is_key_array, padding_row, record_ndim

ReducedRecords = tuple[Tree, dict[str, Array], Array | None]


def reduce_key(records: KeyRecords, how: Any, cache: ColumnCache) -> KeyRecords:
    """Reduce the real records of one key.

    Raises:
      TypeError: JAX would narrow the dtype of the values, or a function would see padding.
    """
    _check_width(records)
    if _is_plain_function(how):
        records = _strip_padding(records, cache)
    axis, length, count = records.axis, records.length, records.count
    value, steps = records.value, records.steps
    if length is None:
        return dataclasses.replace(records, count=array_module(count).minimum(count, 1))
    if length == 0:
        value, steps = jax.tree.map(lambda x: padding_row(x, axis), (value, steps))
        count = jnp.zeros(records.lanes, jnp.int32)
    elif count is not None:
        count = records.num_real_rows()
    by_lane = functools.partial(reduce_records, how)
    for _ in range(axis):
        by_lane = jax.vmap(by_lane)
    value, steps, count = by_lane(value, steps, count)
    if isinstance(how, str):  # the kept steps do not depend on the values, so keys share them
        kept, given = (how == "first", id(records.count), length == 0), records.steps
        steps = {name: cache.setdefault((*kept, id(given[name])), steps[name]) for name in given}
        count = cache.setdefault(("count", *kept, records.lanes), count)
    return KeyRecords(value, steps, count, records.site, record_ndim(value, axis))


def reduce_records(
    how: Any, values: Tree, steps: dict[str, Array], count: Array | None
) -> ReducedRecords:
    """Reduce many records to one, or to the few that a reducer keeps.

    Args:
      how: Name of a built-in reducer, a reducer, or a function that maps an array with records
        along axis 0 to one record and is applied to each leaf.
      values: Pytree of arrays with records along axis 0 and at least one row.
      steps: Step columns by name, with the same axis 0.
      count: Number of leading rows that are real; None if all are.

    Returns:
      Values, steps and count of the kept records. The count is None if all rows are real.
    """
    if _is_plain_function(how):
        value = jax.tree.map(lambda x: jnp.asarray(x)[None], jax.tree.map(how, values))
        return value, {name: x[-1:] for name, x in steps.items()}, _clip_to_one(count)
    keeps_records = not isinstance(as_reducer(how), ReducerAdapter)
    has_keys = any(map(is_key_array, jax.tree.leaves(values)))
    if has_keys and not keeps_records and how != "count":
        raise TypeError("`reduce` cannot compute with PRNG keys: use 'first', 'last' or 'count'.")
    # Reducers create zeros of the dtype of a record, which PRNG keys do not support.
    numbers = jax.tree.map(lambda x: jax.random.key_data(x) if is_key_array(x) else x, values)
    value, steps, count = _fold_jitted(how, numbers, steps, count)
    if has_keys and keeps_records:
        value = jax.tree.map(_restore_keys, value, values)
    return value, steps, count


def check_reducer(how: Any) -> None:
    """Raise a `ValueError` unless `reduce_records` accepts `how`."""
    if not _is_plain_function(how):
        as_reducer(how, "a function from an array, records along axis 0, to one record, ")


def _is_plain_function(how: Any) -> bool:
    return callable(how) and not hasattr(how, "start")


def _clip_to_one(count: Array | None) -> Array | None:
    return None if count is None else jnp.minimum(count, 1)


def _restore_keys(x: Array, like: Array) -> Array:
    if is_key_array(like):
        return jax.random.wrap_key_data(x, impl=jax.random.key_impl(like))
    return x


def _check_width(records: KeyRecords) -> None:
    for x in records.arrays:
        if isinstance(x, np.ndarray) and jnp.asarray(x[:0]).dtype != x.dtype:
            raise TypeError(
                f"`logs.reduce` computes with JAX, which would cut {x.dtype.name} to "
                f"{jnp.asarray(x[:0]).dtype.name}. Set `jax_enable_x64`, or cast the values first."
            )


def _strip_padding(records: KeyRecords, cache: ColumnCache) -> KeyRecords:
    if records.count is None or records.length is None:
        return records
    if is_concrete(records.count):
        records = records.compact(cache)
        if records.count is None or bool((records.num_real_rows() == records.length).all()):
            return dataclasses.replace(records, count=None)
    raise TypeError(
        "`logs.reduce` with a function needs records without padding, and here their number is not "
        "known, or differs between lanes. Use one of the names, or a `Reducer`."
    )


def _fold_jitted(
    how: Any, values: Tree, steps: dict[str, Array], count: Array | None
) -> ReducedRecords:
    """Fold the records by a program that is compiled once per hashable reducer."""
    if isinstance(how, Hashable):
        return _fold_cached(how, values, steps, count)  # type: ignore[no-any-return]
    return jax.jit(functools.partial(_fold, how))(values, steps, count)  # type: ignore[no-any-return]


def _fold(how: Any, values: Tree, steps: dict[str, Array], count: Array | None) -> ReducedRecords:
    reducer, records = as_reducer(how), RecordArrays(values, steps)
    rows = len(jax.tree.leaves(records)[0])
    pieces = math.isqrt(rows)
    size = -(-rows // pieces)
    real = jnp.arange(pieces * size) < (rows if count is None else count)
    real = real.reshape(pieces, size)
    start = reducer.start(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], records)))

    def split(x: Array) -> Array:
        padding = jnp.zeros((pieces * size - rows, *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, padding]).reshape(pieces, size, *x.shape[1:])

    def ignore_padding(
        step: Callable[[Tree, Tree], Tree],
    ) -> Callable[[Tree, Any], tuple[Tree, None]]:
        def body(state: Tree, item: Any) -> tuple[Tree, None]:
            given, is_real = item
            new = step(state, given)
            return jax.tree.map(lambda n, o: jnp.where(is_real, n, o), new, state), None

        return body

    def fold(piece: RecordArrays, is_real: Array) -> Tree:
        return jax.lax.scan(ignore_padding(reducer.step), start, (piece, is_real))[0]

    states = jax.vmap(fold)(jax.tree.map(split, records), real)
    first, rest = (jax.tree.map(lambda x, at=at: x[at], states) for at in (0, slice(1, None)))
    state, _ = jax.lax.scan(ignore_padding(reducer.merge), first, (rest, real[1:, 0]))
    kept, kept_count = reducer.finish(state)
    return kept.value, kept.steps, _clip_to_one(count) if kept_count is None else kept_count


_fold_cached = jax.jit(_fold, static_argnums=0)

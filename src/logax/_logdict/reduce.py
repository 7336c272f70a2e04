"""Reducers, applied to records that are already there as arrays: `logs.reduce(...)`.

Inside a program a reducer sees one record after the other. Here all of them are at hand, so they
are cut into about as many pieces as each piece has records: the pieces are folded side by side,
then their states are merged in order. That takes time like the square root of the number of
records, and the states of all pieces as memory.
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
from logax._logdict.records import Records, Share
from logax._reducers import OneValue, Record, as_reducer
from logax._support.arrays import is_concrete, is_key_array, module_of, one_blank_row, record_rank

Reduced = tuple[Tree, dict[str, Array], Array | None]


def reduced(records: Records, how: Any, share: Share) -> Records:
    """What is left of the real records of one key.

    Raises:
      TypeError: JAX would cut these values to fewer bits, or a function would see padding.
    """
    _check_width(records)
    if _is_function(how):
        records = _without_padding(records, share)
    axis, length, count = records.axis, records.length, records.count
    value, steps = records.value, records.steps
    if length is None:
        return dataclasses.replace(records, count=module_of(count).minimum(count, 1))
    if length == 0:
        value, steps = jax.tree.map(lambda x: one_blank_row(x, axis), (value, steps))
        count = jnp.zeros(records.lanes, jnp.int32)
    elif count is not None:
        count = records.real()
    by_lane = functools.partial(reduce_records, how)
    for _ in range(axis):
        by_lane = jax.vmap(by_lane)
    value, steps, count = by_lane(value, steps, count)
    if isinstance(how, str):  # then the values do not decide which record's steps are kept
        kept, given = (how == "first", id(records.count), length == 0), records.steps
        steps = {name: share.setdefault((*kept, id(given[name])), steps[name]) for name in given}
        count = share.setdefault(("count", *kept, records.lanes), count)
    return Records(value, steps, count, records.site, record_rank(value, axis))


def reduce_records(how: Any, values: Tree, steps: dict[str, Array], count: Array | None) -> Reduced:
    """Many records to one, or to the few that a reducer keeps.

    Args:
      how: The name of a built-in reducer, a reducer, or a function from an array, records along
        axis 0, to one record, which is applied to each leaf.
      values: A pytree of arrays, records along axis 0, at least one row.
      steps: By name, arrays with the same axis 0.
      count: How many of the first rows are real, None for all.

    Returns:
      The values, the steps and the count of what is kept. The count is None where all is real.
    """
    if _is_function(how):
        value = jax.tree.map(lambda x: jnp.asarray(x)[None], jax.tree.map(how, values))
        return value, {name: x[-1:] for name, x in steps.items()}, _at_most_one(count)
    chooses = not isinstance(as_reducer(how), OneValue)
    has_keys = any(map(is_key_array, jax.tree.leaves(values)))
    if has_keys and not chooses and how != "count":
        raise TypeError(
            "`reduce` cannot compute with PRNG keys: of these it gives 'first', 'last' and 'count'."
        )
    # PRNG keys go as their numbers, since reducers make zeros of a record's dtype.
    numbers = jax.tree.map(lambda x: jax.random.key_data(x) if is_key_array(x) else x, values)
    value, steps, count = _folded(how, numbers, steps, count)
    if has_keys and chooses:
        value = jax.tree.map(_as_keys, value, values)
    return value, steps, count


def check_reducer(how: Any) -> None:
    """Raise if `how` is nothing that `reduce_records` takes."""
    if not _is_function(how):
        as_reducer(how, "a function from an array, records along axis 0, to one record, ")


def _is_function(how: Any) -> bool:
    return callable(how) and not hasattr(how, "start")


def _at_most_one(count: Array | None) -> Array | None:
    return None if count is None else jnp.minimum(count, 1)


def _as_keys(x: Array, like: Array) -> Array:
    if is_key_array(like):
        return jax.random.wrap_key_data(x, impl=jax.random.key_impl(like))
    return x


def _check_width(records: Records) -> None:
    for x in records.arrays:
        if isinstance(x, np.ndarray) and jnp.asarray(x[:0]).dtype != x.dtype:
            raise TypeError(
                f"`logs.reduce` computes with JAX, which would cut {x.dtype.name} to "
                f"{jnp.asarray(x[:0]).dtype.name}. Set `jax_enable_x64`, or cast the values first."
            )


def _without_padding(records: Records, share: Share) -> Records:
    if records.count is None or records.length is None:
        return records
    if is_concrete(records.count):
        records = records.compacted(share)
        if records.count is None or bool((records.real() == records.length).all()):
            return dataclasses.replace(records, count=None)
    raise TypeError(
        "`logs.reduce` with a function needs records without padding, and here their number is not "
        "known, or differs between lanes. Use one of the names, or a `Reducer`."
    )


def _folded(how: Any, values: Tree, steps: dict[str, Array], count: Array | None) -> Reduced:
    """The records that are kept, by a program that is compiled once for each reducer."""
    if isinstance(how, Hashable):
        return _fold_kept(how, values, steps, count)  # type: ignore[no-any-return]
    return jax.jit(functools.partial(_fold, how))(values, steps, count)  # type: ignore[no-any-return]


def _fold(how: Any, values: Tree, steps: dict[str, Array], count: Array | None) -> Reduced:
    reducer, records = as_reducer(how), Record(values, steps)
    rows = len(jax.tree.leaves(records)[0])
    pieces = math.isqrt(rows)
    size = -(-rows // pieces)
    real = jnp.arange(pieces * size) < (rows if count is None else count)
    real = real.reshape(pieces, size)
    start = reducer.start(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], records)))

    def cut(x: Array) -> Array:
        padding = jnp.zeros((pieces * size - rows, *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, padding]).reshape(pieces, size, *x.shape[1:])

    def gated(step: Callable[[Tree, Tree], Tree]) -> Callable[[Tree, Any], tuple[Tree, None]]:
        def body(state: Tree, item: Any) -> tuple[Tree, None]:
            given, is_real = item
            new = step(state, given)
            return jax.tree.map(lambda n, o: jnp.where(is_real, n, o), new, state), None

        return body

    def fold(piece: Record, is_real: Array) -> Tree:
        return jax.lax.scan(gated(reducer.step), start, (piece, is_real))[0]

    states = jax.vmap(fold)(jax.tree.map(cut, records), real)
    first, rest = (jax.tree.map(lambda x, at=at: x[at], states) for at in (0, slice(1, None)))
    state, _ = jax.lax.scan(gated(reducer.merge), first, (rest, real[1:, 0]))
    kept, kept_count = reducer.finish(state)
    return kept.value, kept.steps, _at_most_one(count) if kept_count is None else kept_count


_fold_kept = jax.jit(_fold, static_argnums=0)

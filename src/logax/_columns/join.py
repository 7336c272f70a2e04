"""The records of one key, followed by later ones of the same key: `a + b`."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.records import Records, Share, once
from logax._columns.rows import (
    is_concrete,
    is_key_array,
    missing_rows,
    module_of,
    shape_name,
    take_rows,
)
from logax._compat import Array


def joined(first: Records, later: Records, share: Share) -> Records:
    """These records, then those.

    The count of the result is the number of rows it holds. Padding goes to the end, and where the
    counts can be seen it is cut off.

    Raises:
      ValueError: the two do not fit together. The message lacks the key.
    """
    _check_fit(first, later)
    axis, rows, more = first.axis, first.length, later.length
    site = tuple(dict.fromkeys((*first.site, *later.site)))
    count = None
    if first.count is not None or later.count is not None:
        counts = ("count", id(first.count), id(later.count), rows, more)
        count = once(share, counts, lambda: first.real() + later.real())
    if rows is None or more is None:
        return dataclasses.replace(first, count=count, site=site)
    index = _index_without_gap(first.real(), rows, more) if first.count is not None else None

    def join(one: Array, two: Array) -> Array:
        both = _concatenated(one, two, axis)
        return both if index is None else take_rows(both, index, axis)

    def column(name: str) -> Array:
        one, two = first.steps.get(name), later.steps.get(name)
        if one is None:
            one = missing_rows(two, rows, axis)
        if two is None:
            two = missing_rows(one, more, axis)
        return join(one, two)

    steps = {}
    for name in dict.fromkeys((*first.steps, *later.steps)):
        parts = (first.steps.get(name), later.steps.get(name), first.count)
        identity = (*map(id, parts), rows, more, first.lanes)
        steps[name] = once(share, identity, functools.partial(column, name))
    value = jax.tree.map(join, first.value, later.value)
    result = Records(value, steps, count, site, first.rank)
    return result.compacted(share) if count is not None and is_concrete(count) else result


def _index_without_gap(real: Array, rows: int, more: int) -> Array:
    """Where each row comes from, so that the padding of the first part goes to the end."""
    xp, real = module_of(real), real[..., None]
    number = xp.arange(rows + more)
    return xp.minimum(xp.where(number < real, number, number - real + rows), rows + more - 1)


def _check_fit(first: Records, later: Records) -> None:
    one, two = (str(jax.tree.structure(x.value)) for x in (first, later))
    if one != two:
        raise ValueError(f"one has the structure {one}, the other {two}.")
    if first.lanes != later.lanes:
        raise ValueError(f"one has lanes of shape {first.lanes}, the other {later.lanes}.")
    if (first.length is None) != (later.length is None):
        raise ValueError("one has arrays or steps, the other has not.")
    pairs = zip(jax.tree.leaves(first.value), jax.tree.leaves(later.value), strict=True)
    named = [("a record", one, two) for one, two in pairs]
    common = first.steps.keys() & later.steps.keys()
    named += [(f"the step {name!r}", first.steps[name], later.steps[name]) for name in common]
    for what, a, b in named:
        this, that = (shape_name(x.dtype, x.shape[first.axis + 1 :]) for x in (a, b))
        if this != that:
            raise ValueError(f"{what} is {this} in one and {that} in the other.")


def _concatenated(one: Array, two: Array, axis: int) -> Array:
    """Both, one after the other. Small ones on the host: JAX would compile for each new length."""
    module = module_of(one, two)
    small = module is jnp and all(
        is_concrete(x) and not is_key_array(x) and x.size * x.dtype.itemsize < 2**20
        for x in (one, two)
    )
    if small:
        return jnp.asarray(np.concatenate([np.asarray(one), np.asarray(two)], axis))
    return module.concatenate([one, two], axis=axis)

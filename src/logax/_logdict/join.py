"""Join the records of one key of several logdicts, in order: `a + b` and `concat`.

NumPy joins concrete arrays on the host, because JAX would compile a program for each new length;
the result is put back on the device, and with the sharding, of the first array. JAX joins
everything else: tracers, arrays that span processes, and arrays whose record axis is sharded.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Array, is_outside_traces
from logax._logdict.records import ColumnCache, KeyRecords, compute_once
from logax._support.arrays import (
    array_module,
    is_concrete,
    is_key_array,
    missing_rows,
    shape_name,
    take_rows,
)

Join = Callable[[Sequence[Array]], Array]


def join_records(parts: Sequence[KeyRecords], cache: ColumnCache) -> KeyRecords:
    """Join the records of several parts, in order. `validate_compatible` must have accepted them.

    The count of the result is its number of real rows. Padding moves to the end, and is cut off if
    the counts are concrete.
    """
    first = parts[0]
    site = tuple(dict.fromkeys(site for part in parts for site in part.site))
    counts = [part.count for part in parts]
    lengths = [part.length or 0 for part in parts]
    leaves = [*zip(*(part.flat[0] for part in parts), strict=True)]
    names = dict.fromkeys(name for part in parts for name in part.steps)
    columns = {name: [part.steps.get(name) for part in parts] for name in names}
    on_host = all(
        compute_once(
            cache, ("host", *map(id, x)), functools.partial(_can_join_on_host, x, first.axis)
        )
        for x in (*leaves, *columns.values(), counts)
    )
    # Keys that share a column or a count share the joined one.
    identity = (on_host, *lengths, *map(id, counts))
    total = None
    if any(count is not None for count in counts):
        total = compute_once(cache, ("count", *identity), lambda: _total_rows(parts, on_host))
    if first.length is None:
        return dataclasses.replace(first, count=total, site=site)
    join = _host_join(parts, total) if on_host else _device_join(parts, total)

    def join_steps(column: list[Array | None]) -> Array:
        like = next(x for x in column if x is not None)
        like = np.asarray(like) if on_host else like
        return join(
            [
                missing_rows(like, length, first.axis) if x is None else x
                for x, length in zip(column, lengths, strict=True)
            ]
        )

    steps = {
        name: compute_once(
            cache, (*identity, *map(id, column)), functools.partial(join_steps, column)
        )
        for name, column in columns.items()
    }
    value = jax.tree.unflatten(first.flat[1], map(join, leaves))
    result = KeyRecords(value, steps, total, site, first.rank)
    return result.compact(cache) if total is not None and is_concrete(total) else result


class IncompatibleRecordsError(ValueError):
    """Records cannot be joined.

    Attributes:
      parts: Numbers of the two parts that differ.
    """

    def __init__(self, why: str, one: int, other: int) -> None:
        super().__init__(why)
        self.parts = (one, other)


def validate_compatible(parts: Mapping[int, KeyRecords]) -> None:
    """Raise `IncompatibleRecordsError` unless all parts, by number, can be joined."""
    (first, model), *others = parts.items()
    axis, expected = model.axis, _signature(model)
    steps = {name: (_type(x, axis), first) for name, x in model.steps.items()}
    for number, part in others:
        if _signature(part) != expected:
            raise IncompatibleRecordsError(_describe_difference(model, part), first, number)
        for name, x in part.steps.items():
            own = _type(x, axis)
            known, earlier = steps.setdefault(name, (own, number))
            if own != known:
                raise IncompatibleRecordsError(
                    _describe_type_difference(f"the step {name!r}", known, own), earlier, number
                )


def _signature(records: KeyRecords) -> tuple[Any, ...]:
    """Return a value that is equal for records that can be joined, apart from their steps."""
    leaves, structure = records.flat
    types = [_type(x, records.axis) for x in leaves]
    return types, records.lanes, bool(leaves) or records.length is None, str(structure)


def _type(x: Array, axis: int) -> tuple[Any, Any]:
    """Return the dtype and the shape of one record."""
    return x.dtype, x.shape[axis + 1 :]


def _describe_difference(first: KeyRecords, later: KeyRecords) -> str:
    one, two = (str(x.flat[1]) for x in (first, later))
    if one != two:
        return f"one has the structure {one}, the other {two}."
    if first.lanes != later.lanes:
        this, that = (_describe_axes(x) for x in (first, later))
        return f"one has {this}, the other {that}. Only records of the same lanes can be joined."
    if (first.length is None) != (later.length is None):
        return "one has arrays or steps, the other has neither."
    pairs = zip(first.flat[0], later.flat[0], strict=True)
    types = ([_type(x, first.axis) for x in pair] for pair in pairs)
    return _describe_type_difference("a record", *next((a, b) for a, b in types if a != b))


def _describe_axes(records: KeyRecords) -> str:
    shapes = [x.shape for x in records.flat[0]][:1]
    of = f" in an array of shape {shapes[0]}" if shapes else ""
    return f"lanes of shape {records.lanes} and records of rank {records.rank}{of}"


def _describe_type_difference(what: str, one: tuple[Any, Any], two: tuple[Any, Any]) -> str:
    return f"{what} is {shape_name(*one)} in one and {shape_name(*two)} in the other."


def _total_rows(parts: Sequence[KeyRecords], on_host: bool) -> Array:
    """Return the number of real rows of all parts, for each lane."""
    if not on_host:
        return functools.reduce(operator.add, [part.num_real_rows() for part in parts])
    real = np.stack([part.num_real_rows_on_host() for part in parts])
    return _put_back(real.sum(0, dtype=real.dtype), [part.count for part in parts])


# Join on the host.


def _can_join_on_host(column: Sequence[Array | None], axis: int) -> bool:
    on_devices: list[Array] = [x for x in column if not _is_on_host(x)]
    if not on_devices:
        return True
    first = on_devices[0]
    return (
        is_outside_traces()
        and is_concrete(first)
        and _can_grow(first, axis)
        and all(
            # Usually all share one sharding, and this check is cheaper than `is_concrete`.
            (type(x) is type(first) and x.sharding is first.sharding and not x.is_deleted())
            or is_concrete(x)
            for x in on_devices
        )
    )


def _is_on_host(x: Array | None) -> bool:
    return x is None or isinstance(x, (np.ndarray, np.generic))


def _can_grow(x: Array, axis: int) -> bool:
    """Return whether an array of more rows can have the sharding and the dtype of `x`."""
    sharding = x.sharding
    if len(sharding.device_set) > 1 and x.ndim > axis:
        is_named = isinstance(sharding, jax.sharding.NamedSharding)
        if not (is_named and sharding.shard_shape(x.shape)[axis] == x.shape[axis]):
            return False
    # `device_put` narrows 64-bit arrays outside of `jax_enable_x64`.
    return is_key_array(x) or bool(jax.dtypes.canonicalize_dtype(x.dtype) == x.dtype)


def _host_join(parts: Sequence[KeyRecords], total: Array | None) -> Join:
    axis = parts[0].axis
    if total is None:
        return lambda arrays: _put_back(np.concatenate(_fetch(arrays), axis), arrays)
    total = np.asarray(total)[..., None]
    kept = np.arange(total.max(initial=0)) < total
    real = np.concatenate(
        [np.arange(part.length or 0) < part.num_real_rows_on_host()[..., None] for part in parts],
        axis=-1,
    )

    def join(arrays: Sequence[Array]) -> Array:
        padded = np.concatenate(_fetch(arrays), axis)
        rows = np.zeros((*kept.shape, *padded.shape[axis + 1 :]), padded.dtype)
        # Both masks select row by row within each lane, so the rows stay in order.
        rows[kept] = padded[real]
        return _put_back(rows, arrays)

    return join


def _fetch(arrays: Sequence[Array]) -> list[Any]:
    if is_key_array(arrays[0]):
        arrays = [jax.random.key_data(x) for x in arrays]
    like = _first_on_device(arrays)
    platforms = set() if like is None else {device.platform for device in like.devices()}
    if platforms - {"cpu"}:  # pragma: no cover - needs an accelerator
        for x in arrays:  # start all copies before waiting for the first
            if not _is_on_host(x):
                x.copy_to_host_async()
    return [np.asarray(x) for x in arrays]


def _first_on_device(arrays: Sequence[Array | None]) -> Array | None:
    return next((x for x in arrays if not _is_on_host(x)), None)


def _put_back(x: Any, arrays: Sequence[Any]) -> Array:
    """Put a NumPy array where the first of `arrays` on a device is; without one, return it."""
    like = _first_on_device(arrays)
    if like is None:
        return x
    data = jax.random.key_data(like) if is_key_array(like) else like
    if data.committed or len(data.devices()) > 1:
        on_device = jax.device_put(x, data.sharding)
    else:  # uncommitted, as the first array is
        with jax.default_device(*data.devices()):
            on_device = jax.device_put(x)
    if data is like:
        return on_device
    return jax.random.wrap_key_data(on_device, impl=jax.random.key_impl(like))


# Join by JAX.


def _device_join(parts: Sequence[KeyRecords], total: Array | None) -> Join:
    axis = parts[0].axis
    index = None if total is None else _index_without_gaps(parts)

    def join(arrays: Sequence[Array]) -> Array:
        padded = array_module(*arrays).concatenate(arrays, axis=axis)
        return padded if index is None else take_rows(padded, index, axis)

    return join


def _index_without_gaps(parts: Sequence[KeyRecords]) -> Array | None:
    """Return the source of each row, such that padding comes last; None if no row moves."""
    rows = sum(part.length or 0 for part in parts)
    real = [part.num_real_rows() for part in parts]
    xp = array_module(*real)
    number = index = xp.arange(rows)
    end: Array = 0
    for part, own in zip(parts[:-1], real[:-1], strict=True):
        end = end + own
        if part.count is not None:
            padding = part.length - own
            index = index + xp.where(number >= end[..., None], padding[..., None], 0)
    return None if index is number else xp.minimum(index, rows - 1)

"""The records of one key of a logdict: arrays with a record axis, steps, count and sites.

In every array the lanes come first, then the record axis, then the axes of one record. A step
column may have further axes after the record axis too.

`count` is the number of records that were logged, or None if all rows are real. Otherwise the real
rows are the first `min(count, length)`. The remaining rows are padding; if `count` exceeds the
length, a ring kept only the last records and all rows are real.

All methods work on JAX arrays, on tracers and on NumPy arrays, which stay NumPy arrays; methods
that need concrete numbers document it. Keys that one `log` call logged share their step columns.
Callers that process several keys pass the same `ColumnCache` to each call, so shared columns stay
shared.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from logax._compat import Array, Tree
from logax._support.arrays import (
    array_module,
    is_concrete,
    is_float0,
    is_key_array,
    leaf_name,
    missing_value,
    record_ndim,
    take_rows,
)

# Results by the identities of the arrays that they were computed from.
ColumnCache: TypeAlias = dict[tuple[Any, ...], Any]


@dataclasses.dataclass(frozen=True)
class KeyRecords:
    """All records of one key.

    Attributes:
      value: Pytree of arrays with a record axis.
      steps: Step columns by step name.
      count: Number of records that were logged, for each lane; None if all rows are real.
      site: File and line of each call that logged the key.
      rank: Rank of one record of the first leaf, which locates the record axis.
    """

    value: Tree
    steps: dict[str, Array]
    count: Array | None
    site: tuple[str, ...]
    rank: int

    @functools.cached_property
    def flat(self) -> tuple[list[Array], Any]:
        """Leaves of the value, and its tree structure."""
        return jax.tree.flatten(self.value)

    @property
    def arrays(self) -> list[Array]:
        """All arrays with a record axis: the leaves, then the step columns."""
        return [*self.flat[0], *self.steps.values()]

    @functools.cached_property
    def axis(self) -> int:
        """Index of the record axis, which equals the number of lane axes."""
        leaves, _ = self.flat
        axis: int = leaves[0].ndim - 1 - self.rank if leaves else self.total_count().ndim
        if axis < 0:
            raise ValueError(
                f"Values of shape {leaves[0].shape} have lost their record axis here: they are one "
                "record and no column. Use the values themselves."
            )
        return axis

    @property
    def lanes(self) -> tuple[int, ...]:
        """Shape of the lanes, () without lanes."""
        leaves, _ = self.flat
        first = leaves[0] if leaves else (*self.steps.values(), self.count)[0]
        return tuple(first.shape[: self.axis])

    @property
    def length(self) -> int | None:
        """Number of rows, real or padding; None if no array has a record axis."""
        first = self.flat[0] or [*self.steps.values()]
        return first[0].shape[self.axis] if first else None

    @property
    def shared_identity(self) -> tuple[Any, ...]:
        """Value that is equal for keys with the same step arrays, count array, length and sites.

        It holds `id`s, so compare it only while these arrays are alive.
        """
        steps = tuple((name, id(step)) for name, step in self.steps.items())
        return steps, id(self.count), self.length, self.site

    def total_count(self) -> Array:
        """Return the number of records that were logged, with the shape of the lanes."""
        if self.count is not None:
            return self.count
        return np.full(self.lanes, self.length, np.int32)[()]

    def num_real_rows(self) -> Array:
        """Return the number of real rows, with the shape of the lanes.

        Raises:
          TypeError: The count is a tangent, which holds no number.
        """
        count, length = self.total_count(), self.length
        if is_float0(count):
            raise TypeError(
                "This `logdict` is a tangent, and the tangent of a count does not say how many "
                "records there are. Give it the steps and counts of the logdict that it belongs "
                "to: `logdict(tangent, steps=logs.steps, count=logs.count)`."
            )
        return count if length is None else array_module(count).minimum(count, length)

    def num_real_rows_on_host(self) -> Any:
        """Return `num_real_rows()` computed by NumPy. Requires a concrete count."""
        count = None if self.count is None else np.asarray(self.count)
        return np.asarray(dataclasses.replace(self, count=count).num_real_rows())

    def has_concrete_count(self) -> bool:
        """Return whether the number of real rows is concrete."""
        return self.count is None or is_concrete(self.count)

    def has_concrete_arrays(self) -> bool:
        """Return whether every array, and the count, is concrete."""
        return self.has_concrete_count() and all(map(is_concrete, self.arrays))

    def last(self) -> Tree:
        """Return the last real record. Lanes without records hold NaN or the missing-step value.

        Raises:
          IndexError: The count is concrete and there is no record.
        """
        axis, before = self.axis, (slice(None),) * self.axis
        real = self.num_real_rows()
        if self.length == 0 or (is_concrete(real) and not np.any(np.asarray(real))):
            raise IndexError("There is no last record, because there is no record.")
        if self.count is None:
            return jax.tree.map(lambda x: x[(*before, -1)], self.value)
        xp = array_module(real)
        index = xp.maximum(real - 1, 0)[..., None]

        def last(x: Array) -> Array:
            row = take_rows(x, index, axis)[(*before, 0)]
            if is_key_array(row):
                return row
            some = xp.reshape(real > 0, np.shape(real) + (1,) * (row.ndim - axis))
            return array_module(row, some).where(some, row, missing_value(row.dtype))

        return jax.tree.map(last, self.value)

    def slice_rows(self, rows: slice, cache: ColumnCache) -> KeyRecords:
        """Apply a Python slice to the real rows of each lane."""
        start, stop, stride = rows.start, rows.stop, rows.step or 1
        axis, length, before = self.axis, self.length, (slice(None),) * self.axis
        if self.count is None:
            return self._map_arrays(lambda x: x[(*before, rows)], cache, axis)
        real = self.num_real_rows()
        xp = array_module(real)

        def bound(x: int | None, default: Array) -> Array:
            if x is None:
                return default
            return xp.minimum(x, real) if x >= 0 else xp.maximum(real + x, 0)

        first = bound(start, xp.zeros_like(real))
        left = xp.maximum(-((first - bound(stop, real)) // stride), 0).astype(real.dtype)
        count = compute_once(cache, ("count", id(self.count), length), lambda: left)
        if length is None:
            return dataclasses.replace(self, count=count)
        # Between these numbers of real rows the number of selected rows is linear, so its maximum
        # is at one of them.
        corners = {min(abs(x), length) for x in (0, length, start or 0, stop or 0)}
        most = max(len(range(length)[:real_rows][rows]) for real_rows in corners)
        if start is None or start >= 0:
            end = (start or 0) + most * stride
            cut = (*before, slice(start, end, stride))
            kept = self._map_arrays(lambda x: x[cut], cache, id(self.count))
        else:
            index = xp.clip(first[..., None] + xp.arange(most) * stride, 0, max(length - 1, 0))
            kept = self._map_arrays(lambda x: take_rows(x, index, axis), cache, id(self.count))
        return dataclasses.replace(kept, count=count)

    def compact(self, cache: ColumnCache) -> KeyRecords:
        """Cut the padding after the longest lane. Requires a concrete count."""
        if self.count is None or self.length is None:
            return self
        count, before = np.asarray(self.count), (slice(None),) * self.axis
        rows = int(self.num_real_rows_on_host().max(initial=0))
        cut = self
        if rows < self.length:
            cut = self._map_arrays(lambda x: x[(*before, slice(rows))], cache, ("cut", rows))
        exact = bool((count == rows).all()) and bool(jax.tree.leaves(self.value))
        return dataclasses.replace(cut, count=None) if exact else cut

    def is_equal(self, other: KeyRecords) -> bool:
        """Compare with other compact records; NaN equals NaN. Requires concrete arrays."""
        if str(jax.tree.structure(self.value)) != str(jax.tree.structure(other.value)):
            return False
        if self.axis != other.axis or list(self.steps) != list(other.steps):
            return False
        mine, those = ([*x.arrays, x.total_count()] for x in (self, other))
        return all(
            a.dtype == b.dtype and _same(a, b, self) for a, b in zip(mine, those, strict=True)
        )

    def select_leaves(self, key: str, chosen: Callable[[str], bool]) -> KeyRecords:
        """Replace the leaves whose names `chosen` rejects by None."""
        axis = self.axis
        value = jax.tree_util.tree_map_with_path(
            lambda path, x: x if chosen(leaf_name(key, path)) else None, self.value
        )
        count = self.count if jax.tree.leaves(value) else self.total_count()
        return dataclasses.replace(self, value=value, rank=record_ndim(value, axis), count=count)

    def _map_arrays(
        self, function: Callable[[Array], Array], cache: ColumnCache, how: Any
    ) -> KeyRecords:
        """Apply a function to all arrays.

        Args:
          function: The function.
          cache: Results for step columns that other keys share.
          how: Identifies what the function does, as part of the key of the cache.
        """
        value = jax.tree.map(function, self.value)
        steps = {
            name: compute_once(cache, (id(x), how), functools.partial(function, x))
            for name, x in self.steps.items()
        }
        return dataclasses.replace(self, value=value, steps=steps)


def compute_once(cache: ColumnCache, identity: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """Return the cached result for an identity, calling `make` if there is none."""
    if identity not in cache:
        cache[identity] = make()
    return cache[identity]


def _same(a: Array, b: Array, records: KeyRecords) -> bool:
    """Return whether two arrays are equal apart from padding."""
    if is_key_array(a):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    same = (a == b) | ((a != a) & (b != b))  # NaN equals NaN here
    if a.ndim <= records.axis:
        return bool(same.all())
    padding = np.arange(a.shape[records.axis]) >= np.asarray(records.num_real_rows())[..., None]
    return bool((same | padding.reshape(padding.shape + (1,) * (a.ndim - padding.ndim))).all())

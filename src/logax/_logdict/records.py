"""The records of one key, and what can be done along their record axis.

A `Records` holds a pytree of arrays, its step columns, its count, and the sites that logged it. In
every array the lanes come first, then the record axis, then the axes of one record; a step column
may have axes of its own after the record axis too.

`count` says how many records there were. Where it is None all rows are real. Otherwise the real
rows are the first `min(count, length)`: fewer than there are where the rest is padding, all of them
where a ring kept only the last ones and its count went on.

Everything works on JAX arrays, on tracers and on NumPy arrays, which stay NumPy arrays; what needs
to see numbers says so. Keys that were logged by one call share their step columns: whoever works on
several keys passes one `Share`, and what was one array before is one array after.
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
    blank,
    is_concrete,
    is_key_array,
    is_tangent,
    leaf_name,
    module_of,
    record_rank,
    take_rows,
)

Share: TypeAlias = dict[tuple[Any, ...], Any]


@dataclasses.dataclass(frozen=True)
class Records:
    """All records of one key."""

    value: Tree
    steps: dict[str, Array]
    count: Array | None
    site: tuple[str, ...]
    rank: int

    @functools.cached_property
    def flat(self) -> tuple[list[Array], Any]:
        """The leaves of the value and its structure."""
        return jax.tree.flatten(self.value)

    @property
    def arrays(self) -> list[Array]:
        """All that has a record axis."""
        return [*self.flat[0], *self.steps.values()]

    @functools.cached_property
    def axis(self) -> int:
        """The record axis, which is also the number of lane axes."""
        leaves, _ = self.flat
        axis: int = leaves[0].ndim - 1 - self.rank if leaves else self.counted().ndim
        if axis < 0:
            raise ValueError(
                f"Values of shape {leaves[0].shape} have lost their record axis here: they are one "
                "record and no column. Use the values themselves."
            )
        return axis

    @property
    def lanes(self) -> tuple[int, ...]:
        """The shape of the lanes, () where there are none."""
        leaves, _ = self.flat
        first = leaves[0] if leaves else (*self.steps.values(), self.count)[0]
        return tuple(first.shape[: self.axis])

    @property
    def length(self) -> int | None:
        """How many rows there are, real or not. None where nothing has a row."""
        first = self.flat[0] or [*self.steps.values()]
        return first[0].shape[self.axis] if first else None

    @property
    def common(self) -> tuple[Any, ...]:
        """What keys share whose records belong together: the same arrays of steps and counts.

        As long as these live, it is equal for those keys only.
        """
        steps = tuple((name, id(step)) for name, step in self.steps.items())
        return steps, id(self.count), self.length, self.site

    def counted(self) -> Array:
        """How many records there were, with the shape of the lanes."""
        if self.count is not None:
            return self.count
        return np.full(self.lanes, self.length, np.int32)[()]

    def real(self) -> Array:
        """How many rows are real, with the shape of the lanes.

        Raises:
          TypeError: the count is a tangent, which does not say it.
        """
        count, length = self.counted(), self.length
        if is_tangent(count):
            raise TypeError(
                "This `logdict` is a tangent, and the tangent of a count does not say how many "
                "records there are. Give it the steps and counts of the logdict that it belongs "
                "to: `logdict(tangent, steps=logs.steps, count=logs.count)`."
            )
        return count if length is None else module_of(count).minimum(count, length)

    def real_on_host(self) -> Any:
        """Return `real()` as a NumPy array, computed without JAX. Needs to see the count."""
        count = None if self.count is None else np.asarray(self.count)
        return np.asarray(dataclasses.replace(self, count=count).real())

    def counts_shown(self) -> bool:
        """Whether it can be seen here how many rows are real."""
        return self.count is None or is_concrete(self.count)

    def shown(self) -> bool:
        """Whether the numbers of every array can be seen here."""
        return self.counts_shown() and all(map(is_concrete, self.arrays))

    def last(self) -> Tree:
        """The last real record. A lane that has none gives NaN, or what stands for no step.

        Raises:
          IndexError: there is no record, as far as can be seen here.
        """
        axis, before = self.axis, (slice(None),) * self.axis
        real = self.real()
        if self.length == 0 or (is_concrete(real) and not np.any(np.asarray(real))):
            raise IndexError("There is no last record, because there is no record.")
        if self.count is None:
            return jax.tree.map(lambda x: x[(*before, -1)], self.value)
        xp = module_of(real)
        index = xp.maximum(real - 1, 0)[..., None]

        def last(x: Array) -> Array:
            row = take_rows(x, index, axis)[(*before, 0)]
            if is_key_array(row):
                return row
            some = xp.reshape(real > 0, np.shape(real) + (1,) * (row.ndim - axis))
            return module_of(row, some).where(some, row, blank(row.dtype))

        return jax.tree.map(last, self.value)

    def window(self, rows: slice, share: Share) -> Records:
        """The real rows that a Python slice of them gives, counted from the first kept one."""
        start, stop, stride = rows.start, rows.stop, rows.step or 1
        axis, length, before = self.axis, self.length, (slice(None),) * self.axis
        if self.count is None:
            return self._mapped(lambda x: x[(*before, rows)], share, axis)
        real = self.real()
        xp = module_of(real)

        def bound(x: int | None, default: Array) -> Array:
            if x is None:
                return default
            return xp.minimum(x, real) if x >= 0 else xp.maximum(real + x, 0)

        first = bound(start, xp.zeros_like(real))
        left = xp.maximum(-((first - bound(stop, real)) // stride), 0).astype(real.dtype)
        count = once(share, ("count", id(self.count), length), lambda: left)
        if length is None:
            return dataclasses.replace(self, count=count)
        # The length of the window is linear in the number of real rows between these.
        corners = {min(abs(x), length) for x in (0, length, start or 0, stop or 0)}
        most = max(len(range(length)[:real_rows][rows]) for real_rows in corners)
        if start is None or start >= 0:
            end = (start or 0) + most * stride
            cut = (*before, slice(start, end, stride))
            kept = self._mapped(lambda x: x[cut], share, id(self.count))
        else:
            index = xp.clip(first[..., None] + xp.arange(most) * stride, 0, max(length - 1, 0))
            kept = self._mapped(lambda x: take_rows(x, index, axis), share, id(self.count))
        return dataclasses.replace(kept, count=count)

    def compacted(self, share: Share) -> Records:
        """Without padding after the longest lane. Needs to see the count."""
        if self.count is None or self.length is None:
            return self
        count, before = np.asarray(self.count), (slice(None),) * self.axis
        rows = int(self.real_on_host().max(initial=0))
        cut = self
        if rows < self.length:
            cut = self._mapped(lambda x: x[(*before, slice(rows))], share, ("cut", rows))
        exact = bool((count == rows).all()) and bool(jax.tree.leaves(self.value))
        return dataclasses.replace(cut, count=None) if exact else cut

    def equal(self, other: Records) -> bool:
        """Whether two without padding are the same, NaN like NaN. Needs to see the numbers."""
        if str(jax.tree.structure(self.value)) != str(jax.tree.structure(other.value)):
            return False
        if self.axis != other.axis or list(self.steps) != list(other.steps):
            return False
        mine, those = ([*x.arrays, x.counted()] for x in (self, other))
        return all(
            a.dtype == b.dtype and _same(a, b, self) for a, b in zip(mine, those, strict=True)
        )

    def only(self, key: str, chosen: Callable[[str], bool]) -> Records:
        """With None in place of the leaves whose name is not chosen."""
        axis = self.axis
        value = jax.tree_util.tree_map_with_path(
            lambda path, x: x if chosen(leaf_name(key, path)) else None, self.value
        )
        count = self.count if jax.tree.leaves(value) else self.counted()
        return dataclasses.replace(self, value=value, rank=record_rank(value, axis), count=count)

    def _mapped(self, function: Callable[[Array], Array], share: Share, how: Any) -> Records:
        """With the function applied to all arrays. A column and `how` say what it gives."""
        value = jax.tree.map(function, self.value)
        steps = {
            name: once(share, (id(x), how), functools.partial(function, x))
            for name, x in self.steps.items()
        }
        return dataclasses.replace(self, value=value, steps=steps)


def once(share: Share, identity: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for each identity."""
    if identity not in share:
        share[identity] = make()
    return share[identity]


def _same(a: Array, b: Array, records: Records) -> bool:
    """Whether arrays are equal, padding aside."""
    if is_key_array(a):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    same = (a == b) | ((a != a) & (b != b))  # NaN is NaN here
    if a.ndim <= records.axis:
        return bool(same.all())
    padding = np.arange(a.shape[records.axis]) >= np.asarray(records.real())[..., None]
    return bool((same | padding.reshape(padding.shape + (1,) * (a.ndim - padding.ndim))).all())

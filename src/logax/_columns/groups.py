"""Keys whose records belong together, on the host and without padding, ready to export.

A `Group` is the keys that agree in lanes, in the number of records and in every step, as those of
one `log` call do. Within a group records stand side by side. What different groups have in common
is for their steps to say, never for their record numbers: the tenth record of a loss has nothing to
do with the tenth record of an evaluation that runs less often.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.records import Records, Share
from logax._columns.rows import called_alike, is_key_array, is_tangent, leaf_name
from logax._compat import Array

Numbers = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Group:
    """Leaves by name, whose records belong together, with their steps, on the host."""

    first_key: str
    leaves: dict[str, Numbers]
    sites: dict[str, tuple[str, ...]]
    steps: dict[str, Numbers]
    real: Numbers  # which rows are, lanes before records
    dropped: Numbers  # by lane, how many records there were before the first that was kept

    @property
    def axis(self) -> int:
        """The record axis."""
        return self.real.ndim - 1

    def lane(self, axis: int) -> Numbers | None:
        """For each real record its index along a lane axis."""
        return np.nonzero(self.real)[axis] if axis < self.axis else None

    def record(self) -> Numbers:
        """For each real record its number among all that there were."""
        *lane, row = np.nonzero(self.real)
        return row + self.dropped[tuple(lane)]

    def step(self, name: str) -> Numbers | None:
        """For each real record its step."""
        return self.steps[name][self.real] if name in self.steps else None


def groups_of(columns: Mapping[str, Records]) -> list[Group]:
    """The groups of these keys, in order. Keys without arrays have nothing to export."""
    share: Share = {}
    found: dict[Any, Group] = {}
    for key, records in columns.items():
        records = records.compacted(share)
        if not jax.tree.leaves(records.value):
            continue
        steps = {name: on_host(column) for name, column in records.steps.items()}
        rows, length = np.asarray(records.real()), records.length or 0
        real = np.arange(length) < rows[..., None]
        dropped = np.maximum(np.asarray(records.counted()) - length, 0)
        same = tuple(_told(name, x, steps[name][real]) for name, x in records.steps.items())
        identity = (real.shape, real.tobytes(), dropped.tobytes(), same)
        group = found.setdefault(identity, Group(key, {}, {}, steps, real, dropped))
        for path, leaf in jax.tree_util.tree_leaves_with_path(records.value):
            name = leaf_name(key, path)
            if any(name in other.leaves for other in found.values()):
                raise called_alike(name)
            group.leaves[name] = on_host(leaf)
            group.sites[name] = records.site
    return list(found.values())


def _told(name: str, column: Array, steps: Numbers) -> tuple[Any, ...]:
    """What tells a step from others; without numbers, only that keys of one call share it."""
    return (name, id(column)) if is_tangent(column) else (name, steps.dtype.str, steps.tobytes())


def on_host(x: Array) -> Numbers:
    """A NumPy array that others understand: keys as their numbers, narrow dtypes widened.

    Tangents of integers, which have no numbers, are NaN.
    """
    if is_tangent(x):
        return np.full(x.shape, np.nan, np.float32)
    numbers: Numbers = np.asarray(jax.random.key_data(x) if is_key_array(x) else x)
    if numbers.dtype.kind != "V":
        return numbers
    wide = np.float32 if jnp.issubdtype(numbers.dtype, jnp.floating) else np.int32
    return numbers.astype(wide)

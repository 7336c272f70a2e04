"""Keys whose records belong together, on the host and without padding, ready to export.

A `Group` is the keys that agree in lanes, in the number of records and in every step, as those of
one `log` call do. Within a group records stand side by side. What different groups have in common
is for their steps to say, never for their record numbers: the tenth record of a loss has nothing to
do with the tenth record of an evaluation that runs less often.

Logdicts as a pandas table or an xarray dataset. `logdict` documents what comes out.

In a table of several groups a row is found by its lane and its steps. Keys without steps are found
by the number of the record. Records that lack all the steps of their key, and those whose steps
another record of the key has too, have nothing by which to be found, and stay alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._logdict.records import Records, Share
from logax._support.arrays import (
    as_utf8,
    called_alike,
    is_key_array,
    is_missing,
    is_tangent,
    leaf_name,
)
from logax._support.imports import imported

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


Cells = tuple[Numbers, Numbers, Numbers]  # rows of the table, their values, which of them are void
_NO_STEP = np.iinfo(np.int64).max  # sorts last


def to_pandas(columns: Mapping[str, Records]) -> Any:
    """See `logdict.to_pandas`."""
    pandas = imported("pandas", "logs.to_pandas()")
    groups = groups_of(columns)
    leaves = {name for group in groups for name in group.leaves}
    lanes = lane_names(max((group.axis for group in groups), default=0))
    steps = list(dict.fromkeys(name for group in groups for name in group.steps))
    places = _places(groups, len(lanes), steps)
    total = max((int(rows.max(initial=-1)) + 1 for rows in places), default=0)
    table = {}

    def add(name: str, values: list[Numbers | None], void: Callable[[Numbers], Numbers]) -> None:
        found = zip(places, values, strict=True)
        cells = [(rows, x, void(x)) for rows, x in found if x is not None]
        table[name] = _filled(cells, total, pandas)

    for axis, lane in enumerate(lanes):
        add(free_name(lane, leaves), [group.lane(axis) for group in groups], _none)
    if len(groups) == 1 or (groups and not steps):
        add(free_name("record", leaves), [group.record() for group in groups], _none)
    for step in steps:
        add(free_name(step, {*leaves, *table}), [group.step(step) for group in groups], _lacking)
    for owner in groups:
        for name, leaf in owner.leaves.items():
            add(name, [leaf[x.real] if x is owner else None for x in groups], _none)
    return pandas.DataFrame(with_utf8_names(table))


def to_xarray(columns: Mapping[str, Records]) -> Any:
    """See `logdict.to_xarray`."""
    xarray = imported("xarray", "logs.to_xarray()")
    groups = groups_of(columns)
    taken = {name for group in groups for name in group.leaves}
    alike = len({group.real.shape[:-1] for group in groups}) == 1
    variables, coordinates = {}, {}
    for group in groups:
        suffix = f"_{group.first_key}" if len(groups) > 1 else ""
        lanes = [name if alike else name + suffix for name in lane_names(group.axis)]
        rows = [free_name(name, taken) for name in (*lanes, f"record{suffix}")]
        for name, leaf in group.leaves.items():
            own = [f"{name}_{axis}" for axis in range(leaf.ndim - len(rows))]
            site = {"site": ", ".join(group.sites[name])} if group.sites[name] else {}
            variables[name] = ((*rows, *own), _blanked(leaf, group.real), site)
        for name, step in group.steps.items():
            own = [f"{name}{suffix}_{axis}" for axis in range(step.ndim - len(rows))]
            known = group.real & ~_lacking(step, len(rows))
            label = free_name(name + suffix, {*taken, *rows})
            coordinates[label] = ((*rows, *own), _blanked(step, known))
    return xarray.Dataset(variables, coordinates)


def lane_names(number: int) -> list[str]:
    """What the lane axes are called."""
    return ["lane"] if number == 1 else [f"lane_{axis}" for axis in range(number)]


def with_utf8_names(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns by names that pandas takes: it stores names as UTF-8."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        found[free_name(as_utf8(name), found)] = column
    return found


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores after it until no leaf has it."""
    while name in taken:
        name += "_"
    return name


def _none(values: Numbers) -> Numbers:
    return np.zeros(len(values), bool)


def _lacking(steps: Numbers, axes: int = 1) -> Numbers:
    """Which records lack the step, where the first axes count records (and lanes)."""
    return np.asarray(is_missing(steps).all(axis=tuple(range(axes, steps.ndim))))


def _filled(cells: Sequence[Cells], total: int, pandas: Any) -> Any:
    """A column of the table. What no cell fills is missing, and integers stay integers."""
    if any(values.ndim > 1 for _, values, _ in cells):
        boxes = np.full(total, None, object)
        for rows, values, void in cells:
            for row, value in zip(rows[~void], values[~void], strict=True):
                boxes[row] = value
        return boxes
    column = np.zeros(total, np.result_type(*(values.dtype for _, values, _ in cells)))
    empty = np.ones(total, bool)
    for rows, values, void in cells:
        column[rows], empty[rows] = values, void
    if not empty.any():
        return column
    if column.dtype.kind in "fc":
        column[empty] = np.nan
        return column
    if column.dtype.kind == "b":
        return pandas.arrays.BooleanArray(column, empty)
    if column.dtype.kind in "iu":
        return pandas.arrays.IntegerArray(column, empty)
    if column.dtype.kind in "mM":
        column[empty] = "NaT"
        return column
    boxes = column.astype(object)
    boxes[empty] = None
    return boxes


def _blanked(x: Numbers, known: Numbers) -> Numbers:
    """With NaN wherever nothing is known."""
    if known.all():
        return x
    wide = x if x.dtype.kind in "fc" else x.astype(np.float64)
    return np.where(known.reshape(known.shape + (1,) * (x.ndim - known.ndim)), wide, np.nan)


def _places(groups: Sequence[Group], lanes: int, steps: Sequence[str]) -> list[Numbers]:
    """For each real record of each group its row in the table of all."""
    sizes = [int(group.real.sum()) for group in groups]
    if len(groups) < 2:
        return [np.arange(size) for size in sizes]
    codes = [_codes([group.step(step) for group in groups], sizes) for step in steps]
    found = []
    for at, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        lane = [group.lane(axis) for axis in range(lanes)]
        own = [code[at] for code in codes]
        lost = np.full(size, bool(group.steps)) & np.all([c == _NO_STEP for c in own], axis=0)
        columns = [*(np.full(size, -1) if x is None else x for x in lane), *own, lost * (at + 1)]
        nth = _nth(np.stack(columns, axis=1)) if group.steps else group.record()
        found.append(np.stack([*columns, nth], axis=1))
    ends = np.cumsum(sizes)[:-1]
    if steps:
        # Where a group has the same steps twice, nothing says which of them another one means.
        same = np.split(_ranked(np.concatenate(found)[:, :-1]), ends)
        with_steps = [at for at, group in enumerate(groups) if group.steps]
        apart = np.concatenate([same[at][found[at][:, -1] > 0] for at in with_steps])
        for at in with_steps:
            found[at][:, -2] = np.where(np.isin(same[at], apart), at + 1, found[at][:, -2])
    return np.split(_ranked(np.concatenate(found)), ends)


def _codes(steps: Sequence[Numbers | None], sizes: Sequence[int]) -> list[Numbers]:
    """Numbers in place of steps, equal where the steps are and in the same order."""
    codes = [np.full(size, _NO_STEP) for size in sizes]
    known = [None if x is None else ~_lacking(x) for x in steps]
    values = [x[k] for x, k in zip(steps, known, strict=True) if x is not None and k is not None]
    if any(x.ndim > 1 for x in values):
        order: dict[Any, int] = {}
        flat = [order.setdefault((x.shape, x.tobytes()), len(order)) for v in values for x in v]
        numbers = np.asarray(flat, np.int64)
    else:
        numbers = np.unique(np.concatenate(values), return_inverse=True)[1].reshape(-1)
    start = 0
    for code, k in zip(codes, known, strict=True):
        if k is not None:
            code[k] = numbers[start : start + k.sum()]
            start += int(k.sum())
    return codes


def _ranked(rows: Numbers) -> Numbers:
    """For each row its place among the distinct rows in order (as `np.unique`, but fast)."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    ranks = np.zeros(len(rows), np.int64)
    ranks[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return ranks


def _nth(rows: Numbers) -> Numbers:
    """For each row, how many before it are equal to it."""
    same = _ranked(rows)
    order = np.argsort(same, kind="stable")
    ordered = same[order]
    nth = np.empty(len(rows), np.int64)
    nth[order] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return nth

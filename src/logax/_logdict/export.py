"""Export logdicts to pandas and xarray, on the host and without padding.

A `RecordGroup` holds the keys that agree in their lanes, in their number of records and in every
step, as the keys of one `log` call do. Record i of one key of a group belongs to record i of every
other key of it. Across groups only equal steps connect records, never equal record numbers: the
tenth record of a loss has nothing to do with the tenth record of an evaluation that runs less
often.

`logdict.to_pandas` and `logdict.to_xarray` document the results. In a pandas table of several
groups, lane and steps identify a row; for keys without steps the record number does. A record
without any of the steps of its key, or with the same steps as another record of its key, cannot be
matched with records of other groups and gets a row to itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._logdict.records import ColumnCache, KeyRecords
from logax._support.arrays import (
    duplicate_name_error,
    is_float0,
    is_key_array,
    is_missing,
    leaf_name,
    replace_surrogates,
)
from logax._support.imports import import_optional

HostArray = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class RecordGroup:
    """Leaves whose records belong together, with their steps, as NumPy arrays.

    Attributes:
      first_key: First key of the group, after which xarray dimensions are named.
      leaves: Arrays by leaf name.
      sites: Sites by leaf name.
      steps: Step columns by step name.
      real: Mask of the rows that are records, of shape `(*lanes, rows)`.
      dropped: Number of records before the first kept one, for each lane.
    """

    first_key: str
    leaves: dict[str, HostArray]
    sites: dict[str, tuple[str, ...]]
    steps: dict[str, HostArray]
    real: HostArray
    dropped: HostArray

    @property
    def axis(self) -> int:
        """Index of the record axis."""
        return self.real.ndim - 1

    def lane(self, axis: int) -> HostArray | None:
        """Return the index along a lane axis of each real record; None without that axis."""
        return np.nonzero(self.real)[axis] if axis < self.axis else None

    def record(self) -> HostArray:
        """Return the number of each real record among all records that were logged."""
        *lane, row = np.nonzero(self.real)
        return row + self.dropped[tuple(lane)]

    def step(self, name: str) -> HostArray | None:
        """Return the step of each real record; None if the group lacks this step."""
        return self.steps[name][self.real] if name in self.steps else None


def group_aligned_keys(columns: Mapping[str, KeyRecords]) -> list[RecordGroup]:
    """Group keys whose records belong together, in order. Keys without arrays are left out."""
    cache: ColumnCache = {}
    found: dict[Any, RecordGroup] = {}
    for key, records in columns.items():
        records = records.compact(cache)
        if not jax.tree.leaves(records.value):
            continue
        steps = {name: to_numpy_array(column) for name, column in records.steps.items()}
        rows, length = np.asarray(records.num_real_rows()), records.length or 0
        real = np.arange(length) < rows[..., None]
        dropped = np.maximum(np.asarray(records.total_count()) - length, 0)
        same = tuple(
            _step_identity(name, x, steps[name][real]) for name, x in records.steps.items()
        )
        identity = (real.shape, real.tobytes(), dropped.tobytes(), same)
        group = found.setdefault(identity, RecordGroup(key, {}, {}, steps, real, dropped))
        for path, leaf in jax.tree_util.tree_leaves_with_path(records.value):
            name = leaf_name(key, path)
            if any(name in other.leaves for other in found.values()):
                raise duplicate_name_error(name)
            group.leaves[name] = to_numpy_array(leaf)
            group.sites[name] = records.site
    return list(found.values())


def _step_identity(name: str, column: Array, steps: HostArray) -> tuple[Any, ...]:
    """Return a value that is equal for equal step columns.

    A tangent has no numbers to compare, so only the same array counts as equal.
    """
    return (name, id(column)) if is_float0(column) else (name, steps.dtype.str, steps.tobytes())


def to_numpy_array(x: Array) -> HostArray:
    """Convert to a NumPy array that other libraries understand.

    PRNG keys become their bits, narrow dtypes are widened, and tangents of integers, which have no
    numbers, become NaN.
    """
    if is_float0(x):
        return np.full(x.shape, np.nan, np.float32)
    numbers: HostArray = np.asarray(jax.random.key_data(x) if is_key_array(x) else x)
    if numbers.dtype.kind != "V":
        return numbers
    wide = np.float32 if jnp.issubdtype(numbers.dtype, jnp.floating) else np.int32
    return numbers.astype(wide)


# Row indices in the table, their values, and a mask of the values that are missing.
CellValues = tuple[HostArray, HostArray, HostArray]
_MISSING_STEP_CODE = np.iinfo(np.int64).max  # sorts last


def to_pandas(columns: Mapping[str, KeyRecords]) -> Any:
    """Build the table that `logdict.to_pandas` documents."""
    pandas = import_optional("pandas", "logs.to_pandas()")
    groups = group_aligned_keys(columns)
    leaves = {name for group in groups for name in group.leaves}
    lanes = lane_names(max((group.axis for group in groups), default=0))
    steps = list(dict.fromkeys(name for group in groups for name in group.steps))
    indices = _row_indices(groups, len(lanes), steps)
    total = max((int(rows.max(initial=-1)) + 1 for rows in indices), default=0)
    table = {}

    def add(
        name: str, values: list[HostArray | None], missing: Callable[[HostArray], HostArray]
    ) -> None:
        found = zip(indices, values, strict=True)
        cells = [(rows, x, missing(x)) for rows, x in found if x is not None]
        table[name] = _build_column(cells, total, pandas)

    for axis, lane in enumerate(lanes):
        add(free_name(lane, leaves), [group.lane(axis) for group in groups], _none_missing)
    if len(groups) == 1 or (groups and not steps):
        add(free_name("record", leaves), [group.record() for group in groups], _none_missing)
    for step in steps:
        add(
            free_name(step, {*leaves, *table}),
            [group.step(step) for group in groups],
            _is_step_missing,
        )
    for owner in groups:
        for name, leaf in owner.leaves.items():
            add(name, [leaf[x.real] if x is owner else None for x in groups], _none_missing)
    return pandas.DataFrame(with_utf8_names(table))


def to_xarray(columns: Mapping[str, KeyRecords]) -> Any:
    """Build the dataset that `logdict.to_xarray` documents."""
    xarray = import_optional("xarray", "logs.to_xarray()")
    groups = group_aligned_keys(columns)
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
            variables[name] = ((*rows, *own), _mask_with_nan(leaf, group.real), site)
        for name, step in group.steps.items():
            own = [f"{name}{suffix}_{axis}" for axis in range(step.ndim - len(rows))]
            known = group.real & ~_is_step_missing(step, len(rows))
            label = free_name(name + suffix, {*taken, *rows})
            coordinates[label] = ((*rows, *own), _mask_with_nan(step, known))
    return xarray.Dataset(variables, coordinates)


def lane_names(number: int) -> list[str]:
    """Return the names of the lane axes."""
    return ["lane"] if number == 1 else [f"lane_{axis}" for axis in range(number)]


def with_utf8_names(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Rename columns to names that can be encoded as UTF-8, which pandas requires."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        found[free_name(replace_surrogates(name), found)] = column
    return found


def free_name(name: str, taken: Collection[str]) -> str:
    """Append underscores to a name until it is not taken."""
    while name in taken:
        name += "_"
    return name


def _none_missing(values: HostArray) -> HostArray:
    return np.zeros(len(values), bool)


def _is_step_missing(steps: HostArray, axes: int = 1) -> HostArray:
    """Return a mask of the records without this step; `axes` counts lane and record axes."""
    return np.asarray(is_missing(steps).all(axis=tuple(range(axes, steps.ndim))))


def _build_column(cells: Sequence[CellValues], total: int, pandas: Any) -> Any:
    """Build a column of the table. Unfilled cells are missing; integers stay integers."""
    if any(values.ndim > 1 for _, values, _ in cells):
        boxes = np.full(total, None, object)
        for rows, values, missing in cells:
            for row, value in zip(rows[~missing], values[~missing], strict=True):
                boxes[row] = value
        return boxes
    column = np.zeros(total, np.result_type(*(values.dtype for _, values, _ in cells)))
    empty = np.ones(total, bool)
    for rows, values, missing in cells:
        column[rows], empty[rows] = values, missing
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


def _mask_with_nan(x: HostArray, known: HostArray) -> HostArray:
    """Replace the rows that are not known by NaN, which turns integers into floats."""
    if known.all():
        return x
    wide = x if x.dtype.kind in "fc" else x.astype(np.float64)
    return np.where(known.reshape(known.shape + (1,) * (x.ndim - known.ndim)), wide, np.nan)


def _row_indices(
    groups: Sequence[RecordGroup], lanes: int, steps: Sequence[str]
) -> list[HostArray]:
    """Return, for each group, the table row of each of its real records."""
    sizes = [int(group.real.sum()) for group in groups]
    if len(groups) < 2:
        return [np.arange(size) for size in sizes]
    codes = [_step_codes([group.step(step) for group in groups], sizes) for step in steps]
    found = []
    for at, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        lane = [group.lane(axis) for axis in range(lanes)]
        own = [code[at] for code in codes]
        lost = np.full(size, bool(group.steps)) & np.all(
            [c == _MISSING_STEP_CODE for c in own], axis=0
        )
        columns = [*(np.full(size, -1) if x is None else x for x in lane), *own, lost * (at + 1)]
        nth = _occurrence_numbers(np.stack(columns, axis=1)) if group.steps else group.record()
        found.append(np.stack([*columns, nth], axis=1))
    ends = np.cumsum(sizes)[:-1]
    if steps:
        # If a group has the same steps twice, a record of another group could match either.
        same = np.split(_rank_rows(np.concatenate(found)[:, :-1]), ends)
        with_steps = [at for at, group in enumerate(groups) if group.steps]
        apart = np.concatenate([same[at][found[at][:, -1] > 0] for at in with_steps])
        for at in with_steps:
            found[at][:, -2] = np.where(np.isin(same[at], apart), at + 1, found[at][:, -2])
    return np.split(_rank_rows(np.concatenate(found)), ends)


def _step_codes(steps: Sequence[HostArray | None], sizes: Sequence[int]) -> list[HostArray]:
    """Replace steps by integers that are equal and ordered as the steps are."""
    codes = [np.full(size, _MISSING_STEP_CODE) for size in sizes]
    known = [None if x is None else ~_is_step_missing(x) for x in steps]
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


def _rank_rows(rows: HostArray) -> HostArray:
    """Return the rank of each row among the distinct rows, as `np.unique` does, but faster."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    ranks = np.zeros(len(rows), np.int64)
    ranks[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return ranks


def _occurrence_numbers(rows: HostArray) -> HostArray:
    """Return, for each row, the number of equal rows before it."""
    same = _rank_rows(rows)
    order = np.argsort(same, kind="stable")
    ordered = same[order]
    nth = np.empty(len(rows), np.int64)
    nth[order] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return nth

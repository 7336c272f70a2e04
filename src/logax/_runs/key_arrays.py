"""Join slices of the records of a key into one array.

Slices are compatible if their values have the same tree and shapes, and their dtypes are of one
family, such as signed integers: then one dtype holds all of them exactly. Steps that some records
lack are padded there. Cells with fewer records than others, and cells of the grid without a stream,
are padded too: with NaN, the minimum of signed integers, the maximum of unsigned integers, False,
or zero for other dtypes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax._runs.errors import RunsError
from logax._runs.key_slices import Bytes, Cell, KeySlice
from logax._runs.layouts import StoredLeaf
from logax._serialization.dtypes import stored_type_of
from logax._support.arrays import missing_value

Array = np.ndarray[Any, Any]
_DTYPE_FAMILIES = (
    jnp.bool_,
    jnp.signedinteger,
    jnp.unsignedinteger,
    jnp.floating,
    jnp.complexfloating,
)
# Limits of padding, so that a small file cannot ask for a huge array: the first of each pair is
# always allowed, the second is allowed for each record or each stored byte.
_ALWAYS_ALLOWED_ROWS, _MAX_ROWS_PER_RECORD = 2**20, 1000
_ALWAYS_ALLOWED_BYTES, _MAX_BYTES_PER_STORED_BYTE = 2**28, 100
_MAX_ELEMENTS = 2**56  # NumPy refuses larger shapes, also of empty arrays


@dataclasses.dataclass(frozen=True, eq=False)
class KeyArrays:
    """All records of a key, with lanes before records.

    Attributes:
      value: Tree of arrays.
      steps: Step of each record, by name.
      counts: Number of records of each cell.
      length: Number of rows of each cell, padding included.
      site: Files and lines of the `log` calls.
    """

    value: Any
    steps: dict[str, Array]
    counts: Array
    length: int
    site: tuple[str, ...]

    @property
    def rank(self) -> int:
        """Number of lane axes."""
        return self.counts.ndim

    @property
    def is_full(self) -> bool:
        """True if no row is padding."""
        return bool((self.counts == self.length).all())


def group_compatible(slices: Iterable[KeySlice]) -> list[list[KeySlice]]:
    """Group consecutive slices that fit into one array."""
    groups: list[list[KeySlice]] = []
    types: list[StoredLeaf] | None = None
    shapes: dict[str, tuple[int, ...]] = {}
    for key_slice in slices:
        if groups and key_slice.key is groups[-1][-1].key and _same_rank(key_slice, groups[-1][-1]):
            groups[-1].append(key_slice)  # fast path: most slices share a layout
            continue
        steps = {name: leaf.shape for name, (leaf, _, _) in key_slice.steps.items()}
        last = groups[-1][-1] if groups else None
        fits = last is not None and _same_tree(last, key_slice)
        fits = fits and all(shapes.get(name, shape) == shape for name, shape in steps.items())
        types = (
            _widen_leaf_types(types, key_slice.key.leaves) if fits and types is not None else None
        )
        if types is None:
            groups.append([])
            types, shapes = list(key_slice.key.leaves), {}
        shapes |= steps
        groups[-1].append(key_slice)
    return groups


def _same_tree(one: KeySlice, two: KeySlice) -> bool:
    if not _same_rank(one, two):
        return False
    a, b = one.key, two.key
    shapes = [leaf.shape for leaf in a.leaves] == [leaf.shape for leaf in b.leaves]
    return shapes and a.media_kinds == b.media_kinds and a.outline == b.outline


def _same_rank(one: KeySlice, two: KeySlice) -> bool:
    return len(one.cells[0]) == len(two.cells[0])


def _widen_leaf_types(
    types: Sequence[StoredLeaf], others: Sequence[StoredLeaf]
) -> list[StoredLeaf] | None:
    """Return a leaf for each pair that holds both; None if a pair has no common dtype."""
    found = [_widen(one, two) for one, two in zip(types, others, strict=True)]
    return None if None in found else [leaf for leaf in found if leaf is not None]


@functools.lru_cache(maxsize=1024)
def _widen(one: StoredLeaf, two: StoredLeaf) -> StoredLeaf | None:
    if one == two:
        return one
    a, b = one.kind.dtype, two.kind.dtype
    if (
        one.kind.is_key
        or two.kind.is_key
        or _dtype_family(a) is None
        or _dtype_family(a) is not _dtype_family(b)
    ):
        return None
    try:
        wide = np.result_type(a, b) if a.kind != "V" and b.kind != "V" else jnp.promote_types(a, b)
    except (TypeError, ValueError):  # the narrowest dtypes of JAX promote to no other
        return None
    wider = next((leaf for leaf in (one, two) if leaf.kind.dtype == wide), None)
    return wider or _leaf_with_dtype(wide, one)


def _leaf_with_dtype(dtype: np.dtype[Any], like: StoredLeaf) -> StoredLeaf | None:
    kind = stored_type_of(np.empty(0, dtype))
    return None if kind is None else StoredLeaf(kind, like.shape)


def _dtype_family(dtype: np.dtype[Any]) -> Any:
    return next((family for family in _DTYPE_FAMILIES if jnp.issubdtype(dtype, family)), None)


def join_slices(
    slices: Sequence[KeySlice], share: dict[Any, Any], of: str, first: int = 0
) -> KeyArrays:
    """Join compatible slices of one key.

    Args:
      slices: Slices in order.
      share: Cache of grids and steps, for keys whose slices have the same origins.
      of: Owner of the records, for errors.
      first: Number of cells along the first axis; 0 to derive it from the slices.
    """
    origin = (*(key_slice.origin for key_slice in slices), first)
    if origin not in share:
        grid = _SliceGrid(slices, first, of)
        share[origin] = grid, grid.steps(slices)
    grid, steps = share[origin]
    types = list(slices[0].key.leaves)
    for key in dict.fromkeys(key_slice.key for key_slice in slices):
        types = _widen_leaf_types(types, key.leaves) or types
    key = slices[0].key
    arrays = [
        leaf.to_logged(grid.fill(leaf, [(x.key.leaves[at], x.arrays[at], False) for x in slices]))
        for at, leaf in enumerate(types)
    ]
    sites = (site for key_slice in slices for site in key_slice.layout.site.split("\n") if site)
    return KeyArrays(
        key.build_tree(arrays), steps, grid.counts, grid.length, tuple(dict.fromkeys(sites))
    )


# Type, bytes, and whether one row holds for all cells; None if a slice lacks the array.
SliceBytes = tuple[StoredLeaf, Bytes, bool] | None


class _SliceGrid:
    """Position of the records of each slice in the joined array."""

    def __init__(self, slices: Sequence[KeySlice], first: int, of: str) -> None:
        self._what = f"{slices[0].key.name!r} of {of}"
        held = sum(len(data) for key_slice in slices for data in key_slice.arrays)
        held += sum(len(data) for key_slice in slices for _, data, _ in key_slice.steps.values())
        self._max_bytes = max(_ALWAYS_ALLOWED_BYTES, _MAX_BYTES_PER_STORED_BYTE * held)
        sets = dict.fromkeys(key_slice.cells for key_slice in slices)
        cells = {cell for own in sets for cell in own}
        rank = len(slices[0].cells[0])
        grid = [max(cell[axis] for cell in cells) + 1 for axis in range(rank)]
        if first:
            grid[0] = first
        self._check(math.prod(grid), len(cells))
        self._numbers = {own: self._flat(own, grid) for own in sets}
        counts = np.zeros(math.prod(grid), np.int64)
        self._spans = [self._span(key_slice, counts) for key_slice in slices]
        narrow = counts.astype(np.int32) if counts.max(initial=0) < 2**31 else counts
        self.counts: Array = narrow.reshape(grid)
        self.length = int(counts.max(initial=0))
        self._check(counts.size * self.length, int(counts.sum()))
        self._is_full = bool((counts == self.length).all())

    def _check(self, rows: int, real: int) -> None:
        if rows > max(_ALWAYS_ALLOWED_ROWS, _MAX_ROWS_PER_RECORD * real):
            raise RunsError(
                f"{self._what} cannot be read as one array: it would need {rows} rows and use "
                f"{real}, because the lanes have very different indices or numbers of records."
            )

    @staticmethod
    def _flat(cells: tuple[Cell, ...], grid: list[int]) -> Array:
        if not grid:
            return np.zeros(len(cells), np.int64)
        return np.asarray(np.ravel_multi_index(tuple(np.asarray(cells).T), grid), np.int64)

    def _span(self, key_slice: KeySlice, counts: Array) -> tuple[KeySlice, Array, Array, Array]:
        """Return the cells of a slice, its first row in each, and its number of records in each."""
        at = self._numbers[key_slice.cells]
        own = np.full(len(at), key_slice.records) if key_slice.counts is None else key_slice.counts
        start = counts[at]
        np.add.at(counts, at, own)
        return key_slice, at, start, own

    def steps(self, slices: Sequence[KeySlice]) -> dict[str, Array]:
        """Return the steps of all records, by name."""
        names = dict.fromkeys(name for key_slice in slices for name in key_slice.steps)
        return {
            name: self._step([key_slice.steps.get(name) for key_slice in slices]) for name in names
        }

    def _step(self, slices: Sequence[SliceBytes]) -> Array:
        leaves = dict.fromkeys(each[0] for each in slices if each is not None)
        wide, *others = leaves
        for leaf in others:
            dtype = np.result_type(wide.kind.dtype, leaf.kind.dtype)
            wide = _widen(wide, leaf) or _leaf_with_dtype(dtype, leaf) or wide
        return self.fill(wide, slices)

    def fill(self, leaf: StoredLeaf, slices: Sequence[SliceBytes]) -> Array:
        """Return one array of all records, of the type of this leaf."""
        rows = (self.counts.size, self.length)
        shape = (*rows, *leaf.shape, *(leaf.kind.extra_axes if leaf.kind.is_key else ()))
        if math.prod(n or 1 for n in shape) > _MAX_ELEMENTS:
            raise RunsError(
                f"{self._what} would be an array of shape {shape}, which NumPy refuses."
            )
        if math.prod(shape) * leaf.kind.dtype.itemsize > self._max_bytes:
            raise RunsError(
                f"{self._what} cannot be read as one array: it would have the shape {shape}, far "
                "more than was logged, because the lanes have very different numbers of records."
            )
        is_flat = not self.counts.ndim and all(len(span[1]) == 1 for span in self._spans)
        if is_flat and all(each is not None and _is_same_leaf(each[0], leaf) for each in slices):
            data = bytearray().join([each[1] for each in slices if each is not None])
            return leaf.from_bytes(data, (self.length,))
        if self._is_full and None not in slices:
            found = np.empty(shape, leaf.kind.dtype)
        else:
            found = np.full(shape, padding_value(leaf), leaf.kind.dtype)
        for (key_slice, at, start, own), each in zip(self._spans, slices, strict=True):
            if each is not None:
                cells = 1 if each[2] else len(at)
                block = each[0].from_bytes(each[1], (cells, key_slice.records))
                _copy_rows(
                    found, np.broadcast_to(block, (len(at), *block.shape[1:])), at, start, own
                )
        return found.reshape(*self.counts.shape, *found.shape[1:])


def _is_same_leaf(one: StoredLeaf, two: StoredLeaf) -> bool:
    return one is two or one == two


def _copy_rows(found: Array, block: Array, at: Array, start: Array, own: Array) -> None:
    """Copy the rows of a slice into the array of all records."""
    even = len(at) and (start == start[0]).all() and (own == block.shape[1]).all()
    if even and (np.diff(at) > 0).all():
        rows = slice(start[0], start[0] + block.shape[1])
        if at[-1] - at[0] == len(at) - 1:
            found[at[0] : at[-1] + 1, rows] = block
        else:
            found[at, rows] = block
        return
    taken: dict[int, int] = {}  # a batch may contain a stream twice
    for row, (cell, begin, number) in enumerate(zip(at, start, own, strict=True)):
        begin += taken.get(cell, 0)
        taken[cell] = taken.get(cell, 0) + number
        found[cell, begin : begin + number] = block[row, :number]


def padding_value(leaf: StoredLeaf) -> Any:
    """Return the value that fills rows without a record."""
    dtype = leaf.kind.dtype
    if leaf.kind.is_key or _dtype_family(dtype) is None:
        return np.zeros((), dtype)[()]
    with np.errstate(all="ignore"):
        return missing_value(dtype)

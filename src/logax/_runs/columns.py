"""The records of a key as one array, from pieces of them.

Pieces are like each other if their values have the same tree and the same shapes, and numbers of
one sort, of whatever width: then there is a type that holds all of them as they are. Steps that
some records lack are missing there. Cells that have fewer records than others, and places of the
grid that nobody has, are padded: with NaN, the least integer (the greatest of unsigned ones),
False, or zero where a type has none of these.
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
from logax._runs.layouts import Leaf
from logax._runs.pieces import Bytes, Cell, Piece
from logax._serialization.dtypes import kind_of
from logax._support.arrays import blank

Array = np.ndarray[Any, Any]
_SORTS = (jnp.bool_, jnp.signedinteger, jnp.unsignedinteger, jnp.floating, jnp.complexfloating)
_DENSE = 1000  # rows with padding for each row without, at most
_MANY = 2**20  # rows that are never too many
_MAX_PADDED_BYTES = 2**28  # of an array, whatever its records have
_MAX_EXPANSION = 100  # bytes of an array for each byte of its records, where it is larger


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """All records of a key, lanes first.

    Attributes:
      value: The tree of arrays.
      steps: By name, the step of each record.
      counts: How many records each cell has.
      length: How many rows there are.
      site: Where it was logged.
    """

    value: Any
    steps: dict[str, Array]
    counts: Array
    length: int
    site: tuple[str, ...]

    @property
    def rank(self) -> int:
        """The number of lane axes."""
        return self.counts.ndim

    @property
    def is_full(self) -> bool:
        """Whether no row is padding."""
        return bool((self.counts == self.length).all())


def alike(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces in groups that fit together, in order."""
    groups: list[list[Piece]] = []
    types: list[Leaf] | None = None
    shapes: dict[str, tuple[int, ...]] = {}
    for piece in pieces:
        if groups and piece.key is groups[-1][-1].key and _same_rank(piece, groups[-1][-1]):
            groups[-1].append(piece)  # of the same layout, as most are
            continue
        steps = {name: leaf.shape for name, (leaf, _, _) in piece.steps.items()}
        last = groups[-1][-1] if groups else None
        fits = last is not None and _same_tree(last, piece)
        fits = fits and all(shapes.get(name, shape) == shape for name, shape in steps.items())
        types = _common(types, piece.key.leaves) if fits and types is not None else None
        if types is None:
            groups.append([])
            types, shapes = list(piece.key.leaves), {}
        shapes |= steps
        groups[-1].append(piece)
    return groups


def _same_tree(one: Piece, two: Piece) -> bool:
    if not _same_rank(one, two):
        return False
    a, b = one.key, two.key
    shapes = [leaf.shape for leaf in a.leaves] == [leaf.shape for leaf in b.leaves]
    return shapes and a.shows == b.shows and a.outline == b.outline


def _same_rank(one: Piece, two: Piece) -> bool:
    return len(one.cells[0]) == len(two.cells[0])


def _common(types: Sequence[Leaf], others: Sequence[Leaf]) -> list[Leaf] | None:
    """For each leaf the type that holds both, or None where one has none."""
    found = [_wider(one, two) for one, two in zip(types, others, strict=True)]
    return None if None in found else [leaf for leaf in found if leaf is not None]


@functools.lru_cache(maxsize=1024)
def _wider(one: Leaf, two: Leaf) -> Leaf | None:
    if one == two:
        return one
    a, b = one.kind.true, two.kind.true
    if one.kind.is_key or two.kind.is_key or _sort(a) is None or _sort(a) is not _sort(b):
        return None
    try:
        wide = np.result_type(a, b) if a.kind != "V" and b.kind != "V" else jnp.promote_types(a, b)
    except (TypeError, ValueError):  # JAX's narrowest types go with no others
        return None
    return next((leaf for leaf in (one, two) if leaf.kind.true == wide), None) or _of(wide, one)


def _of(dtype: np.dtype[Any], like: Leaf) -> Leaf | None:
    kind = kind_of(np.empty(0, dtype))
    return None if kind is None else Leaf(kind, like.shape)


def _sort(dtype: np.dtype[Any]) -> Any:
    return next((sort for sort in _SORTS if jnp.issubdtype(dtype, sort)), None)


def joined(pieces: Sequence[Piece], share: dict[Any, Any], of: str, first: int = 0) -> Column:
    """All records of pieces that are alike, of one key.

    Args:
      pieces: In order.
      share: What pieces of the same portions have in common is made once.
      of: Whose they are, for errors.
      first: How many cells there are along the first axis, at least.
    """
    origin = (*(piece.origin for piece in pieces), first)
    if origin not in share:
        frame = _Frame(pieces, first, of)
        share[origin] = frame, frame.steps(pieces)
    frame, steps = share[origin]
    types = list(pieces[0].key.leaves)
    for key in dict.fromkeys(piece.key for piece in pieces):
        types = _common(types, key.leaves) or types
    key = pieces[0].key
    arrays = [
        leaf.restored(frame.filled(leaf, [(x.key.leaves[at], x.arrays[at], False) for x in pieces]))
        for at, leaf in enumerate(types)
    ]
    sites = (site for piece in pieces for site in piece.layout.site.split("\n") if site)
    return Column(
        key.filled(arrays), steps, frame.counts, frame.length, tuple(dict.fromkeys(sites))
    )


Given = tuple[Leaf, Bytes, bool] | None  # a type, bytes, and whether these are of one cell for all


class _Frame:
    """Where the records of each piece go."""

    def __init__(self, pieces: Sequence[Piece], first: int, of: str) -> None:
        self._what = f"{pieces[0].key.name!r} of {of}"
        held = sum(len(data) for piece in pieces for data in piece.arrays)
        held += sum(len(data) for piece in pieces for _, data, _ in piece.steps.values())
        self._most_bytes = max(_MAX_PADDED_BYTES, _MAX_EXPANSION * held)
        sets = dict.fromkeys(piece.cells for piece in pieces)
        cells = {cell for own in sets for cell in own}
        rank = len(pieces[0].cells[0])
        grid = [max(cell[axis] for cell in cells) + 1 for axis in range(rank)]
        if first:
            grid[0] = first
        self._check(math.prod(grid), len(cells))
        self._numbers = {own: self._flat(own, grid) for own in sets}
        counts = np.zeros(math.prod(grid), np.int64)
        self._spans = [self._span(piece, counts) for piece in pieces]
        narrow = counts.astype(np.int32) if counts.max(initial=0) < 2**31 else counts
        self.counts: Array = narrow.reshape(grid)
        self.length = int(counts.max(initial=0))
        self._check(counts.size * self.length, int(counts.sum()))
        self._is_full = bool((counts == self.length).all())

    def _check(self, rows: int, real: int) -> None:
        if rows > max(_MANY, _DENSE * real):
            raise RunsError(
                f"{self._what} cannot be read as one array: {rows} rows would be needed for {real},"
                " since lanes differ that much in their indices or their number of records."
            )

    @staticmethod
    def _flat(cells: tuple[Cell, ...], grid: list[int]) -> Array:
        if not grid:
            return np.zeros(len(cells), np.int64)
        return np.asarray(np.ravel_multi_index(tuple(np.asarray(cells).T), grid), np.int64)

    def _span(self, piece: Piece, counts: Array) -> tuple[Piece, Array, Array, Array]:
        """The cells of a piece, where in them it begins, and how many records each takes."""
        at = self._numbers[piece.cells]
        own = np.full(len(at), piece.records) if piece.counts is None else piece.counts
        start = counts[at]
        np.add.at(counts, at, own)
        return piece, at, start, own

    def steps(self, pieces: Sequence[Piece]) -> dict[str, Array]:
        """The step columns of all."""
        names = dict.fromkeys(name for piece in pieces for name in piece.steps)
        return {name: self._step([piece.steps.get(name) for piece in pieces]) for name in names}

    def _step(self, given: Sequence[Given]) -> Array:
        leaves = dict.fromkeys(each[0] for each in given if each is not None)
        wide, *others = leaves
        for leaf in others:
            dtype = np.result_type(wide.kind.true, leaf.kind.true)
            wide = _wider(wide, leaf) or _of(dtype, leaf) or wide
        return self.filled(wide, given)

    def filled(self, leaf: Leaf, given: Sequence[Given]) -> Array:
        """One array of all records, of this type."""
        rows = (self.counts.size, self.length)
        shape = (*rows, *leaf.shape, *(leaf.kind.more if leaf.kind.is_key else ()))
        if math.prod(n or 1 for n in shape) > 2**56:  # of nothing at all, but NumPy refuses it
            raise RunsError(f"{self._what} would be an array of shape {shape}, which cannot be.")
        if math.prod(shape) * leaf.kind.true.itemsize > self._most_bytes:
            raise RunsError(
                f"{self._what} cannot be read as one array: it would have the shape {shape}, far "
                "more than was logged, since lanes differ that much in their number of records."
            )
        is_flat = not self.counts.ndim and all(len(span[1]) == 1 for span in self._spans)
        if is_flat and all(each is not None and _is(each[0], leaf) for each in given):
            data = bytearray().join([each[1] for each in given if each is not None])
            return leaf.numbers(data, (self.length,))
        if self._is_full and None not in given:
            found = np.empty(shape, leaf.kind.true)
        else:
            found = np.full(shape, padding(leaf), leaf.kind.true)
        for (piece, at, start, own), each in zip(self._spans, given, strict=True):
            if each is not None:
                cells = 1 if each[2] else len(at)
                block = each[0].numbers(each[1], (cells, piece.records))
                _put(found, np.broadcast_to(block, (len(at), *block.shape[1:])), at, start, own)
        return found.reshape(*self.counts.shape, *found.shape[1:])


def _is(one: Leaf, two: Leaf) -> bool:
    return one is two or one == two


def _put(found: Array, block: Array, at: Array, start: Array, own: Array) -> None:
    """Put the rows of each cell where they belong."""
    even = len(at) and (start == start[0]).all() and (own == block.shape[1]).all()
    if even and (np.diff(at) > 0).all():
        rows = slice(start[0], start[0] + block.shape[1])
        if at[-1] - at[0] == len(at) - 1:
            found[at[0] : at[-1] + 1, rows] = block
        else:
            found[at, rows] = block
        return
    taken: dict[int, int] = {}  # a stream may stand in a portion twice
    for row, (cell, begin, number) in enumerate(zip(at, start, own, strict=True)):
        begin += taken.get(cell, 0)
        taken[cell] = taken.get(cell, 0) + number
        found[cell, begin : begin + number] = block[row, :number]


def padding(leaf: Leaf) -> Any:
    """What stands where there is no record."""
    dtype = leaf.kind.true
    if leaf.kind.is_key or _sort(dtype) is None:
        return np.zeros((), dtype)[()]
    with np.errstate(all="ignore"):
        return blank(dtype)

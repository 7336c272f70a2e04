"""What a compiled view takes of a state: its arrays, apart from all else.

What is no array and no number, such as the functions that modules have among their leaves, belongs
to the program: another one is another program. Numbers of Python and NumPy would lose bits on their
way into a program, so that a state that has some is not for one.

How the arrays of a row travel from the device to the file.

Small ones travel as one. Large ones travel *sealed* where that can be: as numbers of 32 bits, with
the checksum of HDF5's filter behind them, which the device computes faster than the host. Such an
array is written to the file as it comes.

Rows of a view that only picks small arrays of the state.

Such a row takes no program: if the arrays are there, and on the host, they are copied at once. That
takes a fraction of the time in which JAX calls one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import ConcreteArray
from logax._delivery.packet import Packing
from logax._serialization.dtypes import Kind
from logax.loop._states import numbers_of

NUMBERS = (bool, int, float, complex)
_ARRAYS = {ConcreteArray}


class Frame(NamedTuple):
    """What a state is besides its arrays: its structure, and leaves that are no numbers."""

    structure: Any
    others: tuple[tuple[int, Any], ...] = ()

    def filled(self, arrays: list[Any]) -> Any:
        """The state with these arrays."""
        leaves = list(arrays)
        for i, other in self.others:
            leaves.insert(i, other)
        return jax.tree.unflatten(self.structure, leaves)


def split(leaves: list[Any], structure: Any) -> tuple[Frame, list[Any]] | None:
    """The arrays of a state, and the rest; None if a program cannot see all of it."""
    if are_arrays(leaves):
        return Frame(structure), leaves
    others = tuple((i, x) for i, x in enumerate(leaves) if not _is_array(x))
    if not all(_belongs_to_the_program(x) for _, x in others):
        return None
    return Frame(structure, others), [x for x in leaves if _is_array(x)]


def signature(frame: Frame, arrays: list[Any]) -> Any:
    """What a program is compiled for."""
    return frame, tuple((x.shape, x.dtype) for x in arrays)


def are_arrays(leaves: list[Any]) -> bool:
    """Whether all are of types that are known to be arrays: the quick way, for every step."""
    return _ARRAYS.issuperset(map(type, leaves))


def are_together(arrays: list[Any]) -> bool:
    """Whether one program can take them all."""
    arrays = [numbers_of(x) for x in arrays if isinstance(x, jax.Array)]
    return len({frozenset(x.devices()) for x in arrays}) <= 1


def is_on_one_device(state: Any) -> bool:
    """Whether arrays can be looked at from end to end without other devices."""
    arrays = [numbers_of(x) for x in jax.tree.leaves(state) if _is_array(x)]
    return all(isinstance(x, jax.Array) and len(x.devices()) == 1 for x in arrays)


def _is_array(leaf: Any) -> bool:
    """Whether it is an array of JAX, or the shape of one, and no tracer."""
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        _ARRAYS.add(type(leaf))  # PRNG keys have a class of their own, which JAX does not name
    return type(leaf) in _ARRAYS or isinstance(leaf, jax.ShapeDtypeStruct)


def _belongs_to_the_program(leaf: Any) -> bool:
    if hasattr(leaf, "dtype") or isinstance(leaf, NUMBERS):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


Numbers = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_LARGE = 2**16  # bytes
_WORD = np.dtype("<u4")
_MODULUS = 65535
_WIDTH = 32  # words in a row of a table
_HEIGHT = 256  # rows of it: the sum of the halves of words, each times its row, fits into 32 bits
_ADDABLE = 2**15  # so many numbers below the modulus can be added


class Parcels:
    """Arrays of these shapes and types, on their way.

    Args:
      arrays: Shape and type of each.
      seals: Whether large ones are sealed, if that can be.
    """

    def __init__(self, arrays: Sequence[tuple[Shape, Kind]], *, seals: bool) -> None:
        self._arrays = list(arrays)
        self._sealed = [seals and _can_be_sealed(shape, kind) for shape, kind in arrays]
        self._packing = Packing([self._travels(i) for i in range(len(arrays))])

    def _travels(self, i: int) -> jax.ShapeDtypeStruct:
        shape, kind = self._arrays[i]
        if self._sealed[i]:
            return jax.ShapeDtypeStruct((_size(shape, kind) // _WORD.itemsize + 1,), _WORD)
        return jax.ShapeDtypeStruct(shape, kind.true)

    def pack(self, arrays: Sequence[Any]) -> list[Any]:
        """In the program: arrays that share no memory with these."""
        given = {id(x) for x in arrays}
        own = (sealed(x) if seals else x for seals, x in zip(self._sealed, arrays, strict=True))
        return [copied(x) if id(x) in given else x for x in self._packing.pack(*own)]

    def read(self, arrays: Sequence[Any]) -> list[Any]:
        """On the host, of small arrays that are there: what `pack` gives, at once."""
        return self._packing.read(arrays)

    def unpack(self, rows: Sequence[Numbers]) -> list[Numbers]:
        """On the host: each array of rows that are stacked."""
        columns = self._packing.unpack(rows)
        for i, (shape, kind) in enumerate(self._arrays):
            if self._sealed[i]:
                numbers = np.ascontiguousarray(columns[i][:, :-1])
                columns[i] = numbers.view(kind.true).reshape(-1, *shape)
        return columns

    def chunks(self, rows: Sequence[Numbers]) -> list[Numbers | None]:
        """On the host: of each array of one row its chunk, where it came with its checksum."""
        columns = self._packing.unpack(rows)
        return [x[0] if seals else None for seals, x in zip(self._sealed, columns, strict=True)]


def _size(shape: Shape, kind: Kind) -> int:
    return int(np.prod(shape, dtype=np.int64)) * kind.true.itemsize


def _can_be_sealed(shape: Shape, kind: Kind) -> bool:
    is_wide = kind.true.kind in "iuf" and kind.true.itemsize in (4, 8)
    return is_wide and kind.true == kind.stored and _size(shape, kind) > _LARGE


def copied(x: Any) -> Any:
    """A copy, of large arrays made by arithmetic, where there is some that changes no bit.

    What takes no arithmetic seems cheap to JAX's CPU device, and is done before the call returns.
    """
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}.get(x.dtype.itemsize)
    if bits is None or x.dtype.kind not in "iuf" or x.nbytes < _LARGE:
        return jnp.copy(x)
    same = jax.lax.bitcast_convert_type(x, bits) ^ _nothing(bits)
    return jax.lax.bitcast_convert_type(same, x.dtype)


def sealed(x: Any) -> Any:
    """The bits of an array of wide numbers, and then their checksum."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    # Joined in one go, XLA would ask of each word whether it is the last.
    with_room = jax.lax.optimization_barrier(jnp.append(words, jnp.uint32(0)))
    return with_room.at[-1].set(_fletcher32(words))


def _nothing(bits: Any) -> Any:
    """A zero that the compiler does not know to be one."""
    return jax.lax.optimization_barrier(jnp.zeros((), bits))


def _fletcher32(words: Any) -> Any:
    """What `_checksums.fletcher32` computes, in the program, of words of 32 bits."""
    total, weighted, is_any = jax.lax.platform_dependent(
        words, cpu=_summed_by_columns, default=_summed_by_rows
    )
    none = jnp.where(is_any, jnp.uint32(_MODULUS), jnp.uint32(0))
    low, high = (256 * x % _MODULUS for x in (total, weighted))
    return jnp.where(high == 0, none, high) << 16 | jnp.where(low == 0, none, low)


# The sum of the halves of words, and that in which the last half counts once, the one before it
# twice, and so on, both modulo 65535; and whether there is anything but zeros. XLA is quick at sums
# along rows on a GPU, and at sums down columns, all at once, on a CPU.


def _summed_by_rows(words: Any) -> tuple[Any, Any, Any]:
    height = words.size // _WIDTH
    rest = words.size - height * _WIDTH
    sums, inner = _sums_of_rows(words[: height * _WIDTH].reshape(height, _WIDTH))
    after = jnp.arange(height - 1, -1, -1, dtype=jnp.uint32) % _MODULUS
    after = (after * (2 * _WIDTH) + 2 * rest) % _MODULUS
    weighted = (inner % _MODULUS + after * (sums % _MODULUS) % _MODULUS) % _MODULUS
    if rest:
        own, own_inner = _sums_of_rows(words[height * _WIDTH :][None])
        sums = jnp.concatenate([sums, own])
        weighted = jnp.concatenate([weighted, own_inner % _MODULUS])
    return _sum(sums % _MODULUS), _sum(weighted), jnp.any(sums != 0)


def _sums_of_rows(table: Any) -> tuple[Any, Any]:
    """Of each row the sum of the halves of its words, and that in which earlier ones count more."""
    first, second = table & 0xFFFF, table >> 16
    places = jnp.arange(2 * table.shape[1], 0, -2, dtype=jnp.uint32)
    inner = first * places + second * (places - 1)
    return tuple(x.sum(axis=1, dtype=jnp.uint32) for x in (first + second, inner))


def _summed_by_columns(words: Any) -> tuple[Any, Any, Any]:
    """Of a stack of tables, the first of which begins with zeros that count for nothing."""
    rest = words.size % (_HEIGHT * _WIDTH)
    first = jnp.pad(words[:rest], (_HEIGHT * _WIDTH - rest, 0)).reshape(1, _HEIGHT, _WIDTH)
    others = words[rest:].reshape(-1, _HEIGHT, _WIDTH)
    both = zip(_sums_of_columns(first), _sums_of_columns(others), strict=True)
    sums = [jnp.concatenate(x) for x in both]
    firsts, seconds, inner_firsts, inner_seconds = (x % _MODULUS for x in sums)
    total = _sum(firsts) + _sum(seconds)
    weighted = _sum(_weighted(firsts, inner_firsts, 0)) + _sum(_weighted(seconds, inner_seconds, 1))
    return total % _MODULUS, weighted % _MODULUS, jnp.any(sums[0] | sums[1] != 0)


def _sums_of_columns(tables: Any) -> tuple[Any, ...]:
    """Of each column the sums of both halves of its words, and of each times the rows below it."""
    first, second = tables & 0xFFFF, tables >> 16
    below = jnp.arange(_HEIGHT - 1, -1, -1, dtype=jnp.uint32)[:, None]
    zeros = (jnp.uint32(0),) * 4
    return tuple(jax.lax.reduce((first, second, first * below, second * below), zeros, _added, [1]))


def _added(some: Any, others: Any) -> tuple[Any, ...]:
    return tuple(x + y for x, y in zip(some, others, strict=True))


def _weighted(own: Any, inner: Any, half: int) -> Any:
    """Sums of columns in which each half of a word counts by its place."""
    tables = jnp.arange(own.shape[0] - 1, -1, -1, dtype=jnp.uint32)[:, None]
    rows = (inner + tables * _HEIGHT % _MODULUS * own) % _MODULUS
    places = jnp.arange(2 * _WIDTH - half, 0, -2, dtype=jnp.uint32)
    return (rows * (2 * _WIDTH) + own * places) % _MODULUS


def _sum(numbers: Any) -> Any:
    """The sum modulo 65535 of numbers that are below it."""
    numbers = numbers.reshape(-1)
    while numbers.size > 1:
        height = min(numbers.size, _ADDABLE)
        table = jnp.pad(numbers, (0, -numbers.size % height)).reshape(-1, height)
        numbers = table.sum(axis=1, dtype=jnp.uint32) % _MODULUS
    return numbers.reshape(())


_IS_DELETED = operator.methodcaller("is_deleted")
_IS_READY = operator.methodcaller("is_ready")
_MOST = 2**16  # bytes: larger rows are better copied while the loop goes on


class Picks:
    """What a view picks of states that are made like one that it was shown.

    Args:
      structure: Of that state.
      leaves: Of that state: arrays, or their shapes.
      places: Which of the leaves the view gives.
      parcels: How they travel.
    """

    def __init__(
        self, structure: Any, leaves: Sequence[Any], places: Sequence[int], parcels: Parcels
    ) -> None:
        self._structure, self._forms = structure, _forms(leaves)
        self._places, self._parcels = places, parcels
        self._can_be_read = True
        self._shardings: list[Any] = []  # that were found to be of one place

    @staticmethod
    def places(given: Sequence[Any], picked: Sequence[Any]) -> list[int] | None:
        """Where what a view gave, traced, is among what it was given; None if not all of it is.

        Nor may there be types that Python cannot read: those that NumPy lacks, and PRNG keys.
        """
        found = {id(x): i for i, x in enumerate(given) if getattr(x.dtype, "isbuiltin", 0) == 1}
        if any(id(x) not in found for x in picked) or sum(x.nbytes for x in picked) > _MOST:
            return None
        return [found[id(x)] for x in picked]

    def __call__(self, structure: Any, leaves: Sequence[Any]) -> list[Any] | None:
        """The row of a state; None if that takes a program."""
        if not self._can_be_read or structure != self._structure or _forms(leaves) != self._forms:
            return None
        picked = [leaves[i] for i in self._places]
        if any(map(_IS_DELETED, picked)) or not all(map(_IS_READY, picked)):
            return None  # a program waits for them, or says that they are gone
        shardings = [x.sharding for x in picked]
        if shardings != self._shardings and not are_together(picked):
            return None  # a program says that it cannot take them, ready or not
        self._shardings = shardings
        try:
            return self._parcels.read(picked)
        except TypeError:  # they are not on one CPU, and hardly ever will be
            self._can_be_read = False
            return None


def _forms(leaves: Sequence[Any]) -> list[Any]:
    return [(x.shape, x.dtype) for x in leaves]

"""Transfer of the arrays of a row from the device to the file.

A compiled view takes the arrays of a state as arguments. All other leaves, such as the functions
among the leaves of a module, are static: they belong to the program, so another function means
another program. Python and NumPy numbers would lose bits as arguments of a program, so a state
that contains some cannot be the argument of a compiled view (`partition_state`).

`RowPacking` packs the small arrays of a row into one. A large array becomes an array of 32-bit
words with the checksum of HDF5's filter at its end, where that is possible: the device computes the
checksum faster than the host, and the array is then written to the file unchanged.

`LeafSelection` serves views that only select small arrays of the state. If the arrays are ready and
on the host, it copies them at once, in a fraction of the time that JAX takes to call a program.
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
from logax._serialization.dtypes import StoredType
from logax.loop._pytrees import unwrap_keys

Numbers = np.ndarray[Any, Any]
Shape = tuple[int, ...]

PYTHON_NUMBERS = (bool, int, float, complex)

_array_types: set[type] = {ConcreteArray}  # `_is_array` adds types to it
_MIN_LARGE_BYTES = 2**16
_WORD_DTYPE = np.dtype("<u4")
_MODULUS = 65535
_TABLE_COLUMNS = 32
_TABLE_ROWS = 256  # the sum of half words, each times its row number, fits into 32 bits
_MAX_ADDENDS = 2**15  # the sum of this many numbers below the modulus fits into 32 bits
_MAX_SELECTION_BYTES = 2**16  # larger rows are better copied while the loop continues
_IS_DELETED = operator.methodcaller("is_deleted")
_IS_READY = operator.methodcaller("is_ready")


class StaticState(NamedTuple):
    """The part of a state that is not arrays: its structure, and its static leaves.

    Attributes:
      structure: Tree structure of the state.
      leaves: Static leaves, each with its index among all leaves.
    """

    structure: Any
    leaves: tuple[tuple[int, Any], ...] = ()

    def combine(self, arrays: list[Any]) -> Any:
        """Return the state with these arrays."""
        leaves = list(arrays)
        for i, leaf in self.leaves:
            leaves.insert(i, leaf)
        return jax.tree.unflatten(self.structure, leaves)


def partition_state(leaves: list[Any], structure: Any) -> tuple[StaticState, list[Any]] | None:
    """Return the static part and the arrays of a state.

    Returns:
      None if the state has leaves that are neither, such as Python numbers.
    """
    if are_known_arrays(leaves):
        return StaticState(structure), leaves
    others = tuple((i, x) for i, x in enumerate(leaves) if not _is_array(x))
    if not all(_is_program_constant(x) for _, x in others):
        return None
    return StaticState(structure, others), [x for x in leaves if _is_array(x)]


def state_signature(static: StaticState, arrays: list[Any]) -> Any:
    """Return the key of the program that is compiled for a state."""
    return static, tuple((x.shape, x.dtype) for x in arrays)


def are_known_arrays(leaves: list[Any]) -> bool:
    """Return whether all leaves have types that are known to be arrays, quickly."""
    return _array_types.issuperset(map(type, leaves))


def are_colocated(arrays: list[Any]) -> bool:
    """Return whether all arrays are on the same devices, so that one program can take them."""
    arrays = [unwrap_keys(x) for x in arrays if isinstance(x, jax.Array)]
    return len({frozenset(x.devices()) for x in arrays}) <= 1


def is_on_one_device(state: Any) -> bool:
    """Return whether every array of a state is wholly on one device."""
    arrays = [unwrap_keys(x) for x in jax.tree.leaves(state) if _is_array(x)]
    return all(isinstance(x, jax.Array) and len(x.devices()) == 1 for x in arrays)


def _is_array(leaf: Any) -> bool:
    """Return whether a leaf is a JAX array or the shape of one, and not a tracer."""
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        _array_types.add(type(leaf))  # JAX does not export the class of PRNG keys
    return type(leaf) in _array_types or isinstance(leaf, jax.ShapeDtypeStruct)


def _is_program_constant(leaf: Any) -> bool:
    if hasattr(leaf, "dtype") or isinstance(leaf, PYTHON_NUMBERS):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


class RowPacking:
    """Pack the arrays of a row on the device, and unpack them on the host.

    Args:
      arrays: Shape and type of each array.
      adds_checksums: True to append checksums to large arrays where possible.
    """

    def __init__(self, arrays: Sequence[tuple[Shape, StoredType]], *, adds_checksums: bool) -> None:
        self._arrays = list(arrays)
        self._has_checksum = [
            adds_checksums and _can_append_checksum(shape, kind) for shape, kind in arrays
        ]
        self._packing = Packing([self._packed_aval(i) for i in range(len(arrays))])

    def _packed_aval(self, i: int) -> jax.ShapeDtypeStruct:
        shape, kind = self._arrays[i]
        if self._has_checksum[i]:
            words = _array_bytes(shape, kind) // _WORD_DTYPE.itemsize
            return jax.ShapeDtypeStruct((words + 1,), _WORD_DTYPE)
        return jax.ShapeDtypeStruct(shape, kind.dtype)

    def pack(self, arrays: Sequence[Any]) -> list[Any]:
        """Return packed arrays that share no memory with the given ones, in the program."""
        given = {id(x) for x in arrays}
        pairs = zip(self._has_checksum, arrays, strict=True)
        checked = (append_checksum(x) if has_checksum else x for has_checksum, x in pairs)
        return [copy_array(x) if id(x) in given else x for x in self._packing.pack(*checked)]

    def read(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the same as `pack`, of small arrays that are ready on the host."""
        return self._packing.read(arrays)

    def unpack(self, rows: Sequence[Numbers]) -> list[Numbers]:
        """Return the arrays of stacked rows, on the host."""
        columns = self._packing.unpack(rows)
        for i, (shape, kind) in enumerate(self._arrays):
            if self._has_checksum[i]:
                numbers = np.ascontiguousarray(columns[i][:, :-1])
                columns[i] = numbers.view(kind.dtype).reshape(-1, *shape)
        return columns

    def chunks(self, rows: Sequence[Numbers]) -> list[Numbers | None]:
        """Return the arrays of one row that have a checksum, and None for the others."""
        pairs = zip(self._has_checksum, self._packing.unpack(rows), strict=True)
        return [x[0] if has_checksum else None for has_checksum, x in pairs]


def _array_bytes(shape: Shape, kind: StoredType) -> int:
    return int(np.prod(shape, dtype=np.int64)) * kind.dtype.itemsize


def _can_append_checksum(shape: Shape, kind: StoredType) -> bool:
    is_wide = kind.dtype.kind in "iuf" and kind.dtype.itemsize in (4, 8)
    is_large = _array_bytes(shape, kind) > _MIN_LARGE_BYTES
    return is_wide and kind.dtype == kind.stored_dtype and is_large


def copy_array(x: Any) -> Any:
    """Return a copy of an array, in the program.

    The copy of a large array uses arithmetic that changes no bit, where there is such arithmetic:
    JAX's CPU device executes a program without arithmetic before the call returns, as it considers
    the program cheap.
    """
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}.get(x.dtype.itemsize)
    if bits is None or x.dtype.kind not in "iuf" or x.nbytes < _MIN_LARGE_BYTES:
        return jnp.copy(x)
    same = jax.lax.bitcast_convert_type(x, bits) ^ _opaque_zero(bits)
    return jax.lax.bitcast_convert_type(same, x.dtype)


def append_checksum(x: Any) -> Any:
    """Return the 32-bit words of an array, followed by their checksum."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    # A single concatenation would make XLA test for each word whether it is the last one.
    with_room = jax.lax.optimization_barrier(jnp.append(words, jnp.uint32(0)))
    return with_room.at[-1].set(_fletcher32(words))


def _opaque_zero(dtype: Any) -> Any:
    """Return a zero that the compiler cannot fold."""
    return jax.lax.optimization_barrier(jnp.zeros((), dtype))


def _fletcher32(words: Any) -> Any:
    """Return the value of `_checksums.fletcher32` for 32-bit words, in the program."""
    total, weighted, is_any = jax.lax.platform_dependent(
        words, cpu=_sum_by_columns, default=_sum_by_rows
    )
    none = jnp.where(is_any, jnp.uint32(_MODULUS), jnp.uint32(0))
    low, high = (256 * x % _MODULUS for x in (total, weighted))
    return jnp.where(high == 0, none, high) << 16 | jnp.where(low == 0, none, low)


# `_sum_by_rows` and `_sum_by_columns` both return the sum of the half words, their sum with the
# weights n, ..., 2, 1 (both modulo 65535), and whether any word is not zero. XLA computes sums
# along rows fast on a GPU, and sums along columns fast on a CPU if they are one reduction.


def _sum_by_rows(words: Any) -> tuple[Any, Any, Any]:
    height = words.size // _TABLE_COLUMNS
    rest = words.size - height * _TABLE_COLUMNS
    sums, inner = _row_sums(words[: height * _TABLE_COLUMNS].reshape(height, _TABLE_COLUMNS))
    after = jnp.arange(height - 1, -1, -1, dtype=jnp.uint32) % _MODULUS
    after = (after * (2 * _TABLE_COLUMNS) + 2 * rest) % _MODULUS
    weighted = (inner % _MODULUS + after * (sums % _MODULUS) % _MODULUS) % _MODULUS
    if rest:
        rest_sums, rest_inner = _row_sums(words[height * _TABLE_COLUMNS :][None])
        sums = jnp.concatenate([sums, rest_sums])
        weighted = jnp.concatenate([weighted, rest_inner % _MODULUS])
    return _modular_sum(sums % _MODULUS), _modular_sum(weighted), jnp.any(sums != 0)


def _row_sums(table: Any) -> tuple[Any, Any]:
    """Return the sum of the half words of each row, and their sum with weights n, ..., 2, 1."""
    first, second = table & 0xFFFF, table >> 16
    weights = jnp.arange(2 * table.shape[1], 0, -2, dtype=jnp.uint32)
    inner = first * weights + second * (weights - 1)
    return tuple(x.sum(axis=1, dtype=jnp.uint32) for x in (first + second, inner))


def _sum_by_columns(words: Any) -> tuple[Any, Any, Any]:
    """Return the sums over a stack of tables, the first of which is padded with leading zeros."""
    rest = words.size % (_TABLE_ROWS * _TABLE_COLUMNS)
    first = jnp.pad(words[:rest], (_TABLE_ROWS * _TABLE_COLUMNS - rest, 0))
    first = first.reshape(1, _TABLE_ROWS, _TABLE_COLUMNS)
    others = words[rest:].reshape(-1, _TABLE_ROWS, _TABLE_COLUMNS)
    both = zip(_column_sums(first), _column_sums(others), strict=True)
    sums = [jnp.concatenate(x) for x in both]
    firsts, seconds, inner_firsts, inner_seconds = (x % _MODULUS for x in sums)
    total = _modular_sum(firsts) + _modular_sum(seconds)
    weighted = _modular_sum(_weigh_columns(firsts, inner_firsts, 0))
    weighted += _modular_sum(_weigh_columns(seconds, inner_seconds, 1))
    return total % _MODULUS, weighted % _MODULUS, jnp.any(sums[0] | sums[1] != 0)


def _column_sums(tables: Any) -> tuple[Any, ...]:
    """Return the sums of both half words of each column, without and with weights by row."""
    first, second = tables & 0xFFFF, tables >> 16
    below = jnp.arange(_TABLE_ROWS - 1, -1, -1, dtype=jnp.uint32)[:, None]
    zeros = (jnp.uint32(0),) * 4
    operands = (first, second, first * below, second * below)
    return tuple(jax.lax.reduce(operands, zeros, _add_pairwise, [1]))


def _add_pairwise(some: Any, others: Any) -> tuple[Any, ...]:
    return tuple(x + y for x, y in zip(some, others, strict=True))


def _weigh_columns(sums: Any, inner: Any, half: int) -> Any:
    """Return the sums of columns with each half word weighted by its position."""
    tables = jnp.arange(sums.shape[0] - 1, -1, -1, dtype=jnp.uint32)[:, None]
    rows = (inner + tables * _TABLE_ROWS % _MODULUS * sums) % _MODULUS
    weights = jnp.arange(2 * _TABLE_COLUMNS - half, 0, -2, dtype=jnp.uint32)
    return (rows * (2 * _TABLE_COLUMNS) + sums * weights) % _MODULUS


def _modular_sum(numbers: Any) -> Any:
    """Return the sum modulo 65535 of numbers below 65535."""
    numbers = numbers.reshape(-1)
    while numbers.size > 1:
        height = min(numbers.size, _MAX_ADDENDS)
        table = jnp.pad(numbers, (0, -numbers.size % height)).reshape(-1, height)
        numbers = table.sum(axis=1, dtype=jnp.uint32) % _MODULUS
    return numbers.reshape(())


class LeafSelection:
    """Copy the rows of a view that only selects leaves of the state, without a program.

    Args:
      structure: Tree structure of the states.
      leaves: Leaves of an example state: arrays, or their shapes.
      indices: Indices of the leaves that the view returns.
      packing: Packing of these leaves.
    """

    def __init__(
        self, structure: Any, leaves: Sequence[Any], indices: Sequence[int], packing: RowPacking
    ) -> None:
        self._structure, self._avals = structure, _shapes_and_dtypes(leaves)
        self._indices, self._packing = indices, packing
        self._is_possible = True
        self._shardings: list[Any] = []  # the last ones that `are_colocated` accepted

    @staticmethod
    def find_selected_leaves(leaves: Sequence[Any], selected: Sequence[Any]) -> list[int] | None:
        """Return the indices of the leaves that a traced view returned.

        Returns:
          None if the view returned anything but leaves, too many bytes, or a dtype that Python
          cannot read: a dtype that NumPy lacks, or a PRNG key.
        """
        found = {id(x): i for i, x in enumerate(leaves) if getattr(x.dtype, "isbuiltin", 0) == 1}
        if any(id(x) not in found for x in selected):
            return None
        if sum(x.nbytes for x in selected) > _MAX_SELECTION_BYTES:
            return None
        return [found[id(x)] for x in selected]

    def __call__(self, structure: Any, leaves: Sequence[Any]) -> list[Any] | None:
        """Return the row of a state, or None if that takes a program."""
        if not self._is_possible or structure != self._structure:
            return None
        if _shapes_and_dtypes(leaves) != self._avals:
            return None
        selected = [leaves[i] for i in self._indices]
        if any(map(_IS_DELETED, selected)) or not all(map(_IS_READY, selected)):
            return None  # the program waits for them, or raises
        shardings = [x.sharding for x in selected]
        if shardings != self._shardings and not are_colocated(selected):
            return None  # the program raises
        self._shardings = shardings
        try:
            return self._packing.read(selected)
        except TypeError:  # the arrays are not on one CPU, and hardly ever will be
            self._is_possible = False
            return None


def _shapes_and_dtypes(leaves: Sequence[Any]) -> list[Any]:
    return [(x.shape, x.dtype) for x in leaves]

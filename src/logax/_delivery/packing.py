"""Many small operands as one row of 32-bit words: each operand of a host call has its price.

Rows of the same packing can be stacked, so that the host decodes many emissions at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Aval

MAX_PACKED_BYTES = 1 << 16  # a larger operand travels by itself, since packing copies


class _Slot(NamedTuple):
    """Where an operand is in the row."""

    number: int
    words: slice
    dtype: Any
    shape: tuple[int, ...]


class Packing:
    """Small operands as one row of words; all others by themselves.

    The first operand is a number, and so stays the first number of what is packed.

    Args:
      avals: Types and shapes of the operands.
      in_place: Whether operands are written into the row one by one, instead of joined all at once.
        XLA does that faster on the CPU. It is also what XLA does last there, so that host calls are
        made in the order of the program.
    """

    def __init__(self, avals: Sequence[Aval], *, in_place: bool = False) -> None:
        self._number, self._in_place = len(avals), in_place
        small = [i for i, aval in enumerate(avals) if _is_small(aval)]
        self._together = small if len(small) > 1 else []
        self._alone = [i for i in range(len(avals)) if i not in set(self._together)]
        self._slots: list[_Slot] = []
        at = 0
        for i in self._together:
            words = avals[i].size * max(avals[i].dtype.itemsize // 4, 1)
            shape = tuple(avals[i].shape)
            self._slots.append(_Slot(i, slice(at, at + words), np.dtype(avals[i].dtype), shape))
            at += words
        self._widened = [n for n, slot in enumerate(self._slots) if slot.dtype.itemsize < 4]

    def pack(self, *operands: Array) -> list[Array]:
        """Pack operands, in the program."""
        alone = [operands[i] for i in self._alone]
        if not self._together:
            return alone
        return [self._joined([_words(operands[i]) for i in self._together]), *alone]

    def _joined(self, parts: list[Array]) -> Array:
        if not self._in_place:
            return jnp.concatenate(parts)
        row, at = jnp.zeros(sum(map(len, parts)), jnp.uint32), 0
        for part in parts:
            row = jax.lax.dynamic_update_slice(row, part, (at,))
            at += len(part)
        return row

    def read(self, operands: Sequence[Any]) -> list[Any]:
        """Pack operands on the host, of arrays that can be read there, into memory of its own.

        Raises `TypeError` for arrays on other devices, on several, and of types beyond Python's.
        """
        alone = [_read(operands[i]) for i in self._alone]
        if not self._together:
            return alone
        parts = [operands[i] for i in self._together]
        for i in self._widened:
            parts[i] = _read(parts[i]).view(_unsigned(self._slots[i].dtype)).astype(np.uint32)
        return [np.frombuffer(b"".join(parts), np.uint32), *alone]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Return the operands, on the host; axes may be in front of all of them."""
        result: list[Any] = [None] * self._number
        rest = packed
        if self._together:
            row, rest = np.asarray(packed[0]), packed[1:]
            views: dict[Any, Any] = {}
            for i, words, dtype, shape in self._slots:
                if dtype.itemsize < 4:
                    own = _narrowed(row[..., words], dtype)
                elif dtype.itemsize == 4:
                    if dtype not in views:
                        views[dtype] = row.view(dtype)
                    own = views[dtype][..., words]
                else:
                    own = np.ascontiguousarray(row[..., words]).view(dtype)
                result[i] = own if len(shape) == 1 else own.reshape(row.shape[:-1] + shape)
        for i, x in zip(self._alone, rest, strict=True):
            result[i] = np.asarray(x)
        return result


def _is_small(aval: Aval) -> bool:
    dtype = np.dtype(aval.dtype)
    if aval.size * dtype.itemsize > MAX_PACKED_BYTES:
        return False
    if dtype.kind in "bfiu":
        return dtype.itemsize in (1, 2, 4, 8)
    return bool(dtype == jnp.bfloat16)


def _read(x: Any) -> Any:
    """Copy to the host, without JAX keeping a copy: `np.asarray` holds on to the array's memory."""
    return np.ndarray(x.shape, x.dtype, b"".join([x]))


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"u{dtype.itemsize}")


def _narrowed(words: Any, dtype: Any) -> Any:
    if dtype.kind == "b":
        return words != 0
    return words.astype(_unsigned(dtype)).view(dtype)


def _words(x: Array) -> Array:
    if x.dtype == bool:
        return x.astype(jnp.uint32).reshape(-1)
    size = np.dtype(x.dtype).itemsize
    if size >= 4:  # 64-bit numbers become two words each
        return jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    bits = jax.lax.bitcast_convert_type(x, _unsigned(np.dtype(x.dtype)))
    return bits.astype(jnp.uint32).reshape(-1)

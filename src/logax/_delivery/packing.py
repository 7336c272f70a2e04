"""Many small operands as one: each operand of a host call has its price, on every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Aval

_LARGE = 1 << 16  # bytes: larger operands travel by themselves, since packing copies


class Packing:
    """Small operands of four bytes an element, and booleans, as one row; others by themselves.

    The first operand is a number, and so stays the first number of what is packed.

    Args:
      avals: Their types and shapes.
      in_place: Whether they are put into the row one by one, and not joined all at once. It is
        what XLA on the CPU does last, so that host calls are made in the order of the program; and
        it is dear where there are many.
    """

    def __init__(self, avals: Sequence[Aval], *, in_place: bool = False) -> None:
        self._number, self._in_place = len(avals), in_place
        small = [i for i, aval in enumerate(avals) if _is_small(aval)]
        self._together = small if len(small) > 1 else []
        self._alone = [i for i in range(len(avals)) if i not in set(self._together)]
        self._slices: list[tuple[int, slice, Any, tuple[int, ...]]] = []
        at = 0
        for i in self._together:
            aval = avals[i]
            self._slices.append((i, slice(at, at + aval.size), aval.dtype, tuple(aval.shape)))
            at += aval.size
        self._booleans = [n for n, i in enumerate(self._together) if avals[i].dtype == bool]
        self._dtypes = {dtype for _, _, dtype, _ in self._slices if dtype.kind != "b"}

    def pack(self, *operands: Array) -> list[Array]:
        """In the program."""
        alone = [operands[i] for i in self._alone]
        if not self._together:
            return alone
        return [self._joined([_bits(operands[i]) for i in self._together]), *alone]

    def _joined(self, parts: list[Array]) -> Array:
        if not self._in_place:
            return jnp.concatenate(parts)
        row, at = jnp.zeros(sum(map(len, parts)), jnp.uint32), 0
        for part in parts:
            row = jax.lax.dynamic_update_slice(row, part, (at,))
            at += len(part)
        return row

    def read(self, operands: Sequence[Any]) -> list[Any]:
        """On the host, of arrays that can be read there: the same, in memory of its own.

        Raises `TypeError` for arrays on other devices, on several, and of types beyond Python's.
        """
        alone = [_read(operands[i]) for i in self._alone]
        if not self._together:
            return alone
        parts = [operands[i] for i in self._together]
        for i in self._booleans:
            parts[i] = _read(parts[i]).astype(np.uint32)
        return [np.frombuffer(b"".join(parts), np.uint32), *alone]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """On the host, where axes may stand in front of all."""
        result: list[Any] = [None] * self._number
        rest = packed
        if self._together:
            row, rest = np.asarray(packed[0]), packed[1:]
            lanes = row.shape[:-1]
            views = {dtype: row.view(dtype) for dtype in self._dtypes}
            for i, where, dtype, shape in self._slices:
                own = row[..., where] != 0 if dtype.kind == "b" else views[dtype][..., where]
                result[i] = own if len(shape) == 1 else own.reshape(lanes + shape)
        for i, x in zip(self._alone, rest, strict=True):
            result[i] = np.asarray(x)
        return result


def _is_small(aval: Aval) -> bool:
    if aval.size * aval.dtype.itemsize > _LARGE:
        return False
    return aval.dtype == bool or (aval.dtype.itemsize == 4 and aval.dtype.kind in "fiu")


def _read(x: Any) -> Any:
    """A copy on the host, of which JAX keeps none: `np.asarray` holds on to the array's memory."""
    return np.ndarray(x.shape, x.dtype, b"".join([x]))


def _bits(x: Array) -> Array:
    if x.dtype == bool:
        return x.astype(jnp.uint32).reshape(-1)
    return jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)

"""What goes wrong with files, as one type of error.

What files can hold, and how they hold the rest: as bits, with the true type beside it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from logax._support.arrays import is_key_array


class StorageError(RuntimeError):
    """A trajectory could not be written, or a file cannot be read as one.

    What the disk or HDF5 said is its `__cause__`.
    """

    __module__ = "logax.storage"


_NATIVE = "biufc"
_WIDEST = {"f": 8, "c": 16}  # bytes of the types that are the same everywhere
# What NumPy lacks, by name: those that this version of ml_dtypes has.
_EXTENDED = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float4_e2m1fn",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "int1",
        "int2",
        "int4",
        "uint1",
        "uint2",
        "uint4",
    )
    if hasattr(ml_dtypes, name)
}
_BITS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2")}
_NAME = re.compile(r"[<>|](?:[biufc][0-9]{1,2}|[mM]8(?:\[[0-9]*[a-zA-Z]{1,2}\])?|[SU][0-9]{1,9})")
_KEY = re.compile(r"key<([\w.-]{1,64})>")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of numbers, and the type and the axes under which a file holds them.

    Attributes:
      name: Of the true type, as it stands in the file.
      true: The type in NumPy; of PRNG keys, that of their numbers.
      stored: The type in the file.
      more: The axes that the stored array has in addition, at its end.
    """

    name: str
    true: np.dtype[Any]
    stored: np.dtype[Any]
    more: tuple[int, ...] = ()

    @property
    def is_key(self) -> bool:
        """Whether it stands for typed PRNG keys."""
        return self.name.startswith("key<")

    def to_stored(self, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """An array of the true type as a file holds it; no bit changes."""
        if self.true == self.stored:
            return x.reshape(shape)
        return np.ascontiguousarray(x).view(self.stored).reshape(shape)

    def to_true(self, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Any:
        """An array as it was stored, with its own type and this shape."""
        if self.is_key:
            match = _KEY.fullmatch(self.name)
            numbers = jnp.asarray(x.reshape(*shape, *self.more))
            try:
                return jax.random.wrap_key_data(numbers, impl=match[1] if match else None)
            except (ValueError, TypeError, KeyError) as error:
                raise StorageError(
                    f"The file holds PRNG keys of the kind {self.name!r}, which this JAX does not "
                    "make."
                ) from error
        if self.true == self.stored:
            return x.reshape(shape)
        return np.ascontiguousarray(x).view(self.true).reshape(shape)


def kind_of(leaf: Any) -> Kind | None:
    """How to hold what an array holds, or None if that cannot be."""
    if isinstance(leaf, jax.Array) and is_key_array(leaf):
        numbers = jax.eval_shape(jax.random.key_data, leaf)
        name, words = f"key<{jax.random.key_impl(leaf)}>", np.dtype(np.uint32)
        return Kind(name, words, words, numbers.shape[leaf.ndim :])
    return _kind(np.dtype(leaf.dtype))


def _kind(dtype: np.dtype[Any]) -> Kind | None:
    if dtype.name in _EXTENDED and dtype == _EXTENDED[dtype.name]:
        return Kind(dtype.name, dtype, _BITS[dtype.itemsize])
    if dtype.kind in "fc" and dtype.itemsize > _WIDEST[dtype.kind]:  # as wide as the machine's
        return Kind(dtype.str, dtype, _BITS[1], (dtype.itemsize,))
    if dtype.kind in _NATIVE and dtype.isbuiltin != 2:
        name = dtype.name if dtype.isnative else dtype.str
        return Kind(name, dtype, dtype)
    if dtype.kind in "mM":
        return Kind(dtype.str, dtype, np.dtype(np.int64).newbyteorder(dtype.byteorder))
    if dtype.kind == "S" and dtype.itemsize:
        return Kind(dtype.str, dtype, dtype)
    if dtype.kind == "U" and dtype.itemsize:
        words = np.dtype(np.uint32).newbyteorder(dtype.byteorder)
        return Kind(dtype.str, dtype, words, (dtype.itemsize // 4,))
    return None


def kind_named(name: str, more: tuple[int, ...]) -> Kind:
    """The same from the name in a file, or a ValueError."""
    if _KEY.fullmatch(name) and len(more) == 1:
        return Kind(name, np.dtype(np.uint32), np.dtype(np.uint32), more)
    kind = None
    if name in _EXTENDED:
        kind = _kind(_EXTENDED[name])
    elif _NAME.fullmatch(name) or name in _NAMES:
        try:
            kind = _kind(np.dtype(name))
        except TypeError:
            kind = None
    if kind is None or kind.name != name or kind.more != more:
        raise ValueError(f"it has the unknown type {name[:60]!r}")
    return kind


_NAMES = {np.dtype(code).name for code in "?bBhHiIlLqQefdFD"}

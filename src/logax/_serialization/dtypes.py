"""Dtypes on disk: native dtypes as they are, all others as bits beside the name of their dtype."""

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
    """A trajectory could not be written, or a file cannot be read as a trajectory.

    `HDF5StorageWriter`, `HDF5StorageReader` and `resume_state` raise it. The message names the file
    and, after a failed write, the number of rows that are safe. The error of HDF5 or of the
    operating system, if there is one, is its `__cause__`.
    """

    __module__ = "logax.storage"


_NATIVE_KINDS = "biufc"
_MAX_PORTABLE_BYTES = {"f": 8, "c": 16}  # wider types differ between machines
# Dtypes that NumPy lacks, as far as this version of ml_dtypes has them.
_EXTENDED_DTYPES = {
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
_BIT_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2")}
_DTYPE_NAME = re.compile(
    r"[<>|](?:[biufc][0-9]{1,2}|[mM]8(?:\[[0-9]*[a-zA-Z]{1,2}\])?|[SU][0-9]{1,9})"
)
_KEY_NAME = re.compile(r"key<([\w.-]{1,64})>")


@dataclasses.dataclass(frozen=True)
class StoredType:
    """A dtype in memory, and the dtype and axes under which a file stores it.

    Attributes:
      name: Name of the dtype in the file.
      dtype: Dtype in memory; for PRNG keys, that of their key data.
      stored_dtype: Dtype in the file.
      extra_axes: Axes that the stored array has in addition, at its end.
    """

    name: str
    dtype: np.dtype[Any]
    stored_dtype: np.dtype[Any]
    extra_axes: tuple[int, ...] = ()

    @property
    def is_key(self) -> bool:
        """True for typed PRNG keys."""
        return self.name.startswith("key<")

    def encode(self, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return an array as a file stores it, with this shape; all bits are preserved."""
        if self.dtype == self.stored_dtype:
            return x.reshape(shape)
        return np.ascontiguousarray(x).view(self.stored_dtype).reshape(shape)

    def decode(self, x: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Any:
        """Return a stored array with its dtype in memory and this shape."""
        if self.is_key:
            match = _KEY_NAME.fullmatch(self.name)
            numbers = jnp.asarray(x.reshape(*shape, *self.extra_axes))
            try:
                return jax.random.wrap_key_data(numbers, impl=match[1] if match else None)
            except (ValueError, TypeError, KeyError) as error:
                raise StorageError(
                    f"The file holds PRNG keys of type {self.name!r}, which this version of JAX "
                    "does not support."
                ) from error
        if self.dtype == self.stored_dtype:
            return x.reshape(shape)
        return np.ascontiguousarray(x).view(self.dtype).reshape(shape)


def stored_type_of(leaf: Any) -> StoredType | None:
    """Return the type under which an array is stored; None if it cannot be stored."""
    if isinstance(leaf, jax.Array) and is_key_array(leaf):
        numbers = jax.eval_shape(jax.random.key_data, leaf)
        name, words = f"key<{jax.random.key_impl(leaf)}>", np.dtype(np.uint32)
        return StoredType(name, words, words, numbers.shape[leaf.ndim :])
    return _stored_type_of_dtype(np.dtype(leaf.dtype))


def _stored_type_of_dtype(dtype: np.dtype[Any]) -> StoredType | None:
    if dtype.name in _EXTENDED_DTYPES and dtype == _EXTENDED_DTYPES[dtype.name]:
        return StoredType(dtype.name, dtype, _BIT_DTYPES[dtype.itemsize])
    if (
        dtype.kind in "fc" and dtype.itemsize > _MAX_PORTABLE_BYTES[dtype.kind]
    ):  # as wide as this machine has them
        return StoredType(dtype.str, dtype, _BIT_DTYPES[1], (dtype.itemsize,))
    if dtype.kind in _NATIVE_KINDS and dtype.isbuiltin != 2:
        name = dtype.name if dtype.isnative else dtype.str
        return StoredType(name, dtype, dtype)
    if dtype.kind in "mM":
        return StoredType(dtype.str, dtype, np.dtype(np.int64).newbyteorder(dtype.byteorder))
    if dtype.kind == "S" and dtype.itemsize:
        return StoredType(dtype.str, dtype, dtype)
    if dtype.kind == "U" and dtype.itemsize:
        words = np.dtype(np.uint32).newbyteorder(dtype.byteorder)
        return StoredType(dtype.str, dtype, words, (dtype.itemsize // 4,))
    return None


def parse_stored_type(name: str, extra_axes: tuple[int, ...]) -> StoredType:
    """Return the type with this name in a file, or raise ValueError."""
    if _KEY_NAME.fullmatch(name) and len(extra_axes) == 1:
        return StoredType(name, np.dtype(np.uint32), np.dtype(np.uint32), extra_axes)
    kind = None
    if name in _EXTENDED_DTYPES:
        kind = _stored_type_of_dtype(_EXTENDED_DTYPES[name])
    elif _DTYPE_NAME.fullmatch(name) or name in _NATIVE_NAMES:
        try:
            kind = _stored_type_of_dtype(np.dtype(name))
        except TypeError:
            kind = None
    if kind is None or kind.name != name or kind.extra_axes != extra_axes:
        raise ValueError(f"it has the unknown type {name[:60]!r}")
    return kind


_NATIVE_NAMES = {np.dtype(code).name for code in "?bBhHiIlLqQefdFD"}

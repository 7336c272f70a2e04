"""Operations on logged arrays: record axes, missing steps, lane axes, device copies, leaf names.

The functions accept JAX arrays, tracers and NumPy arrays. NumPy arrays stay NumPy arrays, so that
JAX never truncates a logged number to 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree


def leaf_name(key: str, path: Any) -> str:
    """Return the flat name of a leaf: its key and path joined by slashes.

    Dictionary keys, attribute names and indices are parts of a path: `grad/layers/0/weight`.
    """
    parts = jax.tree_util.keystr(path, simple=True, separator="/")
    return f"{key}/{parts}" if path else key


def duplicate_name_error(name: str) -> ValueError:
    """Return the error for two leaves with the same flat name."""
    return ValueError(f"Two leaves of this `logdict` are called {name!r}: rename a key.")


def missing_step(dtype: Any) -> Any:
    """Return the value that a step column holds for a record without this step.

    NaN for floats, the minimum of a signed integer type, the maximum of an unsigned one.
    """
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(np.nan, dtype)[()]
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return np.array(jnp.iinfo(dtype).min, dtype)[()]
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return np.array(jnp.iinfo(dtype).max, dtype)[()]
    raise TypeError(f"A step is an integer or a float, and got {dtype.name}.")


def is_missing(steps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mask of the missing steps in a step column on the host."""
    if jnp.issubdtype(steps.dtype, jnp.floating):
        return np.asarray(np.isnan(steps))
    if not jnp.issubdtype(steps.dtype, jnp.integer):  # the tangent of a step, say
        return np.ones(steps.shape, bool)
    return np.asarray(steps == missing_step(steps.dtype))


def is_float0(x: Any) -> bool:
    """Return True for a `float0` array, the tangent of integers: it has a shape but no values."""
    return bool(x.dtype == jax.dtypes.float0)


def is_concrete(x: Any) -> bool:
    """Return True if the values of an array can be read: it is not a tracer or a mere shape."""
    if isinstance(x, jax.Array):
        return not isinstance(x, jax.core.Tracer) and not x.is_deleted() and x.is_fully_addressable
    return isinstance(x, (np.ndarray, np.generic))


def is_key_array(x: Any) -> bool:
    """Return True for an array of typed PRNG keys."""
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def shape_name(dtype: Any, shape: Sequence[int]) -> str:
    """Format a dtype and shape as JAX does: `float32[64,3]`, or `float32` for a scalar."""
    name = "float0" if dtype == jax.dtypes.float0 else getattr(dtype, "name", dtype)
    return f"{name}{list(shape) if shape else ''}".replace(" ", "")


def array_module(*arrays: Any) -> Any:
    """Return `numpy` if all arrays are NumPy arrays, otherwise `jax.numpy`."""
    return np if all(isinstance(x, (np.ndarray, np.generic)) for x in arrays) else jnp


def take_rows(x: Array, index: Array, axis: int) -> Array:
    """Take rows of `x` along the record axis; `index` has the lane axes, then one axis of rows."""
    index = index.reshape(index.shape + (1,) * (x.ndim - index.ndim))
    if array_module(x) is np and is_concrete(index):
        return np.take_along_axis(x, np.asarray(index), axis)
    return jnp.take_along_axis(x, index, axis, mode="clip")


def missing_rows(like: Array, rows: int, axis: int) -> Array:
    """Return rows of a step column for records without this step."""
    shape = (*like.shape[:axis], rows, *like.shape[axis + 1 :])
    return array_module(like).full(shape, missing_step(like.dtype), like.dtype)


def padding_row(x: Array, axis: int) -> Array:
    """Return one row of padding for an array without rows."""
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if is_key_array(x):
        return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(x)), shape)
    return jnp.zeros(shape, x.dtype)


def record_ndim(value: Tree, axis: int) -> int:
    """Return the number of dimensions of one record of the first leaf."""
    leaves = jax.tree.leaves(value)
    return leaves[0].ndim - 1 - axis if leaves else 0


def missing_value(dtype: Any) -> Any:
    """Return the value of this dtype that represents a missing value."""
    if dtype == np.bool_:
        return np.False_
    return (
        np.array(np.nan, dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating)
        else missing_step(dtype)
    )


def encode_utf8(text: str) -> bytes:
    """Encode text as UTF-8, and lone surrogates as the escapes that JSON uses."""
    return text.encode("utf-8", "backslashreplace")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by their escapes."""
    return encode_utf8(text).decode()


def copy_arrays(arrays: Sequence[Array]) -> list[Array]:
    """Copy arrays on their devices, in one program if all are on the same devices.

    Does not wait for or fetch any array. The originals may be donated afterwards.
    """
    if not arrays:
        return []
    try:
        return _copy(list(arrays))  # type: ignore[no-any-return]
    except ValueError:  # they are on different devices
        return [copy for array in arrays for copy in _copy([array])]


_copy = jax.jit(lambda arrays: [jnp.copy(x) for x in arrays])


def lane_count(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """Return the size of the axis that a batching rule maps over."""
    return next(int(x.shape[d]) for x, d in zip(args, dims, strict=True) if d is not None)


def move_lanes_first(args: Sequence[Any], dims: Sequence[int | None]) -> list[Array]:
    """Move the lane axis of each batched operand of a batching rule to the front."""
    return [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]

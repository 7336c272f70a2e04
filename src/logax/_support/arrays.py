"""Arrays with a record axis: the few operations that logdicts are made of.

They work on JAX arrays, on tracers and on NumPy arrays, which stay NumPy arrays: no logged number
is ever cut to the 32 bits that JAX prefers.

Copies of arrays, on the device.

A copy waits for nothing and fetches nothing. What was copied may change hands, or be donated to the
next program.

The lane axis that `vmap` gives to operands of a primitive, as its batching rule sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree


def leaf_name(key: str, path: Any) -> str:
    """The flat name of a leaf: the key and the parts of its path, joined by slashes.

    A dictionary's key, an attribute's name and an index each are a part: `grad/layers/0/weight`.
    """
    parts = jax.tree_util.keystr(path, simple=True, separator="/")
    return f"{key}/{parts}" if path else key


def called_alike(name: str) -> ValueError:
    """The error for two leaves of one flat name."""
    return ValueError(f"Two leaves of this `logdict` are called {name!r}: rename a key.")


def missing_step(dtype: Any) -> Any:
    """What a step column holds for a record that lacks the step.

    NaN for floats, the least value of a signed and the greatest of an unsigned integer type.
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
    """Which elements of a step column on the host stand for no step."""
    if jnp.issubdtype(steps.dtype, jnp.floating):
        return np.asarray(np.isnan(steps))
    if not jnp.issubdtype(steps.dtype, jnp.integer):  # the tangent of a step, say
        return np.ones(steps.shape, bool)
    return np.asarray(steps == missing_step(steps.dtype))


def is_tangent(x: Any) -> bool:
    """Whether an array is the tangent of integers: it has a shape, and no numbers."""
    return bool(x.dtype == jax.dtypes.float0)


def is_concrete(x: Any) -> bool:
    """Whether the numbers of an array can be seen: not a tracer, not a mere shape."""
    if isinstance(x, jax.Array):
        return not isinstance(x, jax.core.Tracer) and not x.is_deleted() and x.is_fully_addressable
    return isinstance(x, (np.ndarray, np.generic))


def is_key_array(x: Any) -> bool:
    """Whether an array holds typed PRNG keys."""
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def shape_name(dtype: Any, shape: Sequence[int]) -> str:
    """A dtype and a shape as JAX writes them: `float32[64,3]`, and `float32` for a scalar."""
    name = "float0" if dtype == jax.dtypes.float0 else getattr(dtype, "name", dtype)
    return f"{name}{list(shape) if shape else ''}".replace(" ", "")


def module_of(*arrays: Any) -> Any:
    """NumPy where everything is NumPy, so that it stays so; JAX otherwise."""
    return np if all(isinstance(x, (np.ndarray, np.generic)) for x in arrays) else jnp


def take_rows(x: Array, index: Array, axis: int) -> Array:
    """Rows of `x` along the record axis; `index` has the lanes and then as many rows as wanted."""
    index = index.reshape(index.shape + (1,) * (x.ndim - index.ndim))
    if module_of(x) is np and is_concrete(index):
        return np.take_along_axis(x, np.asarray(index), axis)
    return jnp.take_along_axis(x, index, axis, mode="clip")


def missing_rows(like: Array, rows: int, axis: int) -> Array:
    """Rows for records that lack the step of this column."""
    shape = (*like.shape[:axis], rows, *like.shape[axis + 1 :])
    return module_of(like).full(shape, missing_step(like.dtype), like.dtype)


def one_blank_row(x: Array, axis: int) -> Array:
    """One row of padding for an array without rows."""
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if is_key_array(x):
        return jnp.broadcast_to(jax.random.key(0, impl=jax.random.key_impl(x)), shape)
    return jnp.zeros(shape, x.dtype)


def record_rank(value: Tree, axis: int) -> int:
    """The rank of one record of the first leaf."""
    leaves = jax.tree.leaves(value)
    return leaves[0].ndim - 1 - axis if leaves else 0


def blank(dtype: Any) -> Any:
    """What stands for no value."""
    if dtype == np.bool_:
        return np.False_
    return (
        np.array(np.nan, dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating)
        else missing_step(dtype)
    )


def encoded(text: str) -> bytes:
    """Return text as UTF-8. A lone surrogate, which UTF-8 lacks, is written as JSON escapes it."""
    return text.encode("utf-8", "backslashreplace")


def as_utf8(text: str) -> str:
    """Return text that UTF-8 has: the same, but for lone surrogates."""
    return encoded(text).decode()


def copies_of(arrays: Sequence[Array]) -> list[Array]:
    """A copy of each array, in one program if they are on the same devices."""
    if not arrays:
        return []
    try:
        return _copy(list(arrays))  # type: ignore[no-any-return]
    except ValueError:  # they are on different devices
        return [copy for array in arrays for copy in _copy([array])]


_copy = jax.jit(lambda arrays: [jnp.copy(x) for x in arrays])


def lane_count(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """How many lanes there are."""
    return next(int(x.shape[d]) for x, d in zip(args, dims, strict=True) if d is not None)


def lanes_first(args: Sequence[Any], dims: Sequence[int | None]) -> list[Array]:
    """The operands with their lane axis in front, where they have one."""
    return [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]

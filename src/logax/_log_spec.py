"""Flatten the arguments of one `log` call into arrays and a static description of them.

The arrays of all keys, then all steps, form one sequence that a `LogSpec` describes. User input is
converted to arrays here, or rejected by an error that names the key and the line of the call. Typed
PRNG keys are converted to their bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree
from logax._logdict.logdict import leaf_name
from logax._media import to_loggable
from logax._support.messages import describe_value


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """One array of a logged value.

    Attributes:
      name: Flat name, such as `grad/layers/0/weight`.
      position: Index among the leaves of the logged pytree.
      key_impl: Implementation of a typed PRNG key; None for other arrays.
    """

    name: str
    position: int
    key_impl: str | None = None


@dataclasses.dataclass(frozen=True)
class KeySpec:
    """One key of a log.

    Attributes:
      key: The key.
      structure: Tree structure of the logged pytree.
      leaves: Leaves that are logged, possibly not all of the structure.
    """

    key: str
    structure: Any
    leaves: tuple[LeafSpec, ...]

    def value(self, leaves: Sequence[Any]) -> Tree:
        """Rebuild the logged pytree from its logged leaves; all other leaves are None."""
        filled: list[Any] = [None] * self.structure.num_leaves
        for leaf, x in zip(self.leaves, leaves, strict=True):
            filled[leaf.position] = x
        return jax.tree.unflatten(self.structure, filled)


@dataclasses.dataclass(frozen=True)
class LogSpec:
    """Static description of the operands of one `log_p`.

    Attributes:
      entries: Keys in order. Their leaves are the first operands.
      steps: Step names in order. Their values are the last operands.
      tags: Sorted tags.
      explicit: True if only harvests that select by name or tag include this log.
      site: File and line of the call.
    """

    entries: tuple[KeySpec, ...]
    steps: tuple[str, ...]
    tags: tuple[str, ...]
    explicit: bool
    site: str

    def __str__(self) -> str:
        return f"{', '.join(entry.key for entry in self.entries)} at {self.site}"


def single_array_spec(key: str) -> KeySpec:
    """Return the description of a key whose value is one array."""
    return KeySpec(key, SINGLE_ARRAY, (LeafSpec(key, 0),))


def flatten_data(
    data: Any, site: str, prefix: str = "", on_host: bool = False
) -> tuple[tuple[KeySpec, ...], list[Array]]:
    """Return the description of each key of a `log` call, and the arrays of all keys in order.

    Args:
      data: The mapping that the user passed.
      site: File and line of the call, for errors.
      prefix: Text to prepend to every key.
      on_host: Whether to keep values that are not JAX arrays as NumPy arrays.

    Raises:
      TypeError: `data` is not a mapping, a key is not a non-empty string, or a value is not an
        array.
    """
    if not isinstance(data, Mapping):
        raise TypeError(
            f"`log` at {site} takes a mapping from names to values, or a function that returns "
            f'one, and got {describe_value(data)}. Write `log({{"name": value}})`.'
        )
    operands: list[Array] = []
    entries = []
    for key, value in data.items():
        if not isinstance(key, str) or not key:
            raise TypeError(
                f"`log` at {site} takes keys that are non-empty strings, and got {key!r}. "
                f'Write `log({{"name": value}})`.'
            )
        entry, arrays = flatten_value(prefix + key, value, site, on_host)
        entries.append(entry)
        operands += arrays
    return tuple(entries), operands


def flatten_value(
    key: str, value: Tree, site: str, on_host: bool = False
) -> tuple[KeySpec, list[Array]]:
    """Return the description of one key and its arrays."""
    try:
        value = jax.tree.map(to_loggable, value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`log` at {site} cannot show `{key}`: {error}") from error
    paths, structure = jax.tree_util.tree_flatten_with_path(value)
    leaves = []
    arrays = []
    for position, (path, leaf) in enumerate(paths):
        name = leaf_name(key, path)
        as_array = _host_array if on_host else _array
        array = as_array(leaf, f"`log` at {site}", f"for `{name}`")
        impl = None
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            impl = str(jax.random.key_impl(array))
            array = jax.random.key_data(array)
        leaves.append(LeafSpec(name, position, impl))
        arrays.append(array)
    return KeySpec(key, structure, tuple(leaves)), arrays


def as_step_array(name: str, value: Any, site: str, on_host: bool = False) -> Array:
    """Convert a step to a scalar array, or raise a `TypeError` that names it."""
    what = f"`log` at {site}"
    if value is None or isinstance(value, str):
        raise TypeError(
            f"{what} takes steps that are scalar numbers, and got {describe_value(value)} for the "
            f"step `{name}`. To select a log by name, give it `tags`."
        )
    as_array = _host_array if on_host else _array
    array = as_array(value, what, f"for the step `{name}`")
    real = jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)
    if array.shape != () or not real:
        raise TypeError(
            f"{what} takes steps that are scalar numbers, and got {array.dtype.name}"
            f"{list(array.shape)} for the step `{name}`. Log arrays as values: "
            f'`log({{"{name}": ...}})`.'
        )
    return array


def _array(leaf: Any, what: str, where: str) -> Array:
    """Convert a leaf to a JAX array, or raise a `TypeError` that names it."""
    if isinstance(leaf, jax.Array):
        return leaf
    numeric = isinstance(leaf, _NUMERIC)
    if numeric or hasattr(type(leaf), "__jax_array__"):
        try:
            with np.errstate(over="ignore"):  # checked below
                array = jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{what} got {describe_value(leaf)} {where}: {error}") from error
        given = np.asarray(leaf) if numeric else array
        if array.dtype != given.dtype:
            _check_fits(given, array.dtype, what, where)
        return array
    raise TypeError(
        f"{what} takes arrays, numbers and PRNG keys, or pytrees of them, and got "
        f"{describe_value(leaf)} {where}. Convert it to a number, or leave it out; for an equinox "
        "module log `eqx.filter(module, eqx.is_array)`."
    )


def _host_array(leaf: Any, what: str, where: str) -> Any:
    """Convert a leaf to a NumPy array, which keeps 64 bits, or fall back to `_array`."""
    numeric = isinstance(leaf, _NUMERIC)
    if numeric and not isinstance(leaf, np.ma.MaskedArray):  # its mask would be lost
        array = np.array(leaf)
        if array.dtype.kind in "biufc" or jnp.issubdtype(array.dtype, np.number):
            return array
    return _array(leaf, what, where)


def _check_fits(given: Any, dtype: Any, what: str, where: str) -> None:
    """Raise a `TypeError` if the narrower dtype of JAX changes more than the precision.

    Without `jax_enable_x64` JAX keeps 32 bits. Rounded floats are expected; integers that change
    and floats that overflow are errors.
    """
    with np.errstate(over="ignore"):
        kept = given.astype(dtype)
    rounded = jnp.issubdtype(dtype, jnp.inexact)
    if not np.array_equal(
        np.isfinite(kept) if rounded else kept, np.isfinite(given) if rounded else given
    ):
        raise TypeError(
            f"{what} got {given.dtype.name} numbers {where} that {dtype.name} cannot hold. "
            "Scale them, or set `jax_enable_x64`."
        )


_NUMERIC = (bool, int, float, complex, np.generic, np.ndarray)
SINGLE_ARRAY = jax.tree.structure(0)

"""What one call of `log` says: its keys with their leaves, and its steps, as arrays.

All leaves of all keys, and then all steps, stand in one row of arrays; a `LogSpec` says what they
are. What users give is turned into arrays here, or refused by an error that names the key and the
line of the call. Typed PRNG keys travel as their bits.
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
from logax._media import shown
from logax._support.messages import received


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a value: its name (`grad/layers/0/weight`), place and kind."""

    name: str
    position: int
    key_impl: str | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One key of a log: its structure and those of its leaves that are logged."""

    key: str
    structure: Any
    leaves: tuple[Leaf, ...]

    def value(self, leaves: Sequence[Any]) -> Tree:
        """The logged pytree with these leaves; those that are not logged are None."""
        filled: list[Any] = [None] * self.structure.num_leaves
        for leaf, x in zip(self.leaves, leaves, strict=True):
            filled[leaf.position] = x
        return jax.tree.unflatten(self.structure, filled)


@dataclasses.dataclass(frozen=True)
class LogSpec:
    """What the operands of one `log_p` mean: the leaves of each entry in turn, then the steps."""

    entries: tuple[Entry, ...]
    steps: tuple[str, ...]
    tags: tuple[str, ...]
    explicit: bool
    site: str

    def __str__(self) -> str:
        return f"{', '.join(entry.key for entry in self.entries)} at {self.site}"


def array_entry(key: str) -> Entry:
    """What is logged under a key, where that is one array."""
    return Entry(key, ONE_ARRAY, (Leaf(key, 0),))


def entries_of(
    data: Any, site: str, prefix: str = "", on_host: bool = False
) -> tuple[tuple[Entry, ...], list[Array]]:
    """What is logged, and all its arrays; those that are not JAX's stay on the host if they may."""
    if not isinstance(data, Mapping):
        raise TypeError(
            f"`log` at {site} takes a mapping from names to values, or a function that returns "
            f'one, and got {received(data)}. Write `log({{"name": value}})`.'
        )
    operands: list[Array] = []
    entries = []
    for key, value in data.items():
        if not isinstance(key, str) or not key:
            raise TypeError(
                f"`log` at {site} takes keys that are non-empty strings, and got {key!r}. "
                f'Write `log({{"name": value}})`.'
            )
        entry, arrays = entry_of(prefix + key, value, site, on_host)
        entries.append(entry)
        operands += arrays
    return tuple(entries), operands


def entry_of(key: str, value: Tree, site: str, on_host: bool = False) -> tuple[Entry, list[Array]]:
    """What is logged under one key, and its arrays."""
    try:
        value = jax.tree.map(shown, value)
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
        leaves.append(Leaf(name, position, impl))
        arrays.append(array)
    return Entry(key, structure, tuple(leaves)), arrays


def step_of(name: str, value: Any, site: str, on_host: bool = False) -> Array:
    """A step as an array, or an error that names it."""
    what = f"`log` at {site}"
    if value is None or isinstance(value, str):
        raise TypeError(
            f"{what} takes steps that are scalar numbers, and got {received(value)} for the step "
            f"`{name}`. Words by which to choose a log are its `tags`."
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
    """The leaf as an array that JAX can carry, or an error that names it."""
    if isinstance(leaf, jax.Array):
        return leaf
    numeric = isinstance(leaf, _NUMERIC)
    if numeric or hasattr(type(leaf), "__jax_array__"):
        try:
            with np.errstate(over="ignore"):  # checked below
                array = jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{what} got {received(leaf)} {where}: {error}") from error
        given = np.asarray(leaf) if numeric else array
        if array.dtype != given.dtype:
            _check_fits(given, array.dtype, what, where)
        return array
    raise TypeError(
        f"{what} takes arrays, numbers and PRNG keys, or pytrees of them, and got "
        f"{received(leaf)} {where}. Turn it into a number, or leave it out; of an equinox module "
        "log `eqx.filter(module, eqx.is_array)`."
    )


def _host_array(leaf: Any, what: str, where: str) -> Any:
    """The same for what stays on the host, where nothing need be rounded."""
    numeric = isinstance(leaf, _NUMERIC)
    if numeric and not isinstance(leaf, np.ma.MaskedArray):  # whose mask would be lost
        array = np.array(leaf)
        if array.dtype.kind in "biufc" or jnp.issubdtype(array.dtype, np.number):
            return array
    return _array(leaf, what, where)


def _check_fits(given: Any, dtype: Any, what: str, where: str) -> None:
    """JAX keeps 32 bits unless told otherwise: rounding is its way, but no number may change."""
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
ONE_ARRAY = jax.tree.structure(0)

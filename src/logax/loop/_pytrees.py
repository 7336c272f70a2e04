"""Copy, fetch, name and format the leaves of states and views.

The buffers of a state may be donated to the next step, so loggers copy on the device whatever they
keep. Functions that name leaves for people, or format them, fetch the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._logdict.export import free_name
from logax._support.arrays import copy_arrays, is_key_array, leaf_name


def copy_tree(tree: Tree) -> Tree:
    """Return the tree with all JAX and NumPy arrays copied, and other leaves unchanged."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[i] for i in places]
    refuse_tracers(arrays)
    for i, copy in zip(places, copy_arrays(arrays), strict=True):
        leaves[i] = copy
    leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    return jax.tree.unflatten(structure, leaves)


def start_host_transfer(tree: Tree) -> Tree:
    """Start copying the arrays of a tree to the host, and return the tree at once."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not is_key_array(leaf):
            leaf.copy_to_host_async()
    return tree


def fetch_tree(tree: Tree) -> Tree:
    """Return the tree with NumPy arrays; waits for the device. PRNG keys become their key data."""
    refuse_tracers(jax.tree.leaves(tree))
    return jax.device_get(jax.tree.map(unwrap_keys, tree))


def is_ready(tree: Tree) -> bool:
    """Return True if all arrays exist and can be read without waiting."""
    arrays: list[Any] = [unwrap_keys(x) for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    return not any(array.is_deleted() or not array.is_ready() for array in arrays)


def leaves_with_names(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Yield `(name, leaf)` with unique names, dictionaries in insertion order."""
    taken: set[str] = set()
    for name, leaf in _walk_leaves(tree, ""):
        own = free_name(name, taken)
        taken.add(own)
        yield own, leaf


def _walk_leaves(tree: Tree, name: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is dict:
        for key, value in tree.items():
            yield from _walk_leaves(
                value, leaf_name(name, (jax.tree_util.DictKey(key),)).lstrip("/")
            )
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield leaf_name(name, path).lstrip("/"), leaf


def fetch_leaves_by_name(tree: Tree) -> dict[str, Any]:
    """Fetch the leaves of a view, and return them by name."""
    leaves = {name or "value": leaf for name, leaf in leaves_with_names(tree)}
    return dict(zip(leaves, fetch_tree(list(leaves.values())), strict=True))


def format_line(tree: Tree) -> str:
    """Format the values of a view as one line, with the mean of each array."""
    return ", ".join(
        f"{name}={format_value(leaf)}" for name, leaf in fetch_leaves_by_name(tree).items()
    )


def format_value(leaf: Any) -> str:
    """Format one value in few characters; arrays by their mean."""
    numbers = np.asarray(leaf)
    if numbers.dtype.kind in "OSU":
        return str(leaf)
    if numbers.size == 1 and numbers.dtype.kind in "biu":
        return str(numbers.item())
    wide = numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):  # the mean of infinities may be NaN
        return f"{wide.mean() if wide.size else np.nan:.4g}"


def unwrap_keys(leaf: Any) -> Any:
    """Return the key data of typed PRNG keys; return any other leaf unchanged."""
    is_key = isinstance(leaf, jax.Array) and is_key_array(leaf)
    return jax.random.key_data(leaf) if is_key else leaf


def widen_dtype(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert dtypes that NumPy lacks, such as bfloat16, to wider ones that it has."""
    if numbers.dtype.isbuiltin != 2:
        return numbers
    is_real = jnp.issubdtype(numbers.dtype, jnp.floating)
    return numbers.astype(np.float32 if is_real else np.int32)


def refuse_tracers(leaves: Any) -> None:
    """Raise a TypeError if a leaf is a tracer: the logger was called inside a traced function."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise TypeError(
            "A logger for Python loops was called inside a function that JAX traces, where there "
            'are no values yet. Call it after the compiled step, or write `logax.log({"name": x})` '
            "inside it."
        )

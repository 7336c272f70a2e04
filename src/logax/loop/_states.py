"""States and views of them: copied, fetched, and with names for their leaves.

The buffers of a state may be donated to the next step, so that what is kept is copied, on the
device. What is shown to people, by name or as one line, is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._logdict.export import free_name
from logax._support.arrays import copies_of, is_key_array, leaf_name


def copied(tree: Tree) -> Tree:
    """The same with arrays of its own. What is no array stays what it is."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[i] for i in places]
    refuse_tracers(arrays)
    for i, copy in zip(places, copies_of(arrays), strict=True):
        leaves[i] = copy
    leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    return jax.tree.unflatten(structure, leaves)


def on_their_way(tree: Tree) -> Tree:
    """The same, with its arrays on their way to the host."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not is_key_array(leaf):
            leaf.copy_to_host_async()
    return tree


def fetched(tree: Tree) -> Tree:
    """The same on the host: NumPy arrays, with PRNG keys as the numbers that they are made of."""
    refuse_tracers(jax.tree.leaves(tree))
    return jax.device_get(jax.tree.map(numbers_of, tree))


def is_there(tree: Tree) -> bool:
    """Whether all of it can be read without waiting."""
    arrays: list[Any] = [numbers_of(x) for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    return not any(array.is_deleted() or not array.is_ready() for array in arrays)


def in_order(tree: Tree) -> Iterator[tuple[str, Any]]:
    """The leaves with names of their own, dictionaries in the order in which they were written."""
    taken: set[str] = set()
    for name, leaf in _walked(tree, ""):
        own = free_name(name, taken)
        taken.add(own)
        yield own, leaf


def _walked(tree: Tree, name: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is dict:
        for key, value in tree.items():
            yield from _walked(value, leaf_name(name, (jax.tree_util.DictKey(key),)).lstrip("/"))
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield leaf_name(name, path).lstrip("/"), leaf


def named(tree: Tree) -> dict[str, Any]:
    """The leaves of what a view gives, by name, on the host."""
    leaves = {name or "value": leaf for name, leaf in in_order(tree)}
    return dict(zip(leaves, fetched(list(leaves.values())), strict=True))


def line(tree: Tree) -> str:
    """What a view gives, in one line; of arrays the mean."""
    return ", ".join(f"{name}={short(leaf)}" for name, leaf in named(tree).items())


def short(leaf: Any) -> str:
    """One value in few characters."""
    numbers = np.asarray(leaf)
    if numbers.dtype.kind in "OSU":
        return str(leaf)
    if numbers.size == 1 and numbers.dtype.kind in "biu":
        return str(numbers.item())
    wide = numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):  # the mean of infinities
        return f"{wide.mean() if wide.size else np.nan:.4g}"


def numbers_of(leaf: Any) -> Any:
    """The numbers that PRNG keys are made of; everything else as it is."""
    is_key = isinstance(leaf, jax.Array) and is_key_array(leaf)
    return jax.random.key_data(leaf) if is_key else leaf


def widened(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Types that NumPy lacks, as ones that it has."""
    if numbers.dtype.isbuiltin != 2:
        return numbers
    is_real = jnp.issubdtype(numbers.dtype, jnp.floating)
    return numbers.astype(np.float32 if is_real else np.int32)


def refuse_tracers(leaves: Any) -> None:
    """Raise where a logger is called inside a program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise TypeError(
            "A logger for Python loops was called inside a function that JAX traces, where there "
            'are no values yet. Call it after the compiled step, or write `logax.log({"name": x})` '
            "inside it."
        )

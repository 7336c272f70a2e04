"""Results as a compiled function can return them, and what they say to whoever called it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Tree
from logax._harvest.arguments import Fixed


@jax.tree_util.register_pytree_node_class
class Partly:
    """A result of which some leaves are no arrays: those stand in its structure, as they are."""

    def __init__(self, arrays: list[Any], static: tuple[Any, ...]) -> None:
        self.arrays, self.static = arrays, static

    @staticmethod
    def of(result: Tree) -> Tree:
        """The result as a compiled function can return it."""
        leaves, structure = jax.tree.flatten(result)
        kept = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.Array)}
        if not kept:
            return result
        arrays = [x for i, x in enumerate(leaves) if i not in kept]
        return Partly(arrays, (structure, tuple((i, Fixed(x)) for i, x in kept.items())))

    def restored(self) -> Tree:
        """The result as it was."""
        structure, kept = self.static
        others = iter(self.arrays)
        fixed = {i: _own(x.value) for i, x in kept}
        every = (fixed[i] if i in fixed else next(others) for i in range(structure.num_leaves))
        return jax.tree.unflatten(structure, every)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.arrays, self.static

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], arrays: Sequence[Any]) -> Partly:
        return cls(list(arrays), static)


def _own(leaf: Any) -> Any:
    """The leaf for one caller, who may write into it."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@jax.tree_util.register_pytree_node_class
class Unnumbered:
    """The result of a program that makes no use of the number of its call."""

    def __init__(self, result: Tree) -> None:
        self.result = result

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.result,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> Unnumbered:
        return cls(children[0])

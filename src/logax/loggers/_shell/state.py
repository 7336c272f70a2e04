"""What `init` gives: the number of a run, as a pytree that programs can carry."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from logax._compat import Array


class Owner:
    """The logger that a state is of, as far as a compiled program may know it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


@jax.tree_util.register_pytree_node_class
class RunState:
    """A run, or under `vmap` one for each lane: give it to the logger's methods.

    It is a pytree: pass it into compiled functions, map over it, carry it through loops.
    """

    def __init__(self, number: Array, owner: Owner) -> None:
        self.number, self.owner = number, owner

    def tree_flatten(self) -> tuple[tuple[Array], Owner]:
        """The number, and whose it is."""
        return (self.number,), self.owner

    @classmethod
    def tree_unflatten(cls, owner: Owner, children: tuple[Any]) -> RunState:
        """The same again."""
        return cls(children[0], owner)

    def __repr__(self) -> str:
        number = self.number
        if isinstance(number, (jax.Array, np.ndarray)) and not isinstance(number, jax.core.Tracer):
            several = f"{np.size(number)} runs" if np.ndim(number) else f"run {int(number)}"
            return f"<{several} of {self.owner.name}>"
        return f"<a run of {self.owner.name}, inside a program>"

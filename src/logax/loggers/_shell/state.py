"""What `init` gives: the number of a run, as a pytree that programs can carry."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from logax._compat import Array
from logax.loggers._shell.register import Register


class Owner:
    """The logger that a state is of, as far as a compiled program may know it."""

    def __init__(self, name: str, register: Register) -> None:
        self.name, self.register = name, register

    def __repr__(self) -> str:
        return f"<{self.name}>"


@jax.tree_util.register_pytree_node_class
class RunState:
    """A run, or under `vmap` one for each lane: give it to the logger's methods.

    It is a pytree: pass it into compiled functions, map over it, carry it through loops.
    """

    def __init__(self, number: Array, owner: Owner) -> None:
        self.number, self.owner = number, owner

    @property
    def id(self) -> Any:
        """The id of the run, by which it is found again; of several, a list. Not in programs."""
        return self._told("id")

    @property
    def name(self) -> Any:
        """The name of the run; of several, a list. Not in programs."""
        return self._told("name")

    def _told(self, what: str) -> Any:
        if not self._is_concrete():
            raise AttributeError(
                f"The {what} of a run is known when the program runs, not inside of it. Return the "
                f"state from the compiled function, and write `state.{what}`."
            )
        known = [
            self.owner.register.named(n)._asdict()[what] for n in np.ravel(self.number).tolist()
        ]
        return known if np.ndim(self.number) else known[0]

    def _is_concrete(self) -> bool:
        kinds = (jax.Array, np.ndarray, np.generic)
        return isinstance(self.number, kinds) and not isinstance(self.number, jax.core.Tracer)

    def tree_flatten(self) -> tuple[tuple[Array], Owner]:
        """The number, and whose it is."""
        return (self.number,), self.owner

    @classmethod
    def tree_unflatten(cls, owner: Owner, children: tuple[Any]) -> RunState:
        """The same again."""
        return cls(children[0], owner)

    def __repr__(self) -> str:
        if not self._is_concrete():
            return f"<a run of {self.owner.name}, inside a program>"
        if np.ndim(self.number):
            return f"<{np.size(self.number)} runs of {self.owner.name}>"
        return f"<run {self.name} of {self.owner.name}>"

"""What `init` gives: the number of a run, as a pytree that programs can carry.

Whoever gives a state back must give one of the same logger, and of a run that has not ended.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from logax._compat import Array
from logax._support.messages import received
from logax.loggers._core.registry import LiveRun, Register


class Owner:
    """The logger that a state is of, as far as a compiled program may know it."""

    def __init__(self, name: str, register: Register) -> None:
        self.name, self.register = name, register

    def number_of(self, state: Any, several: bool) -> Any:
        """The number of a state, of a run that is open as far as that can be known here.

        Args:
          state: What a user gave.
          several: Whether it may be of several runs.

        Raises:
          TypeError: It is no state.
          ValueError: It is of another logger, of several runs, or of one that has ended.
        """
        if not isinstance(state, RunState):
            raise TypeError(
                f"`{self.name}` takes the state that `logger.init(key)` gave, and got "
                f"{received(state)}. Write `state = logger.init(key)`."
            )
        if state.owner is not self:
            raise ValueError(
                f"This state is of another logger, a `{state.owner.name}`. Use the logger that "
                "made it; `MultiLogger(a, b)` sends to several at once."
            )
        number = state.number
        if isinstance(number, jax.core.Tracer):
            return number
        if np.ndim(number) and not several:
            raise ValueError(
                f"`{self.name}` got a state of {np.size(number)} runs outside of `vmap`. Write "
                "`jax.vmap(lambda state, x: logger.tap(f, state)(x))(states, xs)`."
            )
        self.open_runs(number)
        return number

    def open_runs(self, number: Any) -> list[LiveRun]:
        """The runs of these numbers.

        Raises:
          ValueError: One of them has ended.
        """
        runs = []
        for each in np.ravel(number).tolist():
            run = self.register.find(each)
            if run is None:
                name = self.register.named(each).name
                raise ValueError(
                    f"The run {name} of this `{self.name}` is finished. Make a new one with "
                    "`logger.init(key)`, or go on with it by `logger.run(resume=...)`."
                )
            runs.append(run)
        return runs

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

"""`RunState`: the number of a run, as a pytree that programs can carry.

The methods of a logger accept only its own states, of runs that have not ended.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from logax._compat import Array
from logax._support.messages import describe_value
from logax.loggers._core.registry import OpenRun, RunRegistry


class StateOwner:
    """The logger of a state: the static part of the pytree, which compiled programs may keep."""

    def __init__(self, name: str, registry: RunRegistry) -> None:
        self.name, self.registry = name, registry

    def number_of(self, state: Any, several: bool) -> Any:
        """Return the number of the run of a state. Outside of programs, check that it is open.

        Args:
          state: Argument of the user.
          several: True if the state may hold several runs.

        Raises:
          TypeError: `state` is not a `RunState`.
          ValueError: The state belongs to another logger, holds several runs, or a run has ended.
        """
        if not isinstance(state, RunState):
            raise TypeError(
                f"`{self.name}` takes the state that `logger.init(key)` gave, and got "
                f"{describe_value(state)}. Write `state = logger.init(key)`."
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

    def open_runs(self, number: Any) -> list[OpenRun]:
        """Return the runs with these numbers.

        Raises:
          ValueError: One of them has ended.
        """
        runs = []
        for each in np.ravel(number).tolist():
            run = self.registry.find(each)
            if run is None:
                name = self.registry.label(each).name
                raise ValueError(
                    f"The run {name} of this `{self.name}` is finished. Make a new one with "
                    "`logger.init(key)`, or resume it with `logger.run(resume=...)`."
                )
            runs.append(run)
        return runs

    def __repr__(self) -> str:
        return f"<{self.name}>"


@jax.tree_util.register_pytree_node_class
class RunState:
    """A handle of a run, or of one run per lane, that `Logger.init` returns.

    Pass it to the methods of the logger. It is a pytree: it can be an argument of compiled
    functions, mapped over by `vmap`, and carried through loops.
    """

    def __init__(self, number: Array, owner: StateOwner) -> None:
        self.number, self.owner = number, owner

    @property
    def id(self) -> Any:
        """Unique id of the run, for `resume` and `load`; a list for several runs.

        Not available inside compiled functions.
        """
        return self._look_up("id")

    @property
    def name(self) -> Any:
        """Name of the run; a list for several runs. Not available inside compiled functions."""
        return self._look_up("name")

    def _look_up(self, what: str) -> Any:
        if not self._is_concrete():
            raise AttributeError(
                f"The {what} of a run is known when the program runs, not inside of it. Return the "
                f"state from the compiled function, and write `state.{what}`."
            )
        known = [
            self.owner.registry.label(n)._asdict()[what] for n in np.ravel(self.number).tolist()
        ]
        return known if np.ndim(self.number) else known[0]

    def _is_concrete(self) -> bool:
        kinds = (jax.Array, np.ndarray, np.generic)
        return isinstance(self.number, kinds) and not isinstance(self.number, jax.core.Tracer)

    def tree_flatten(self) -> tuple[tuple[Array], StateOwner]:
        """Return the number as the only child, and the owner as static data."""
        return (self.number,), self.owner

    @classmethod
    def tree_unflatten(cls, owner: StateOwner, children: tuple[Any]) -> RunState:
        """Return a state from the output of `tree_flatten`."""
        return cls(children[0], owner)

    def __repr__(self) -> str:
        if not self._is_concrete():
            return f"<a run of {self.owner.name}, inside a program>"
        if np.ndim(self.number):
            return f"<{np.size(self.number)} runs of {self.owner.name}>"
        return f"<run {self.name} of {self.owner.name}>"

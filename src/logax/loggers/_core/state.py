"""`RunState`: the number of a run, as a pytree that programs can carry.

The methods of a logger accept only its own states, of runs that have not ended.

The arguments of `init` are validated here too: the PRNG key, and a config whose values a program
may compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._serialization.plain_config import plain_config
from logax._support.messages import describe_value
from logax.loggers._core.registry import OpenRun, RunRegistry
from logax.loop._pytrees import unwrap_keys


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


class TracedConfig:
    """A config with values that are known while tracing and arrays that a program computes.

    Args:
      what: Function that the user called, for messages.
      config: A mapping or a dataclass; see `logax._serialization.plain_config`.

    Attributes:
      arrays: The arrays, in the order in which `fill` takes them.

    Raises:
      TypeError: `config` cannot be stored.
    """

    def __init__(self, what: str, config: Any) -> None:
        self._plain = plain_config(what, config)
        self.arrays: list[Array] = []
        _map_arrays(lambda x: self.arrays.append(unwrap_keys(x)), self._plain)

    def fill(self, arrays: Sequence[Any]) -> Callable[[int | None], Mapping[str, Any]]:
        """Return a function from a lane to its config, given the arrays with lanes in front.

        For None it returns the config of all lanes.
        """
        arrays = [np.array(x) for x in arrays]

        def config(lane: int | None) -> Mapping[str, Any]:
            own = iter([x if lane is None else x[lane] for x in arrays])

            def next_value(_: Any) -> Any:
                x = next(own)
                return x.item() if x.ndim == 0 else x

            filled: Mapping[str, Any] = _map_arrays(next_value, self._plain)
            return filled

        return config


def _map_arrays(function: Callable[[Array], Any], plain: Any) -> Any:
    """Copy a plain config with `function` applied to its JAX arrays.

    Unlike `jax.tree.map` this keeps the order of the keys.
    """
    if isinstance(plain, jax.Array):
        return function(plain)
    if isinstance(plain, dict):
        return {key: _map_arrays(function, value) for key, value in plain.items()}
    if isinstance(plain, (list, tuple)):
        return type(plain)([_map_arrays(function, value) for value in plain])
    return plain


def key_bits(what: str, key: Any) -> Array:
    """Return the data of a PRNG key, typed or legacy.

    Raises:
      TypeError: `key` is not a single PRNG key.
    """
    is_array = isinstance(key, (jax.Array, np.ndarray))
    if is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return jax.random.key_data(key)
    if is_array and key.dtype == jnp.uint32 and key.ndim == 1:
        return key
    advice = f"Write `{what}(jax.random.key(0))`"
    if is_array and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32):
        got = f"an array of shape {key.shape} of them"
        advice = "Write `jax.vmap(logger.init)(keys)`"
    else:
        got = describe_value(key)
        advice = f"Write `{what}(..., name={key!r})`" if isinstance(key, str) else advice
    raise TypeError(f"`{what}` takes one PRNG key, and got {got}. {advice}.")

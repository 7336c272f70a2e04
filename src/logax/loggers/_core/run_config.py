"""The arguments of `init`: the key, and a config with values that programs may compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._support.config import plain_config
from logax._support.messages import received
from logax.loop._states import numbers_of


class TracedConfig:
    """A config of runs with values that are known while tracing and arrays that a program computes.

    Args:
      what: Function that was given the config, for errors.
      config: A mapping or a dataclass; see `logax._support.config`.

    Attributes:
      arrays: The arrays, in the order in which `filled` takes them.

    Raises:
      TypeError: `config` cannot be stored.
    """

    def __init__(self, what: str, config: Any) -> None:
        self._plain = plain_config(what, config)
        self.arrays: list[Array] = []
        _map_arrays(lambda x: self.arrays.append(numbers_of(x)), self._plain)

    def filled(self, arrays: Sequence[Any]) -> Callable[[int | None], Mapping[str, Any]]:
        """Return a function from a lane to its config, given the arrays with lanes in front.

        For None it returns the config of all lanes.
        """
        arrays = [np.array(x) for x in arrays]

        def config(lane: int | None) -> Mapping[str, Any]:
            own = iter([x if lane is None else x[lane] for x in arrays])

            def fill(_: Any) -> Any:
                x = next(own)
                return x.item() if x.ndim == 0 else x

            filled: Mapping[str, Any] = _map_arrays(fill, self._plain)
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
    """The numbers that a PRNG key is made of."""
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
        got = received(key)
        advice = f"Write `{what}(..., name={key!r})`" if isinstance(key, str) else advice
    raise TypeError(f"`{what}` takes one PRNG key, and got {got}. {advice}.")

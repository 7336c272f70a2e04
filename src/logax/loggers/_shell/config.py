"""The arguments of `init`: the key, and a config with values that programs may compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._config import plain_config
from logax._errors import received
from logax.loop._copies import numbers_of


class TracedConfig:
    """A config of runs with values that are known while tracing and arrays that a program computes.

    Args:
      what: Function that was given the config, for errors.
      config: A mapping or a dataclass; see `logax._config`.

    Attributes:
      arrays: The arrays, in the order in which `filled` takes them.

    Raises:
      TypeError: `config` cannot be stored.
    """

    def __init__(self, what: str, config: Any) -> None:
        plain = plain_config(what, config)
        self._leaves, self._structure = jax.tree.flatten(plain, is_leaf=lambda x: x is None)
        self._places = [i for i, x in enumerate(self._leaves) if isinstance(x, jax.Array)]
        self.arrays: list[Array] = [numbers_of(self._leaves[i]) for i in self._places]

    def filled(self, arrays: Sequence[Any]) -> Callable[[int | None], Mapping[str, Any]]:
        """Return a function from a lane to its config, given the arrays with lanes in front.

        For None it returns the config of all lanes.
        """
        arrays = [np.array(x) for x in arrays]

        def config(lane: int | None) -> Mapping[str, Any]:
            leaves = list(self._leaves)
            for place, x in zip(self._places, arrays, strict=True):
                own = x if lane is None else x[lane]
                leaves[place] = own.item() if own.ndim == 0 else own
            filled: Mapping[str, Any] = jax.tree.unflatten(self._structure, leaves)
            return filled

        return config


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

"""Validate the arguments of `init`: the key, and a config whose values a program may compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._serialization.plain_config import plain_config
from logax._support.messages import describe_value
from logax.loop._pytrees import unwrap_keys


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

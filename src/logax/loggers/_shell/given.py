"""What is given to `init` besides the key: plain values, and arrays that programs may compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._errors import received
from logax.loop._copies import numbers_of


class Given:
    """The info of runs: what is known while tracing, and arrays that the program will give.

    Args:
      what: Who was given it, for errors.
      info: By name, strings, numbers, arrays, and lists and dictionaries of them.

    Attributes:
      arrays: What the program gives.

    Raises:
      TypeError: Something is none of these.
    """

    def __init__(self, what: str, info: Mapping[str, Any]) -> None:
        name = info.get("name")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`{what}` takes a `name` that is a string, and got {received(name)}.")
        info = {key: value for key, value in info.items() if not (key == "name" and value is None)}
        try:
            flat = jax.tree.flatten(dict(info), is_leaf=lambda x: x is None)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`{what}` takes dictionaries with keys of one type, strings best, and got "
                f"{received(dict(info))}."
            ) from error
        self._leaves, self._structure = flat
        for leaf in self._leaves:
            if not isinstance(leaf, _PLAIN) and not hasattr(leaf, "__array__"):
                raise TypeError(
                    f"`{what}` takes strings, numbers and arrays, and lists and dictionaries of "
                    f"them, and got {received(leaf)}. Turn it into one of these: `str(value)`, or "
                    "`dataclasses.asdict(config)`."
                )
        self._places = [i for i, x in enumerate(self._leaves) if isinstance(x, jax.Array)]
        self.arrays: list[Array] = [numbers_of(self._leaves[i]) for i in self._places]

    def filled(self, arrays: Sequence[Any]) -> Callable[[int | None], Mapping[str, Any]]:
        """The info of each lane, given the arrays with lanes in front; of None, all lanes'."""
        arrays = [np.array(x) for x in arrays]

        def info(lane: int | None) -> Mapping[str, Any]:
            leaves = list(self._leaves)
            for place, x in zip(self._places, arrays, strict=True):
                own = x if lane is None else x[lane]
                leaves[place] = own.item() if own.ndim == 0 else own
            filled: Mapping[str, Any] = jax.tree.unflatten(self._structure, leaves)
            return filled

        return info


_PLAIN = (str, bytes, bool, int, float, complex, np.generic, np.ndarray, type(None))


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

"""Copies of arrays, on the device.

A copy waits for nothing and fetches nothing. What was copied may change hands, or be donated to the
next program.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from logax._compat import Array


def copies_of(arrays: Sequence[Array]) -> list[Array]:
    """A copy of each array, in one program if they are on the same devices."""
    if not arrays:
        return []
    try:
        return _copy(list(arrays))  # type: ignore[no-any-return]
    except ValueError:  # they are on different devices
        return [copy for array in arrays for copy in _copy([array])]


_copy = jax.jit(lambda arrays: [jnp.copy(x) for x in arrays])

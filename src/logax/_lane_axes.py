"""The lane axis that `vmap` gives to operands of a primitive, as its batching rule sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from logax._compat import Array


def lane_count(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """How many lanes there are."""
    return next(int(x.shape[d]) for x, d in zip(args, dims, strict=True) if d is not None)


def lanes_first(args: Sequence[Any], dims: Sequence[int | None]) -> list[Array]:
    """The operands with their lane axis in front, where they have one."""
    return [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]

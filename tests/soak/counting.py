"""A program that says as many numbers as it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import logax


def counter(steps: int) -> Callable[[Any], Any]:
    """A function that logs x, x+1, x+2, ..., and returns what would come next."""

    def count(x: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            logax.log({"x": x}, step=i)
            return x + 1, None

        return jax.lax.scan(step, x, jnp.arange(steps))[0]

    return count

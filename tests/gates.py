"""Computations that are not done before a gate is opened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

GIVE_UP = 60  # seconds; only where something waits that must not


def pending(gate: threading.Event, computed: Callable[[Any], Any] = np.asarray) -> Any:
    """Eight, or what is computed of it, once the gate is opened.

    On the CPU a program with a callback runs at once, unless what it takes is not there yet.
    """

    def wait(x: Any) -> Any:
        gate.wait(GIVE_UP)
        return computed(x) if warm else np.asarray(x)

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    gated = jax.jit(lambda x: jax.pure_callback(wait, shape, x))
    long = jax.jit(lambda x: jnp.max(x @ x @ x @ x @ x) * 0 + 8)
    matrix = jnp.zeros((1024, 1024))
    warm = []
    gate.set()
    gated(long(matrix)).block_until_ready()
    gate.clear()
    warm.append(True)
    return gated(long(matrix))

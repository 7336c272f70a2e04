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

    On the CPU a program with a callback runs at once, in the thread that calls it, unless what it
    takes is not there yet. So it takes something long, and something longer where that was there
    already because this thread had to wait for a processor.
    """
    here = threading.get_ident()
    warm: list[bool] = []
    at_once: list[bool] = []

    def wait(x: Any) -> Any:
        if not warm:
            return np.asarray(x)
        if threading.get_ident() == here:
            at_once.append(True)
            return np.asarray(x)
        gate.wait(GIVE_UP)
        return computed(x)

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    gated = jax.jit(lambda x: jax.pure_callback(wait, shape, x))
    long = jax.jit(lambda x: jnp.max(x @ x @ x @ x @ x) * 0 + 8)
    gate.clear()
    for size in (1024, 1536, 2048, 3072):
        matrix = jnp.zeros((size, size))
        warm.clear()
        gated(long(matrix)).block_until_ready()
        warm.append(True)
        at_once.clear()
        result = gated(long(matrix))
        if not at_once:
            return result
    raise RuntimeError("nothing takes long here")

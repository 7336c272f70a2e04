"""Computations that are not done before a gate is opened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GIVE_UP = 60  # seconds; only where something waits that must not


def pending(gate: threading.Event, computed: Callable[[Any], Any] = np.asarray) -> Any:
    """Eight, or what is computed of it, once the gate is opened: a scalar on the first device.

    A program with a callback runs on the thread that calls it if it is for one CPU device, and
    never there if it is for two, however fast or busy the machine is. So it is for two, of which
    the second has nothing to wait for.

    How long a program takes, which seems a simpler reason to be pending, is none on a thread where
    a callback has raised: JAX 0.8.0 then takes it to be inside of that callback for ever, and runs
    all programs of one device at once.
    """

    def wait(x: Any) -> Any:
        if x == 0:  # the second device
            return np.asarray(x)
        if not gate.wait(GIVE_UP):
            raise TimeoutError("nobody opened the gate")
        return computed(x)

    def gated(x: Any) -> Any:
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.float32), x[0])

    gate.clear()
    mesh = Mesh(np.array(jax.devices()[:2]), "each")
    each, same = PartitionSpec("each"), PartitionSpec()
    program = jax.shard_map(gated, mesh=mesh, in_specs=each, out_specs=same, check_vma=False)
    values = jax.device_put(np.array([8, 0], np.float32), NamedSharding(mesh, each))
    with ThreadPoolExecutor(1) as thread:  # JAX reminds the thread that called it of what failed
        return thread.submit(jax.jit(program), values).result().addressable_data(0)

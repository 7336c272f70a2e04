"""Eight devices in a line, and a program for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import logax

LINE = Mesh(np.array(jax.devices()), ("i",))


def on_line(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function on eight shards of one element each."""
    spec = PartitionSpec("i")
    return jax.shard_map(function, mesh=LINE, in_specs=spec, out_specs=spec, **options)


def doubled(x: Any) -> Any:
    """Doubles three times, and logs what it has each time."""

    def body(carry: Any, i: Any) -> Any:
        carry = carry * 2
        logax.log({"carry": carry}, step=i)
        return carry, None

    return lax.scan(body, x, jnp.arange(3))[0]

"""A hundred million scalars: written by a program that streams, and read back."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import logax
from logax.loggers import SaveLogger
from soak.processes import footprint, most_resident

KEYS = 10
QUEUE = 4 * 2**20  # bytes
_CYCLE = 2**20  # so that every value is a float32


def expected(key: int, steps: Any) -> Any:
    """What a key says at a step, a number that no other step near it has."""
    return steps * (key + 1) % _CYCLE


def _part(first: Any, length: int) -> Any:
    """The records of so many steps."""

    def step(count: Any, i: Any) -> Any:
        values = {f"key{k}": expected(k, i).astype(jnp.float32) for k in range(KEYS)}
        logax.log(values, step=i)
        return count + 1, None

    return jax.lax.scan(step, jnp.int32(0), first + jnp.arange(length))[0]


def write(folder: str, lanes: int, steps: int, parts: int, buffer: int) -> dict[str, list[int]]:
    """Stream all records in so many calls, and say at 20 times what memory there was."""
    logax.configure(queue_bytes=QUEUE)
    logger = SaveLogger(folder)
    length = steps // parts
    part = _program(logger, lanes, length, buffer)
    resident, blocks, most = [], [], []
    for number in range(parts):
        assert (part(np.int32(number * length)) == length).all()
        if (number + 1) % (parts // 20) == 0:
            now = footprint()
            resident.append(now.resident)
            blocks.append(now.blocks)
            most.append(most_resident())
    logger.close()
    return {"resident": resident, "blocks": blocks, "most": most}


def _program(logger: SaveLogger, lanes: int, length: int, buffer: int) -> Any:
    """Streams the records of so many steps, to one run or to one for each lane."""

    def part(state: Any, first: Any) -> Any:
        return logger.tap(lambda x: _part(x, length), state, buffer=buffer)(first)

    if lanes == 1:
        return jax.jit(functools.partial(part, logger.init(jax.random.key(0))))
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), lanes))
    return jax.jit(lambda first: jax.vmap(lambda state: part(state, first))(states))


def read(folder: str, lanes: int, steps: int) -> dict[str, int]:
    """Compare all records, one key at a time, and say how many, and what memory the first took."""
    runs = logax.load(folder)
    assert len(runs) == lanes
    before = most_resident()
    first = runs["key0"]
    taken = most_resident() - before
    del first
    number = 0
    for k in range(KEYS):
        found = runs[f"key{k}"]
        assert (found.shape, found.dtype) == ((lanes, steps), np.float32)
        wanted = expected(k, np.arange(steps, dtype=np.int32)).astype(np.float32)
        for lane in found:
            np.testing.assert_array_equal(lane, wanted)
        number += found.size
    run = runs[next(iter(runs))]
    np.testing.assert_array_equal(run.logdict("key0").step["key0"], np.arange(steps))
    return {"number": number, "taken": taken}

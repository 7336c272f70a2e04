"""The buffer of `tap`: where records wait whose number is not known before they are made.

It has room for some records, whichever their sites: each site has a ring with room for all of them,
which is emptied before it would overflow. So adding one is an update in place, and only how many
there are must be known to empty it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from logax._compat import Array, Tree
from logax._harvest.blocks import Block
from logax._harvest.census import Census
from logax._harvest.storage import Ring, started


class Buffer:
    """Room for `size` records of the sites in a census."""

    def __init__(self, size: int, census: Census) -> None:
        self.size = size
        self._rings = {
            name: Ring(dataclasses.replace(tally.on_no_shards(), most=size), size, interval=1)
            for name, tally in census.items()
        }

    def start(self, shards: Sequence[int]) -> Tree:
        """The state with no records in it, one for each shard that fills one."""
        return {name: started(ring, shards) for name, ring in self._rings.items()}

    def waiting(self, state: Tree) -> Array:
        """How many records are in it."""
        return sum(self._rings[name].seen(ring) for name, ring in state.items())

    def lacks_room(self, state: Tree, more: Any) -> Array:
        """Whether so many more records would not fit."""
        return self.waiting(state) + more > self.size

    def add(self, state: Tree, blocks: dict[str, Block]) -> Tree:
        """The state with these records, for which there is room."""
        new = dict(state)
        for name, block in blocks.items():
            new[name] = self._rings[name].append(state[name], block)
        return new

    def content(self, state: Tree, valid: Array | None) -> dict[str, tuple[Block, Array]]:
        """The records of each site, and how many are real: none where this part does not run."""
        result = {}
        for name, ring in self._rings.items():
            count = ring.seen(state[name])
            real = count if valid is None else jnp.where(valid, count, 0)
            result[name] = ring.kept(state[name]), real
        return result

    def emptied(self, state: Tree, valid: Array | None) -> Tree:
        """The state after its records left; where this part does not run they did not."""

        def left(count: Array) -> Array:
            zero = jnp.zeros_like(count)
            return zero if valid is None else jnp.where(valid, zero, count)

        return {name: (rows, left(count)) for name, (rows, count) in state.items()}


def number_of_real(blocks: dict[str, Block]) -> Any:
    """How many records these are."""
    return sum(
        block.rows() if block.valid is None else jnp.sum(block.valid, dtype=jnp.int32)
        for block in blocks.values()
    )

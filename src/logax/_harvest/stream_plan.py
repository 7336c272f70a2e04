"""The buffer of `tap`: where records wait whose number is not known before they are made.

It has room for some records, whichever their sites: each site has a ring with room for all of them,
which is emptied before it would overflow. So adding one is an update in place, and only how many
there are must be known to empty it.

What is settled of a tapped program before it runs: where its records wait, what the host knows.

Records of one *path*, the shards around them, are in one order; each path is a stream to the host
and has a buffer of its own, where there is one. A *site* is a log as far as it is taken, by the
name that `streaming` gives it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from logax._compat import Array, Tree
from logax._delivery.calls import MAX_BLOCK_RECORDS
from logax._delivery.packet import Site, Stream
from logax._harvest.blocks import Block
from logax._harvest.census import Census, Tally
from logax._harvest.stores import Ring, started
from logax._log_spec import LogSpec


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


Path = tuple[int, ...]

MAX_BUFFER_BYTES = 4 * 2**20
MAX_ADAPTED_BYTES = 2**18  # a buffer whose size adapts leaves whole, however little is in it


class Plan(NamedTuple):
    """Where records wait, and what the host is told of them.

    Attributes:
      paths: The sites of each path.
      streams: What the host knows of each path, in the same order.
      buffers: What waits on each path, where the number of records is not known; else none.
      sites: What the host knows of each site.
    """

    paths: Mapping[Path, Census]
    streams: tuple[Stream, ...]
    buffers: Mapping[Path, Buffer]
    sites: Mapping[str, Site]


def plan_of(
    census: Census,
    specs: Mapping[str, LogSpec],
    totals: Mapping[str, int],
    size: int,
    *,
    adapts: bool = False,
) -> Plan:
    """Return the plan of a program, given how many records may wait.

    If the host adapts their number, they all wait in one buffer, but for those of shards, which
    leave one by one.
    """
    paths: dict[Path, Census] = {}
    for name, tally in census.items():
        paths.setdefault(tally.shards, {})[name] = tally
    exact = all(tally.exact for tally in census.values())
    bound = bound_of(census)
    buffers: dict[Path, Buffer] = {}
    if adapts:
        # Less than `size` wait when up to `size` more come.
        buffers = {(): Buffer(2 * size, adapting(census))}
    elif size > 1 and not exact and (bound is None or bound > size):
        buffers = {path: Buffer(size, own) for path, own in paths.items()}
    return Plan(
        paths,
        tuple(Stream(path, bound_of(own) if exact else None) for path, own in paths.items()),
        buffers,
        {name: Site(spec, totals.get(spec.entries[0].key)) for name, spec in specs.items()},
    )


def fitting(census: Census, size: int) -> int:
    """Return how many records wait: as many as asked for, or fewer where all of them are large.

    Transfers of megabytes gain nothing by being fewer, and what waits takes the device's memory.
    """
    smallest = min(map(bytes_of, census.values()), default=0)
    return max(1, min(size, MAX_BUFFER_BYTES // max(smallest, 1)))


def adapting(census: Census) -> Census:
    """Return the sites whose records wait in a buffer if the host adapts how many do."""
    return {name: tally for name, tally in census.items() if tally.in_loop and not tally.shards}


def adapted_size(census: Census) -> int:
    """Return how many of their records wait at most; 0 if there are none, or they are large.

    A buffer has room for that many records of each site.
    """
    own = adapting(census)
    if not own:
        return 0
    return min(MAX_BLOCK_RECORDS, MAX_ADAPTED_BYTES // max(sum(map(bytes_of, own.values())), 1))


def bytes_of(tally: Tally) -> int:
    """How large the values of a record are."""
    return sum(math.prod(like.shape) * like.dtype.itemsize for like in tally.leaves)


def totals_of(census: Census, specs: Mapping[str, LogSpec], interval: int) -> dict[str, int]:
    """How many records each key has after thinning, where the census, of all, says so."""
    tallies: dict[str, list[Tally]] = {}
    for name, tally in census.items():
        for entry in specs[name].entries:
            tallies.setdefault(entry.key, []).append(tally)
    return {
        key: -(-sum(tally.most or 0 for tally in own) // interval)
        for key, own in tallies.items()
        if all(tally.exact for tally in own)
    }


def counters_of(census: Census, specs: Mapping[str, LogSpec]) -> dict[str, str] | None:
    """For each site the name of the counter of its keys, or None if they cannot share one.

    Keys that are always logged together share a counter; those that are only at times cannot.
    """
    sites: dict[str, set[str]] = {}
    for name in census:
        for entry in specs[name].entries:
            sites.setdefault(entry.key, set()).add(name)
    counters = {}
    for name in census:
        together = {frozenset(sites[entry.key]) for entry in specs[name].entries}
        if len(together) > 1:
            return None
        counters[name] = min(together.pop())
    return counters


def bound_of(census: Census) -> int | None:
    """How many records there are at most, or None where nothing bounds them."""
    if any(tally.most is None for tally in census.values()):
        return None
    return sum(tally.most or 0 for tally in census.values())

"""Plan of a tapped program: its streams, buffers and counters, before it runs.

Records under the same shards (a *path*, a tuple of shard counts) are in one order: each path is one
stream to the host and has its own buffer, if there is one. A *site* is the selected part of one
`log` call, by the name that `streaming` gives it.

A `Buffer` holds records whose number is not known before the program runs. Each site has a ring
with room for the whole buffer, and the buffer is emptied before it could overflow. So adding a
record is an update in place, and emptying the buffer needs only the counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from logax._compat import Array, Tree
from logax._delivery.calls import MAX_BLOCK_RECORDS
from logax._delivery.packet import RecordStream, Site
from logax._harvest.census import Census, Tally
from logax._harvest.record_blocks import Block
from logax._harvest.stores import Ring, start_store
from logax._log_spec import LogSpec


class Buffer:
    """Room for `size` records of the sites in a census."""

    def __init__(self, size: int, census: Census) -> None:
        self.size = size
        self._rings = {
            name: Ring(
                dataclasses.replace(tally.without_shards(), max_records=size), size, interval=1
            )
            for name, tally in census.items()
        }

    def start(self, shards: Sequence[int]) -> Tree:
        """Return the empty state, one per shard."""
        return {name: start_store(ring, shards) for name, ring in self._rings.items()}

    def num_waiting(self, state: Tree) -> Array:
        """Return the number of buffered records."""
        return sum(self._rings[name].num_seen(ring) for name, ring in state.items())

    def lacks_room(self, state: Tree, more: Any) -> Array:
        """Return whether `more` records do not fit."""
        return self.num_waiting(state) + more > self.size

    def add(self, state: Tree, blocks: dict[str, Block]) -> Tree:
        """Return the state with more records, which must fit."""
        new = dict(state)
        for name, block in blocks.items():
            new[name] = self._rings[name].append(state[name], block)
        return new

    def content(self, state: Tree, valid: Array | None) -> dict[str, tuple[Block, Array]]:
        """Return the records of each site and their number: 0 where this part is not running."""
        result = {}
        for name, ring in self._rings.items():
            count = ring.num_seen(state[name])
            num_valid = count if valid is None else jnp.where(valid, count, 0)
            result[name] = ring.rows_in_slots(state[name]), num_valid
        return result

    def empty(self, state: Tree, valid: Array | None) -> Tree:
        """Return the state after its records left; they stay where this part is not running."""

        def reset(count: Array) -> Array:
            zero = jnp.zeros_like(count)
            return zero if valid is None else jnp.where(valid, zero, count)

        return {name: (rows, reset(count)) for name, (rows, count) in state.items()}


def count_valid(blocks: dict[str, Block]) -> Any:
    """Return the number of valid records in some blocks."""
    return sum(
        block.num_rows() if block.valid is None else jnp.sum(block.valid, dtype=jnp.int32)
        for block in blocks.values()
    )


Path = tuple[int, ...]

MAX_BUFFER_BYTES = 4 * 2**20
MAX_ADAPTIVE_BUFFER_BYTES = 2**18  # such a buffer always leaves whole, however few records it has


class StreamPlan(NamedTuple):
    """Streams, buffers and sites of a tapped program.

    Attributes:
      paths: Census of each path.
      streams: Description of each path for the host, in the same order.
      buffers: Buffer of each path; empty if no record is buffered.
      sites: Description of each site for the host.
    """

    paths: Mapping[Path, Census]
    streams: tuple[RecordStream, ...]
    buffers: Mapping[Path, Buffer]
    sites: Mapping[str, Site]


def make_plan(
    census: Census,
    specs: Mapping[str, LogSpec],
    totals: Mapping[str, int],
    size: int,
    *,
    adapts: bool = False,
) -> StreamPlan:
    """Return the plan of a program whose buffers have room for `size` records.

    If the host adapts the number of records, one buffer holds the records of all paths, except
    those of shards, which leave one by one.
    """
    paths: dict[Path, Census] = {}
    for name, tally in census.items():
        paths.setdefault(tally.shards, {})[name] = tally
    exact = all(tally.is_exact for tally in census.values())
    bound = record_bound(census)
    buffers: dict[Path, Buffer] = {}
    if adapts:
        # Fewer than `size` records wait when up to `size` more arrive.
        buffers = {(): Buffer(2 * size, adapting_sites(census))}
    elif size > 1 and not exact and (bound is None or bound > size):
        buffers = {path: Buffer(size, own) for path, own in paths.items()}
    return StreamPlan(
        paths,
        tuple(
            RecordStream(path, record_bound(own) if exact else None) for path, own in paths.items()
        ),
        buffers,
        {name: Site(spec, totals.get(spec.entries[0].key)) for name, spec in specs.items()},
    )


def fitting_buffer_size(census: Census, size: int) -> int:
    """Return the number of records to buffer: `size`, or fewer if all records are large.

    Transfers of megabytes gain nothing by being fewer, and a buffer takes device memory.
    """
    smallest = min(map(record_bytes, census.values()), default=0)
    return max(1, min(size, MAX_BUFFER_BYTES // max(smallest, 1)))


def adapting_sites(census: Census) -> Census:
    """Return the sites whose records are buffered if the host adapts the size of the buffer."""
    return {name: tally for name, tally in census.items() if tally.in_loop and not tally.shards}


def adaptive_buffer_size(census: Census) -> int:
    """Return the maximum number of buffered records; 0 if no site is buffered or records are large.

    A buffer has room for that many records of each site.
    """
    own = adapting_sites(census)
    if not own:
        return 0
    return min(
        MAX_BLOCK_RECORDS, MAX_ADAPTIVE_BUFFER_BYTES // max(sum(map(record_bytes, own.values())), 1)
    )


def record_bytes(tally: Tally) -> int:
    """Return the size of the values of one record."""
    return sum(math.prod(like.shape) * like.dtype.itemsize for like in tally.leaves)


def records_per_key(census: Census, specs: Mapping[str, LogSpec], interval: int) -> dict[str, int]:
    """Return the number of records of each key after thinning, for keys with an exact count.

    The census is that of all records, before thinning.
    """
    tallies: dict[str, list[Tally]] = {}
    for name, tally in census.items():
        for entry in specs[name].entries:
            tallies.setdefault(entry.key, []).append(tally)
    return {
        key: -(-sum(tally.max_records or 0 for tally in own) // interval)
        for key, own in tallies.items()
        if all(tally.is_exact for tally in own)
    }


def assign_counters(census: Census, specs: Mapping[str, LogSpec]) -> dict[str, str] | None:
    """Return for each site the name of the counter of its keys; None if they cannot share one.

    Keys that are always logged together share a counter; keys that are sometimes logged together
    cannot.
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


def record_bound(census: Census) -> int | None:
    """Return the maximum number of records, or None if it is unbounded."""
    if any(tally.max_records is None for tally in census.values()):
        return None
    return sum(tally.max_records or 0 for tally in census.values())

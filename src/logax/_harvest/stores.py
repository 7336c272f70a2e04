"""Stores: state of constant size that holds records inside the program.

Keys without a static bound on their records, and keys with `capacity`, `interval` or `reduce`, have
one store for the whole call, which passes through the program: a `Ring` that keeps the last
records, or a `Reduction` that reduces them. Keys that are always logged together (see `LogGroup`)
share a store and its count. The state never holds a gradient, because every record is cut off from
differentiation where it is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree, make_varying, reshard_like
from logax._harvest.census import Tally
from logax._harvest.record_blocks import (
    Block,
    StackedRecords,
    conform_block,
    number_rows,
    rows_like,
    unflatten_value,
)
from logax._reducers import RecordArrays, RecordReducer, unwrap_reducer
from logax._support.messages import add_note


class Store(Protocol):
    """State of constant size that holds records.

    Attributes:
      rows: Number of records that take as much memory as the state.
    """

    rows: int

    def start(self) -> Tree:
        """Return the state before the first record."""

    def append(self, state: Tree, block: Block) -> Tree:
        """Return the state after more records."""

    def finish(self, state: Tree) -> StackedRecords:
        """Return the records for the logdict."""


class Ring:
    """Keeps the last `rows` of the records 0, k, 2k, ..., where k is the `interval`.

    An additional row takes the records that are dropped, so every write is one update in place.
    """

    def __init__(self, tally: Tally, rows: int, interval: int) -> None:
        self._tally, self.rows, self._interval = tally, rows, interval

    def start(self) -> Tree:
        def room(like: jax.ShapeDtypeStruct) -> Array:
            return jnp.zeros((self.rows + 1, *like.shape), like.dtype)

        state = (rows_like(self._tally, room), jnp.zeros((), jnp.int32))
        return make_varying(state, self._tally.varying)

    def append(self, state: Tree, block: Block) -> Tree:
        rows, seen = state
        own = conform_block(block, self._tally).with_record_axis()
        new = jax.tree.map(reshard_like, (own.leaves, own.steps), rows)
        if block.num_rows() == 1:
            return self._append_one(rows, seen, new, block.valid)
        if block.valid is None and self._interval == 1 and not self._overflows():
            update = jax.lax.dynamic_update_slice_in_dim
            rows = jax.tree.map(lambda r, x: update(r, x, seen, 0), rows, new)
            return rows, seen + block.num_rows()
        slot, total = number_rows(block, seen)
        write = block.valid
        if self._interval > 1:
            due = slot % self._interval == 0
            write = due if write is None else write & due
            slot = slot // self._interval
        if self._overflows():
            slot = slot % self.rows
        if write is not None:
            slot = jnp.where(write, slot, self.rows)
        return jax.tree.map(lambda r, x: r.at[slot].set(x), rows, new), total

    def _append_one(self, rows: Tree, seen: Array, new: Tree, valid: Array | None) -> Tree:
        """Append one record. Unsigned slots avoid code for signed division and negative indices."""
        slot = seen.astype(jnp.uint32)
        write = None if valid is None else valid[0]
        more = 1 if write is None else write.astype(jnp.int32)
        if self._interval > 1:
            interval = jnp.uint32(self._interval)
            due = jax.lax.rem(slot, interval) == 0
            write = due if write is None else write & due
            slot = jax.lax.div(slot, interval)
        if self._overflows():
            slot = jax.lax.rem(slot, jnp.uint32(self.rows))
        if write is not None:
            slot = jnp.where(write, slot, jnp.uint32(self.rows))
        update = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda r, x: update(r, x, slot, 0), rows, new), seen + more

    def _overflows(self) -> bool:
        """Return whether there may be more records than rows."""
        most = self._tally.max_records
        return most is None or -(-most // self._interval) > self.rows

    def num_seen(self, state: Tree) -> Array:
        """Return the number of records so far."""
        return state[1]

    def rows_in_slots(self, state: Tree) -> Block:
        """Return the rows by slot; they are in order if there were no more records than rows."""
        return Block(*jax.tree.map(lambda r: r[: self.rows], state[0]))

    def finish(self, state: Tree) -> StackedRecords:
        tally, seen = self._tally, self.num_seen(state)
        block = self.rows_in_slots(state)
        leaves, steps = block.leaves, block.steps
        count = seen if self._interval == 1 else -(-seen // self._interval)
        if self._overflows():
            oldest = jnp.where(count > self.rows, count % max(self.rows, 1), 0)
            leaves, steps = jax.tree.map(lambda r: jnp.roll(r, -oldest, 0), (leaves, steps))
        certain = tally.is_exact and not self._overflows() and leaves
        return StackedRecords(unflatten_value(tally, leaves), steps, None if certain else count)


class Reduction:
    """Reduces the records 0, k, 2k, ..., where k is the `interval`."""

    rows = 0

    def __init__(self, tally: Tally, reducer: RecordReducer, interval: int) -> None:
        self._tally, self._reducer, self._interval = tally, reducer, interval

    def start(self) -> Tree:
        like = RecordArrays(
            unflatten_value(self._tally, self._tally.leaves), dict(self._tally.steps)
        )
        with self._name_key_in_errors():
            first = self._reducer.start(like)
            for leaf in jax.tree.leaves(first):
                if not isinstance(leaf, (jax.Array, np.ndarray, bool, int, float, complex)):
                    raise TypeError(
                        f"`start` of {unwrap_reducer(self._reducer)!r} must return arrays, and "
                        f"returned {leaf!r}."
                    )
        # Count records only if the count is needed, because loops carry this state.
        seen = (
            None if self._always_has_record() and self._interval == 1 else jnp.zeros((), jnp.int32)
        )
        return make_varying((jax.tree.map(jnp.asarray, first), seen), self._tally.varying)

    def _always_has_record(self) -> bool:
        """Return whether at least one record is certain."""
        return self._tally.is_exact and self._tally.max_records != 0

    @contextlib.contextmanager
    def _name_key_in_errors(self) -> Iterator[None]:
        """Add the key to every error, because the reducer may be the user's."""
        try:
            yield
        except Exception as error:
            tally = self._tally
            add_note(error, f"While reducing `{tally.entry.key}`, logged at {tally.sites[0]}.")
            raise

    def append(self, state: Tree, block: Block) -> Tree:
        block = conform_block(block, self._tally).with_record_axis()
        for row in range(block.num_rows()):
            state = self._fold(state, jax.tree.map(lambda x, row=row: x[row], block))
        return state

    def _fold(self, state: Tree, record: Block) -> Tree:
        folded, seen = state
        value = unflatten_value(self._tally, record.leaves)
        with self._name_key_in_errors():
            new = self._reducer.step(folded, RecordArrays(value, record.steps))
            _check_reducer_state(folded, new, unwrap_reducer(self._reducer))
        due = record.valid
        if self._interval > 1:
            on_time = seen % self._interval == 0
            due = on_time if due is None else due & on_time
        if due is not None:
            new = jax.tree.map(lambda n, o: jnp.where(due, n, o), new, folded)
        if seen is None:
            return new, None
        more = 1 if record.valid is None else record.valid.astype(jnp.int32)
        return new, seen + more

    def finish(self, state: Tree) -> StackedRecords:
        folded, seen = state
        with self._name_key_in_errors():
            record, count = self._reducer.finish(folded)
        if count is None and not (self._always_has_record() and jax.tree.leaves(record.value)):
            count = jnp.ones((), jnp.int32) if seen is None else jnp.minimum(seen, 1)
        return StackedRecords(record.value, record.steps, count)


def start_store(store: Store, shards: Sequence[int]) -> Tree:
    """Return the first state of a store, one per shard."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*shards, *x.shape)), store.start())


def finish_store(store: Store, state: Tree, shards: Sequence[int]) -> StackedRecords:
    """Return the records of a store; shard axes follow the record axis."""
    if not shards:
        return store.finish(state)
    column = jax.vmap(lambda each: finish_store(store, each, shards[1:]))(state)
    value, steps = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), column[:2])
    # All counts are the same. The XLA of JAX 0.8.0 fails to slice out the first one.
    return StackedRecords(
        value, steps, None if column.total is None else jnp.max(column.total, axis=0)
    )


def _check_reducer_state(old: Tree, new: Tree, reducer: Any) -> None:
    def types(tree: Tree) -> tuple[Any, list[str]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [f"{jnp.result_type(x).name}{list(jnp.shape(x))}" for x in leaves]

    if types(old) != types(new):
        one, two = (
            f"{', '.join(leaves)} in {structure}" for structure, leaves in map(types, (old, new))
        )
        raise TypeError(
            f"`step` of {reducer!r} must return a state with the types of its argument, {one}, and "
            f"returned {two}."
        )

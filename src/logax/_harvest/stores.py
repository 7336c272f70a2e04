"""Stores: places of constant size where records wait inside the program.

Keys whose records have no static bound, and those with `capacity`, `interval` or `reduce`, have one
store for the whole call, threaded through the program: a `Ring` that keeps the last records, or a
`Reduction` that folds them. Keys that are always logged together (see `groups`) share one, with one
count for all of them. Its state never holds a gradient, since every record is cut off from
differentiation where it is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree, laid_as, make_varying
from logax._harvest.blocks import Block, Column, conformed, numbered, rows_like, value_of
from logax._harvest.census import Tally
from logax._reducers import Record, RecordReducer, written
from logax._support.messages import add_note


class Store(Protocol):
    """A place of constant size for records.

    `rows` is how many records its state is as large as.
    """

    rows: int

    def start(self) -> Tree:
        """The state before the first record."""

    def append(self, state: Tree, block: Block) -> Tree:
        """The state after some more records."""

    def finish(self, state: Tree) -> Column:
        """What the logdict gets."""


class Ring:
    """Keeps the last `rows` records, of each `interval` the first.

    One more row takes what is not to be kept, so that writing is always one update in place.
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
        new = jax.tree.map(laid_as, conformed(block, self._tally).block()[:2], rows)
        if block.rows() == 1:
            return self._append_one(rows, seen, new, block.valid)
        if block.valid is None and self._interval == 1 and not self._overflows():
            update = jax.lax.dynamic_update_slice_in_dim
            rows = jax.tree.map(lambda r, x: update(r, x, seen, 0), rows, new)
            return rows, seen + block.rows()
        slot, total = numbered(block, seen)
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
        """One record. Unsigned numbers spare what signed division and negative indices ask for."""
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
        """Whether there may be more records than rows."""
        most = self._tally.most
        return most is None or -(-most // self._interval) > self.rows

    def seen(self, state: Tree) -> Array:
        """How many records there were."""
        return state[1]

    def kept(self, state: Tree) -> Block:
        """The rows as they lie; in order if there were no more records than rows."""
        return Block(*jax.tree.map(lambda r: r[: self.rows], state[0]))

    def finish(self, state: Tree) -> Column:
        tally, seen = self._tally, self.seen(state)
        leaves, steps, _ = self.kept(state)
        count = seen if self._interval == 1 else -(-seen // self._interval)
        if self._overflows():
            oldest = jnp.where(count > self.rows, count % max(self.rows, 1), 0)
            leaves, steps = jax.tree.map(lambda r: jnp.roll(r, -oldest, 0), (leaves, steps))
        certain = tally.exact and not self._overflows() and leaves
        return Column(value_of(tally, leaves), steps, None if certain else count)


class Reduction:
    """Folds records with a reducer, of each `interval` the first."""

    rows = 0

    def __init__(self, tally: Tally, reducer: RecordReducer, interval: int) -> None:
        self._tally, self._reducer, self._interval = tally, reducer, interval

    def start(self) -> Tree:
        like = Record(value_of(self._tally, self._tally.leaves), dict(self._tally.steps))
        with self._named():
            first = self._reducer.start(like)
            for leaf in jax.tree.leaves(first):
                if not isinstance(leaf, (jax.Array, np.ndarray, bool, int, float, complex)):
                    raise TypeError(
                        f"`start` of {written(self._reducer)!r} must return arrays, and returned "
                        f"{leaf!r}."
                    )
        # The number of records is counted only where it is asked for: a loop carries all of this.
        seen = None if self._is_certain() and self._interval == 1 else jnp.zeros((), jnp.int32)
        return make_varying((jax.tree.map(jnp.asarray, first), seen), self._tally.varying)

    def _is_certain(self) -> bool:
        """Whether it is known that a record goes in."""
        return self._tally.exact and self._tally.most != 0

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Say with every error which key was reduced; the reducer may be the user's."""
        try:
            yield
        except Exception as error:
            tally = self._tally
            add_note(error, f"While reducing `{tally.entry.key}`, logged at {tally.sites[0]}.")
            raise

    def append(self, state: Tree, block: Block) -> Tree:
        block = conformed(block, self._tally).block()
        for row in range(block.rows()):
            state = self._fold(state, jax.tree.map(lambda x, row=row: x[row], block))
        return state

    def _fold(self, state: Tree, record: Block) -> Tree:
        folded, seen = state
        value = value_of(self._tally, record.leaves)
        with self._named():
            new = self._reducer.step(folded, Record(value, record.steps))
            _check_same_types(folded, new, written(self._reducer))
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

    def finish(self, state: Tree) -> Column:
        folded, seen = state
        with self._named():
            record, count = self._reducer.finish(folded)
        if count is None and not (self._is_certain() and jax.tree.leaves(record.value)):
            count = jnp.ones((), jnp.int32) if seen is None else jnp.minimum(seen, 1)
        return Column(record.value, record.steps, count)


def started(store: Store, shards: Sequence[int]) -> Tree:
    """The first state of a store, one for each shard that fills one."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*shards, *x.shape)), store.start())


def finished(store: Store, state: Tree, shards: Sequence[int]) -> Column:
    """The column of a store; shards follow the record axis."""
    if not shards:
        return store.finish(state)
    column = jax.vmap(lambda each: finished(store, each, shards[1:]))(state)
    value, steps = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), column[:2])
    # All counts are the same. To cut out the first of them is more than the XLA of 0.8.0 can do.
    return Column(value, steps, None if column.total is None else jnp.max(column.total, axis=0))


def _check_same_types(old: Tree, new: Tree, reducer: Any) -> None:
    def types(tree: Tree) -> tuple[Any, list[str]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [f"{jnp.result_type(x).name}{list(jnp.shape(x))}" for x in leaves]

    if types(old) != types(new):
        one, two = (
            f"{', '.join(leaves)} in {structure}" for structure, leaves in map(types, (old, new))
        )
        raise TypeError(
            f"`step` of {reducer!r} must return a state like the one it was given, {one}, and "
            f"returned {two}."
        )

"""Where records wait inside the program: blocks that grow, and stores of constant size.

Keys that are always logged together (see `groups`) wait together, with one set of steps, and one
count for all of them. A `Block` is some of their records in order, with a mask where some may not
be real. Where the number of records has a static bound they travel as blocks: each part of the
program returns its own, loops stack them, and the end puts them together. That is what one would
write by hand.

All others (no static bound, `capacity`, `interval`, `reduce`) have one store for the whole call,
threaded through the program: a `Ring` that keeps the last records, or a `Reduction` that folds
them. Its state never holds a gradient, since every record is cut off from differentiation where
it is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree, laid_as, make_varying
from logax._harvest.census import Tally
from logax._logdict import missing_step
from logax._reduce import Record, RecordReducer
from logax._reducers import written


class Block(NamedTuple):
    """Some records: leaves and steps with a record axis, and which are real."""

    leaves: tuple[Array, ...]
    steps: dict[str, Array]
    valid: Array | None = None

    def rows(self) -> int:
        """How many records there is room for."""
        arrays = (*self.leaves, *self.steps.values(), self.valid)
        return next((len(x) for x in arrays if x is not None), 0)

    def leading(self) -> tuple[int, ...]:
        """The shape in front of a record's own."""
        return (self.rows(),)

    def block(self) -> Block:
        """Itself."""
        return self


class Single(NamedTuple):
    """One record, without a record axis.

    A loop that returns it so returns what one would have returned by hand. In particular, JAX sees
    that a step is the loop's own input, and does not copy it.
    """

    leaves: tuple[Array, ...]
    steps: dict[str, Array]
    valid: Array | None = None

    def leading(self) -> tuple[int, ...]:
        """The shape in front of a record's own: none."""
        return ()

    def block(self) -> Block:
        """The same with a record axis."""
        return Block(*jax.tree.map(lambda x: jax.lax.expand_dims(x, (0,)), tuple(self)))


class Column(NamedTuple):
    """All records at the end: the arrays of a logdict, and the count if it is needed."""

    value: Tree
    steps: dict[str, Array]
    total: Array | None


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

        state = (_rows_like(self._tally, room), jnp.zeros((), jnp.int32))
        return make_varying(state, self._tally.varying)

    def append(self, state: Tree, block: Block) -> Tree:
        rows, seen = state
        new = jax.tree.map(laid_as, conformed(block, self._tally).block()[:2], rows)
        if block.rows() == 1:
            return self._append_one(rows, seen, new, block.valid)
        slot, total = numbered(block, seen)
        write = block.valid
        if self._interval > 1:
            due = slot % self._interval == 0
            write = due if write is None else write & due
            slot = slot // self._interval
        if block.rows() > self.rows:  # what the same block would overwrite is not written at all
            stays = slot >= -(-total // self._interval) - self.rows
            write = stays if write is None else write & stays
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
        state = (jax.tree.map(jnp.asarray, first), jnp.zeros((), jnp.int32))
        return make_varying(state, self._tally.varying)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Say with every error which key was reduced; the reducer may be the user's."""
        try:
            yield
        except Exception as error:
            tally = self._tally
            error.add_note(f"While reducing `{tally.entry.key}`, logged at {tally.sites[0]}.")
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
        more = 1 if record.valid is None else record.valid.astype(jnp.int32)
        return new, seen + more

    def finish(self, state: Tree) -> Column:
        folded, seen = state
        with self._named():
            record, count = self._reducer.finish(folded)
        certain = self._tally.exact and self._tally.most != 0 and jax.tree.leaves(record.value)
        if count is None and not certain:
            count = jnp.minimum(seen, 1)
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


def conformed(block: Block | Single, tally: Tally) -> Block | Single:
    """The records with the dtypes and the steps that all of the records have."""

    def column(name: str, like: jax.ShapeDtypeStruct) -> Array:
        if name in block.steps:
            return block.steps[name].astype(like.dtype)
        return jnp.full((*block.leading(), *like.shape), missing_step(like.dtype), like.dtype)

    leaves = tuple(x.astype(like.dtype) for x, like in zip(block.leaves, tally.leaves, strict=True))
    steps = {name: column(name, like) for name, like in tally.steps.items()}
    return block._replace(leaves=leaves, steps=steps)


def joined(parts: Sequence[Block | Single], tally: Tally) -> Block | Single:
    """All of some records, in order; a part without any does not even say that it has a mask."""
    filled = [part for part in parts if 0 not in part.leading()] or parts[:1]
    if len(filled) == 1:
        return conformed(filled[0], tally)
    alike = [conformed(part, tally).block() for part in filled]
    if any(block.valid is not None for block in alike):
        alike = [block._replace(valid=real_rows(block)) for block in alike]
    return Block(*jax.tree.map(lambda *parts: jnp.concatenate(parts), *map(tuple, alike)))


def real_rows(block: Block) -> Array:
    """The mask of a block, made up where it has none."""
    return jnp.ones(block.rows(), bool) if block.valid is None else block.valid


def numbered(block: Block, first: Any) -> tuple[Array, Array]:
    """The number of each record, counted from `first`, and the number of the next one.

    Rows that are not real do not count: they have the number of the one before.
    """
    if block.valid is None:
        return first + jnp.arange(block.rows(), dtype=jnp.int32), first + block.rows()
    real = jnp.cumsum(block.valid, dtype=jnp.int32)
    return first + real - 1, first + (real[-1] if block.rows() else 0)


def padded(block: Block, rows: int) -> Block:
    """The block with room for `rows` records, and a mask."""

    def pad(x: Array) -> Array:
        room = jnp.zeros((rows - len(x), *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, room]) if rows > len(x) else x

    leaves, steps, valid = jax.tree.map(pad, block._replace(valid=real_rows(block)))
    return Block(leaves, steps, valid)


def empty(tally: Tally) -> Block:
    """No records."""
    return Block(*_rows_like(tally, lambda like: jnp.zeros((0, *like.shape), like.dtype)))


def compacted(block: Block, tally: Tally) -> Column:
    """The real records first, in order, then zeros; and how many are real."""
    if block.valid is None:
        return Column(value_of(tally, block.leaves), block.steps, None)
    number, count = numbered(block, jnp.zeros((), jnp.int32))
    slot = jnp.where(block.valid, number, block.rows())

    def compact(x: Array) -> Array:
        return jnp.zeros_like(x).at[slot].set(x, mode="drop")

    leaves, steps = jax.tree.map(compact, (block.leaves, block.steps))
    return Column(value_of(tally, leaves), steps, count)


def _rows_like(
    tally: Tally, make: Callable[[jax.ShapeDtypeStruct], Array]
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    return tuple(map(make, tally.leaves)), {name: make(like) for name, like in tally.steps.items()}


def cut_off(x: Array) -> Array:
    """The value without its derivative."""
    x = jnp.asarray(x)
    return jax.lax.stop_gradient(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def value_of(tally: Tally, leaves: Sequence[Any]) -> Tree:
    """The logged pytree with these leaves; those that were not chosen are None."""
    return tally.entry.value(leaves)


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

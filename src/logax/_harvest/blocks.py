"""Records on their way out of the program, as the results of its parts.

A `Block` is some records of one group (see `groups`) in order: one set of steps, one mask for all
of its keys, where some may not be real. Where the number of records has a static bound they travel
as blocks: each part of the program returns its own, loops stack them, and the end puts them
together. That is what one would write by hand. All others wait in a store (see `storage`).

Whatever becomes of a record, it is cut off from differentiation where it is logged (`cut_off`).

Groups: keys that are always logged together, and so wait together.

Ten metrics of one `log` call have the same steps and the same count. As one group they share them
in the program as well: one step column, one counter, one slot to write to. A group goes by the
name of its first key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import treedef_tuple

from logax._compat import Array, Tree
from logax._harvest.census import Census, Tally
from logax._log_spec import Leaf
from logax._logdict.logdict import missing_step


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
    return Block(*rows_like(tally, lambda like: jnp.zeros((0, *like.shape), like.dtype)))


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


def rows_like(
    tally: Tally, make: Callable[[jax.ShapeDtypeStruct], Array]
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """Leaves and steps such as a block has, each made from the shape and dtype of one record's."""
    return tuple(map(make, tally.leaves)), {name: make(like) for name, like in tally.steps.items()}


def cut_off(x: Array) -> Array:
    """The value without its derivative."""
    x = jnp.asarray(x)
    return jax.lax.stop_gradient(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def value_of(tally: Tally, leaves: Sequence[Any]) -> Tree:
    """The logged pytree with these leaves; those that were not chosen are None."""
    return tally.entry.value(leaves)


@dataclasses.dataclass(frozen=True)
class Group:
    """Some keys, each with its own tally, and the tally of all their leaves as one record."""

    tallies: Mapping[str, Tally]
    whole: Tally

    def gathered(self, operands: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
        """The leaves of one record, given those of each key."""
        return tuple(x for key in self.tallies for x in operands[key])

    def columns(self, column: Column) -> dict[str, Column]:
        """The column of each key."""
        if len(self.tallies) == 1:
            return dict.fromkeys(self.tallies, column)
        return {
            key: column._replace(value=value)
            for key, value in zip(self.tallies, column.value, strict=True)
        }


def grouped(census: Census, kind: Callable[[Tally], Hashable]) -> dict[str, Group]:
    """The groups of a program by their first keys. Only keys of one kind go together."""
    members: dict[Hashable, dict[str, Tally]] = {}
    for key, tally in census.items():
        alike = (kind(tally), tally.logs, tally.varying, tally.count_varying, not tally.leaves)
        members.setdefault(alike, {})[key] = tally
    return {next(iter(tallies)): Group(tallies, _whole(tallies)) for tallies in members.values()}


def _whole(tallies: Mapping[str, Tally]) -> Tally:
    first, *others = tallies.values()
    if not others:
        return first
    leaves: list[Leaf] = []
    before = 0
    for tally in tallies.values():
        entry = tally.entry
        leaves += [dataclasses.replace(x, position=before + x.position) for x in entry.leaves]
        before += entry.structure.num_leaves
    structure = treedef_tuple([tally.entry.structure for tally in tallies.values()])
    return dataclasses.replace(
        first,
        entry=dataclasses.replace(first.entry, structure=structure, leaves=tuple(leaves)),
        leaves=tuple(like for tally in tallies.values() for like in tally.leaves),
    )

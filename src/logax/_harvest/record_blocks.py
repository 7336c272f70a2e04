"""Records inside the program: blocks of rows, and the key groups that share them.

A `Block` holds records of one `LogGroup` in the order of the program. If the number of records has
a static bound, they travel as blocks: each part of the program returns its own, loops stack them,
and the end of the program joins them. All other records go to a store (see `stores`).

Keys that are always logged together form a group. Ten metrics of one `log` call then share one
step column, one counter and one slot to write to. A group has the name of its first key.

Every record is cut off from differentiation where it is logged (`stop_gradient`).
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
from logax._log_spec import LeafSpec
from logax._logdict.logdict import missing_step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """Rows of one key group, in the order of the program.

    A single record has no record axis, so a loop stacks it without a reshape. JAX then sees that a
    step is the loop's own input, and does not copy it.

    Attributes:
      leaves: Leaves of the logged values, each with a leading record axis.
      steps: Steps by name, each with a leading record axis.
      valid: Mask of the rows that are real records; None if all are.
      is_single: True if the block is one record without a record axis.
    """

    leaves: tuple[Array, ...]
    steps: dict[str, Array]
    valid: Array | None = None
    is_single: bool = dataclasses.field(default=False, metadata={"static": True})

    def num_rows(self) -> int:
        """Return the number of rows, valid or not."""
        if self.is_single:
            return 1
        arrays = (*self.leaves, *self.steps.values(), self.valid)
        return next((len(x) for x in arrays if x is not None), 0)

    def rows_shape(self) -> tuple[int, ...]:
        """Return the shape in front of the shape of one record: `(num_rows,)`, or `()`."""
        return () if self.is_single else (self.num_rows(),)

    def with_record_axis(self) -> Block:
        """Return the block with a record axis."""
        if not self.is_single:
            return self
        rows = jax.tree.map(lambda x: jax.lax.expand_dims(x, (0,)), self)
        return Block(rows.leaves, rows.steps, rows.valid)


class StackedRecords(NamedTuple):
    """All records of a key or a group at the end of the program.

    Attributes:
      value: The logged value with a leading record axis.
      steps: Steps by name.
      total: Number of records; None if it is the length of the record axis.
    """

    value: Tree
    steps: dict[str, Array]
    total: Array | None


def conform_block(block: Block, tally: Tally) -> Block:
    """Cast the block to the dtypes of the tally, and add the steps it lacks as missing values."""

    def step_column(name: str, like: jax.ShapeDtypeStruct) -> Array:
        if name in block.steps:
            return block.steps[name].astype(like.dtype)
        return jnp.full((*block.rows_shape(), *like.shape), missing_step(like.dtype), like.dtype)

    leaves = tuple(x.astype(like.dtype) for x, like in zip(block.leaves, tally.leaves, strict=True))
    steps = {name: step_column(name, like) for name, like in tally.steps.items()}
    return dataclasses.replace(block, leaves=leaves, steps=steps)


def join_blocks(blocks: Sequence[Block], tally: Tally) -> Block:
    """Concatenate blocks in order. A block without rows does not add a mask."""
    filled = [block for block in blocks if 0 not in block.rows_shape()] or blocks[:1]
    if len(filled) == 1:
        return conform_block(filled[0], tally)
    alike = [conform_block(block, tally).with_record_axis() for block in filled]
    if any(block.valid is not None for block in alike):
        alike = [dataclasses.replace(block, valid=validity_mask(block)) for block in alike]
    return jax.tree.map(lambda *columns: jnp.concatenate(columns), *alike)  # type: ignore[no-any-return]


def validity_mask(block: Block) -> Array:
    """Return the mask of a block; all true if it has none."""
    return jnp.ones(block.num_rows(), bool) if block.valid is None else block.valid


def number_rows(block: Block, first: Any) -> tuple[Array, Array]:
    """Return the number of each record, counted from `first`, and the number of the next record.

    Invalid rows do not count: they get the number of the record before them.
    """
    if block.valid is None:
        return first + jnp.arange(block.num_rows(), dtype=jnp.int32), first + block.num_rows()
    valid_so_far = jnp.cumsum(block.valid, dtype=jnp.int32)
    return first + valid_so_far - 1, first + (valid_so_far[-1] if block.num_rows() else 0)


def pad_block(block: Block, rows: int) -> Block:
    """Return the block with a mask and at least `rows` rows, the new ones invalid."""

    def pad(x: Array) -> Array:
        padding = jnp.zeros((rows - len(x), *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, padding]) if rows > len(x) else x

    masked = dataclasses.replace(block, valid=validity_mask(block))
    return jax.tree.map(pad, masked)  # type: ignore[no-any-return]


def empty_block(tally: Tally) -> Block:
    """Return a block without rows."""
    return Block(*rows_like(tally, lambda like: jnp.zeros((0, *like.shape), like.dtype)))


def compact_records(block: Block, tally: Tally) -> StackedRecords:
    """Move the valid records to the front, zeros behind them, and count the valid ones."""
    if block.valid is None:
        return StackedRecords(unflatten_value(tally, block.leaves), block.steps, None)
    number, count = number_rows(block, jnp.zeros((), jnp.int32))
    slot = jnp.where(block.valid, number, block.num_rows())

    def compact(x: Array) -> Array:
        return jnp.zeros_like(x).at[slot].set(x, mode="drop")

    leaves, steps = jax.tree.map(compact, (block.leaves, block.steps))
    return StackedRecords(unflatten_value(tally, leaves), steps, count)


def rows_like(
    tally: Tally, make: Callable[[jax.ShapeDtypeStruct], Array]
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """Make leaves and steps, each from the shape and dtype that it has in one record."""
    return tuple(map(make, tally.leaves)), {name: make(like) for name, like in tally.steps.items()}


def stop_gradient(x: Array) -> Array:
    """Return `x` as an array without its derivative."""
    x = jnp.asarray(x)
    return jax.lax.stop_gradient(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def unflatten_value(tally: Tally, leaves: Sequence[Any]) -> Tree:
    """Rebuild the logged pytree from its leaves, with None for leaves that were not selected."""
    return tally.entry.value(leaves)


@dataclasses.dataclass(frozen=True)
class LogGroup:
    """Keys that are always logged together.

    Attributes:
      tallies: Tally of each key.
      combined: Tally of the leaves of all keys as one record.
    """

    tallies: Mapping[str, Tally]
    combined: Tally

    def gather_leaves(self, operands: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
        """Return the leaves of one record of the group, given the leaves of each key."""
        return tuple(x for key in self.tallies for x in operands[key])

    def split_by_key(self, records: StackedRecords) -> dict[str, StackedRecords]:
        """Split the records of the group into the records of each key."""
        if len(self.tallies) == 1:
            return dict.fromkeys(self.tallies, records)
        return {
            key: records._replace(value=value)
            for key, value in zip(self.tallies, records.value, strict=True)
        }


def group_keys(census: Census, kind: Callable[[Tally], Hashable]) -> dict[str, LogGroup]:
    """Return the groups of a program by their first keys; the keys of a group have one `kind`."""
    members: dict[Hashable, dict[str, Tally]] = {}
    for key, tally in census.items():
        alike = (kind(tally), tally.logs, tally.varying, tally.count_varying, not tally.leaves)
        members.setdefault(alike, {})[key] = tally
    groups = (LogGroup(tallies, _combine_tallies(tallies)) for tallies in members.values())
    return {next(iter(group.tallies)): group for group in groups}


def _combine_tallies(tallies: Mapping[str, Tally]) -> Tally:
    first, *others = tallies.values()
    if not others:
        return first
    leaves: list[LeafSpec] = []
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

"""Groups: keys that are always logged together, and so wait together.

Ten metrics of one `log` call have the same steps and the same count. As one group they share them
in the program as well: one step column, one counter, one slot to write to. A group goes by the
name of its first key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from jax.tree_util import treedef_tuple

from logax._entries import Leaf
from logax._harvest.blocks import Column
from logax._harvest.census import Census, Tally


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

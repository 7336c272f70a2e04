"""The static half of a logdict: which array is whose.

A logdict is flattened at every call of a compiled function that takes or returns one, so that all
that does not change stands here, once: the keys in order, the rank of a record, and for each step
column and each explicit count its place in the row of side arrays that follow the values. Arrays
that several keys share have one place.

Two layouts are equal when they say the same about arrays. The sites are along for the ride:
programs that differ in line numbers only are the same program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from logax._columns.records import Records
from logax._compat import Array


@dataclasses.dataclass(frozen=True)
class SideKey:
    """The place of a side array in a key path: `.steps['update']['loss']`, `.count['loss']`."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return f".{self.path[0]}" + "".join(f"[{name!r}]" for name in self.path[1:])


class Layout:
    """Hashable; equal to another that means the same for arrays, whatever the sites."""

    __slots__ = ("_hash", "_paths", "_token", "counts", "keys", "rank", "site", "size", "steps")

    def __init__(
        self,
        rank: Mapping[str, int],
        steps: Mapping[str, Mapping[str, int]],
        counts: Mapping[str, int],
        site: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.keys = tuple(rank)
        self.size = len(self.keys)
        self.rank, self.steps, self.counts, self.site = rank, steps, counts, site
        columns = tuple((name, tuple(places.items())) for name, places in steps.items())
        self._token = (tuple(rank.items()), columns, tuple(counts.items()))
        self._hash = hash(self._token)
        self._paths: tuple[Any, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._token == other._token)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{', '.join(self.keys)}; steps {', '.join(self.steps) or 'none'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.rank, self.steps, self.counts, self.site)

    @property
    def paths(self) -> tuple[Any, ...]:
        """A key of a key path for each value and then for each side array."""
        if self._paths is None:
            side: dict[int, SideKey] = {}
            for name, places in self.steps.items():
                for key, place in places.items():
                    side.setdefault(place, SideKey(("steps", name, key)))
            for key, place in self.counts.items():
                side.setdefault(place, SideKey(("count", key)))
            values = (jax.tree_util.DictKey(key) for key in self.keys)
            self._paths = (*values, *(side[place] for place in sorted(side)))
        return self._paths


def lay_out(
    records: Mapping[str, Records], names: Iterable[str] = ()
) -> tuple[Layout, tuple[Array, ...]]:
    """The layout of these keys and their side arrays. `names` says in which order steps stand."""
    side: list[Array] = []
    places: dict[int, int] = {}

    def place(array: Array) -> int:
        if id(array) not in places:
            places[id(array)] = len(side)
            side.append(array)
        return places[id(array)]

    steps: dict[str, dict[str, int]] = {name: {} for name in names}
    counts: dict[str, int] = {}
    for key, column in records.items():
        for name, array in column.steps.items():
            steps.setdefault(name, {})[key] = place(array)
        if column.count is not None:
            counts[key] = place(column.count)
    steps = {name: columns for name, columns in steps.items() if columns}
    rank = {key: column.rank for key, column in records.items()}
    site = {key: column.site for key, column in records.items()}
    return Layout(rank, steps, counts, site), tuple(side)

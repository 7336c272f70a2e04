"""The static half of a logdict: which array is whose.

A logdict is flattened at every call of a compiled function that takes or returns one, so that all
that does not change stands here, once: the keys in order, the rank of a record, and for each step
column and each explicit count its place in the row of side arrays that follow the values. Arrays
that several keys share have one place.

Two layouts are equal when they say the same about arrays. The sites are along for the ride:
programs that differ in line numbers only are the same program.

Records by key, as a dictionary: what `logdict` stands on.

Every way to change a dictionary keeps the steps, counts and sites with their keys. The values are
the dictionary's own; all other arrays stand in one row beside them, and a `Layout` says which is
whose. So taking a logdict apart and putting it together, which happens at every call of a compiled
function that takes or returns one, is to copy a short row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, TypeVar

import jax

from logax._compat import Array, Tree
from logax._logdict.records import Records, Share
from logax._logdict.validate import assigned
from logax._logdict.views import listed


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


T = TypeVar("T", bound="Table")
_new, _set, _update, _values = dict.__new__, dict.__setitem__, dict.update, dict.values


class Table(dict[str, Any]):
    """A `dict` whose values are columns of records."""

    __slots__ = ("__weakref__", "_layout", "_side")
    _layout: Layout
    _side: tuple[Array, ...]

    def _adopt(self, records: Mapping[str, Records], names: Iterable[str] = ()) -> None:
        """Become these records."""
        self._layout, self._side = lay_out(records, names)
        dict.clear(self)
        dict.update(self, {key: column.value for key, column in records.items()})

    def _like(self, records: Mapping[str, Records], names: Iterable[str] = ()) -> Self:
        """A new one of these records, its step names in the order of this one's."""
        logs: Self = _new(type(self))
        logs._adopt(records, (*self._layout.steps, *names))
        return logs

    def _records(self) -> dict[str, Records]:
        return {key: self._of(key) for key in self}

    def _of(self, key: str) -> Records:
        value, layout, side = self[key], self._layout, self._side
        steps = {name: side[at[key]] for name, at in layout.steps.items() if key in at}
        count = side[layout.counts[key]] if key in layout.counts else None
        return Records(value, steps, count, layout.site[key], layout.rank[key])

    def _counts(self) -> dict[str, Array]:
        """The counts that do not follow from shapes."""
        return {key: self._side[at] for key, at in self._layout.counts.items()}

    def _require(self, what: str, seen: Callable[[Records], bool] = Records.shown) -> None:
        for key, records in self._records().items():
            if not seen(records):
                raise TypeError(
                    f"`{what}` needs to see the numbers of {key!r}, and here there are only "
                    "shapes. Return the logdict from the compiled function and use it outside."
                )

    def __missing__(self, key: str) -> NoReturn:
        for own in self:
            if isinstance(key, str) and key.startswith(f"{own}/"):
                raise KeyError(
                    f"{key!r} is a leaf: write `logs[{own!r}]` or `logs.leaves()[{key!r}]`"
                )
        raise KeyError(f"{key!r} was not logged; there is {listed(self)}")

    def __setitem__(self, key: str, value: Tree) -> None:
        """Put a value under a key.

        Where its lanes and records are as many as those of the old value, the key's steps, count
        and sites stay; otherwise it has none. The value of a new key has the lanes of all others.
        """
        records = self._records()
        lanes = {column.lanes for column in records.values()}
        common = lanes.pop() if len(lanes) == 1 else ()
        records[key] = assigned(key, value, records.get(key), common)
        self._adopt(records, self._layout.steps)

    def __delitem__(self, key: str) -> None:
        records = self._records()
        if key not in records:
            self.__missing__(key)
        del records[key]
        self._adopt(records, self._layout.steps)

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a key and return its value."""
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key and return it with its value."""
        if not self:
            raise KeyError("this `logdict` is empty")
        key = next(reversed(self))
        return key, Table.pop(self, key)

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """The value of a key, which is put there if it is new."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove all keys."""
        self._adopt({})

    def update(self, other: Any = (), /, **more: Tree) -> None:
        """Put these under their keys; those of a logdict with their steps, counts and sites."""
        if isinstance(other, Table):
            names = (*self._layout.steps, *other._layout.steps)
            self._adopt(self._records() | other._records(), names)
            other = {}
        for key, value in (dict(other) | more).items():
            self[key] = value

    def copy(self) -> Self:
        """Another one of the same arrays."""
        return put_together(type(self), self._layout, taken_apart(self)[0])

    def __eq__(self, other: object) -> bool:
        """Whether keys, real records (NaN like NaN), steps and counts are equal. Waits for them."""
        if not isinstance(other, Table):
            return NotImplemented
        self._require("==")
        other._require("==")
        mine, others, share = self._records(), other._records(), Share()
        return mine.keys() == others.keys() and all(
            records.compacted(share).equal(others[key].compacted(share))
            for key, records in mine.items()
        )

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return put_together, (type(self), self._layout, taken_apart(self)[0])


def taken_apart(logs: Table) -> tuple[tuple[Any, ...], Layout]:
    """The values, then all other arrays; and whose they are."""
    return (*_values(logs), *logs._side), logs._layout


def put_together(kind: type[T], layout: Layout, arrays: Any) -> T:
    """What was taken apart, with whatever objects in place of the arrays."""
    logs = _new(kind)
    if layout.size == 1:  # the most common case, in half the time
        _set(logs, layout.keys[0], arrays[0])
    else:
        # Unpacking by `zip` alone is what makes this fast; there are more arrays than keys.
        _update(logs, zip(layout.keys, arrays))  # noqa: B905
    logs._side = arrays[layout.size :]
    logs._layout = layout
    return logs

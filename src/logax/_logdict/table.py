"""The dictionary that `logdict` extends, and its static layout.

The values of a `RecordTable` are those of the dictionary. All other arrays, the step columns and
the explicit counts, form one tuple of side arrays, and a `LogdictLayout` maps keys to positions in
it. An array that several keys share has one position. Every method that changes the dictionary
keeps steps, counts and sites with their keys.

JAX flattens a logdict at every call of a compiled function that takes or returns one. The layout is
computed once and reused, so flattening only copies a short tuple.

Layouts compare equal if they describe the same arrays. Sites are excluded: programs that differ in
line numbers only are the same program and must not be compiled twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self, TypeVar

import jax

from logax._compat import Array, Tree
from logax._logdict.records import ColumnCache, KeyRecords
from logax._logdict.validate import assign_records
from logax._logdict.views import format_names


@dataclasses.dataclass(frozen=True)
class SideKey:
    """Key-path entry of a side array: `.steps['update']['loss']` or `.count['loss']`."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return f".{self.path[0]}" + "".join(f"[{name!r}]" for name in self.path[1:])


class LogdictLayout:
    """Static description of a logdict: its pytree structure for JAX, hashable, ignoring sites.

    Attributes:
      keys: Keys in order.
      size: Number of keys.
      rank: Rank of one record, by key.
      steps: Position of each step column among the side arrays, by step name and key.
      counts: Position of each explicit count among the side arrays, by key.
      site: File and line of the calls that logged it, by key.
    """

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
        return self is other or (isinstance(other, LogdictLayout) and self._token == other._token)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{', '.join(self.keys)}; steps {', '.join(self.steps) or 'none'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return LogdictLayout, (self.rank, self.steps, self.counts, self.site)

    @property
    def paths(self) -> tuple[Any, ...]:
        """Key-path entries of the values, then of the side arrays."""
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


def make_layout(
    records: Mapping[str, KeyRecords], names: Iterable[str] = ()
) -> tuple[LogdictLayout, tuple[Array, ...]]:
    """Return the layout of these records and their side arrays. `names` orders the steps."""
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
    return LogdictLayout(rank, steps, counts, site), tuple(side)


T = TypeVar("T", bound="RecordTable")
_new, _set, _update, _values = dict.__new__, dict.__setitem__, dict.update, dict.values


class RecordTable(dict[str, Any]):
    """A `dict` from keys to pytrees of arrays that keeps steps, counts and sites with the keys."""

    __slots__ = ("__weakref__", "_layout", "_side")
    _layout: LogdictLayout
    _side: tuple[Array, ...]

    def _set_records(self, records: Mapping[str, KeyRecords], names: Iterable[str] = ()) -> None:
        """Replace the contents by these records."""
        self._layout, self._side = make_layout(records, names)
        dict.clear(self)
        dict.update(self, {key: column.value for key, column in records.items()})

    def _with_records(self, records: Mapping[str, KeyRecords], names: Iterable[str] = ()) -> Self:
        """Return a new logdict of these records, with step names ordered as in this one."""
        logs: Self = _new(type(self))
        logs._set_records(records, (*self._layout.steps, *names))
        return logs

    def _records(self) -> dict[str, KeyRecords]:
        return {key: self._key_records(key) for key in self}

    def _key_records(self, key: str) -> KeyRecords:
        value, layout, side = self[key], self._layout, self._side
        steps = {name: side[at[key]] for name, at in layout.steps.items() if key in at}
        count = side[layout.counts[key]] if key in layout.counts else None
        return KeyRecords(value, steps, count, layout.site[key], layout.rank[key])

    def _counts(self) -> dict[str, Array]:
        """Return the explicit counts, which do not follow from shapes."""
        return {key: self._side[at] for key, at in self._layout.counts.items()}

    def _require_concrete(
        self,
        what: str,
        is_concrete: Callable[[KeyRecords], bool] = KeyRecords.has_concrete_arrays,
    ) -> None:
        """Raise a `TypeError` that names the public call `what` unless numbers are available."""
        for key, records in self._records().items():
            if not is_concrete(records):
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
        raise KeyError(f"{key!r} was not logged; there is {format_names(self)}")

    def __setitem__(self, key: str, value: Tree) -> None:
        """Set the value of a key.

        The key keeps its steps, count and sites if the new value has the same lanes and number of
        records; otherwise it loses them. The value of a new key must have the lanes of the others.
        """
        records = self._records()
        lanes = {column.lanes for column in records.values()}
        common = lanes.pop() if len(lanes) == 1 else ()
        records[key] = assign_records(key, value, records.get(key), common)
        self._set_records(records, self._layout.steps)

    def __delitem__(self, key: str) -> None:
        records = self._records()
        if key not in records:
            self.__missing__(key)
        del records[key]
        self._set_records(records, self._layout.steps)

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a key with its steps, count and sites, and return its value."""
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
        return key, RecordTable.pop(self, key)

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Return the value of a key, setting it to `default` first if the key is new."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove all keys."""
        self._set_records({})

    def update(self, other: Any = (), /, **more: Tree) -> None:
        """Set several keys. Keys of another logdict bring their steps, counts and sites."""
        if isinstance(other, RecordTable):
            names = (*self._layout.steps, *other._layout.steps)
            self._set_records(self._records() | other._records(), names)
            other = {}
        for key, value in (dict(other) | more).items():
            self[key] = value

    def copy(self) -> Self:
        """Return a shallow copy, which shares the arrays."""
        return unflatten_logdict(type(self), self._layout, flatten_logdict(self)[0])

    def __eq__(self, other: object) -> bool:
        """Compare keys, real records, steps and counts; padding and sites are ignored.

        NaN equals NaN. Waits for the arrays.
        """
        if not isinstance(other, RecordTable):
            return NotImplemented
        self._require_concrete("==")
        other._require_concrete("==")
        mine, others = self._records(), other._records()
        cache: ColumnCache = {}
        return mine.keys() == others.keys() and all(
            records.compact(cache).is_equal(others[key].compact(cache))
            for key, records in mine.items()
        )

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return unflatten_logdict, (type(self), self._layout, flatten_logdict(self)[0])


def flatten_logdict(logs: RecordTable) -> tuple[tuple[Any, ...], LogdictLayout]:
    """Return the values followed by the side arrays, and the layout."""
    return (*_values(logs), *logs._side), logs._layout


def unflatten_logdict(kind: type[T], layout: LogdictLayout, arrays: Any) -> T:
    """Build a logdict from a layout and its children, which may be any objects, as JAX requires."""
    logs = _new(kind)
    if layout.size == 1:  # the most common case, without the cost of `zip`
        _set(logs, layout.keys[0], arrays[0])
    else:
        # `strict=True` would be slower, and wrong: the side arrays follow the values.
        _update(logs, zip(layout.keys, arrays))  # noqa: B905
    logs._side = arrays[layout.size :]
    logs._layout = layout
    return logs

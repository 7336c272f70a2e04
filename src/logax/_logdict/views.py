"""Attributes of a logdict: `steps`, `count`, `site`, `last`, `slice`; and `first_nonfinite`.

A step has a short form, `logs.update["loss"]`, unless an attribute has the same name. An ambiguous
name must never return the wrong object silently. If a step has the name of a method, the method can
still be called, and subscripting it raises. If a step has the name of a mapping (`count`, `last`,
`site`), subscripting raises too, and `logs.count.get(key)` returns the attribute of the logdict.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from logax._logdict.records import ColumnCache, KeyRecords
from logax._support.arrays import array_module, is_missing, leaf_name

if TYPE_CHECKING:
    from logax._logdict.logdict import logdict


class stepdict(dict[str, Any]):
    """The type of `logs.steps`: a read-only `dict` from step names to keys to arrays.

    `logs.steps["update"]` is itself a `stepdict` from keys to arrays. A `stepdict` is a pytree,
    like any dictionary. To change the steps of a logdict, build a new one: `logdict(logs,
    steps=...)`.
    """

    def __missing__(self, key: str) -> NoReturn:
        raise KeyError(f"{key!r} is not here; there is {format_names(self)}")

    def _reject_change(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "The steps of a `logdict` cannot be changed in place: write `logdict(logs, steps=...)`."
        )

    __setitem__ = __delitem__ = __ior__ = _reject_change
    clear = pop = popitem = setdefault = update = _reject_change

    def __reduce__(self) -> tuple[Any, ...]:
        return stepdict, (dict(self),)


class PerKey(Mapping[str, Any]):
    """Read-only mapping from the keys of a logdict to values that are computed on access."""

    def __init__(self, logs: logdict, name: str, find: Callable[[str], Any]) -> None:
        self._logs, self._name, self._find = logs, name, find

    def __getitem__(self, key: str) -> Any:
        if self._name in self._logs._layout.steps:
            raise _name_clash_error(
                self._name, key, f"; what the logdict itself has is `logs.{self._name}.get(...)`"
            )
        self._logs[key]  # for its KeyError
        return self._find(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, even if a step has the name of this mapping."""
        return self._find(key) if key in self._logs else default

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of keys and values."""
        return {key: self._find(key) for key in self._logs}.items()

    def values(self) -> ValuesView[Any]:
        """Return the values in the order of the keys."""
        return {key: self._find(key) for key in self._logs}.values()

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: {self._repr_of(key)}' for key in self._logs)}}}"

    def _repr_of(self, key: str) -> str:
        try:
            return repr(self._find(key))
        except IndexError:  # `last` of a key without records
            return "none"


class Slicer:
    """The type of `logs.slice`: slices the records of every key."""

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, rows: Any) -> logdict:
        if isinstance(rows, str) and "slice" in self._logs._layout.steps:
            raise _name_clash_error("slice", rows)
        if not (isinstance(rows, slice) and _has_integer_bounds(rows)):
            raise TypeError(
                "`logs.slice` takes a slice of records, as in `logs.slice[10:20]`, and got "
                f"{rows!r}. For one record write `logs.slice[i:i + 1]`."
            )
        if rows.step is not None and rows.step < 1:
            raise ValueError(
                f"`logs.slice` keeps records in order: its step is 1 or more, and got {rows.step}."
            )
        cache: ColumnCache = {}
        records = self._logs._records()
        return self._logs._with_records(
            {key: column.slice_rows(rows, cache) for key, column in records.items()}
        )


def _has_integer_bounds(rows: slice) -> bool:
    bounds = (rows.start, rows.stop, rows.step)
    return all(bound is None or hasattr(bound, "__index__") for bound in bounds)


class Method:
    """Descriptor of a method of `logdict` that explains itself if a step has the same name."""

    def __init__(self, function: Any, name: str) -> None:
        self._function, self._name = function, name

    def __get__(self, logs: logdict | None, owner: type | None = None) -> Any:
        if logs is None:
            return self._function
        method = self._function.__get__(logs, owner)
        return ClashingMethod(method, self._name) if self._name in logs._layout.steps else method


class ClashingMethod:
    """A method with the name of a step: calling it works, subscripting it raises."""

    def __init__(self, method: Any, name: str) -> None:
        functools.update_wrapper(self, method)
        self._method, self._name = method, name

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)

    def __getitem__(self, key: Any) -> NoReturn:
        raise _name_clash_error(self._name, key)


def _name_clash_error(name: str, key: Any, hint: str = "") -> TypeError:
    return TypeError(
        f"`logs.{name}` is an attribute of every `logdict`, so the step {name!r} has no short "
        f'form. Write `logs.steps["{name}"]["{key}"]`{hint}.'
    )


def format_names(names: Iterable[str]) -> str:
    """Format names for an error message."""
    return ", ".join(map(repr, names)) or "nothing"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A record that holds a NaN or an infinity, as `logs.first_nonfinite()` returns it.

    Attributes:
      key: Key of the record.
      record: Index among the kept records of the key.
      steps: Steps of the record by name, without missing ones.
      site: File and line of each call that logged the key.
      lane: Indices of the lane, () without lanes.
      leaf: Name of the leaf that is not finite; the key itself if the value is one array.
    """

    key: str
    record: int
    steps: dict[str, Any]
    site: tuple[str, ...]
    lane: tuple[int, ...]
    leaf: str

    def __str__(self) -> str:
        steps = "".join(f", {name}={value}" for name, value in self.steps.items())
        lane = f", lane {', '.join(map(str, self.lane))}" if self.lane else ""
        site = f", logged at {' and '.join(self.site)}" if self.site else ""
        return f"`{self.leaf}` is not finite: record {self.record}{steps}{lane}{site}"


def first_nonfinite(columns: Mapping[str, KeyRecords]) -> NonFinite | None:
    """Return the earliest non-finite record, searching on the host.

    Candidates are compared by `step`, else by the first step that all of them have, else by their
    record index. Ties go to the first key, then to the first lane.
    """
    found = [bad for key, records in columns.items() for bad in _find_nonfinite(key, records)]
    shared = [name for x in found[:1] for name in x.steps if all(name in y.steps for y in found)]
    name = "step" if "step" in shared else next(iter(shared), "")
    return min(found, key=lambda bad: _sort_key(bad, name), default=None)


def _sort_key(bad: NonFinite, name: str) -> Any:
    """Return the minimum of the named step, which may have axes; without it the record index."""
    if name not in bad.steps:
        return bad.record
    step = np.asarray(bad.steps[name])
    return step[~is_missing(step)].min()


def _find_nonfinite(key: str, records: KeyRecords) -> Iterator[NonFinite]:
    """Yield the first non-finite record of each leaf."""
    axis = records.axis
    for path, x in jax.tree_util.tree_leaves_with_path(records.value):
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size:
            continue
        # Reduced on the device, so only one boolean per record is transferred.
        finite = array_module(x).isfinite(x).all(axis=tuple(range(axis + 1, x.ndim)))
        bad = ~np.asarray(finite)
        bad &= np.arange(x.shape[axis]) < np.asarray(records.num_real_rows())[..., None]
        if not bad.any():
            continue
        record = int(np.argmax(bad.any(axis=tuple(range(axis)))))
        lane = tuple(int(i) for i in np.argwhere(bad[..., record])[0])
        steps = {}
        for name, column in records.steps.items():
            step = np.asarray(column[(*lane, record)])
            if not is_missing(step).all():
                steps[name] = step.tolist()
        yield NonFinite(key, record, steps, records.site, lane, leaf_name(key, path))

"""What stands beside the values of a logdict: its steps, and attributes that are looked up by key.

A step has a short form, `logs.update["loss"]`, unless its name is that of an attribute. A name that
means two things must not give the wrong one in silence: where a step is called like a method, the
method still can be called, and brackets after it raise; where it is called like one of the mappings
(`count`, `last`, `site`), brackets raise too, and `get` gives what the logdict itself has.

`logs.first_nonfinite()`: where the first NaN or infinity is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from logax._logdict.records import Records, Share
from logax._support.arrays import is_missing, leaf_name, module_of

if TYPE_CHECKING:
    from logax._logdict.logdict import logdict


class stepdict(dict[str, Any]):
    """What `logs.steps` is: a read-only `dict` from step names to a `stepdict` from keys to arrays.

    A pytree like any dictionary.
    """

    def __missing__(self, key: str) -> NoReturn:
        raise KeyError(f"{key!r} is not here; there is {listed(self)}")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "The steps of a `logdict` cannot be changed in place: write `logdict(logs, steps=...)`."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return stepdict, (dict(self),)


class PerKey(Mapping[str, Any]):
    """Something that each key of a logdict has, found when it is asked for."""

    def __init__(self, logs: logdict, name: str, find: Callable[[str], Any]) -> None:
        self._logs, self._name, self._find = logs, name, find

    def __getitem__(self, key: str) -> Any:
        if self._name in self._logs._layout.steps:
            raise _clash(
                self._name, key, f"; what the logdict itself has is `logs.{self._name}.get(...)`"
            )
        self._logs[key]  # for its KeyError
        return self._find(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, key: str, default: Any = None) -> Any:
        """What the key has, even where a step has the name of this mapping."""
        return self._find(key) if key in self._logs else default

    def items(self) -> ItemsView[str, Any]:
        """What all keys have."""
        return {key: self._find(key) for key in self._logs}.items()

    def values(self) -> ValuesView[Any]:
        """What all keys have, in the order of keys."""
        return {key: self._find(key) for key in self._logs}.values()

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: {self._shown(key)}' for key in self._logs)}}}"

    def _shown(self, key: str) -> str:
        try:
            return repr(self._find(key))
        except IndexError:  # the last record of none
            return "none"


class Slicer:
    """What `logs.slice` is: waits for the brackets."""

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, rows: Any) -> logdict:
        if isinstance(rows, str) and "slice" in self._logs._layout.steps:
            raise _clash("slice", rows)
        if not (isinstance(rows, slice) and _is_whole(rows)):
            raise TypeError(
                "`logs.slice` takes a slice of records, as in `logs.slice[10:20]`, and got "
                f"{rows!r}. For one record write `logs.slice[i:i + 1]`."
            )
        if rows.step is not None and rows.step < 1:
            raise ValueError(
                f"`logs.slice` keeps records in order: its step is 1 or more, and got {rows.step}."
            )
        share: Share = {}
        records = self._logs._records()
        return self._logs._like(
            {key: column.window(rows, share) for key, column in records.items()}
        )


def _is_whole(rows: slice) -> bool:
    bounds = (rows.start, rows.stop, rows.step)
    return all(bound is None or hasattr(bound, "__index__") for bound in bounds)


class Method:
    """A method of logdict: if it has the name of a step, brackets after it say so."""

    def __init__(self, function: Any, name: str) -> None:
        self._function, self._name = function, name

    def __get__(self, logs: logdict | None, owner: type | None = None) -> Any:
        if logs is None:
            return self._function
        method = self._function.__get__(logs, owner)
        return ClashingMethod(method, self._name) if self._name in logs._layout.steps else method


class ClashingMethod:
    """A method that has the name of a step. It can be called, and cannot be subscripted."""

    def __init__(self, method: Any, name: str) -> None:
        functools.update_wrapper(self, method)
        self._method, self._name = method, name

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)

    def __getitem__(self, key: Any) -> NoReturn:
        raise _clash(self._name, key)


def _clash(name: str, key: Any, hint: str = "") -> TypeError:
    return TypeError(
        f"`logs.{name}` is an attribute of every `logdict`, so that the step {name!r} has no short "
        f'form. Write `logs.steps["{name}"]["{key}"]`{hint}.'
    )


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names)) or "nothing"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A record that holds a NaN or an infinity.

    Attributes:
      key: The key it was logged under.
      record: Its index among the records that were kept.
      steps: Its steps by name; those it lacks are left out.
      site: File and line of the calls that log the key.
      lane: The indices of its lane, () where there are no lanes.
      leaf: The name of the leaf that is not finite; the key itself where the value is one array.
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


def first_nonfinite(columns: Mapping[str, Records]) -> NonFinite | None:
    """The earliest, on the host: by the first step that all have, else by the record index.

    Of several the first key, then lane.
    """
    found = [bad for key, records in columns.items() for bad in _in_key(key, records)]
    shared = [name for x in found[:1] for name in x.steps if all(name in y.steps for y in found)]
    name = "step" if "step" in shared else next(iter(shared), "")
    return min(found, key=lambda bad: _when(bad, name), default=None)


def _when(bad: NonFinite, name: str) -> Any:
    """The least of its steps of a name, where lanes have one each; else which record it is."""
    if name not in bad.steps:
        return bad.record
    step = np.asarray(bad.steps[name])
    return step[~is_missing(step)].min()


def _in_key(key: str, records: Records) -> Iterator[NonFinite]:
    """The first bad record of each leaf."""
    axis = records.axis
    for path, x in jax.tree_util.tree_leaves_with_path(records.value):
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size:
            continue
        # Only one bit for each record travels.
        finite = module_of(x).isfinite(x).all(axis=tuple(range(axis + 1, x.ndim)))
        bad = ~np.asarray(finite)
        bad &= np.arange(x.shape[axis]) < np.asarray(records.real())[..., None]
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

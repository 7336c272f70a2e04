"""What stands beside the values of a logdict: its steps, and attributes that are looked up by key.

A step has a short form, `logs.update["loss"]`, unless its name is that of an attribute. A name that
means two things must not give the wrong one in silence: where a step is called like a method, the
method still can be called, and brackets after it raise; where it is called like one of the mappings
(`count`, `last`, `site`), brackets raise too, and `get` gives what the logdict itself has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

from logax._columns.records import Share

if TYPE_CHECKING:
    from logax._logdict import logdict


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

"""Cache of compiled programs, which lives as long as the function that they belong to.

The cache is keyed by identity and holds functions weakly; a bound method counts as its owner and
its function. An object without weak references keeps its programs to itself.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

Programs = dict[Any, Any]

MAX_TREE_PROGRAMS = 256  # per set of options


def programs_of(fun: Any, key: Hashable, is_tree: bool) -> Programs:
    """Return the programs of a function under one set of options, empty at first.

    A function that is a pytree has no lasting identity: its programs are found by structure alone,
    and the oldest ones are dropped.
    """
    if is_tree:
        return _tree_programs.setdefault(key, _BoundedPrograms())
    anchor, function = getattr(fun, "__self__", fun), getattr(fun, "__func__", None)
    if function is None:
        anchor = fun
    found = _programs_by_owner.get(id(anchor))
    if found is None or found[0]() is not anchor:
        try:
            reference = weakref.ref(anchor, _forget_owner(id(anchor)))
        except TypeError:
            return {}
        found = _programs_by_owner[id(anchor)] = (reference, {})
    by_options = found[1]
    place = (id(function), key)
    own = by_options.get(place)
    if own is None or own[0]() is not function:  # Python reuses the id of a dead object
        own = by_options[place] = (_weak_object(function), {})
    return own[1]


def weak_reference(fun: Any) -> Callable[[], Any]:
    """Return a reference that does not keep the function alive, if the function supports one."""
    return _weak_method(fun) if isinstance(fun, types.MethodType) else _weak_object(fun)


class _BoundedPrograms(Programs):
    """A dictionary that drops its oldest entries."""

    def __setitem__(self, key: Any, value: Any) -> None:
        while len(self) >= MAX_TREE_PROGRAMS:
            del self[next(iter(self))]
        super().__setitem__(key, value)


def _weak_object(one: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(one)
    except TypeError:
        return lambda: one


def _weak_method(method: types.MethodType) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(method)
    except TypeError:
        return lambda: method


def _forget_owner(identity: int) -> Callable[[Any], Any]:
    programs = _programs_by_owner  # at exit, Python clears the module's names first
    return lambda _: programs.pop(identity, None)


_programs_by_owner: dict[int, tuple[Any, dict[Any, tuple[Any, Programs]]]] = {}
_tree_programs: dict[Hashable, Programs] = {}

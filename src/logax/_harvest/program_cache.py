"""Where compiled programs are kept: with the function they belong to, and no longer than it.

The store is keyed by identity and holds functions weakly; a bound method counts as its owner and
its function. What cannot be held weakly keeps its programs to itself.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

Programs = dict[Any, Any]


def programs_of(fun: Any, key: Hashable, is_tree: bool) -> Programs:
    """The programs of a function under one set of options, empty at first.

    A function that is a pytree has no identity that lasts: its programs are found by their
    structure alone, and the oldest make room for new ones.
    """
    if is_tree:
        return _of_trees.setdefault(key, _Bounded())
    anchor, function = getattr(fun, "__self__", fun), getattr(fun, "__func__", None)
    if function is None:
        anchor = fun
    kept = _kept.get(id(anchor))
    if kept is None or kept[0]() is not anchor:
        try:
            reference = weakref.ref(anchor, _forget(id(anchor)))
        except TypeError:
            return {}
        kept = _kept[id(anchor)] = (reference, {})
    place = (id(function), key)
    own = kept[1].get(place)
    if own is None or own[0]() is not function:  # an id is used again once its owner is gone
        own = kept[1][place] = (_weak(function), {})
    return own[1]


def weakly(fun: Any) -> Callable[[], Any]:
    """A reference to a function that does not keep it alive, where there is such a thing."""
    return _weak_method(fun) if isinstance(fun, types.MethodType) else _weak(fun)


class _Bounded(Programs):
    """A dictionary that forgets its oldest entries."""

    def __setitem__(self, key: Any, value: Any) -> None:
        while len(self) >= 256:
            del self[next(iter(self))]
        super().__setitem__(key, value)


def _weak(one: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(one)
    except TypeError:
        return lambda: one


def _weak_method(method: types.MethodType) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(method)
    except TypeError:
        return lambda: method


def _forget(identity: int) -> Callable[[Any], Any]:
    kept = _kept  # when Python exits, the name of the module is gone first
    return lambda _: kept.pop(identity, None)


_kept: dict[int, tuple[Any, dict[Any, tuple[Any, Programs]]]] = {}
_of_trees: dict[Hashable, Programs] = {}

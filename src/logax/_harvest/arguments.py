"""Which arguments of a harvested function are traced, and which make the program.

Arrays and numbers are traced. Everything else is static, and so is what the user names, what `jit`
was told, and the numbers inside equinox modules.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from logax import _compat
from logax._compat import Tree


class Fixed:
    """Any object as part of a key: by value where it can be hashed, else by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash, self._by_value = hash((type(value), value)), True
        except TypeError:
            self._hash, self._by_value = id(value), False

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fixed):
            return False
        one, two = self.value, other.value
        if one is two:
            return True
        return self._by_value and other._by_value and type(one) is type(two) and bool(one == two)


@dataclasses.dataclass(frozen=True)
class Named:
    """Some arguments of a function, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def marked(self, given: Tree, owners: int) -> list[bool]:
        """For each leaf, whether it belongs to one of them; owners of methods come first."""
        tree_fun, args, kwargs = given
        number = len(args) - owners
        positions = {owners + (i + number if i < 0 else i) for i in self.numbers}
        marks = (
            jax.tree.map(lambda _: False, tree_fun),
            tuple(jax.tree.map(lambda _, i=i: i in positions, x) for i, x in enumerate(args)),
            {
                name: jax.tree.map(lambda _, n=name: n in self.names, x)
                for name, x in kwargs.items()
            },
        )
        return list(jax.tree.leaves(marks))


def static_arguments(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] | None,
    static_argnames: str | Sequence[str] | None,
) -> Named:
    """What the user names, completed by the function's signature, and what `jit` was told."""
    numbers = set(_several("static_argnums", static_argnums, int, "a number or numbers"))
    names = set(_several("static_argnames", static_argnames, str, "a name or names"))
    if numbers or names:
        parameters = _parameters(fun)
        if parameters:
            _check_named(getattr(fun, "__name__", fun), parameters, numbers, names)
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in by_position]
        numbers |= {positional.index(name) for name in names if name in positional}
        names |= {positional[i] for i in numbers if -len(positional) <= i < len(positional)}
    jit = _compat.jit_arguments(fun)
    return Named(frozenset(numbers | jit.static[0]), frozenset(names | jit.static[1]))


def _check_named(
    function: Any, parameters: Sequence[inspect.Parameter], numbers: set[int], names: set[str]
) -> None:
    """Raise if the function has no such arguments."""
    known, kinds = [p.name for p in parameters], {p.kind for p in parameters}
    unknown = sorted(names - set(known))
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"`static_argnames` names {unknown}, and the arguments of `{function}` are {known}."
        )
    beyond = sorted(i for i in numbers if not -len(known) <= i < len(known))
    if beyond and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ValueError(
            f"`static_argnums` has {beyond}, and the arguments of `{function}` are {known}."
        )


def _several(option: str, given: Any, kind: type, wanted: str) -> Sequence[Any]:
    """One of a kind, or many, or None for none."""
    several = () if given is None else (given,) if isinstance(given, kind) else given
    is_right = isinstance(several, (tuple, list, set, frozenset))
    if not is_right or not all(isinstance(each, kind) for each in several):
        raise TypeError(f"`{option}` takes {wanted} of arguments, and got {given!r}.")
    return tuple(several)


def _parameters(fun: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return []


def in_modules(given: Tree) -> list[bool]:
    """For each leaf, whether it is a part of the function or of an equinox module.

    Their numbers are settings: arrays alone are traced there, as equinox itself does.
    """
    equinox = sys.modules.get("equinox")
    kinds = () if equinox is None else (equinox.Module,)

    def marked(x: Any) -> Any:
        return jax.tree.map(lambda _: isinstance(x, kinds), x)

    tree_fun, args, kwargs = given
    own = jax.tree.map(lambda _: True, tree_fun)
    others = jax.tree.map(marked, (args, kwargs), is_leaf=lambda x: isinstance(x, kinds))
    return list(jax.tree.leaves((own, others)))


def traced_by_default(leaf: Any) -> bool:
    """Whether it is traced, where nothing else is said: arrays are, and numbers."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind not in "OSUMmV" or leaf.dtype.isbuiltin == 2
    if isinstance(leaf, bool):  # a flag more often than a number, and there are but two
        return False
    return isinstance(leaf, (jax.Array, int, float, complex))

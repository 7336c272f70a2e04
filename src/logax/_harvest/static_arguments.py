"""Static and traced arguments of a harvested function.

Arrays and numbers are traced. Everything else is static, and so are the arguments that the user
names, the static arguments of `jit`, and the numbers inside equinox modules.
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


class StaticValue:
    """Any object as part of a cache key: compared by value if it is hashable, else by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash, self._by_value = hash((type(value), value)), True
        except TypeError:
            self._hash, self._by_value = id(value), False

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticValue):
            return False
        one, two = self.value, other.value
        if one is two:
            return True
        return self._by_value and other._by_value and type(one) is type(two) and bool(one == two)


@dataclasses.dataclass(frozen=True)
class ArgumentSet:
    """A set of arguments of a function, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)

    def mask(self, inputs: Tree, num_owners: int) -> list[bool]:
        """Return for each leaf whether it belongs to the set; the owners of methods come first."""
        tree_fun, args, kwargs = inputs
        number = len(args) - num_owners
        positions = {num_owners + (i + number if i < 0 else i) for i in self.numbers}
        marks = (
            jax.tree.map(lambda _: False, tree_fun),
            tuple(jax.tree.map(lambda _, i=i: i in positions, x) for i, x in enumerate(args)),
            {
                name: jax.tree.map(lambda _, n=name: n in self.names, x)
                for name, x in kwargs.items()
            },
        )
        return list(jax.tree.leaves(marks))


def resolve_static_arguments(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] | None,
    static_argnames: str | Sequence[str] | None,
) -> ArgumentSet:
    """Return the static arguments: those that the user names and those of `jit`."""
    numbers = set(_as_tuple("static_argnums", static_argnums, int, "a number or numbers"))
    names = set(_as_tuple("static_argnames", static_argnames, str, "a name or names"))
    if numbers or names:
        parameters = _parameters(fun)
        if parameters:
            _validate_static_arguments(getattr(fun, "__name__", fun), parameters, numbers, names)
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in by_position]
        numbers |= {positional.index(name) for name in names if name in positional}
        names |= {positional[i] for i in numbers if -len(positional) <= i < len(positional)}
    jit = _compat.jit_arguments(fun)
    return ArgumentSet(frozenset(numbers | jit.static[0]), frozenset(names | jit.static[1]))


def _validate_static_arguments(
    function: Any, parameters: Sequence[inspect.Parameter], numbers: set[int], names: set[str]
) -> None:
    """Raise if the function does not have these arguments."""
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


def _as_tuple(option: str, value: Any, kind: type, expected: str) -> Sequence[Any]:
    """Return one object or several of a type as a tuple; empty for None."""
    several = () if value is None else (value,) if isinstance(value, kind) else value
    is_right = isinstance(several, (tuple, list, set, frozenset))
    if not is_right or not all(isinstance(each, kind) for each in several):
        raise TypeError(f"`{option}` takes {expected} of arguments, and got {value!r}.")
    return tuple(several)


def _parameters(fun: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return []


def module_mask(inputs: Tree) -> list[bool]:
    """Return for each leaf whether it belongs to the function or to an equinox module.

    Their numbers are settings: only arrays are traced there, as in equinox itself.
    """
    equinox = sys.modules.get("equinox")
    kinds = () if equinox is None else (equinox.Module,)

    def mark(x: Any) -> Any:
        return jax.tree.map(lambda _: isinstance(x, kinds), x)

    tree_fun, args, kwargs = inputs
    own = jax.tree.map(lambda _: True, tree_fun)
    others = jax.tree.map(mark, (args, kwargs), is_leaf=lambda x: isinstance(x, kinds))
    return list(jax.tree.leaves((own, others)))


def is_traced_by_default(leaf: Any) -> bool:
    """Return whether a leaf is traced if no option says otherwise: arrays and numbers are."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind not in "OSUMmV" or leaf.dtype.isbuiltin == 2
    if isinstance(leaf, bool):  # usually a flag, and there are only two values
        return False
    return isinstance(leaf, (jax.Array, int, float, complex))

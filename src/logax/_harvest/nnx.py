"""Arguments with reference semantics: flax nnx modules and optimizers.

The function may change them, and whoever calls expects to see that. So they are split into
structure and state, the state goes through the program and comes back, and the objects are
updated in place, as `nnx.jit` does. Objects whose structure the function changes are refused:
nothing is lost silently.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Tree, outside_of_traces
from logax._harvest.program_cache import weakly
from logax._logdict.logdict import logdict


def present(given: Tree) -> bool:
    """Whether any argument is such an object. Costs nothing where flax nnx is not imported."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and bool(_references(given, nnx))


def call(given: Tree, pure: Callable[..., Any], static: Sequence[bool]) -> Any:
    """Call a function that was made `functional`, and update the objects in place."""
    nnx = sys.modules["flax.nnx"]
    result = pure(*nnx.split(_with_arrays(given, nnx, static)))
    (out, changed), logs = result if isinstance(result[1], logdict) else (result, None)
    objects = _references(given, nnx)
    nnx.update(objects, changed)
    out = jax.tree.map(
        lambda x: objects[x.place] if isinstance(x, _Given) else x,
        out,
        is_leaf=lambda x: isinstance(x, _Given),
    )
    return out if logs is None else (out, logs)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Given:
    """Stands in a result for an object that was an argument."""

    place: int


def functional(fun: Any) -> Callable[..., Any]:
    """The same function of structure and state, which returns the changed state beside its result.

    It holds the function weakly, as it is kept with what is compiled for it.
    """
    nnx = sys.modules["flax.nnx"]
    reference = weakly(fun)

    def pure(structure: Any, state: Any) -> Any:
        tree_fun, args, kwargs = given = nnx.merge(structure, state)
        objects = _references(given, nnx)
        before, _ = nnx.split(objects)
        out = (reference() if tree_fun is None else tree_fun)(*args, **kwargs)
        after, changed = nnx.split(objects)
        if after != before:
            raise TypeError(
                f"`{name}` changes the structure of a flax nnx object that it is given (an "
                "attribute or a variable is new, gone or another), which a harvest cannot hand "
                "back. Make that change outside, or stream its logs with `logax.live`."
            )
        places = {id(x): _Given(i) for i, x in enumerate(objects)}
        kinds = _kinds(nnx)
        out = jax.tree.map(
            lambda x: places.get(id(x), x), out, is_leaf=lambda x: isinstance(x, kinds)
        )
        return out, changed

    name = getattr(fun, "__name__", type(fun).__name__)
    pure.__name__ = pure.__qualname__ = name
    return pure


def _references(given: Tree, nnx: Any) -> list[Any]:
    """The objects among the arguments; a `State` is a plain pytree."""
    kinds = _kinds(nnx)
    leaves = jax.tree.leaves(given, is_leaf=lambda x: isinstance(x, (*kinds, nnx.State)))
    return [x for x in leaves if isinstance(x, kinds)]


def _with_arrays(given: Tree, nnx: Any, static: Sequence[bool]) -> Tree:
    """Numbers among the arguments as arrays, since nnx takes them for structure."""
    if not outside_of_traces():
        return given
    kinds = _kinds(nnx)
    marks = jax.tree.unflatten(jax.tree.structure(given), list(static))

    def traced(x: Any, mark: Any) -> Any:
        number = isinstance(x, (int, float, complex)) and not isinstance(x, bool)
        return np.asarray(x) if number and not mark else x

    return jax.tree.map(traced, given, marks, is_leaf=lambda x: isinstance(x, kinds))


def _kinds(nnx: Any) -> tuple[type, ...]:
    names = ("Pytree", "Object", "Module", "Optimizer", "Variable")
    return tuple(kind for name in names if isinstance(kind := getattr(nnx, name, None), type))

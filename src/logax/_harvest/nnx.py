"""Arguments with reference semantics: flax nnx modules and optimizers.

The function may change them, and the caller expects to see the change. So they are split into
structure and state, the state goes through the program and comes back, and the objects are updated
in place, as `nnx.jit` does. If the function changes the structure of an object, the call raises.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Tree, is_outside_traces
from logax._harvest.program_cache import weak_reference
from logax._logdict.logdict import logdict


def has_references(inputs: Tree) -> bool:
    """Return whether any argument is a flax nnx object. Free if flax nnx is not imported."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and bool(_references(inputs, nnx))


def call_and_update_objects(inputs: Tree, pure: Callable[..., Any], static: Sequence[bool]) -> Any:
    """Call a function of `make_functional`, and update the objects in place."""
    nnx = sys.modules["flax.nnx"]
    result = pure(*nnx.split(_with_arrays(inputs, nnx, static)))
    (out, changed), logs = result if isinstance(result[1], logdict) else (result, None)
    objects = _references(inputs, nnx)
    nnx.update(objects, changed)
    out = jax.tree.map(
        lambda x: objects[x.place] if isinstance(x, _ArgumentPlaceholder) else x,
        out,
        is_leaf=lambda x: isinstance(x, _ArgumentPlaceholder),
    )
    return out if logs is None else (out, logs)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _ArgumentPlaceholder:
    """Replaces, in a result, an object that was an argument."""

    place: int


def make_functional(fun: Any) -> Callable[..., Any]:
    """Return the function as one of structure and state that also returns the changed state.

    It holds the function weakly, because it is cached with the function's programs.
    """
    nnx = sys.modules["flax.nnx"]
    reference = weak_reference(fun)

    def pure(structure: Any, state: Any) -> Any:
        tree_fun, args, kwargs = inputs = nnx.merge(structure, state)
        objects = _references(inputs, nnx)
        before, _ = nnx.split(objects)
        out = (reference() if tree_fun is None else tree_fun)(*args, **kwargs)
        after, changed = nnx.split(objects)
        if after != before:
            raise TypeError(
                f"`{name}` changes the structure of a flax nnx object that it receives (it adds, "
                "removes or replaces an attribute or a variable), which a harvest cannot return. "
                "Make that change outside, or stream its logs with `logax.live`."
            )
        places = {id(x): _ArgumentPlaceholder(i) for i, x in enumerate(objects)}
        kinds = _kinds(nnx)
        out = jax.tree.map(
            lambda x: places.get(id(x), x), out, is_leaf=lambda x: isinstance(x, kinds)
        )
        return out, changed

    name = getattr(fun, "__name__", type(fun).__name__)
    pure.__name__ = pure.__qualname__ = name
    return pure


def _references(inputs: Tree, nnx: Any) -> list[Any]:
    """Return the nnx objects among the arguments; a `State` is a plain pytree."""
    kinds = _kinds(nnx)
    leaves = jax.tree.leaves(inputs, is_leaf=lambda x: isinstance(x, (*kinds, nnx.State)))
    return [x for x in leaves if isinstance(x, kinds)]


def _with_arrays(inputs: Tree, nnx: Any, static: Sequence[bool]) -> Tree:
    """Convert numbers among the arguments to arrays, because nnx treats numbers as structure."""
    if not is_outside_traces():
        return inputs
    kinds = _kinds(nnx)
    marks = jax.tree.unflatten(jax.tree.structure(inputs), list(static))

    def convert(x: Any, mark: Any) -> Any:
        number = isinstance(x, (int, float, complex)) and not isinstance(x, bool)
        return np.asarray(x) if number and not mark else x

    return jax.tree.map(convert, inputs, marks, is_leaf=lambda x: isinstance(x, kinds))


def _kinds(nnx: Any) -> tuple[type, ...]:
    names = ("Pytree", "Object", "Module", "Optimizer", "Variable")
    return tuple(kind for name in names if isinstance(kind := getattr(nnx, name, None), type))

"""The reducers that are ready to use: by name, and `FirstNonFinite`.

They are written as a user's are (see `_reduce`). Those that add up are in `_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._checks import at_least
from logax._compat import Array, Tree
from logax._reduce import Record, RecordReducer, Reducer
from logax._sums import Mean, Std, Sum


def as_reducer(how: Any, functions: str = "") -> RecordReducer:
    """The reducer that a user's word or object stands for.

    Args:
      how: What the user gave.
      functions: The functions that the caller takes besides, for errors.
    """
    if isinstance(how, type):
        name = how.__name__
        raise ValueError(f"`reduce` takes a reducer, and got the class {name}. Write `{name}()`.")
    if isinstance(how, str):
        how = BUILT_IN.get(how, how)
    if isinstance(how, RecordReducer):
        return how
    methods = ("start", "step", "merge", "finish")
    lacking = [f"`{name}`" for name in methods if not callable(getattr(how, name, None))]
    if not lacking:
        return OneValue(how)
    lacks = "" if len(lacking) == len(methods) else f", which lacks {', '.join(lacking)}"
    raise ValueError(
        f"`reduce` takes {', '.join(map(repr, BUILT_IN))}, {functions}a `Reducer`, or a mapping "
        f"from keys to these, and got {how!r}{lacks}."
    )


def written(reducer: RecordReducer) -> Any:
    """The reducer as its author wrote it."""
    return reducer.reducer if isinstance(reducer, OneValue) else reducer


def is_arithmetic(how: RecordReducer) -> bool:
    """Whether the reducer computes with values, rather than choosing or counting records."""
    return not isinstance(written(how), (RecordReducer, _Count))


class _Extreme(Reducer):
    """The least or the greatest value."""

    def __init__(self, fold: Callable[[Array, Array], Array], sign: int) -> None:
        self._fold, self._sign = fold, sign

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(lambda x: _beyond(x, self._sign), like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(self._fold, state, value)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return jax.tree.map(self._fold, first, second)

    def finish(self, state: Tree) -> Tree:
        return state


class _Count(Reducer):
    """How many records there were."""

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(lambda _: jnp.zeros((), jnp.int32), like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda s: s + 1, state)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return jax.tree.map(jnp.add, first, second)

    def finish(self, state: Tree) -> Tree:
        return state


class _Chosen(RecordReducer):
    """The first or the last record."""

    def __init__(self, first: bool) -> None:
        self._first = first

    def start(self, like: Record) -> Tree:
        return jnp.zeros((), bool), _zeros(like)

    def step(self, state: Tree, record: Record) -> Tree:
        return self.merge(state, (jnp.ones((), bool), record))

    def merge(self, first: Tree, second: Tree) -> Tree:
        keep = first[0] if self._first else ~second[0]
        return first[0] | second[0], _where(keep, first[1], second[1])

    def finish(self, state: Tree) -> tuple[Record, Array | None]:
        return _row(state[1]), None


class FirstNonFinite(RecordReducer):
    """The first record that holds a NaN or an infinity, and those just before it.

    Args:
      window: How many records to keep at most, the bad one, which comes last, among them.

    Constant memory, whatever the length of the run; where everything is finite nothing is kept.
    """

    def __init__(self, window: int = 5) -> None:
        self.rows = at_least(1, "FirstNonFinite", "window", window)

    def __repr__(self) -> str:
        return f"FirstNonFinite(window={self.rows})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstNonFinite) and other.rows == self.rows

    def __hash__(self) -> int:
        return hash((FirstNonFinite, self.rows))

    def start(self, like: Record) -> Tree:
        rows = jax.tree.map(lambda x: jnp.zeros((self.rows, *x.shape), x.dtype), like)
        return rows, jnp.zeros((), jnp.int32), jnp.zeros((), bool)

    def step(self, state: Tree, record: Record) -> Tree:
        rows, filled, found = state
        bad = [~jnp.isfinite(x).all() for x in jax.tree.leaves(record.value) if _can_be_bad(x)]
        shifted = jax.tree.map(lambda r, x: jnp.concatenate([r[1:], x[None]]), rows, record)
        new = (
            shifted,
            jnp.minimum(filled + 1, self.rows),
            jnp.stack(bad).any() if bad else jnp.zeros((), bool),
        )
        return _where(found, state, new)

    def merge(self, first: Tree, second: Tree) -> Tree:
        rows, filled, found = first
        later, more, _ = second

        # Real rows are the last ones: those of `first` move up by as many as `second` brings.
        moved = jnp.arange(self.rows) + more

        def joined(a: Array, b: Array) -> Array:
            kept = a[jnp.minimum(moved, self.rows - 1)]
            return jnp.where(_shaped(moved < self.rows, a), kept, b)

        new = (jax.tree.map(joined, rows, later), jnp.minimum(filled + more, self.rows), second[2])
        return _where(found, first, new)

    def finish(self, state: Tree) -> tuple[Record, Array | None]:
        rows, filled, found = state
        kept = jnp.where(found, filled, 0)
        real = jnp.arange(self.rows) < kept

        def ordered(x: Array) -> Array:
            # Here the real rows come last, in a logdict they come first.
            x = jnp.roll(x, filled - self.rows, 0)
            return jnp.where(_shaped(real, x), x, jnp.zeros_like(x))

        return jax.tree.map(ordered, rows), kept


class OneValue(RecordReducer):
    """A `Reducer` as a `RecordReducer`: keeps the steps of the last record beside its value."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer

    def start(self, like: Record) -> Tree:
        return self.reducer.start(like.value), _CHOOSE_LAST.start(Record(None, like.steps))

    def step(self, state: Tree, record: Record) -> Tree:
        value, steps = state
        steps = _CHOOSE_LAST.step(steps, Record(None, record.steps))
        return self.reducer.step(value, record.value), steps

    def merge(self, first: Tree, second: Tree) -> Tree:
        value = self.reducer.merge(first[0], second[0])
        return value, _CHOOSE_LAST.merge(first[1], second[1])

    def finish(self, state: Tree) -> tuple[Record, Array | None]:
        steps, count = _CHOOSE_LAST.finish(state[1])
        value = jax.tree.map(lambda x: jnp.asarray(x)[None], self.reducer.finish(state[0]))
        return Record(value, steps.steps), count


def _zeros(like: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def _row(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x[None], tree)


def _where(choose: Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(choose, a, b), yes, no)


def _shaped(mask: Array, like: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def _can_be_bad(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _beyond(like: Any, sign: int) -> Array:
    """What no value of a dtype is above (sign 1) or below (sign -1)."""
    dtype = like.dtype
    if dtype == jnp.bool_:
        return jnp.full(like.shape, sign > 0)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return jnp.full(like.shape, limits.max if sign > 0 else limits.min, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        endless = np.isinf(np.asarray(np.inf).astype(dtype))  # some narrow floats have no infinity
        return jnp.full(like.shape, sign * (np.inf if endless else jnp.finfo(dtype).max), dtype)
    raise TypeError(
        f"`reduce` by 'min' or 'max' takes values that have an order, and got {dtype.name}."
    )


_CHOOSE_LAST = _Chosen(first=False)
BUILT_IN: dict[str, Reducer | RecordReducer] = {
    "mean": Mean(),
    "sum": Sum(),
    "min": _Extreme(jnp.minimum, 1),
    "max": _Extreme(jnp.maximum, -1),
    "std": Std(),
    "first": _Chosen(first=True),
    "last": _CHOOSE_LAST,
    "count": _Count(),
}

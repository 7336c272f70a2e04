"""Reducers: many records become one, inside the program, in constant memory.

A reducer is a small object with four methods that work on pytrees of arrays and hold no state of
their own. To write one, subclass `Reducer`:

    class Product(logax.Reducer):
        def start(self, like):                    # before the first record
            return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), like)
        def step(self, state, value):             # one more record
            return jax.tree.map(jnp.multiply, state, value)
        def merge(self, first, second):           # two states, of earlier and of later records
            return jax.tree.map(jnp.multiply, first, second)
        def finish(self, state):                  # the value that is kept
            return state

`like` is the logged pytree with a `jax.ShapeDtypeStruct` for each leaf. States must keep their
structure, shapes and dtypes from step to step. Reductions are over records, never over the elements
of a record. The kept record has the steps of the last one that went in; where none went in, none
comes out.

`RecordReducer` is the wider form for those that choose records: it sees the steps too and may keep
several records. `First`, `Last` and `FirstNonFinite` are written so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from logax._compat import Array, Tree


class Record(NamedTuple):
    """A value and its steps, as a `RecordReducer` sees them."""

    value: Tree
    steps: dict[str, Array]


class Reducer:
    """Many values to one. The module's page shows how to write one."""

    def start(self, like: Tree) -> Tree:
        """The state before the first record."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `start`.")

    def step(self, state: Tree, value: Tree) -> Tree:
        """The state after one more record."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `step`.")

    def merge(self, first: Tree, second: Tree) -> Tree:
        """The state of two states, the first of earlier records."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `merge`.")

    def finish(self, state: Tree) -> Tree:
        """The value that is kept."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `finish`.")


class RecordReducer:
    """Many records to a few: as `Reducer`, with a `Record` in place of a value.

    `finish` returns the kept records, each array with a record axis of length `rows`, and how many
    of them are real (None: one if any record went in).
    """

    rows: int = 1

    def start(self, like: Record) -> Tree:
        """The state before the first record."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `start`.")

    def step(self, state: Tree, record: Record) -> Tree:
        """The state after one more record."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `step`.")

    def merge(self, first: Tree, second: Tree) -> Tree:
        """The state of two states, the first of earlier records."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `merge`.")

    def finish(self, state: Tree) -> tuple[Record, Array | None]:
        """The kept records and how many are real."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `finish`.")


class _Folded(Reducer):
    """A reducer whose state is the value so far: `sum`, `min`, `max`."""

    def __init__(
        self, fold: Callable[[Array, Array], Array], first: Callable[[Any], Array]
    ) -> None:
        self._fold, self._first = fold, first

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(self._first, like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda s, v: self._fold(s, v.astype(s.dtype)), state, value)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return self.step(first, second)

    def finish(self, state: Tree) -> Tree:
        return state


class _Moments(Reducer):
    """Mean and spread by Welford's recurrence, which keeps its digits over millions of records."""

    def __init__(self, spread: bool) -> None:
        self._spread = spread

    def start(self, like: Tree) -> Tree:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, _inexact(x.dtype)), like)
        squares = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.abs(x).dtype), zeros)
        return jnp.zeros((), jnp.float32), zeros, squares if self._spread else None

    def step(self, state: Tree, value: Tree) -> Tree:
        one = jax.tree.map(lambda v, m: v.astype(m.dtype), value, state[1])
        squares = None if state[2] is None else jax.tree.map(jnp.zeros_like, state[2])
        return self.merge(state, (jnp.ones((), jnp.float32), one, squares))

    def merge(self, first: Tree, second: Tree) -> Tree:
        count = first[0] + second[0]
        share = second[0] / jnp.maximum(count, 1)
        mean = jax.tree.map(lambda a, b: a + ((b - a) * share).astype(a.dtype), first[1], second[1])
        if not self._spread:
            return count, mean, None

        def spread(a: Array, b: Array, mean_a: Array, mean_b: Array) -> Array:
            apart = jnp.abs(mean_b - mean_a) ** 2
            return a + b + (apart * first[0] * share).astype(a.dtype)

        return count, mean, jax.tree.map(spread, first[2], second[2], first[1], second[1])

    def finish(self, state: Tree) -> Tree:
        count, mean, squares = state
        if not self._spread:
            return mean
        divisor = jnp.maximum(count, 1)
        return jax.tree.map(lambda s: jnp.sqrt(s / divisor).astype(s.dtype), squares)


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
        if not isinstance(window, int) or window < 1:
            raise ValueError(f"`FirstNonFinite` takes a `window` of 1 or more, and got {window!r}.")
        self.rows = window

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
        self._reducer = reducer

    def start(self, like: Record) -> Tree:
        return self._reducer.start(like.value), _CHOOSE_LAST.start(Record(None, like.steps))

    def step(self, state: Tree, record: Record) -> Tree:
        value, steps = state
        steps = _CHOOSE_LAST.step(steps, Record(None, record.steps))
        return self._reducer.step(value, record.value), steps

    def merge(self, first: Tree, second: Tree) -> Tree:
        value = self._reducer.merge(first[0], second[0])
        return value, _CHOOSE_LAST.merge(first[1], second[1])

    def finish(self, state: Tree) -> tuple[Record, Array | None]:
        steps, count = _CHOOSE_LAST.finish(state[1])
        value = jax.tree.map(lambda x: jnp.asarray(x)[None], self._reducer.finish(state[0]))
        return Record(value, steps.steps), count


def as_reducer(how: Any) -> RecordReducer:
    """The reducer that a user's word or object stands for."""
    if isinstance(how, RecordReducer):
        return how
    if isinstance(how, str) and how in BUILT_IN:
        how = BUILT_IN[how]
    if isinstance(how, RecordReducer):
        return how
    if all(callable(getattr(how, name, None)) for name in ("start", "step", "merge", "finish")):
        return OneValue(how)
    raise ValueError(
        f"`reduce` takes {', '.join(map(repr, BUILT_IN))}, a mapping from keys to these, or a "
        f"`Reducer`, and got {how!r}."
    )


def is_arithmetic(how: Any) -> bool:
    """Whether the reducer computes with values, rather than choosing or counting records."""
    return not isinstance(how, (RecordReducer, _Count)) or isinstance(how, OneValue)


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


def _inexact(dtype: Any) -> Any:
    """The dtype to average in: 32 bits or more, since sums of narrower floats stop growing."""
    return jnp.promote_types(dtype, jnp.float32)


def _summed(dtype: Any) -> Any:
    """The dtype to add up in."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return _inexact(dtype)
    unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
    return jnp.promote_types(dtype, jnp.uint32 if unsigned else jnp.int32)


def _extreme(sign: int) -> Callable[[Any], Array]:
    """What every value of a dtype is above (sign -1) or below (sign 1)."""

    def start(like: Any) -> Array:
        dtype = like.dtype
        if dtype == jnp.bool_:
            return jnp.full(like.shape, sign > 0)
        if jnp.issubdtype(dtype, jnp.integer):
            limits = jnp.iinfo(dtype)
            return jnp.full(like.shape, limits.max if sign > 0 else limits.min, dtype)
        if jnp.issubdtype(dtype, jnp.floating):
            return jnp.full(like.shape, sign * jnp.inf, dtype)
        raise TypeError(
            f"`reduce` by 'min' or 'max' takes values that have an order, and got {dtype.name}."
        )

    return start


_CHOOSE_LAST = _Chosen(first=False)
BUILT_IN: dict[str, Reducer | RecordReducer] = {
    "mean": _Moments(spread=False),
    "sum": _Folded(jnp.add, lambda x: jnp.zeros(x.shape, _summed(x.dtype))),
    "min": _Folded(jnp.minimum, _extreme(1)),
    "max": _Folded(jnp.maximum, _extreme(-1)),
    "std": _Moments(spread=True),
    "first": _Chosen(first=True),
    "last": _CHOOSE_LAST,
    "count": _Count(),
}

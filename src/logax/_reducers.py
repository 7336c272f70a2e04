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
several records. "first", "last" and `FirstNonFinite` are written so.

The reducers that add up: sums, means and standard deviations.

Sums keep the digits that each addition loses, so that a mean over millions of records is as good as
one over ten. Narrow floats add up in 32 bits, and truth values are counted.

The reducers that are ready to use: by name, and `FirstNonFinite`.

They are written as a user's are (see `_reduce`). Those that add up are in `_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree
from logax._support.validation import at_least


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


class Sum(Reducer):
    """The sum, with the digits that each addition loses kept apart."""

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(lambda x: _exactly(jnp.zeros(x.shape, _summed(x.dtype))), like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda v, s: s.plus(v.astype(s.high.dtype)), value, state)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return _on_sums(lambda a, b: a.plus(b.high, b.low), first, second)

    def finish(self, state: Tree) -> Tree:
        return _on_sums(lambda s: s.value(), state)


class Mean(Reducer):
    """The sum over the number of records."""

    def start(self, like: Tree) -> Tree:
        sums = jax.tree.map(lambda x: _exactly(jnp.zeros(x.shape, _inexact(x.dtype))), like)
        return jnp.zeros((), jnp.int32), sums

    def step(self, state: Tree, value: Tree) -> Tree:
        return state[0] + 1, _SUM.step(state[1], value)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return first[0] + second[0], _SUM.merge(first[1], second[1])

    def finish(self, state: Tree) -> Tree:
        count = jnp.maximum(state[0], 1)
        return _on_sums(lambda s: (s.value() / count).astype(s.high.dtype), state[1])


class Std(Reducer):
    """The spread around the mean, by Welford's recurrence."""

    def start(self, like: Tree) -> Tree:
        means = jax.tree.map(lambda x: _exactly(jnp.zeros(x.shape, _inexact(x.dtype))), like)
        return jnp.zeros((), jnp.int32), means, _no_squares(means)

    def step(self, state: Tree, value: Tree) -> Tree:
        one = jax.tree.map(lambda v, m: _exactly(v.astype(m.high.dtype)), value, state[1])
        return self.merge(state, (jnp.ones((), jnp.int32), one, _no_squares(one)))

    def merge(self, first: Tree, second: Tree) -> Tree:
        count = first[0] + second[0]
        share = second[0] / jnp.maximum(count, 1)
        apart = _on_sums(lambda a, b: (b.high - a.high) + (b.low - a.low), first[1], second[1])
        means = _on_sums(lambda a, d: a.plus((d * share).astype(d.dtype)), first[1], apart)

        def squares(a: _Exact, b: _Exact, d: Array) -> _Exact:
            between = jnp.abs(d) ** 2 * (first[0] * share)
            return a.plus(b.high, b.low).plus(between.astype(a.high.dtype))

        return count, means, _on_sums(squares, first[2], second[2], apart)

    def finish(self, state: Tree) -> Tree:
        count, _, squares = state
        divisor = jnp.maximum(count, 1)
        return _on_sums(lambda s: jnp.sqrt(s.value() / divisor).astype(s.high.dtype), squares)


class _Exact(NamedTuple):
    """A sum in two parts: its value, and what rounding took from it."""

    high: Array
    low: Array

    def plus(self, more: Array, less: Array | float = 0) -> _Exact:
        """The sum with one more term, itself in two parts."""
        if not jnp.issubdtype(self.high.dtype, jnp.inexact):
            return _Exact(self.high + more, self.low)
        # What was lost before goes in with the next term, so that it never piles up.
        term = more + (self.low + less)
        total = self.high + term
        lost = term - (total - self.high)
        # An infinity has no digits to lose, and would leave itself or a NaN here.
        return _Exact(total, jnp.where(lost - lost == 0, lost, 0).astype(total.dtype))

    def value(self) -> Array:
        """The sum as one number."""
        return self.high + self.low


def _inexact(dtype: Any) -> Any:
    """The dtype to average in: 32 bits or more, since sums of narrower floats stop growing."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.promote_types(dtype, jnp.complex64)
    return jnp.dtype(jnp.float64 if dtype.itemsize > 4 else jnp.float32)


def _summed(dtype: Any) -> Any:
    """The dtype to add up in."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return _inexact(dtype)
    if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize > 4:
        return dtype
    return jnp.dtype(jnp.uint32 if jnp.issubdtype(dtype, jnp.unsignedinteger) else jnp.int32)


def _exactly(x: Array) -> _Exact:
    return _Exact(x, jnp.zeros_like(x))


def _no_squares(means: Tree) -> Tree:
    return _on_sums(lambda m: _exactly(jnp.zeros(m.high.shape, jnp.abs(m.high).dtype)), means)


def _is_sum(x: Any) -> bool:
    return isinstance(x, _Exact)


def _on_sums(function: Callable[..., Any], *trees: Tree) -> Tree:
    return jax.tree.map(function, *trees, is_leaf=_is_sum)


_SUM = Sum()


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

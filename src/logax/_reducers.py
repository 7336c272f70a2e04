"""Reducers: reduce many records to one, inside the program, in constant memory.

A reducer has four methods, `start`, `step`, `merge` and `finish`, which work on pytrees of arrays;
the object itself holds no state. `Reducer` sees values, and `RecordReducer` sees whole records and
may keep several of them. Users subclass them, and the named reducers ("mean", "last", ...) are
written the same way.

Sums carry the rounding error of each addition along (compensated summation), so the precision of a
mean does not degrade with the number of records. Floats narrower than 32 bits are summed in 32
bits, and booleans are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Tree
from logax._support.validation import validate_minimum


class RecordArrays(NamedTuple):
    """One logged value with its steps, as the methods of a `RecordReducer` receive it.

    Its arrays are traced, inside the program. `logax.record` is another class: the dictionary of
    NumPy arrays that a callback of `tap` or `live` receives on the host.

    Attributes:
      value: Logged pytree.
      steps: Steps by name.
    """

    value: Tree
    steps: dict[str, Array]


class Reducer:
    """Base class of reducers that turn many values into one.

    Pass an instance to `spool(reduce=...)` or `logs.reduce(...)`. To write one, define four
    methods:

        class Product(logax.Reducer):
            def start(self, like):
                return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), like)
            def step(self, state, value):
                return jax.tree.map(jnp.multiply, state, value)
            def merge(self, first, second):
                return jax.tree.map(jnp.multiply, first, second)
            def finish(self, state):
                return state

    States are pytrees of arrays that keep their structure, shapes and dtypes from step to step. A
    reducer reduces over records, never over the elements of a record. The reduced record has the
    steps of the last record; without any record there is no reduced record either.
    """

    def start(self, like: Tree) -> Tree:
        """Return the state before the first record.

        Args:
          like: Logged pytree with a `jax.ShapeDtypeStruct` for each leaf.
        """
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `start`.")

    def step(self, state: Tree, value: Tree) -> Tree:
        """Return the state after one more value."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `step`.")

    def merge(self, first: Tree, second: Tree) -> Tree:
        """Combine two states into one. The records of `first` precede those of `second`."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `merge`.")

    def finish(self, state: Tree) -> Tree:
        """Return the reduced value of the final state."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `finish`.")


class RecordReducer:
    """Base class of reducers that select records: they see steps and may keep several records.

    The methods are those of `Reducer`, with a `RecordArrays` instead of a value.

    Attributes:
      rows: Maximum number of records that are kept.
    """

    rows: int = 1

    def start(self, like: RecordArrays) -> Tree:
        """Return the state before the first record.

        Args:
          like: Record with a `jax.ShapeDtypeStruct` for each leaf and step.
        """
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `start`.")

    def step(self, state: Tree, record: RecordArrays) -> Tree:
        """Return the state after one more record."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `step`.")

    def merge(self, first: Tree, second: Tree) -> Tree:
        """Combine two states into one. The records of `first` precede those of `second`."""
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `merge`.")

    def finish(self, state: Tree) -> tuple[RecordArrays, Array | None]:
        """Return the kept records and their number.

        Returns:
          A `RecordArrays` whose arrays have a leading axis of length `rows`, and the number of
          leading rows that are real. None stands for 1 if there was any record, else 0.
        """
        raise NotImplementedError(f"`{type(self).__name__}` lacks the method `finish`.")


class FirstNonFinite(RecordReducer):
    """Keep the first record that holds a NaN or an infinity, and the records just before it.

    Memory is constant, however long the run. If all records are finite, none is kept.

    Args:
      window: Maximum number of kept records, including the non-finite one, which comes last.

    Example:
      `logax.spool(train, reduce={"loss": FirstNonFinite(window=10)})`
    """

    def __init__(self, window: int = 5) -> None:
        self.rows = validate_minimum(1, "FirstNonFinite", "window", window)

    def __repr__(self) -> str:
        return f"FirstNonFinite(window={self.rows})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstNonFinite) and other.rows == self.rows

    def __hash__(self) -> int:
        return hash((FirstNonFinite, self.rows))

    def start(self, like: RecordArrays) -> Tree:
        rows = jax.tree.map(lambda x: jnp.zeros((self.rows, *x.shape), x.dtype), like)
        return rows, jnp.zeros((), jnp.int32), jnp.zeros((), bool)

    def step(self, state: Tree, record: RecordArrays) -> Tree:
        rows, filled, found = state
        bad = [
            ~jnp.isfinite(x).all() for x in jax.tree.leaves(record.value) if _can_be_nonfinite(x)
        ]
        shifted = jax.tree.map(lambda r, x: jnp.concatenate([r[1:], x[None]]), rows, record)
        new = (
            shifted,
            jnp.minimum(filled + 1, self.rows),
            jnp.stack(bad).any() if bad else jnp.zeros((), bool),
        )
        return _select(found, state, new)

    def merge(self, first: Tree, second: Tree) -> Tree:
        rows, filled, found = first
        later, more, _ = second

        # The real rows come last: shift those of `first` by the number of rows of `second`.
        moved = jnp.arange(self.rows) + more

        def join(a: Array, b: Array) -> Array:
            kept = a[jnp.minimum(moved, self.rows - 1)]
            return jnp.where(_expand_mask(moved < self.rows, a), kept, b)

        new = (jax.tree.map(join, rows, later), jnp.minimum(filled + more, self.rows), second[2])
        return _select(found, first, new)

    def finish(self, state: Tree) -> tuple[RecordArrays, Array | None]:
        rows, filled, found = state
        kept = jnp.where(found, filled, 0)
        real = jnp.arange(self.rows) < kept

        def move_real_rows_first(x: Array) -> Array:
            # The state has the real rows last; a logdict has them first.
            x = jnp.roll(x, filled - self.rows, 0)
            return jnp.where(_expand_mask(real, x), x, jnp.zeros_like(x))

        return jax.tree.map(move_real_rows_first, rows), kept


class Sum(Reducer):
    """Sum over records, by compensated summation."""

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(
            lambda x: _compensated_sum(jnp.zeros(x.shape, _sum_dtype(x.dtype))), like
        )

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda v, s: s.plus(v.astype(s.high.dtype)), value, state)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return _map_sums(lambda a, b: a.plus(b.high, b.low), first, second)

    def finish(self, state: Tree) -> Tree:
        return _map_sums(lambda s: s.value(), state)


class Mean(Reducer):
    """Mean over records."""

    def start(self, like: Tree) -> Tree:
        sums = jax.tree.map(
            lambda x: _compensated_sum(jnp.zeros(x.shape, _mean_dtype(x.dtype))), like
        )
        return jnp.zeros((), jnp.int32), sums

    def step(self, state: Tree, value: Tree) -> Tree:
        return state[0] + 1, _SUM.step(state[1], value)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return first[0] + second[0], _SUM.merge(first[1], second[1])

    def finish(self, state: Tree) -> Tree:
        count = jnp.maximum(state[0], 1)
        return _map_sums(lambda s: (s.value() / count).astype(s.high.dtype), state[1])


class Std(Reducer):
    """Standard deviation over records, by Welford's recurrence."""

    def start(self, like: Tree) -> Tree:
        means = jax.tree.map(
            lambda x: _compensated_sum(jnp.zeros(x.shape, _mean_dtype(x.dtype))), like
        )
        return jnp.zeros((), jnp.int32), means, _zero_squares(means)

    def step(self, state: Tree, value: Tree) -> Tree:
        one = jax.tree.map(lambda v, m: _compensated_sum(v.astype(m.high.dtype)), value, state[1])
        return self.merge(state, (jnp.ones((), jnp.int32), one, _zero_squares(one)))

    def merge(self, first: Tree, second: Tree) -> Tree:
        count = first[0] + second[0]
        share = second[0] / jnp.maximum(count, 1)
        apart = _map_sums(lambda a, b: (b.high - a.high) + (b.low - a.low), first[1], second[1])
        means = _map_sums(lambda a, d: a.plus((d * share).astype(d.dtype)), first[1], apart)

        def squares(a: _CompensatedSum, b: _CompensatedSum, d: Array) -> _CompensatedSum:
            between = jnp.abs(d) ** 2 * (first[0] * share)
            return a.plus(b.high, b.low).plus(between.astype(a.high.dtype))

        return count, means, _map_sums(squares, first[2], second[2], apart)

    def finish(self, state: Tree) -> Tree:
        count, _, squares = state
        divisor = jnp.maximum(count, 1)
        return _map_sums(lambda s: jnp.sqrt(s.value() / divisor).astype(s.high.dtype), squares)


class _Extremum(Reducer):
    """Elementwise minimum or maximum over records."""

    def __init__(self, fold: Callable[[Array, Array], Array], sign: int) -> None:
        self._fold, self._sign = fold, sign

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(lambda x: _neutral_element(x, self._sign), like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(self._fold, state, value)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return jax.tree.map(self._fold, first, second)

    def finish(self, state: Tree) -> Tree:
        return state


class _RecordCount(Reducer):
    """Number of records."""

    def start(self, like: Tree) -> Tree:
        return jax.tree.map(lambda _: jnp.zeros((), jnp.int32), like)

    def step(self, state: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda s: s + 1, state)

    def merge(self, first: Tree, second: Tree) -> Tree:
        return jax.tree.map(jnp.add, first, second)

    def finish(self, state: Tree) -> Tree:
        return state


class _FirstOrLast(RecordReducer):
    """First or last record."""

    def __init__(self, first: bool) -> None:
        self._first = first

    def start(self, like: RecordArrays) -> Tree:
        return jnp.zeros((), bool), _zeros_like(like)

    def step(self, state: Tree, record: RecordArrays) -> Tree:
        return self.merge(state, (jnp.ones((), bool), record))

    def merge(self, first: Tree, second: Tree) -> Tree:
        keep = first[0] if self._first else ~second[0]
        return first[0] | second[0], _select(keep, first[1], second[1])

    def finish(self, state: Tree) -> tuple[RecordArrays, Array | None]:
        return _add_record_axis(state[1]), None


class ReducerAdapter(RecordReducer):
    """Wrap a `Reducer` as a `RecordReducer` that also keeps the steps of the last record."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer

    def start(self, like: RecordArrays) -> Tree:
        return self.reducer.start(like.value), _LAST.start(RecordArrays(None, like.steps))

    def step(self, state: Tree, record: RecordArrays) -> Tree:
        value, steps = state
        steps = _LAST.step(steps, RecordArrays(None, record.steps))
        return self.reducer.step(value, record.value), steps

    def merge(self, first: Tree, second: Tree) -> Tree:
        value = self.reducer.merge(first[0], second[0])
        return value, _LAST.merge(first[1], second[1])

    def finish(self, state: Tree) -> tuple[RecordArrays, Array | None]:
        steps, count = _LAST.finish(state[1])
        value = jax.tree.map(lambda x: jnp.asarray(x)[None], self.reducer.finish(state[0]))
        return RecordArrays(value, steps.steps), count


_SUM = Sum()
_LAST = _FirstOrLast(first=False)
BUILT_IN: dict[str, Reducer | RecordReducer] = {
    "mean": Mean(),
    "sum": Sum(),
    "min": _Extremum(jnp.minimum, 1),
    "max": _Extremum(jnp.maximum, -1),
    "std": Std(),
    "first": _FirstOrLast(first=True),
    "last": _LAST,
    "count": _RecordCount(),
}


def as_reducer(how: Any, functions: str = "") -> RecordReducer:
    """Return the `RecordReducer` for a name or an object that a user passed.

    Args:
      how: Name of a built-in reducer, `Reducer` or `RecordReducer`.
      functions: Description of the functions that the caller accepts too, for the error.

    Raises:
      ValueError: `how` is none of these.
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
        return ReducerAdapter(how)
    lacks = "" if len(lacking) == len(methods) else f", which lacks {', '.join(lacking)}"
    raise ValueError(
        f"`reduce` takes {', '.join(map(repr, BUILT_IN))}, {functions}a `Reducer`, or a mapping "
        f"from keys to these, and got {how!r}{lacks}."
    )


def unwrap_reducer(reducer: RecordReducer) -> Any:
    """Return the reducer that the user passed, without the adapter around it."""
    return reducer.reducer if isinstance(reducer, ReducerAdapter) else reducer


def is_arithmetic(how: RecordReducer) -> bool:
    """Return whether the reducer computes with values, rather than selects or counts records."""
    return not isinstance(unwrap_reducer(how), (RecordReducer, _RecordCount))


class _CompensatedSum(NamedTuple):
    """A sum in two parts: the rounded sum, and the accumulated rounding error."""

    high: Array
    low: Array

    def plus(self, more: Array, less: Array | float = 0) -> _CompensatedSum:
        """Add a term, given in two parts itself."""
        if not jnp.issubdtype(self.high.dtype, jnp.inexact):
            return _CompensatedSum(self.high + more, self.low)
        # The previous rounding error is added with the next term, so errors do not accumulate.
        term = more + (self.low + less)
        total = self.high + term
        lost = term - (total - self.high)
        # For an infinite total this difference is infinite or NaN, not a rounding error.
        return _CompensatedSum(total, jnp.where(lost - lost == 0, lost, 0).astype(total.dtype))

    def value(self) -> Array:
        """Return the sum as one array."""
        return self.high + self.low


def _mean_dtype(dtype: Any) -> Any:
    """Return the dtype of means: 32 bits or more, because sums of narrower floats saturate."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.promote_types(dtype, jnp.complex64)
    return jnp.dtype(jnp.float64 if dtype.itemsize > 4 else jnp.float32)


def _sum_dtype(dtype: Any) -> Any:
    """Return the dtype of sums."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return _mean_dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize > 4:
        return dtype
    return jnp.dtype(jnp.uint32 if jnp.issubdtype(dtype, jnp.unsignedinteger) else jnp.int32)


def _compensated_sum(x: Array) -> _CompensatedSum:
    return _CompensatedSum(x, jnp.zeros_like(x))


def _zero_squares(means: Tree) -> Tree:
    return _map_sums(
        lambda m: _compensated_sum(jnp.zeros(m.high.shape, jnp.abs(m.high).dtype)), means
    )


def _is_sum(x: Any) -> bool:
    return isinstance(x, _CompensatedSum)


def _map_sums(function: Callable[..., Any], *trees: Tree) -> Tree:
    return jax.tree.map(function, *trees, is_leaf=_is_sum)


def _zeros_like(like: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def _add_record_axis(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x[None], tree)


def _select(choose: Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(choose, a, b), yes, no)


def _expand_mask(mask: Array, like: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def _can_be_nonfinite(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _neutral_element(like: Any, sign: int) -> Array:
    """Return the maximum (sign 1) or minimum (sign -1) of a dtype, in the shape of `like`."""
    dtype = like.dtype
    if dtype == jnp.bool_:
        return jnp.full(like.shape, sign > 0)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return jnp.full(like.shape, limits.max if sign > 0 else limits.min, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        # Some narrow floats have no infinity.
        has_infinity = np.isinf(np.asarray(np.inf).astype(dtype))
        return jnp.full(
            like.shape, sign * (np.inf if has_infinity else jnp.finfo(dtype).max), dtype
        )
    raise TypeError(
        f"`reduce` by 'min' or 'max' takes values that have an order, and got {dtype.name}."
    )

"""The reducers that add up: sums, means and standard deviations.

Sums keep the digits that each addition loses, so that a mean over millions of records is as good as
one over ten. Narrow floats add up in 32 bits, and truth values are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from logax._compat import Array, Tree
from logax._reduce import Reducer


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

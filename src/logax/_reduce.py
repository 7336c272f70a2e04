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
"""

from __future__ import annotations

from typing import NamedTuple

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

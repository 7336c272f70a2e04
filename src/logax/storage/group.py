"""One group of a trajectory, as an array of rows that are read when they are asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self

import jax
import numpy as np

from logax._compat import Tree
from logax._logdict.export import free_name
from logax._serialization.dtypes import StorageError
from logax._serialization.trees import (
    Node,
    children_of,
    count_of,
    filled,
    focused,
    outlined,
    parts_of,
)
from logax._support.imports import imported
from logax._support.messages import received
from logax.loop._states import widened
from logax.storage._commits import Commit
from logax.storage._layout import axis_names, path_of
from logax.storage._source import Source, in_order, valid
from logax.storage._view import Leaf
from logax.storage.config import Storage

Numbers = np.ndarray[Any, Any]

_AT_ONCE = 4 * 2**20  # bytes to read ahead where rows are read one by one


class StoredGroup(Generic[Storage]):
    """The rows of one group, in the order of their steps.

        frames[5]        one row
        frames[-1]       the last one
        frames[10:20]    several, with an axis for them in front of each array
        frames[::100]
        frames[[3, 7]]
        frames[...]      all

    Of a group that was written once there is no such axis, and `group[...]` gives it. Who goes
    through the rows of a group, `for row in frames`, gets them as they were when that began; where
    another run may have written over those that are left, there is a `StorageError`.
    `HDF5StorageReader.focus_group` makes them.
    """

    def __init__(self, source: Source, number: int) -> None:
        self._source, self._number = source, number
        self._group = source.layout.groups[number]
        self._outline: Node = self._group.outline
        self._first = 0  # of its leaves
        self._prefix = self._group.name
        self._treedef: Any = None
        self._known: tuple[int, Numbers, Numbers] | None = None

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self._group.name

    @property
    def is_once(self) -> bool:
        """Whether it was written once, without an axis for the steps."""
        return self._group.is_once

    @property
    def steps(self) -> Numbers:
        """The step of each row."""
        return self._order()[1]

    @property
    def arrays(self) -> dict[str, str]:
        """Type and shape of a row, for each array: `{"energy": "float32"}`."""
        parts = parts_of(self._outline)
        leaves = zip(parts, self._leaves(), strict=True)
        return {path_of(own): leaf.said for own, (_, leaf) in leaves}

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {said}" for name, said in self.arrays.items())
        rows = "closed" if self._source.is_closed else f"{len(self)} rows"
        rows = "once" if self.is_once else rows
        return f"<StoredGroup `{self._prefix}`, {rows}: {arrays}>"

    def __getitem__(self, index: Any) -> Storage:
        with self._source.lock:
            found = self._value(index) if self.is_once else self._found(index)
        return self._tree(found)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Storage]:
        if self.is_once:
            raise TypeError(f"`{self.name}` was written once and has no rows. Write `group[...]`.")
        with self._source.lock:
            rows = self._each(self._source.commit, self._order()[0])
        return (row for _, row in rows)

    def focus(self, where: Callable[[Any], Any]) -> StoredGroup[Any]:
        """A part of each row, of which alone is read then: `frames.focus(lambda row: row.energy)`.

        Raises:
          LookupError: There is no such part.
        """
        node, before, parts = focused("`focus` finds no such part", self._outline, where)
        part = StoredGroup[Any](self._source, self._number)
        part._outline, part._first = node, self._first + before
        part._prefix = "/".join([self._prefix, *parts])
        return part

    def like(self, row: Tree) -> Self:
        """The same group, with rows in the classes of this one, which has their structure.

        Raises:
          ValueError: It has another structure.
        """
        theirs = ["/".join(parts) for parts, _ in outlined(row)[1]]
        mine = ["/".join(parts) for parts in parts_of(self._outline)]
        if theirs != mine or len(jax.tree.leaves(row)) != len(mine):
            raise ValueError(
                f"`like` must have the structure of the rows of `{self._prefix}`, with the arrays "
                f"{', '.join(mine) or 'none'}, and has {', '.join(theirs) or 'none'}."
            )
        same = type(self)(self._source, self._number)
        same.__dict__ |= self.__dict__
        same._treedef = jax.tree.structure(row)
        return same

    def to_xarray(self) -> Any:
        """The group as an `xarray.Dataset`, with the dimension and the coordinate `step`.

        That is `step_` where there is an array called `step`, as in the file. Other axes are called
        by their length, `axis_3`, and are the same for all arrays. PRNG keys are in it as the
        numbers that they are made of, and types that NumPy lacks as float32 or int32.
        """
        xarray = imported("xarray", "group.to_xarray()")
        with self._source.lock:
            places, steps = self._order()
            raw = [self._raw(number, places) for number, _ in self._leaves()]
        arrays = self.arrays
        step = free_name("step", arrays)
        rows = () if self.is_once else (step,)
        variables = {}
        for name, (_, leaf), numbers in zip(arrays, self._leaves(), raw, strict=True):
            if not leaf.kind.is_key:
                numbers = widened(leaf.kind.to_true(numbers, self._shape(leaf, numbers)))
            axes = [free_name(axis, arrays) for axis in axis_names(numbers.shape[len(rows) :])]
            variables[name] = ((*rows, *axes), numbers)
        return xarray.Dataset(variables, {} if self.is_once else {step: steps})

    def kept(self, commit: Commit, before: Commit) -> int:
        """How many of the first places have, by a commit, the rows that were there before."""
        return commit.kept_since(before.runs, self._number)

    def since(self, commit: Commit, start: int) -> Iterator[tuple[int, Storage]]:
        """The rows by a commit from a place on, in the order of their places, which come along.

        Raises:
          StorageError: Another run has continued the file since.
        """
        stand = commit.groups[self._number]
        if start >= stand.number:
            return iter(())
        with self._source.lock:
            self._check_run(commit)
            if self.is_once:
                return iter([(0, self[...])])
            steps = self._source.steps(self._number)[: stand.number]
        places = np.flatnonzero(valid(steps, stand.cuts))
        return self._each(commit, places[places >= start])

    def _each(self, commit: Commit, places: Numbers) -> Iterator[tuple[int, Storage]]:
        """Rows at places that they have by a commit, of which several are read at a time."""
        row_bytes = max(1, sum(leaf.row_bytes for _, leaf in self._leaves()))
        ahead = max(1, min(len(places), _AT_ONCE // row_bytes))
        for start in range(0, len(places), ahead):
            own = places[start : start + ahead]
            with self._source.lock:
                self._check_run(commit)
                rows = self._read(own)
            for i, place in enumerate(own):
                yield int(place), self._tree([x[i] for x in rows])

    def _check_run(self, commit: Commit) -> None:
        """Raise where the source shows what another run than that of a commit has written."""
        if self._source.commit.runs != commit.runs:
            raise StorageError(
                f"{self._source.path} was continued by another run while the rows of "
                f"`{self.name}` were gone through. Begin again, with a new `iter(group)`, to get "
                "those that are there now."
            )

    def _order(self) -> tuple[Numbers, Numbers]:
        """Places of the rows that count, and their steps."""
        with self._source.lock:
            commit = self._source.commit
            if self._known is None or self._known[0] != commit.sequence:
                steps = self._source.steps(self._number)
                places = in_order(steps, commit.groups[self._number].cuts)
                self._known = (commit.sequence, places, steps[places])
            return self._known[1], self._known[2]

    def _leaves(self) -> list[tuple[int, Leaf]]:
        numbers = range(self._first, self._first + count_of(self._outline))
        return [(number, self._group.leaves[number]) for number in numbers]

    def _raw(self, number: int, places: Numbers) -> Numbers:
        if not self.is_once:
            return self._source.rows(self._number, number, places)
        self._check_written()
        return self._source.once(self._number, number)

    def _read(self, places: Numbers) -> list[Any]:
        found = []
        for number, leaf in self._leaves():
            numbers = self._raw(number, places)
            found.append(leaf.kind.to_true(numbers, self._shape(leaf, numbers)))
        return found

    def _shape(self, leaf: Leaf, numbers: Numbers) -> tuple[int, ...]:
        return leaf.shape if self.is_once else (len(numbers), *leaf.shape)

    def _tree(self, leaves: list[Any]) -> Tree:
        if self._treedef is not None:
            return jax.tree.unflatten(self._treedef, leaves)
        return filled(self._outline, iter(leaves))

    def _found(self, index: Any) -> list[Any]:
        places, steps = self._order()
        chosen = self._chosen(index, len(steps))
        if isinstance(chosen, int):
            return [x[0] for x in self._read(places[chosen : chosen + 1])]
        return self._read(places[chosen])

    def _value(self, index: Any) -> list[Any]:
        if not _means_all(index):
            raise IndexError(
                f"`{self.name}` was written once and has no rows to choose from, and got "
                f"{index!r}. Write `group[...]`."
            )
        self._check_written()
        return [x[()] if isinstance(x, np.ndarray) else x for x in self._read(np.arange(1))]

    def _example(self) -> str:
        """How to write a part of a row."""
        found = children_of(self._outline)
        key = found[0][0] if found else "energy"
        return f"row.{key}" if self._outline[0] == "namespace" else f"row[{key!r}]"

    def _check_written(self) -> None:
        if not len(self):
            if self._source.commit.is_complete:
                why = "the writer was never given step 0"
            else:
                why = "at the last look; `reader.refresh()` looks again"
            raise IndexError(f"`{self.name}` was not written: {why}.")

    def _chosen(self, index: Any, rows: int) -> Any:
        """The rows that an index means: one, or several."""
        if _means_all(index):
            return np.arange(rows)
        if isinstance(index, slice):
            return np.arange(rows)[index]
        if isinstance(index, (list, range, np.ndarray, jax.Array)) and np.ndim(index) == 1:
            numbers = np.asarray(index)
            if not len(numbers):
                return np.arange(0)
            if numbers.dtype.kind in "biu":
                try:
                    return np.arange(rows)[numbers]
                except IndexError as error:
                    raise IndexError(f"`{self.name}` has {rows} rows: {error}.") from None
        try:
            number = None if isinstance(index, bool) else operator.index(index)
        except TypeError:
            number = None
        if number is None:
            raise TypeError(
                f"`{self.name}` is indexed by rows, with a whole number, a slice, a list of "
                f"numbers or `...`, and got {received(index)}. For a part of each row write "
                f"`group.focus(lambda row: {self._example()})`."
            )
        if not -rows <= number < rows:
            raise IndexError(f"`{self.name}` has {rows} rows, and got index {number}.")
        return number % rows


def _means_all(index: Any) -> bool:
    """Whether it is `...` or `()`, as of arrays without an axis."""
    return index is ... or (isinstance(index, tuple) and not index)

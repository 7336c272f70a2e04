"""`StoredGroup`: the rows of one group of a trajectory, read on demand."""

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
    build_tree,
    children_of,
    leaf_count,
    leaf_paths,
    outline_tree,
    select_subtree,
)
from logax._support.imports import import_optional
from logax._support.messages import describe_value
from logax.loop._pytrees import widen_dtype
from logax.storage._commits import Commit
from logax.storage._layout import axis_names, dataset_path
from logax.storage._trajectory_source import TrajectorySource, order_by_step, valid_row_mask
from logax.storage._view import ArrayLayout
from logax.storage.writer_config import Storage

Numbers = np.ndarray[Any, Any]

_MAX_READ_AHEAD_BYTES = 4 * 2**20  # of rows that are read one by one


class StoredGroup(Generic[Storage]):
    """The rows of one group of a trajectory, in the order of their steps.

    `HDF5StorageReader.focus_group` returns it. Index it like an array of rows; only the selected
    rows are read from the file:

        frames[5]        one row
        frames[-1]       the last row
        frames[10:20]    several rows, stacked along a new first axis of each array
        frames[::100]
        frames[[3, 7]]
        frames[...]      all rows

    The arrays of a group that was written once have no axis for the rows: `group[...]` returns
    them.

    `for row in frames` iterates over the rows as of the beginning of the iteration. If another run
    continues the file meanwhile, and may have overwritten the remaining rows, the iteration raises
    a `StorageError`.
    """

    def __init__(self, source: TrajectorySource, number: int) -> None:
        self._source, self._number = source, number
        self._group = source.layout.groups[number]
        self._outline: Node = self._group.outline
        self._first_leaf = 0
        self._prefix = self._group.name
        self._treedef: Any = None
        self._cached_order: tuple[int, Numbers, Numbers] | None = None

    @property
    def name(self) -> str:
        """Name of the group in the file."""
        return self._group.name

    @property
    def is_once(self) -> bool:
        """True if the group is written once, without an axis for the steps."""
        return self._group.is_once

    @property
    def steps(self) -> Numbers:
        """Step of each row."""
        return self._order()[1]

    @property
    def arrays(self) -> dict[str, str]:
        """Dtype and shape of each array of a row: `{"energy": "float32"}`."""
        leaves = zip(leaf_paths(self._outline), self._leaves(), strict=True)
        return {dataset_path(parts): leaf.description for parts, (_, leaf) in leaves}

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {description}" for name, description in self.arrays.items())
        rows = "closed" if self._source.is_closed else f"{len(self)} rows"
        rows = "once" if self.is_once else rows
        return f"<StoredGroup `{self._prefix}`, {rows}: {arrays}>"

    def __getitem__(self, index: Any) -> Storage:
        with self._source.lock:
            leaves = self._read_once(index) if self.is_once else self._read_index(index)
        return self._build_row(leaves)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Storage]:
        if self.is_once:
            raise TypeError(f"`{self.name}` was written once and has no rows. Write `group[...]`.")
        with self._source.lock:
            rows = self._iterate(self._source.commit, self._order()[0])
        return (row for _, row in rows)

    def focus(self, where: Callable[[Any], Any]) -> StoredGroup[Any]:
        """Return the group reduced to a part of each row; only that part is read from the file.

            frames.focus(lambda row: row.energy)

        Args:
          where: Function that selects the part of a row, by attribute, key or index.

        Raises:
          LookupError: The rows have no such part.
        """
        node, before, parts = select_subtree("`focus` finds no such part", self._outline, where)
        part = StoredGroup[Any](self._source, self._number)
        part._outline, part._first_leaf = node, self._first_leaf + before
        part._prefix = "/".join([self._prefix, *parts])
        return part

    def like(self, row: Tree) -> Self:
        """Return the same group, with rows in the container classes of `row`.

        Args:
          row: A row, or any pytree with the structure of one.

        Raises:
          ValueError: `row` has another structure than the rows of the group.
        """
        theirs = ["/".join(parts) for parts, _ in outline_tree(row)[1]]
        mine = ["/".join(parts) for parts in leaf_paths(self._outline)]
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
        """Return the group as an `xarray.Dataset` with the dimension and coordinate `step`.

        The coordinate is called `step_` if there is an array called `step`, as in the file. Other
        dimensions are named by their length, `axis_3`, and shared by all arrays. PRNG keys become
        their key data, and dtypes that NumPy lacks become float32 or int32.
        """
        xarray = import_optional("xarray", "group.to_xarray()")
        with self._source.lock:
            places, steps = self._order()
            stored = [self._read_stored(number, places) for number, _ in self._leaves()]
        arrays = self.arrays
        step = free_name("step", arrays)
        row_axes = () if self.is_once else (step,)
        variables = {}
        for name, (_, leaf), numbers in zip(arrays, self._leaves(), stored, strict=True):
            if not leaf.kind.is_key:
                numbers = widen_dtype(leaf.kind.decode(numbers, self._shape(leaf, numbers)))
            lengths = numbers.shape[len(row_axes) :]
            axes = [free_name(axis, arrays) for axis in axis_names(lengths)]
            variables[name] = ((*row_axes, *axes), numbers)
        return xarray.Dataset(variables, {} if self.is_once else {step: steps})

    def _rows_kept(self, commit: Commit, before: Commit) -> int:
        """Return the number of leading rows of `before` that `commit` still has."""
        return commit.rows_kept_since(before.runs, self._number)

    def _rows_since(self, commit: Commit, start: int) -> Iterator[tuple[int, Storage]]:
        """Iterate over places and rows, from the place `start` on, as of a commit.

        Raises:
          StorageError: Another run has continued the file since the commit.
        """
        group_commit = commit.groups[self._number]
        if start >= group_commit.valid_rows:
            return iter(())
        with self._source.lock:
            self._check_run(commit)
            if self.is_once:
                return iter([(0, self[...])])
            steps = self._source.read_steps(self._number)[: group_commit.valid_rows]
        places = np.flatnonzero(valid_row_mask(steps, group_commit.cuts))
        return self._iterate(commit, places[places >= start])

    def _iterate(self, commit: Commit, places: Numbers) -> Iterator[tuple[int, Storage]]:
        """Iterate over places and rows as of a commit, reading several rows at a time."""
        row_bytes = max(1, sum(leaf.row_bytes for _, leaf in self._leaves()))
        count = max(1, min(len(places), _MAX_READ_AHEAD_BYTES // row_bytes))
        for start in range(0, len(places), count):
            batch = places[start : start + count]
            with self._source.lock:
                self._check_run(commit)
                columns = self._read(batch)
            for i, place in enumerate(batch):
                yield int(place), self._build_row([x[i] for x in columns])

    def _check_run(self, commit: Commit) -> None:
        """Raise if the source shows rows of another run than that of a commit."""
        if self._source.commit.runs != commit.runs:
            raise StorageError(
                f"{self._source.path} was continued by another run during an iteration over the "
                f"rows of `{self.name}`. Begin again, with a new `iter(group)`, to get the current "
                "rows."
            )

    def _order(self) -> tuple[Numbers, Numbers]:
        """Return the places of the valid rows, and their steps."""
        with self._source.lock:
            commit = self._source.commit
            if self._cached_order is None or self._cached_order[0] != commit.sequence:
                steps = self._source.read_steps(self._number)
                places = order_by_step(steps, commit.groups[self._number].cuts)
                self._cached_order = (commit.sequence, places, steps[places])
            return self._cached_order[1], self._cached_order[2]

    def _leaves(self) -> list[tuple[int, ArrayLayout]]:
        numbers = range(self._first_leaf, self._first_leaf + leaf_count(self._outline))
        return [(number, self._group.leaves[number]) for number in numbers]

    def _read_stored(self, number: int, places: Numbers) -> Numbers:
        if not self.is_once:
            return self._source.read_rows(self._number, number, places)
        self._check_written()
        return self._source.read_once(self._number, number)

    def _read(self, places: Numbers) -> list[Any]:
        columns = []
        for number, leaf in self._leaves():
            numbers = self._read_stored(number, places)
            columns.append(leaf.kind.decode(numbers, self._shape(leaf, numbers)))
        return columns

    def _shape(self, leaf: ArrayLayout, numbers: Numbers) -> tuple[int, ...]:
        return leaf.shape if self.is_once else (len(numbers), *leaf.shape)

    def _build_row(self, leaves: list[Any]) -> Tree:
        if self._treedef is not None:
            return jax.tree.unflatten(self._treedef, leaves)
        return build_tree(self._outline, iter(leaves))

    def _read_index(self, index: Any) -> list[Any]:
        places, steps = self._order()
        rows = self._normalize_index(index, len(steps))
        if isinstance(rows, int):
            return [x[0] for x in self._read(places[rows : rows + 1])]
        return self._read(places[rows])

    def _read_once(self, index: Any) -> list[Any]:
        if not _selects_all(index):
            raise IndexError(
                f"`{self.name}` was written once and has no rows to choose from, and got "
                f"{index!r}. Write `group[...]`."
            )
        self._check_written()
        return [x[()] if isinstance(x, np.ndarray) else x for x in self._read(np.arange(1))]

    def _example(self) -> str:
        """Return an expression for a part of a row, for messages."""
        found = children_of(self._outline)
        key = found[0][0] if found else "energy"
        return f"row.{key}" if self._outline[0] == "namespace" else f"row[{key!r}]"

    def _check_written(self) -> None:
        if not len(self):
            if self._source.commit.is_complete:
                reason = "the writer never got step 0"
            else:
                reason = "at the time of the last read; `reader.refresh()` reads again"
            raise IndexError(f"`{self.name}` was not written: {reason}.")

    def _normalize_index(self, index: Any, rows: int) -> Any:
        """Return the number of one row, or an array of row numbers."""
        if _selects_all(index):
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
                f"`{self.name}` is indexed by rows, with an integer, a slice, a list of integers "
                f"or `...`, and got {describe_value(index)}. For a part of each row write "
                f"`group.focus(lambda row: {self._example()})`."
            )
        if not -rows <= number < rows:
            raise IndexError(f"`{self.name}` has {rows} rows, and got index {number}.")
        return number % rows


def _selects_all(index: Any) -> bool:
    """Return whether an index is `...` or `()`."""
    return index is ... or (isinstance(index, tuple) and not index)

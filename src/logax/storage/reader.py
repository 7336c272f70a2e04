"""`HDF5StorageReader` and `resume_state`: read the files of `HDF5StorageWriter`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from logax._logdict.export import free_name
from logax._serialization.dtypes import StorageError
from logax._serialization.trees import leaf_paths, select_subtree
from logax._support.files import validate_path
from logax._support.imports import import_optional
from logax._support.messages import describe_value, warn_user
from logax._support.validation import validate_seconds
from logax.storage._trajectory_source import TrajectorySource
from logax.storage.group import StoredGroup
from logax.storage.writer_config import State, Storage, WriterGroupConfig

if TYPE_CHECKING:  # Python supports defaults since 3.13, type checkers before that
    from typing_extensions import TypeVar as TypeVarWithDefault

    Config = TypeVarWithDefault("Config", default=Any)
else:
    Config = TypeVar("Config")

_WRITER_CHECK_SECONDS = 0.5  # without a new row, before `follow` tests whether there is a writer
_STATE_HINT = "Give the group that holds the states, or select them from its rows with `where`."


def resume_state(
    path: str | os.PathLike[str],
    group: str | Callable[[Any], Any],
    initial_state: State,
    *,
    where: Callable[[Any], Any] | None = None,
) -> tuple[State, int]:
    """Return the state and the step to continue a run with, or to begin it with.

        state, start_step = resume_state("run.h5", "states", initial_state)
        writer = HDF5StorageWriter("run.h5", config, state, 1000, mode="a", start_step=start_step)
        run_loop(step, state, 1000, logger=writer, start_step=start_step)

    The state is the last one in the file, and the step is the one after it. No group misses a row
    of an earlier step, as a writer stores a step in all groups or in none. Rows of later steps in
    other groups are dropped by the writer, as the run stores them again. If there is no file, or
    no row in the group, the result is `initial_state` and 0.

    Args:
      path: Path of the file.
      group: Name of the group that holds the states, or a function as for `focus_group`.
      initial_state: State at the beginning of the run, with the structure of those in the file. The
        result has JAX arrays where this state has JAX arrays, and NumPy arrays elsewhere.
      where: Function that selects the state from a row that contains more than the state.

    Returns:
      The state, and the number of the next step.

    Raises:
      LookupError: The file has no such group, or the group is written once.
      ValueError: The rows have another structure, other shapes or other dtypes than
        `initial_state`.
      StorageError: The file cannot be read.
    """
    if not os.path.exists(validate_path("resume_state", "path", path)):
        return initial_state, 0
    with HDF5StorageReader[Any](path) as reader:
        rows = reader.focus_group(group)
        if rows.is_once:
            raise LookupError(
                f"`resume_state` takes a group with a row for each state, and `{rows.name}` was "
                "written once. Store states under a schedule such as `EveryNStep(100)`."
            )
        if not len(rows):
            return initial_state, 0
        states = rows if where is None else rows.focus(where)
        prefix = f"`resume_state` cannot take the state from `{rows.name}` of {os.fspath(path)}: "
        try:
            stored = states.like(initial_state)[-1]
        except ValueError as error:
            raise ValueError(f"{prefix}{error} {_STATE_HINT}") from error
        for mine, theirs in zip(*map(jax.tree.leaves, (initial_state, stored)), strict=True):
            # A Python number has no dtype to compare.
            if (
                np.shape(mine) != theirs.shape
                or getattr(mine, "dtype", theirs.dtype) != theirs.dtype
            ):
                raise ValueError(
                    f"{prefix}its rows have {_describe_type(theirs)} where `initial_state` has "
                    f"{_describe_type(mine)}. {_STATE_HINT}"
                )
        return jax.tree.map(_convert_like, initial_state, stored), int(rows.steps[-1]) + 1


def _describe_type(x: Any) -> str:
    name = x.dtype.name if hasattr(x, "dtype") else type(x).__name__
    return f"{name}{list(np.shape(x))}"


def _convert_like(initial: Any, stored: Any) -> Any:
    is_jax_array = isinstance(initial, jax.Array | jax.ShapeDtypeStruct)
    return jnp.asarray(stored) if is_jax_array else stored


class HDF5StorageReader(Generic[Config]):
    """Read a trajectory that `HDF5StorageWriter` has written, or is still writing.

        with HDF5StorageReader("run.h5") as reader:
            frames = reader.focus_group(lambda config: config["frames"])
            last = frames[-1]
            energy = frames[...]["energy"]

    Opening a file reads no rows, and `StoredGroup` reads only the selected ones. Rows are pytrees
    of NumPy arrays. Their containers are dictionaries, lists, tuples and namespaces, in the
    structure that the view returned; `focus_group` and `StoredGroup.like` can restore other
    classes. Reading runs no code from the file, and opens no other file. Threads may share a
    reader.

    A reader shows the file as of its opening or the last `refresh`. Use `follow` to get rows as
    they are written.

    Args:
      path: Path of the file.

    Raises:
      FileNotFoundError: There is no such file.
      StorageError: The file is not a trajectory, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(validate_path("HDF5StorageReader", "path", path))
        if os.path.isdir(self._path):
            raise IsADirectoryError(
                f"`HDF5StorageReader` takes the path of a file, and {self._path} is a folder."
            )
        if not os.path.exists(self._path):
            raise FileNotFoundError(
                f"`HDF5StorageReader` reads {self._path}, and there is no such file."
            )
        self._source = TrajectorySource(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def __repr__(self) -> str:
        groups = ", ".join(self.list_groups())
        return f"<HDF5StorageReader {self._path}: {groups}>"

    @property
    def actual_steps(self) -> int:
        """Number of steps that have run: the last step plus one, as of the last commit.

        All rows of these steps are in the file, in all groups, even if the writer was killed.
        """
        return self._source.commit.actual_steps

    @property
    def total_steps(self) -> int | None:
        """Number of steps that the writer expected; None if unknown."""
        return self._source.commit.total_steps

    @property
    def complete(self) -> bool:
        """True if the writer has finished; False if it still writes, has failed or was killed."""
        return self._source.commit.is_complete

    def refresh(self) -> None:
        """Show the rows that were written since the file was opened or last refreshed."""
        self._source.refresh()

    def list_groups(self) -> list[str]:
        """Return the names of all groups."""
        return [group.name for group in self._source.layout.groups]

    @overload
    def focus_group(
        self,
        view_or_name: Callable[[Config], WriterGroupConfig[Any, Storage]],
        *,
        like: Any = None,
    ) -> StoredGroup[Storage]: ...

    @overload
    def focus_group(self, view_or_name: str, *, like: Any = None) -> StoredGroup[Any]: ...

    def focus_group(self, view_or_name: Any, *, like: Any = None) -> Any:
        """Return one group.

        Args:
          view_or_name: Name of the group, or a function that selects it from the configuration by
            attribute, key or index: `lambda config: config.frames`. The classes of the
            configuration are not needed.
          like: A row, or any pytree with the structure of one, such as the result of the view for a
            state. The group then returns rows in the same container classes.

        Raises:
          LookupError: There is no such group.
        """
        layout = self._source.layout
        names = self.list_groups()
        if isinstance(view_or_name, str):
            if view_or_name not in names:
                raise LookupError(
                    f"`focus_group` got {view_or_name!r}, and {self._path} has no such group. It "
                    f"has {', '.join(map(repr, names))}."
                )
            number = names.index(view_or_name)
        elif callable(view_or_name):
            what = "`focus_group` finds no group"
            node, number, parts = select_subtree(what, layout.config, view_or_name)
            if node[0] != "leaf":
                inside = ", ".join(repr("/".join((*parts, *path))) for path in leaf_paths(node))
                raise LookupError(
                    f"`focus_group` takes one group, and got {'/'.join(parts) or 'all'}. Select "
                    f"one of {inside or 'none'}."
                )
        else:
            raise TypeError(
                "`focus_group` takes the name of a group, or a function such as "
                f"`lambda config: config.frames`, and got {describe_value(view_or_name)}."
            )
        group = StoredGroup[Any](self._source, number)
        return group if like is None else group.like(like)

    @overload
    def follow(
        self,
        group: Callable[[Config], WriterGroupConfig[Any, Storage]] | StoredGroup[Storage],
        *,
        poll_seconds: float = 0.1,
        timeout: float | None = None,
    ) -> Iterator[Storage]: ...

    @overload
    def follow(
        self, group: str, *, poll_seconds: float = 0.1, timeout: float | None = None
    ) -> Iterator[Any]: ...

    def follow(
        self, group: Any, *, poll_seconds: float = 0.1, timeout: float | None = None
    ) -> Iterator[Any]:
        """Iterate over the rows of a group as they are written, until the file is complete.

        The iteration starts with the first row, in the order in which rows were written. If another
        run continues the file before it is complete, the rows of that run follow; if it continues
        from an earlier step (`start_step`), the rows from that step on are repeated as the new run
        writes them. If no run continues an incomplete file, the iteration ends with a warning,
        which also reports if the file was deleted or replaced by another one.

        Args:
          group: A result of `focus_group`, or an argument for it.
          poll_seconds: Time between two looks at the file, in seconds.
          timeout: Maximum time to wait for the next row, in seconds. None waits forever.

        Raises:
          TimeoutError: No row was written for `timeout` seconds.
        """
        poll = validate_seconds("follow", "poll_seconds", poll_seconds)
        max_wait = None if timeout is None else validate_seconds("follow", "timeout", timeout)
        stored_group = group if isinstance(group, StoredGroup) else self.focus_group(group)
        if stored_group._source is not self._source:
            raise ValueError(
                f"`follow` got `{stored_group.name}` of another reader. Write "
                "`reader.follow(group)` with the reader whose `focus_group` returned the group."
            )
        return self._follow_rows(stored_group, poll, max_wait)

    def _follow_rows(
        self, group: StoredGroup[Storage], poll: float, max_wait: float | None
    ) -> Iterator[Storage]:
        source, number, start = self._source, 0, 0
        commit = source.commit
        last_row = last_check = time.monotonic()
        while True:
            is_abandoned, now = False, time.monotonic()
            if now - max(last_row, last_check) > _WRITER_CHECK_SECONDS:
                # Before the refresh, which then sees everything that the writer left behind.
                is_abandoned, last_check = not source.has_writer(), now
            rows_before, before, commit = number, commit, source.refresh()
            start = min(start, group._rows_kept(commit, before))
            try:
                for place, row in group._rows_since(commit, start):
                    yield row
                    number, start, last_row = number + 1, place + 1, time.monotonic()
            except StorageError:
                if source.is_current(commit):
                    raise
            else:
                if commit.is_complete:
                    return
                if is_abandoned and (number, commit.runs) == (rows_before, before.runs):
                    break
            if max_wait is not None and time.monotonic() - last_row > max_wait:
                raise TimeoutError(
                    f"`follow` waited {max_wait:g} s for the next row of `{group.name}`."
                )
            time.sleep(poll)
        reason = source.describe_incomplete()
        warn_user(f"{reason} `follow` returned {number} rows of `{group.name}`.")

    def to_xarray(self) -> Any:
        """Return all groups as an `xarray.DataTree` of one dataset each.

        See `StoredGroup.to_xarray` for the datasets. Slashes in the names of arrays become dots, as
        trees reserve slashes. Groups that are written once, and have not been written, are omitted.
        """
        xarray = import_optional("xarray", "reader.to_xarray()")
        with self._source.lock:  # all groups as of the same commit
            stored_groups = {
                name: StoredGroup[Any](self._source, number)
                for number, name in enumerate(self.list_groups())
            }
            datasets = {
                name: group.to_xarray()
                for name, group in stored_groups.items()
                if len(group) or not group.is_once
            }
        groups = {}
        for name, dataset in datasets.items():
            names: dict[Any, str] = {}
            for old in sorted({*dataset.variables, *dataset.sizes}, key=lambda old: "/" in old):
                names[old] = free_name(old.replace("/", "."), names.values())
            groups[f"/{name}"] = dataset.rename(names)
        return xarray.DataTree.from_dict(groups)

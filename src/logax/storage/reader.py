"""Reads what `HDF5StorageWriter` has written, or is writing."""

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
from logax._serialization.trees import focused, parts_of
from logax._support.files import as_path
from logax._support.imports import imported
from logax._support.messages import received, warn_user
from logax._support.validation import in_seconds
from logax.storage._source import Source
from logax.storage.config import State, Storage, WriterGroupConfig
from logax.storage.group import StoredGroup

if TYPE_CHECKING:  # Python knows defaults since 3.13, type checkers before
    from typing_extensions import TypeVar as TypeVarWithDefault

    Config = TypeVarWithDefault("Config", default=Any)
else:
    Config = TypeVar("Config")

_STILL = 0.5  # seconds without a row, after which to ask whether somebody still writes


def resume_state(
    path: str | os.PathLike[str],
    group: str | Callable[[Any], Any],
    initial_state: State,
    *,
    where: Callable[[Any], Any] | None = None,
) -> tuple[State, int]:
    """Return the state to go on with, and the step, for a run that may have begun already.

        state, start_step = resume_state("run.h5", "states", initial_state)
        writer = HDF5StorageWriter("run.h5", config, state, 1000, mode="a", start_step=start_step)
        run_loop(step, state, 1000, logger=writer, start_step=start_step)

    The state is the last one in the file, and the step the one after it. A writer stores a step in
    all groups or in none, so that no group misses a row of an earlier step; the writer drops later
    rows of other groups, as they come again. Where there is no file, or no row in the group, the
    run begins: with `initial_state` and 0.

    Args:
      path: Path of the file.
      group: Name of the group that holds the states, or a function as `focus_group` takes it.
      initial_state: State at the beginning, with the structure of those in the file. Where it has
        JAX arrays, the result has JAX arrays too, and NumPy arrays elsewhere.
      where: Function that picks the state from a row that holds more.

    Raises:
      LookupError: The file has no such group.
      ValueError: Its rows have another structure, or other shapes or types, than `initial_state`.
      StorageError: The file cannot be read.
    """
    if not os.path.exists(as_path("resume_state", "path", path)):
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
        chosen = rows if where is None else rows.focus(where)
        wrong = f"`resume_state` cannot take the state from `{rows.name}` of {os.fspath(path)}: "
        try:
            stored = chosen.like(initial_state)[-1]
        except ValueError as error:
            raise ValueError(f"{wrong}{error} {_PICK_STATE}") from error
        for mine, theirs in zip(*map(jax.tree.leaves, (initial_state, stored)), strict=True):
            # A number of Python's has no type of its own.
            if (
                np.shape(mine) != theirs.shape
                or getattr(mine, "dtype", theirs.dtype) != theirs.dtype
            ):
                raise ValueError(
                    f"{wrong}its rows have {_type(theirs)} where `initial_state` has "
                    f"{_type(mine)}. {_PICK_STATE}"
                )
        return jax.tree.map(_as_in, initial_state, stored), int(rows.steps[-1]) + 1


_PICK_STATE = "Give the group that holds the states, or pick them from its rows with `where`."


def _type(x: Any) -> str:
    name = x.dtype.name if hasattr(x, "dtype") else type(x).__name__
    return f"{name}{list(np.shape(x))}"


def _as_in(initial: Any, stored: Any) -> Any:
    is_of_jax = isinstance(initial, jax.Array | jax.ShapeDtypeStruct)
    return jnp.asarray(stored) if is_of_jax else stored


class HDF5StorageReader(Generic[Config]):
    """A trajectory that was written, or is being written, by `HDF5StorageWriter`.

        with HDF5StorageReader("run.h5") as reader:
            frames = reader.focus_group(lambda config: config["frames"])
            last = frames[-1]
            energy = frames[...]["energy"]

    Only what is asked for is read. What is read are NumPy arrays in dictionaries, lists, tuples and
    namespaces, as the view gave them, or in classes of your own, see `focus_group`. Opening a file
    runs nothing that is in it. Threads may share a reader.

    Args:
      path: Of the file.

    Raises:
      StorageError: It is no such file, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(as_path("HDF5StorageReader", "path", path))
        if os.path.isdir(self._path):
            raise IsADirectoryError(
                f"`HDF5StorageReader` takes the path of a file, and {self._path} is a folder."
            )
        if not os.path.exists(self._path):
            raise FileNotFoundError(
                f"`HDF5StorageReader` reads {self._path}, and there is no such file."
            )
        self._source = Source(self._path)

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
        """Let go of the file."""
        self._source.close()

    def __repr__(self) -> str:
        groups = ", ".join(self.list_groups())
        return f"<HDF5StorageReader {self._path}: {groups}>"

    @property
    def actual_steps(self) -> int:
        """Number of steps that have run, by the last commit: one more than the last of them.

        All rows of these steps are in the file, in all groups, also after a kill.
        """
        return self._source.commit.actual_steps

    @property
    def total_steps(self) -> int | None:
        """How many there were to be, where that was known."""
        return self._source.commit.total_steps

    @property
    def complete(self) -> bool:
        """Whether the writer has come to its end; if not, it still writes, or was killed."""
        return self._source.commit.is_complete

    def refresh(self) -> None:
        """Look at what was written since; until then a reader sees the file as it was."""
        self._source.refresh()

    def list_groups(self) -> list[str]:
        """The names of the groups, as they stand in the file."""
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
        """One group.

        Args:
          view_or_name: Its name, or a function that picks it from the configuration, by attribute,
            key or index: `lambda config: config.frames`. The classes of the configuration are not
            needed.
          like: A row, or anything with its structure, such as what the view gives for a state: rows
            come in its classes.

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
            node, number, parts = focused(what, layout.config, view_or_name)
            if node[0] != "leaf":
                inside = ", ".join(repr("/".join((*parts, *own))) for own in parts_of(node))
                raise LookupError(
                    f"`focus_group` takes one group, and got {'/'.join(parts) or 'all'}. Pick one "
                    f"of {inside or 'none'}."
                )
        else:
            raise TypeError(
                "`focus_group` takes the name of a group, or a function such as "
                f"`lambda config: config.frames`, and got {received(view_or_name)}."
            )
        own = StoredGroup[Any](self._source, number)
        return own if like is None else own.like(like)

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
        """The rows of a group, from the first on, as they come, until the file is complete.

        Rows come in the order in which they were written. If another run goes on with the file
        before it is complete, its rows follow; where it goes on from an earlier step
        (`start_step`), those from there on come anew, as that run writes them. If nobody goes on
        with a file that is not complete, the rows end with a warning; it says so too if the file
        was deleted, or replaced by another one.

        Args:
          group: One that `focus_group` gave, or what it takes.
          poll_seconds: How often to look.
          timeout: How long to wait for the next row.

        Raises:
          TimeoutError: It took longer.
        """
        poll = in_seconds("follow", "poll_seconds", poll_seconds)
        longest = None if timeout is None else in_seconds("follow", "timeout", timeout)
        own = group if isinstance(group, StoredGroup) else self.focus_group(group)
        if own._source is not self._source:
            raise ValueError(
                f"`follow` got `{own.name}` of another reader. Write `reader.follow(group)` with "
                "the reader whose `focus_group` gave the group."
            )
        return self._followed(own, poll, longest)

    def _followed(
        self, group: StoredGroup[Storage], poll: float, longest: float | None
    ) -> Iterator[Storage]:
        source, number, start = self._source, 0, 0
        commit = source.commit
        last = asked = time.monotonic()
        while True:
            is_left, now = False, time.monotonic()
            if now - max(last, asked) > _STILL:  # before the look, which sees all that was left
                is_left, asked = not source.is_written(), now
            came, before, commit = number, commit, source.refresh()
            start = min(start, group.kept(commit, before))
            try:
                for place, row in group.since(commit, start):
                    yield row
                    number, start, last = number + 1, place + 1, time.monotonic()
            except StorageError:
                if source.is_current(commit):
                    raise
            else:
                if commit.is_complete:
                    return
                if is_left and (number, commit.runs) == (came, before.runs):
                    break
            if longest is not None and time.monotonic() - last > longest:
                raise TimeoutError(
                    f"`follow` waited {longest:g} s for the next row of `{group.name}`."
                )
            time.sleep(poll)
        warn_user(f"{source.fate()} {number} rows of `{group.name}` came.")

    def to_xarray(self) -> Any:
        """All groups as an `xarray.DataTree`, one dataset each, see `StoredGroup.to_xarray`.

        Slashes, which trees keep for themselves, are dots in the names of arrays. A group that is
        to be written once and was not is left out.
        """
        xarray = imported("xarray", "reader.to_xarray()")
        with self._source.lock:  # all as of one look
            found = {
                name: StoredGroup[Any](self._source, number)
                for number, name in enumerate(self.list_groups())
            }
            datasets = {
                name: group.to_xarray()
                for name, group in found.items()
                if len(group) or not group.is_once
            }
        groups = {}
        for name, dataset in datasets.items():
            names: dict[Any, str] = {}
            for own in sorted({*dataset.variables, *dataset.sizes}, key=lambda own: "/" in own):
                names[own] = free_name(own.replace("/", "."), names.values())
            groups[f"/{name}"] = dataset.rename(names)
        return xarray.DataTree.from_dict(groups)

"""Reads what `HDF5StorageWriter` has written, or is writing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from logax._checks import in_seconds
from logax._columns.export import free_name
from logax._errors import received, warn_user
from logax._extras import imported
from logax._files import as_path
from logax._resting.structure import focused, parts_of
from logax.storage._claims import is_written
from logax.storage._source import Source
from logax.storage.config import Storage, WriterGroupConfig
from logax.storage.group import StoredGroup

if TYPE_CHECKING:  # Python knows defaults since 3.13, type checkers before
    from typing_extensions import TypeVar as TypeVarWithDefault

    Config = TypeVarWithDefault("Config", default=Any)
else:
    Config = TypeVar("Config")

_STILL = 0.5  # seconds without a row, after which to ask whether somebody still writes


class HDF5StorageReader(Generic[Config]):
    """A trajectory that was written, or is being written, by `HDF5StorageWriter`.

        with HDF5StorageReader("run.h5") as reader:
            frames = reader.focus_group(lambda config: config["frames"])
            last = frames[-1]
            energy = frames[...]["energy"]

    Only what is asked for is read. What is read are NumPy arrays in dictionaries, lists, tuples and
    namespaces, as the view gave them, or in classes of your own, see `focus_group`. Opening a file
    runs nothing that is in it.

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
        """How many steps have run: one more than the last that the writer was told of."""
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
        self, group: Callable[[Config], WriterGroupConfig[Any, Storage]], *, like: Any = None
    ) -> StoredGroup[Storage]: ...

    @overload
    def focus_group(self, group: str, *, like: Any = None) -> StoredGroup[Any]: ...

    def focus_group(self, group: Any, *, like: Any = None) -> Any:
        """One group.

        Args:
          group: Its name, or a function that picks it from the configuration, by attribute, key or
            index: `lambda config: config.frames`. The classes of the configuration are not needed.
          like: A row, or anything with its structure, such as what the view gives for a state: rows
            come in its classes.

        Raises:
          LookupError: There is no such group.
        """
        layout = self._source.layout
        names = self.list_groups()
        if isinstance(group, str):
            if group not in names:
                raise LookupError(
                    f"`focus_group` got {group!r}, and {self._path} has no such group. It has "
                    f"{', '.join(map(repr, names))}."
                )
            number = names.index(group)
        elif callable(group):
            try:
                node, number, parts = focused(layout.config, group)
            except LookupError as error:
                raise LookupError(f"`focus_group` finds no group: {error.args[0]}.") from None
            if node[0] != "leaf":
                inside = ", ".join(repr("/".join((*parts, *own))) for own in parts_of(node))
                raise LookupError(
                    f"`focus_group` takes one group, and got {'/'.join(parts) or 'all'}. Pick one "
                    f"of {inside or 'none'}."
                )
        else:
            raise TypeError(
                "`focus_group` takes the name of a group, or a function such as "
                f"`lambda config: config.frames`, and got {received(group)}."
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

        Rows come in the order in which they were written. If the writer was killed, they end with a
        warning.

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
        return self._followed(own, poll, longest)

    def _followed(
        self, group: StoredGroup[Storage], poll: float, longest: float | None
    ) -> Iterator[Storage]:
        seen, number, since = 0, 0, time.monotonic()
        asks = since + _STILL
        while True:
            ends = self.complete
            if not ends and time.monotonic() > asks:
                ends = not is_written(self._path)
                asks = time.monotonic() + _STILL
            self.refresh()
            start, seen = seen, group.arrived
            for row in group.since(start):
                yield row
                since = time.monotonic()
                asks = since + _STILL
                number += 1
            if ends:
                break
            if longest is not None and time.monotonic() - since > longest:
                raise TimeoutError(
                    f"`follow` waited {longest:g} s for the next row of `{group.name}`."
                )
            time.sleep(poll)
        if not self.complete:
            warn_user(
                f"{self._path} is not complete, and nobody writes to it: its writer was killed. "
                f"{number} rows of `{group.name}` were there."
            )

    def to_xarray(self) -> Any:
        """All groups as an `xarray.DataTree`, one dataset each, see `StoredGroup.to_xarray`.

        Slashes, which trees keep for themselves, are dots in the names of arrays. A group that is
        to be written once and was not is left out.
        """
        xarray = imported("xarray", "reader.to_xarray()")
        groups = {}
        for number, name in enumerate(self.list_groups()):
            group = StoredGroup[Any](self._source, number)
            if group.is_once and not len(group):
                continue
            dataset = group.to_xarray()
            names: dict[Any, str] = {}
            for own in sorted({*dataset.variables, *dataset.sizes}, key=lambda own: "/" in own):
                names[own] = free_name(own.replace("/", "."), names.values())
            groups[f"/{name}"] = dataset.rename(names)
        return xarray.DataTree.from_dict(groups)

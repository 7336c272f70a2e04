"""`logax.load` and `Runs`: the runs of a folder."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, NoReturn

from logax._logdict.views import format_names
from logax._runs import tables
from logax._runs.database import is_runs_file_name
from logax._runs.errors import AllDamagedError, Damage, DamageWarning, RemovedError, RunsError
from logax._runs.file_reader import RunPart, RunsFileReader, StoredStream, warn_of_damage
from logax._runs.key_arrays import group_compatible, join_slices
from logax._runs.key_slices import Cell, KeySlice, read_key_slices
from logax._runs.run import (
    Run,
    began_of,
    cell_of,
    changed_records_error,
    name_of,
    parts_without_guests,
    status_of,
)
from logax._runs.search import find_one_run
from logax._runs.tables import concat_run_tables
from logax._support.files import validate_path
from logax._support.messages import warn_user


def load(path: str | os.PathLike[str]) -> Runs:
    """Load the runs that `SaveLogger` or `logax.save` has written.

        runs = logax.load("runs")
        run = runs.find("baseline")     # by name, id, or the beginning of an id; or "last"
        run["loss"]                     # one run: array of shape (records, ...)
        runs["loss"]                    # all runs: array of shape (runs, records, ...)
        runs.to_pandas("loss")

    `load` lists the runs; records are read when they are accessed. Runs can be loaded while this or
    other processes write to them. Call `runs.refresh()`, or `load` again, to find runs that begin
    later.

    A file in the folder that cannot be read is skipped with a `DamageWarning`. If `path` is that
    file, `load` raises.

    Args:
      path: Folder that was given to the logger, or one of the files in it.

    Returns:
      A mapping from ids to runs, in the order in which the runs began.

    Raises:
      FileNotFoundError: The folder or file does not exist.
      RunsError: The file is not a file of runs, or it is damaged.
    """
    place = validate_path("logax.load", "path", path)
    if not os.path.exists(place) and not os.path.islink(place):
        raise FileNotFoundError(
            f"`logax.load` got {place}, which does not exist. Pass the folder that was given to "
            "`SaveLogger` or `logax.save`."
        )
    return Runs(place)


class Runs(Mapping[str, Run]):
    """The runs of a folder: a mapping from ids to runs, in the order in which they began.

        runs = logax.load("runs")
        for run in runs.values():
            print(run.name, run.status, run.config)

    `runs["loss"]`, with a key instead of an id, is the array of that key for all runs: of shape
    (runs, records, ...), or (runs, lanes, records, ...) if the runs have lanes. Runs with fewer
    records than others, or without the key, are padded: floats with NaN, signed integers with the
    minimum of their type, unsigned ones with the maximum, booleans with False.

    `load` and `refresh` list the runs. Each access then reads records, status and times from the
    files of the runs concerned, as they are at that time, and raises `RunsError` if these files
    were removed or replaced.

    Attributes:
      path: Absolute path of the folder or file.
    """

    def __init__(
        self,
        path: str,
        *,
        follow: bool = True,
        report: Callable[[Damage], None] = warn_of_damage,
    ) -> None:
        """List the runs of the folder.

        Args:
          path: Folder, or file of runs.
          follow: Check the files of a run on each access, to notice that it has ended. If False,
            only `refresh` checks them.
          report: Function that is called once for each damage found in a file.
        """
        self._report = report
        self.path = os.path.abspath(path)
        self._shown_path, self._follow = path, follow
        self._readers: dict[str, RunsFileReader] = {}
        self._unreadable_files: dict[str, str] = {}
        self._parts: dict[str, list[RunPart]] = {}
        self.refresh()

    def refresh(self) -> None:
        """List the folder again, for new runs and for runs that continue in other files."""
        found: list[RunPart] = []
        for path in self._list_files():
            try:
                found += self._read_parts(
                    self._readers.setdefault(path, RunsFileReader(path, self._report))
                )
            except RemovedError:  # another file has taken its name
                self._readers[path] = RunsFileReader(path, self._report)
                found += self._read_parts(self._readers[path])
        self._parts = _group_by_run(found)

    def __getitem__(self, name: str) -> Any:
        parts = self._parts
        if name in parts:
            return Run(self, name)
        slices = self._read_slices(parts, name)
        if not slices:
            self._raise_missing(name, parts)
        groups = group_compatible(slices)
        if len(groups) > 1:
            problem = str(changed_records_error(name, groups)).partition(" Write ")[0]
            raise ValueError(
                f"{problem} If the runs differ, write `runs[id][{name!r}]` for each; if it changed "
                f"within a run, `runs[id].parts({name!r})`."
            )
        return join_slices(groups[0], {}, "all runs", len(parts)).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def values(self) -> ValuesView[Run]:
        """Return a view of all runs."""
        return {name: Run(self, name) for name in self}.values()

    def items(self) -> ItemsView[str, Run]:
        """Return a view of all ids and runs."""
        return {name: Run(self, name) for name in self}.items()

    def logged(self) -> list[str]:
        """Return the keys that any of the runs has logged."""
        return self._logged()[0]

    def _logged(self) -> tuple[list[str], bool]:
        """Return the keys of all runs, and whether damaged layouts may hide other keys."""
        found: dict[str, None] = {}
        may_have_more = False
        for path in dict.fromkeys(part.path for parts in self._parts.values() for part in parts):
            with self._readers[path].snapshot() as snapshot:
                found |= dict.fromkeys(key.name for each in snapshot.layouts() for key in each.keys)
                may_have_more |= snapshot.has_damaged_layouts
        return list(found), may_have_more

    def find(self, text: str) -> Run:
        """Return the run with this id or name, or the run whose id begins with this text.

        `"last"` means the newest run, unless a run has that name.

        Raises:
          ValueError: No run matches, or several do. The message lists them.
        """
        self.check_readable()
        return Run(self, find_one_run(text, self.names(), self._shown_path))

    def to_pandas(self, key: str | None = None) -> Any:
        """Return one key, or all keys, of all runs as a `pandas.DataFrame`.

        The tables of the runs are stacked. The columns are `run`, the id; `name`; the config, as
        `config/rate` and, if nested, `config/model/layers`; then the columns of `run.to_pandas()`.
        Only the numbers, booleans and strings of a config become columns. Where a run lacks a
        column, its values are missing, and integers stay integers. Runs without records have no
        rows. A column whose name is also the name of a logged key gets an underscore appended.

        Args:
          key: Key to read; None for all keys.

        Raises:
          KeyError: No run has logged the key.
        """
        runs = [run for run in self.values() if key is None or key in run]
        if key is not None and not runs:
            self._raise_missing(key, self._parts)
        frames: dict[Run, Any] = {}
        for run in runs:
            with contextlib.suppress(AllDamagedError):  # reported, and the other runs are read
                frames[run] = run.to_pandas(key)
        if runs and not frames:
            self._raise_missing(key, self._parts)
        return concat_run_tables(frames)

    def __repr__(self) -> str:
        runs = list(self.values())
        rows = [tables.run_cells(runs[at]) for at in tables.visible_rows(len(runs))]
        return tables.format_runs(self._shown_path, rows, len(runs))

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, Runs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)

    # Used by `Run`, the command line and the code that resumes runs.

    def check_readable(self) -> None:
        """Raise RunsError if the folder has files of runs, but none of their runs can be read."""
        damaged = self._unreadable_files or any(
            reader.is_damaged for reader in self._readers.values()
        )
        if damaged and not self._parts:
            raise RunsError(
                f"no run in {self._shown_path} can be read, because its files are damaged: "
                f"`logax verify {self._shown_path}` lists the damage."
            )

    def names(self) -> dict[str, str]:
        """Return the name of each run by its id."""
        return {identity: name_of(parts) for identity, parts in self._parts.items()}

    def statuses(self) -> dict[str, str]:
        """Return the status of each run by its id."""
        return {
            identity: status_of(parts_without_guests(parts)[-1], self)
            for identity, parts in self._current(self._parts).items()
        }

    def sequences(self) -> dict[str, int]:
        """Return the sequence number of the last part of each run by its id."""
        return {identity: parts[-1].sequence for identity, parts in self._parts.items()}

    def reader_of(self, part: RunPart) -> RunsFileReader:
        """Return the reader of the file that holds a part of a run."""
        return self._readers[part.path]

    def parts_of(self, identity: str) -> Sequence[RunPart]:
        """Return the parts of a run in order, as its files have them now."""
        return self._current({identity: self._parts.get(identity, [])})[identity]

    def _current(self, runs: Mapping[str, list[RunPart]]) -> dict[str, list[RunPart]]:
        """Return the parts of runs in order, as their files have them now."""
        found = dict(runs)
        if self._follow:
            paths = {part.path: None for parts in runs.values() for part in parts}
            there = {path for path in paths if self._has_runs(path)}
            for identity, parts in runs.items():
                own = [path for path in {part.path: None for part in parts} if path in there]
                now = [part for path in own for part in self._readers[path].parts_of(identity)]
                found[identity] = sorted(now, key=_part_order)
        for identity, parts in found.items():
            if not parts:
                raise RunsError(
                    f"The run {identity} is no longer in {self._shown_path}: its file was "
                    "removed or replaced. Call `runs.refresh()` to list the current runs."
                )
        return found

    def _has_runs(self, path: str) -> bool:
        try:
            return bool(self._read_parts(self._readers[path]))
        except RemovedError:
            return False

    def _list_files(self) -> list[str]:
        try:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                return [self.path]
            with os.scandir(self.path) as entries:
                return sorted(entry.path for entry in entries if is_runs_file_name(entry.name))
        except FileNotFoundError:
            if os.path.islink(self.path):
                return [self.path]
            raise RunsError(f"{self._shown_path} no longer exists: it was removed.") from None
        except OSError as error:
            raise RunsError(f"{self._shown_path} cannot be read: {error.strerror}.") from error

    def _read_parts(self, reader: RunsFileReader) -> list[RunPart]:
        try:
            return reader.parts()
        except RunsError as error:
            if reader.path == self.path or isinstance(error, RemovedError):
                raise
            if os.path.lexists(reader.path) and self._unreadable_files.get(reader.path) != str(
                error
            ):
                self._unreadable_files[reader.path] = str(error)
                warn_user(f"{error} The other runs are read without it.", DamageWarning)
            return []

    def _read_slices(self, runs: Mapping[str, Sequence[RunPart]], key: str) -> list[KeySlice]:
        """Return the slices of a key of all runs.

        Runs that are in one file each are read together, file by file.
        """
        number = {name: at for at, name in enumerate(runs)}
        together: dict[str, list[RunPart]] = {}
        apart: list[RunPart] = []
        for parts in runs.values():
            whole = len({part.path for part in parts}) == 1
            for part in parts:
                (together.setdefault(part.path, []) if whole else apart).append(part)
        found: list[KeySlice] = []
        for parts in (*together.values(), *([part] for part in apart)):
            which = {part.number: number[part.id] for part in parts}

            def cell(stream: StoredStream, which: dict[int, int] = which) -> Cell:
                return (which[stream.run], *cell_of(stream))

            with self.reader_of(parts[0]).snapshot() as snapshot:
                found += read_key_slices(
                    snapshot, snapshot.streams_of(which), cell, lambda name: name == key
                )
        return found

    def _raise_missing(self, name: Any, runs: Mapping[str, Any]) -> NoReturn:
        keys, may_have_more = self._logged()
        if name in keys:
            raise AllDamagedError(f"All records of {name!r} in {self._shown_path} are damaged.")
        if may_have_more:
            raise RunsError(
                f"{name!r} was not found in {self._shown_path}, but a layout that lists the keys "
                f"of some of its records is damaged. The other keys are {format_names(keys)}"
            )
        if keys:
            raise KeyError(
                f"{name!r} is neither the id of one of the {len(runs)} runs nor one of their keys, "
                f"which are {format_names(keys)}. `runs.find(text)` finds a run by its name or the "
                "beginning of its id, and `runs.refresh()` finds runs that began later"
            )
        raise KeyError(
            f"{name!r} is not a run, and none of the {len(runs)} runs has records. "
            "`logax.flush()` or `logger.close()` writes records that were logged just now, and "
            "`runs.refresh()` finds runs that began later"
        )


def _group_by_run(all_parts: Iterable[RunPart]) -> dict[str, list[RunPart]]:
    """Return the parts of each run by its id, with runs in the order in which they began."""
    found: dict[str, list[RunPart]] = {}
    for part in all_parts:
        found.setdefault(part.id, []).append(part)
    for parts in found.values():
        parts.sort(key=_part_order)
    began = {
        name: (began_of(parts), parts[0].opened, parts[0][:2]) for name, parts in found.items()
    }
    return {name: found[name] for name in sorted(found, key=lambda name: began[name])}


def _part_order(part: RunPart) -> tuple[int, bool, float, str, int]:
    """Return the sort key of a part among the parts of its run.

    Wall times decide only between processes that write at the same time, and in files of version 1.
    """
    return part.sequence, part.guest, part.opened, part.path, part.number

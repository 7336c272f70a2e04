"""All runs of a folder: `logax.load`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, NoReturn

from logax._logdict.views import listed
from logax._runs import tables
from logax._runs.columns import alike, joined
from logax._runs.database import is_candidate
from logax._runs.errors import AllDamagedError, Damage, DamageWarning, RemovedError, RunsError
from logax._runs.pieces import Cell, Piece, pieces_of
from logax._runs.run import Run, began_of, cell_of, changed, name_of, opened_parts, status_of
from logax._runs.search import one_run
from logax._runs.source import Member, Part, Source, warn_of_damage
from logax._runs.tables import table_of
from logax._support.files import as_path
from logax._support.messages import warn_user


def load(path: str | os.PathLike[str]) -> Runs:
    """The runs that `SaveLogger` or `logax.save` has written.

    They can be read while they are being written, by this process or by others. This lists the
    folder once: call `runs.refresh()`, or `load` again, for runs that begin later. A file in the
    folder that cannot be read is warned of, once, and the others are read; where it is the one that
    `path` names, that is an error.

    Args:
      path: The folder that was given to the logger, or one of the files in it.

    Returns:
      A mapping from the id of each run to the run, in the order in which they began.

    Raises:
      FileNotFoundError: There is no such folder or file.
      RunsError: The file holds no runs.
    """
    place = as_path("logax.load", "path", path)
    if not os.path.exists(place) and not os.path.islink(place):
        raise FileNotFoundError(
            f"`logax.load` got {place}, and there is nothing of that name. Give the folder that "
            "was given to `SaveLogger`, or to `logax.save`."
        )
    return Runs(place)


class Runs(Mapping[str, Run]):
    """A mapping from the id of each run to the run, in the order in which they began.

    `runs["loss"]`, with a key in place of an id, is the array of that key, with an axis for the
    runs before that of the records (and before lanes, where runs have them). Runs that have fewer
    records than others, or none, are padded: with NaN, integers with the least of their type
    (unsigned ones with the greatest), truth values with False.

    `load` and `refresh` list the runs and their files. Each access then reads records, status and
    times from the files of the run alone, and raises `RunsError` if they were removed or replaced.
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
          path: A folder, or a file of runs.
          follow: Look at the files of a run at each access, so that its end is seen. Without it,
            only `refresh` does.
          report: Called once for each damage that is found in a file.
        """
        self._report = report
        self.path = os.path.abspath(path)
        self._shown, self._follow = path, follow
        self._sources: dict[str, Source] = {}
        self._refused: dict[str, str] = {}
        self._parts: dict[str, list[Part]] = {}
        self.refresh()

    def refresh(self) -> None:
        """List the folder again, for new runs and for runs that continue in other files."""
        found: list[Part] = []
        for path in self._files():
            try:
                found += self._readable(self._sources.setdefault(path, Source(path, self._report)))
            except RemovedError:  # another file has its name now
                self._sources[path] = Source(path, self._report)
                found += self._readable(self._sources[path])
        self._parts = _by_run(found)

    def __getitem__(self, name: str) -> Any:
        parts = self._parts
        if name in parts:
            return Run(self, name)
        pieces = self._pieces(parts, name)
        if not pieces:
            self._missing(name, parts)
        groups = alike(pieces)
        if len(groups) > 1:
            problem = str(changed(name, groups)).partition(" Write ")[0]
            raise ValueError(
                f"{problem} If the runs differ, write `runs[id][{name!r}]` for each; if it changed "
                f"within a run, `runs[id].parts({name!r})`."
            )
        return joined(groups[0], {}, "all runs", len(parts)).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def values(self) -> ValuesView[Run]:
        """All runs."""
        return {name: Run(self, name) for name in self}.values()

    def items(self) -> ItemsView[str, Run]:
        """All runs with their ids."""
        return {name: Run(self, name) for name in self}.items()

    def logged(self) -> list[str]:
        """The keys of all runs together."""
        return self._logged()[0]

    def _logged(self) -> tuple[list[str], bool]:
        """Return the keys of all runs, and whether there may be more in damaged layouts."""
        found: dict[str, None] = {}
        may_have_more = False
        for path in dict.fromkeys(part.path for parts in self._parts.values() for part in parts):
            with self._sources[path].look() as look:
                found |= dict.fromkeys(key.name for each in look.layouts() for key in each.keys)
                may_have_more |= look.has_damaged_layouts
        return list(found), may_have_more

    def find(self, text: str) -> Run:
        """The run with this id or name, or whose id begins so.

        `"last"` is the newest of all, unless a run is called so.

        Raises:
          ValueError: There is none, or more than one. The message lists what there is.
        """
        self.check_readable()
        return Run(self, one_run(text, self.names(), self._shown))

    def to_pandas(self, key: str | None = None) -> Any:
        """A `pandas.DataFrame` of one key or of all, of all runs: one below the other.

        The columns are `run`, with the ids; `name`; `config/rate` for the `rate` of the config, and
        `config/model/layers` for what was nested; then those of `run.to_pandas()`. Of the config
        only numbers, truth values and texts are columns. Where a run lacks something it is missing,
        and integers stay integers. Runs without records have no rows. A column of which a key that
        was logged has the name gets an underscore behind it.

        Raises:
          KeyError: No run has logged the key.
        """
        runs = [run for run in self.values() if key is None or key in run]
        if key is not None and not runs:
            self._missing(key, self._parts)
        frames: dict[Run, Any] = {}
        for run in runs:
            with contextlib.suppress(AllDamagedError):  # reported, and the other runs are read
                frames[run] = run.to_pandas(key)
        if runs and not frames:
            self._missing(key, self._parts)
        return table_of(frames)

    def __repr__(self) -> str:
        runs = list(self.values())
        rows = [tables.row(runs[at]) for at in tables.shown(len(runs))]
        return tables.of_runs(self._shown, rows, len(runs))

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, Runs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)

    # For its runs, and for who resumes one.

    def check_readable(self) -> None:
        """Raise RunsError if there are files, but no run in them can be read."""
        damaged = self._refused or any(source.is_damaged for source in self._sources.values())
        if damaged and not self._parts:
            raise RunsError(
                f"no run in {self._shown} can be read, because its files are damaged: "
                f"`logax verify {self._shown}` lists the damage."
            )

    def names(self) -> dict[str, str]:
        """By id the name of each run."""
        return {identity: name_of(parts) for identity, parts in self._parts.items()}

    def statuses(self) -> dict[str, str]:
        """Return the status of each run by its id."""
        return {
            identity: status_of(opened_parts(parts)[-1], self)
            for identity, parts in self._current(self._parts).items()
        }

    def sequences(self) -> dict[str, int]:
        """Return the sequence number of the last part of each run by its id."""
        return {identity: parts[-1].sequence for identity, parts in self._parts.items()}

    def source(self, part: Part) -> Source:
        """The file of a part."""
        return self._sources[part.path]

    def parts_of(self, identity: str) -> Sequence[Part]:
        """Return the parts of a run in order, as its files have them now."""
        return self._current({identity: self._parts.get(identity, [])})[identity]

    def _current(self, runs: Mapping[str, list[Part]]) -> dict[str, list[Part]]:
        """Return the parts of runs in order, as their files have them now."""
        found = dict(runs)
        if self._follow:
            paths = {part.path: None for parts in runs.values() for part in parts}
            there = {path for path in paths if self._has_runs(path)}
            for identity, parts in runs.items():
                own = [path for path in {part.path: None for part in parts} if path in there]
                now = [part for path in own for part in self._sources[path].parts_of(identity)]
                found[identity] = sorted(now, key=_place)
        for identity, parts in found.items():
            if not parts:
                raise RunsError(
                    f"The run {identity} is no longer in {self._shown}: its file was removed or "
                    "replaced. `runs.refresh()` lists the runs that are there now."
                )
        return found

    def _has_runs(self, path: str) -> bool:
        try:
            return bool(self._readable(self._sources[path]))
        except RemovedError:
            return False

    def _files(self) -> list[str]:
        try:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                return [self.path]
            with os.scandir(self.path) as entries:
                return sorted(entry.path for entry in entries if is_candidate(entry.name))
        except FileNotFoundError:
            if os.path.islink(self.path):
                return [self.path]
            raise RunsError(f"{self._shown} is not there any more: it was removed.") from None
        except OSError as error:
            raise RunsError(f"{self._shown} cannot be read: {error.strerror}.") from error

    def _readable(self, source: Source) -> list[Part]:
        try:
            return source.parts()
        except RunsError as error:
            if source.path == self.path or isinstance(error, RemovedError):
                raise
            if os.path.lexists(source.path) and self._refused.get(source.path) != str(error):
                self._refused[source.path] = str(error)
                warn_user(f"{error} The other runs are read without it.", DamageWarning)
            return []

    def _pieces(self, runs: Mapping[str, Sequence[Part]], key: str) -> list[Piece]:
        """The records of a key, of all runs: of a run that is in one file with its neighbours."""
        number = {name: at for at, name in enumerate(runs)}
        together: dict[str, list[Part]] = {}
        apart: list[Part] = []
        for parts in runs.values():
            whole = len({part.path for part in parts}) == 1
            for part in parts:
                (together.setdefault(part.path, []) if whole else apart).append(part)
        found: list[Piece] = []
        for parts in (*together.values(), *([part] for part in apart)):
            which = {part.number: number[part.id] for part in parts}

            def cell(member: Member, which: dict[int, int] = which) -> Cell:
                return (which[member.run], *cell_of(member))

            with self.source(parts[0]).look() as look:
                found += pieces_of(look, look.members(which), cell, lambda name: name == key)
        return found

    def _missing(self, name: Any, runs: Mapping[str, Any]) -> NoReturn:
        keys, may_have_more = self._logged()
        if name in keys:
            raise AllDamagedError(f"All records of {name!r} in {self._shown} are damaged.")
        if may_have_more:
            raise RunsError(
                f"{name!r} was not found in {self._shown}, which may have it: a layout that says "
                f"which keys some of its records have is damaged. The other keys are {listed(keys)}"
            )
        if keys:
            raise KeyError(
                f"{name!r} is neither the id of one of {len(runs)} runs nor a key of theirs; the "
                f"keys are {listed(keys)}. `runs.find(text)` finds a run by the beginning of its "
                "id or by its name, and `runs.refresh()` looks for runs that began since"
            )
        raise KeyError(
            f"{name!r} is no run; there are {len(runs)}, and none has logged anything. What was "
            "logged just now is written with `logax.flush()` or `logger.close()`, and "
            "`runs.refresh()` looks for runs that began since"
        )


def _by_run(all_parts: Iterable[Part]) -> dict[str, list[Part]]:
    """Return by id the parts of each run in order, and the runs in the order they began."""
    found: dict[str, list[Part]] = {}
    for part in all_parts:
        found.setdefault(part.id, []).append(part)
    for parts in found.values():
        parts.sort(key=_place)
    began = {
        name: (began_of(parts), parts[0].opened, parts[0][:2]) for name, parts in found.items()
    }
    return {name: found[name] for name in sorted(found, key=lambda name: began[name])}


def _place(part: Part) -> tuple[int, bool, float, str, int]:
    """Sort key: place of a part among those of its run.

    Wall times decide only between processes that write at the same time, and in files of version 1.
    """
    return part.sequence, part.guest, part.opened, part.path, part.number

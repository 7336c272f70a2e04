"""What is read of a run, as a `logdict`, and what is said where that cannot be.

One run, as it stands in its files now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from logax._logdict.logdict import logdict
from logax._logdict.logdict import logdict as Logs
from logax._logdict.views import listed
from logax._runs import tables
from logax._runs.columns import Column, alike, joined
from logax._runs.errors import AllDamagedError, RunsError
from logax._runs.format import CRASHED, RUNNING
from logax._runs.layouts import Key
from logax._runs.pieces import Cell, Piece, pieces_of
from logax._runs.source import Member, Part
from logax._runs.tables import form
from logax._support.messages import warn_user

if TYPE_CHECKING:
    from logax._runs.runs import Runs


def cell_of(member: Member) -> Cell:
    """Where a stream stands among those of its run."""
    return member.lane if member.shard is None else (*member.lane, member.shard)


def as_logdict(columns: Mapping[str, Column]) -> logdict:
    """Columns with their steps, counts and sites."""
    steps: dict[str, dict[str, Any]] = {}
    count, rank = {}, {}
    for key, column in columns.items():
        for name, step in column.steps.items():
            steps.setdefault(name, {})[key] = step
        leaves = jax.tree.leaves(column.value)
        rank[key] = leaves[0].ndim - 1 - column.rank if leaves else 0
        if not (column.is_full and leaves):
            count[key] = column.counts
    return logdict(
        {key: column.value for key, column in columns.items()},
        steps=steps,
        count=count,
        site={key: column.site for key, column in columns.items()},
        rank=rank,
    )


def changed(key: str, groups: Sequence[Sequence[Piece]]) -> ValueError:
    """The error for a key whose records are not alike."""
    forms = [form(group[0].key, len(group[0].cells[0])) for group in groups]
    shown = ", then ".join(forms[:4]) + (", and so on" if len(forms) > 4 else "")
    return ValueError(
        f"The records of {key!r} cannot be one array, because they changed midway: {shown}. Write "
        f"`run.parts({key!r})` for a list of those that belong together."
    )


class Steps(Mapping[str, Mapping[str, Any]]):
    """The steps of a run by name; those of a key are read when they are asked for."""

    def __init__(self, run: Run, names: Mapping[str, Sequence[str]]) -> None:
        self._run, self._names = run, names

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._names:
            raise KeyError(
                f"{name!r} is no step of run {self._run.id}; there is {listed(self._names)}"
            )
        return _Step(self._run, name, self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        own = f"the steps {listed(self._names)}" if self._names else "no steps"
        return f"<{own} of run {self._run.id}>"


class _Step(Mapping[str, Any]):
    """One step by key."""

    def __init__(self, run: Run, name: str, keys: Sequence[str]) -> None:
        self._run, self._name, self._keys = run, name, keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(f"{key!r} has no step {self._name!r}; {listed(self._keys)} have it")
        return self._run.logdict(key).steps[self._name][key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<the step {self._name!r} of {listed(self._keys)} of run {self._run.id}>"


class Run(Mapping[str, Any]):
    """One run: a mapping from keys to all of their records.

    `run["loss"]` is an array with the records along its first axis; of a run with lanes the lanes
    come first, and lanes with fewer records than others are padded with NaN (integers with the
    least, unsigned ones with the greatest, and truth values with False). A pytree comes back as
    dictionaries, lists and tuples of such arrays; histograms and images as `HistogramBins` and
    `ImagePixels`. Reading one key reads nothing of the others.

    Nothing is kept in memory: each access reads what the files of the run hold at that time. For
    values of one moment, take `run.logs` once. A run that is resumed, or that a forked process
    writes too, continues in another file, which `runs.refresh()` finds.
    """

    def __init__(self, runs: Runs, identity: str) -> None:
        self._runs, self.id = runs, identity

    # What is known of it.

    @property
    def name(self) -> str:
        """What it was called, or the id."""
        return name_of(self._parts)

    @property
    def config(self) -> dict[str, Any]:
        """The config given when the run began and when it was resumed; later values win."""
        found: dict[str, Any] = {}
        for part in self._parts:
            with self._runs.source(part).look() as look:
                found |= look.text(part.config)
        return found

    @property
    def machine(self) -> dict[str, Any]:
        """Host, process and versions, of where it was last."""
        part = self._parts[-1]
        with self._runs.source(part).look() as look:
            return look.text(part.machine)

    @property
    def began(self) -> float:
        """Wall time of its beginning, in seconds since the epoch; to resume it changes nothing."""
        return began_of(self._parts)

    @property
    def ended(self) -> float | None:
        """Wall time of its end; None if it has not ended, or its process was killed.

        It is that of its beginning where the clock was set back so far that it would be earlier.
        """
        ended = self._opened[-1].ended
        return None if ended is None else max(ended, self.began)

    @property
    def updated(self) -> float | None:
        """When its last records were written; None if there are none."""
        found = []
        for part in self._parts:
            with self._runs.source(part).look() as look:
                found.append(look.last_written(look.members([part.number])))
        return max((time for time in found if time is not None), default=None)

    @property
    def status(self) -> str:
        """What has become of it: "running", "finished", or "crashed".

        The last also where its process is gone without having ended it.
        """
        return status_of(self._opened[-1], self._runs)

    @property
    def group(self) -> str | None:
        """What it has in common with other runs, if they were to be grouped."""
        groups = [part.content["group"] for part in self._parts]
        return next((group for group in reversed(groups) if group is not None), None)

    @property
    def lane(self) -> tuple[int, ...]:
        """Which lane of the `vmap` around `init` it was; () elsewhere."""
        return tuple(self._parts[-1].content["lane"])

    @property
    def lanes(self) -> int | None:
        """How many lanes are taken together in it, if it is an aggregate; else None."""
        lanes: int | None = self._parts[-1].content["lanes"]
        return lanes

    @property
    def resumed(self) -> int:
        """How often it was resumed."""
        return sum(part.content["resumed"] for part in self._opened)

    @property
    def _parts(self) -> Sequence[Part]:
        return self._runs.parts_of(self.id)

    @property
    def _opened(self) -> Sequence[Part]:
        return opened_parts(self._parts)

    # Its records.

    def __getitem__(self, key: str) -> Any:
        return self._column(key).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts())

    def __len__(self) -> int:
        return len(self._layouts())

    def __contains__(self, key: object) -> bool:
        return key in self._layouts()

    def _layouts(self) -> dict[str, tuple[Key, dict[str, None]]]:
        """By key what its records look like first, and all of its steps."""
        found: dict[str, tuple[Key, dict[str, None]]] = {}
        for part in self._parts:
            with self._runs.source(part).look() as look:
                for layout in look.layouts_of(look.members([part.number])):
                    for key in layout.keys:
                        _, steps = found.setdefault(key.name, (key, {}))
                        steps |= dict.fromkeys(name for name, _ in layout.steps)
        return found

    @property
    def logs(self) -> Logs:
        """All records with their steps, counts and sites.

        A key whose records cannot be one array is left out, with a warning: see `parts`.
        """
        return self.logdict()

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """By step name and then by key, the step of each record: `run.steps["step"]["loss"]`."""
        names: dict[str, list[str]] = {}
        for key, (_, steps) in self._layouts().items():
            for name in steps:
                names.setdefault(name, []).append(key)
        return Steps(self, names)

    def logdict(self, *keys: str) -> Logs:
        """The records of some keys, or of all, with their steps, counts and sites."""
        found = self._pieces((lambda key: key in keys) if keys else (lambda key: True))
        share: dict[Any, Any] = {}
        columns = {}
        for key in keys or found:
            groups = alike(found[key]) if key in found else self._missing(key)
            if len(groups) == 1:
                columns[key] = self._joined(groups[0], share)
            elif keys:
                raise changed(key, groups)
            else:
                warn_user(f"{changed(key, groups)} `run.logs` leaves it out.")
        return as_logdict(columns)

    def parts(self, key: str) -> list[Logs]:
        """The records of a key whose shape or structure has changed, as one logdict for each."""
        return [as_logdict({key: self._joined(group, {})}) for group in self._groups(key)]

    def to_pandas(self, key: str | None = None) -> Any:
        """A `pandas.DataFrame` of one key or of all: see `logdict.to_pandas`."""
        return self.logdict(*(() if key is None else (key,))).to_pandas()

    def to_xarray(self, key: str | None = None) -> Any:
        """An `xarray.Dataset` of one key or of all: see `logdict.to_xarray`."""
        return self.logdict(*(() if key is None else (key,))).to_xarray()

    def _column(self, key: str) -> Column:
        groups = self._groups(key)
        if len(groups) > 1:
            raise changed(key, groups)
        return self._joined(groups[0], {})

    def _joined(self, pieces: Sequence[Piece], share: dict[Any, Any]) -> Column:
        return joined(pieces, share, f"run {self.id}")

    def _groups(self, key: str) -> list[list[Piece]]:
        """The records of a key, those together that can be one array."""
        found = self._pieces(lambda name: name == key)
        return alike(found[key]) if found else self._missing(key)

    def _pieces(self, wanted: Callable[[str], bool]) -> dict[str, list[Piece]]:
        """By key its records, in the order in which they came."""
        found: dict[str, list[Piece]] = {}
        for part in self._parts:
            with self._runs.source(part).look() as look:
                for piece in pieces_of(look, look.members([part.number]), cell_of, wanted):
                    found.setdefault(piece.key.name, []).append(piece)
        return found

    def _missing(self, key: Any) -> NoReturn:
        keys = list(self._layouts())
        if key in keys:
            raise AllDamagedError(f"All records of {key!r} of run {self.id} are damaged.")
        for own in keys:
            if isinstance(key, str) and key.startswith(f"{own}/"):
                raise KeyError(
                    f"{key!r} is a leaf: write `run[{own!r}]` or `run.logs.leaves()[{key!r}]`"
                )
        if self._has_damaged_layouts():
            raise RunsError(
                f"{key!r} was not found in run {self.id}, which may have it: a layout that says "
                f"which keys some of its records have is damaged. The other keys are {listed(keys)}"
            )
        raise KeyError(f"{key!r} was not logged in run {self.id}; there is {listed(keys)}")

    def _has_damaged_layouts(self) -> bool:
        for part in self._parts:
            with self._runs.source(part).look() as look:
                look.layouts_of(look.members([part.number]))
                if look.has_damaged_layouts:
                    return True
        return False

    # As an object.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return self.id == other.id and self._runs.path == other._runs.path

    def __hash__(self) -> int:
        return hash((self.id, self._runs.path))

    def __repr__(self) -> str:
        return tables.of_run(self, [key for key, _ in self._layouts().values()])


def opened_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the parts of a run, without those of forked processes that only wrote to it."""
    return [part for part in parts if not part.guest] or parts


def began_of(parts: Sequence[Part]) -> float:
    """Return when the first part of a run began."""
    return float(parts[0].content["began"])


def name_of(parts: Sequence[Part]) -> str:
    """What a run was called last; to be resumed without a name changes nothing."""
    identity = parts[0].id
    names = [part.content["name"] for part in parts if part.content["name"] != identity]
    return str(names[-1]) if names else identity


def status_of(part: Part, runs: Runs) -> str:
    """What has become of a run."""
    return part.status or (RUNNING if runs.source(part).alive else CRASHED)

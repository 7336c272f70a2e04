"""`Run`: one run of a folder, read from its files on each access.

`summarize_batches` gives the statistics and the origin of its records without their values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from logax._logdict.logdict import logdict
from logax._logdict.logdict import logdict as Logs
from logax._logdict.views import format_names
from logax._runs import tables
from logax._runs.batch_statistics import (
    ScalarStatistics,
    StepRange,
    statistics_from,
)
from logax._runs.errors import AllDamagedError, RunsError
from logax._runs.file_reader import RunPart, StoredStream
from logax._runs.format import CRASHED, RUNNING
from logax._runs.key_arrays import KeyArrays, group_compatible, join_slices
from logax._runs.key_slices import Cell, KeySlice, read_key_slices
from logax._runs.layouts import KeyLayout, LogLayout, number_of_arrays
from logax._runs.tables import describe_key
from logax._serialization.trees import leaf_paths
from logax._support.messages import warn_user

if TYPE_CHECKING:
    from logax._runs.file_reader import BatchRow, RunsSnapshot
    from logax._runs.runs import Runs


def cell_of(stream: StoredStream) -> Cell:
    """Return the index of a stream among the streams of its run: its lane, then its shard."""
    return stream.lane if stream.shard is None else (*stream.lane, stream.shard)


def build_logdict(columns: Mapping[str, KeyArrays]) -> logdict:
    """Return a logdict of some keys, with their steps, counts and sites."""
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


def changed_records_error(key: str, groups: Sequence[Sequence[KeySlice]]) -> ValueError:
    """Return the error for a key whose records do not fit into one array."""
    forms = [describe_key(group[0].key, len(group[0].cells[0])) for group in groups]
    shown = ", then ".join(forms[:4]) + (", and so on" if len(forms) > 4 else "")
    return ValueError(
        f"The records of {key!r} cannot be one array, because they changed midway: "
        f"{shown}. Write `run.parts({key!r})` for a list of logdicts, one for each form."
    )


class RunSteps(Mapping[str, Mapping[str, Any]]):
    """Steps of a run by name and key; each access reads one of them."""

    def __init__(self, run: Run, names: Mapping[str, Sequence[str]]) -> None:
        self._run, self._names = run, names

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._names:
            names = format_names(self._names)
            raise KeyError(f"{name!r} is not a step of run {self._run.id}, which has {names}")
        return _StepByKey(self._run, name, self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        own = f"the steps {format_names(self._names)}" if self._names else "no steps"
        return f"<{own} of run {self._run.id}>"


class _StepByKey(Mapping[str, Any]):
    """One step of a run, by key."""

    def __init__(self, run: Run, name: str, keys: Sequence[str]) -> None:
        self._run, self._name, self._keys = run, name, keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            keys = format_names(self._keys)
            raise KeyError(f"{key!r} has no step {self._name!r}; the keys that have it: {keys}")
        return self._run.logdict(key).steps[self._name][key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<the step {self._name!r} of {format_names(self._keys)} of run {self._run.id}>"


class Run(Mapping[str, Any]):
    """One run on disk: a mapping from keys to arrays of their records.

        run = logax.load("runs").find("baseline")
        run["loss"]                     # array of shape (records, ...)
        run.steps["step"]["loss"]       # step of each of these records
        run.config, run.status, run.began

    `run["loss"]` has the records along its first axis. In a run with lanes the lanes come first,
    and lanes with fewer records than others are padded: floats with NaN, signed integers with the
    minimum of their type, unsigned ones with the maximum, booleans with False. `run.logs` has the
    number of records of each lane. A pytree comes back as dictionaries, lists and tuples of such
    arrays, a histogram as `HistogramBins`, an image as `ImagePixels`. Reading one key does not read
    the others.

    A `Run` caches no records: each access reads the files of the run as they are at that time. For
    a consistent set of values while the run is being written, read `run.logs` once. A run that is
    resumed, or that a forked process also writes to, continues in another file, which
    `runs.refresh()` finds.

    Obtain runs from `logax.load`.

    Attributes:
      id: Id of the run, which no other run has.
    """

    def __init__(self, runs: Runs, identity: str) -> None:
        self._runs, self.id = runs, identity

    # Properties.

    @property
    def name(self) -> str:
        """Name of the run; its id if it was given none."""
        return name_of(self._parts)

    @property
    def config(self) -> dict[str, Any]:
        """Config of the run. If it was given again when the run was resumed, later values win."""
        found: dict[str, Any] = {}
        for part in self._parts:
            with self._runs.reader_of(part).snapshot() as snapshot:
                found |= snapshot.text(part.config)
        return found

    @property
    def machine(self) -> dict[str, Any]:
        """Host, process, versions and device of the process that wrote to the run last."""
        part = self._parts[-1]
        with self._runs.reader_of(part).snapshot() as snapshot:
            return snapshot.text(part.machine)

    @property
    def began(self) -> float:
        """Wall time at which the run began, in seconds since the epoch; resuming keeps it."""
        return began_of(self._parts)

    @property
    def ended(self) -> float | None:
        """Wall time at which the run ended; None if it is running or its process was killed.

        It is never before `began`, even if the clock was set back in between.
        """
        ended = self._own_parts[-1].ended
        return None if ended is None else max(ended, self.began)

    @property
    def updated(self) -> float | None:
        """Wall time at which the newest records arrived; None if the run has no records."""
        found = []
        for part in self._parts:
            with self._runs.reader_of(part).snapshot() as snapshot:
                found.append(snapshot.last_written(snapshot.streams_of([part.number])))
        return max((time for time in found if time is not None), default=None)

    @property
    def status(self) -> str:
        """Status of the run: "running", "finished" or "crashed".

        A run whose process is gone without having ended it counts as crashed.
        """
        return status_of(self._own_parts[-1], self._runs)

    @property
    def group(self) -> str | None:
        """Name of the group that the run belongs to; None if it belongs to no group."""
        groups = [part.content["group"] for part in self._parts]
        return next((group for group in reversed(groups) if group is not None), None)

    @property
    def lane(self) -> tuple[int, ...]:
        """Lane of the `vmap` around `init` in which the run began; () without `vmap`."""
        return tuple(self._parts[-1].content["lane"])

    @property
    def lanes(self) -> int | None:
        """Number of lanes that the run aggregates; None if it does not aggregate lanes."""
        lanes: int | None = self._parts[-1].content["lanes"]
        return lanes

    @property
    def resumed(self) -> int:
        """Number of times that the run was resumed."""
        return sum(part.content["resumed"] for part in self._own_parts)

    @property
    def _parts(self) -> Sequence[RunPart]:
        return self._runs.parts_of(self.id)

    @property
    def _own_parts(self) -> Sequence[RunPart]:
        return parts_without_guests(self._parts)

    # Records.

    def __getitem__(self, key: str) -> Any:
        return self._column(key).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts())

    def __len__(self) -> int:
        return len(self._layouts())

    def __contains__(self, key: object) -> bool:
        return key in self._layouts()

    def _layouts(self) -> dict[str, tuple[KeyLayout, dict[str, None]]]:
        """Return by key the layout of its first records, and the names of all of its steps."""
        found: dict[str, tuple[KeyLayout, dict[str, None]]] = {}
        for part in self._parts:
            with self._runs.reader_of(part).snapshot() as snapshot:
                for layout in snapshot.layouts_of(snapshot.streams_of([part.number])):
                    for key in layout.keys:
                        _, steps = found.setdefault(key.name, (key, {}))
                        steps |= dict.fromkeys(name for name, _ in layout.steps)
        return found

    @property
    def logs(self) -> Logs:
        """All records as a logdict, with their steps, counts and sites.

        Keys whose records do not fit into one array are left out with a warning; `parts` reads
        them.
        """
        return self.logdict()

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """Step of each record, by step name and key: `run.steps["step"]["loss"]`."""
        names: dict[str, list[str]] = {}
        for key, (_, steps) in self._layouts().items():
            for name in steps:
                names.setdefault(name, []).append(key)
        return RunSteps(self, names)

    def logdict(self, *keys: str) -> Logs:
        """Return the records of some keys, or of all, as a logdict with steps, counts and sites.

        Raises:
          KeyError: A key was not logged.
          ValueError: The records of a key do not fit into one array; `parts` reads them.
        """
        found = self._read_slices((lambda key: key in keys) if keys else (lambda key: True))
        share: dict[Any, Any] = {}
        columns = {}
        for key in keys or found:
            groups = group_compatible(found[key]) if key in found else self._raise_missing(key)
            if len(groups) == 1:
                columns[key] = self._join(groups[0], share)
            elif keys:
                raise changed_records_error(key, groups)
            else:
                warn_user(f"{changed_records_error(key, groups)} `run.logs` leaves it out.")
        return build_logdict(columns)

    def parts(self, key: str) -> list[Logs]:
        """Return the records of a key whose shape or structure changed, one logdict for each form.

        Raises:
          KeyError: The key was not logged.
        """
        return [build_logdict({key: self._join(group, {})}) for group in self._groups(key)]

    def to_pandas(self, key: str | None = None) -> Any:
        """Return one key, or all keys, as a `pandas.DataFrame`; see `logdict.to_pandas`."""
        return self.logdict(*(() if key is None else (key,))).to_pandas()

    def to_xarray(self, key: str | None = None) -> Any:
        """Return one key, or all keys, as an `xarray.Dataset`; see `logdict.to_xarray`."""
        return self.logdict(*(() if key is None else (key,))).to_xarray()

    def _column(self, key: str) -> KeyArrays:
        groups = self._groups(key)
        if len(groups) > 1:
            raise changed_records_error(key, groups)
        return self._join(groups[0], {})

    def _join(self, slices: Sequence[KeySlice], share: dict[Any, Any]) -> KeyArrays:
        return join_slices(slices, share, f"run {self.id}")

    def _groups(self, key: str) -> list[list[KeySlice]]:
        """Return the slices of a key, grouped by whether they fit into one array."""
        found = self._read_slices(lambda name: name == key)
        return group_compatible(found[key]) if found else self._raise_missing(key)

    def _read_slices(self, is_selected: Callable[[str], bool]) -> dict[str, list[KeySlice]]:
        """Return by key the slices of its records, in the order in which they were written."""
        found: dict[str, list[KeySlice]] = {}
        for part in self._parts:
            with self._runs.reader_of(part).snapshot() as snapshot:
                for key_slice in read_key_slices(
                    snapshot, snapshot.streams_of([part.number]), cell_of, is_selected
                ):
                    found.setdefault(key_slice.key.name, []).append(key_slice)
        return found

    def _raise_missing(self, key: Any) -> NoReturn:
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
                f"{key!r} was not found in run {self.id}, but a layout that lists the keys of some "
                f"of its records is damaged. The other keys are {format_names(keys)}"
            )
        raise KeyError(f"{key!r} was not logged in run {self.id}, which has {format_names(keys)}")

    def _has_damaged_layouts(self) -> bool:
        for part in self._parts:
            with self._runs.reader_of(part).snapshot() as snapshot:
                snapshot.layouts_of(snapshot.streams_of([part.number]))
                if snapshot.has_damaged_layouts:
                    return True
        return False

    # Identity.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return self.id == other.id and self._runs.path == other._runs.path

    def __hash__(self) -> int:
        return hash((self.id, self._runs.path))

    def __repr__(self) -> str:
        return tables.format_run(self, [key for key, _ in self._layouts().values()])


def parts_without_guests(parts: Sequence[RunPart]) -> Sequence[RunPart]:
    """Return the parts that opened the run; forked processes that only wrote to it are guests."""
    return [part for part in parts if not part.guest] or parts


def began_of(parts: Sequence[RunPart]) -> float:
    """Return the wall time at which a run began."""
    return float(parts[0].content["began"])


def name_of(parts: Sequence[RunPart]) -> str:
    """Return the last name that a run was given; resuming it without a name keeps the name."""
    identity = parts[0].id
    names = [part.content["name"] for part in parts if part.content["name"] != identity]
    return str(names[-1]) if names else identity


def status_of(part: RunPart, runs: Runs) -> str:
    """Return the status of a run from the last part that opened it."""
    return part.status or (RUNNING if runs.reader_of(part).is_being_written else CRASHED)


@dataclasses.dataclass(frozen=True)
class BatchSummary:
    """Summary of a batch of records of one `log` call, of all streams that log side by side.

    Attributes:
      arrived: Wall time of arrival, in seconds since the epoch.
      process: Index of the process that wrote the batch, `jax.process_index()`.
      shards: Shards of the run in the batch; None stands for records without a shard.
      site: File and line of the `log` call.
      keys: Keys of its records.
      records: Maximum number of records of a stream.
      steps: First and last step by name. Files of version 1 have none.
      scalars: Statistics by leaf, `key` or `key/path/to/leaf`. Files of version 1 have none.
    """

    arrived: float
    process: int
    shards: tuple[int | None, ...]
    site: str
    keys: tuple[str, ...]
    records: int
    steps: dict[str, StepRange]
    scalars: dict[str, ScalarStatistics]


def summarize_batches(run: Run) -> Iterator[BatchSummary]:
    """Yield a summary of each batch of a run, in order; report batches with a damaged layout."""
    for part in run._parts:
        with run._runs.reader_of(part).snapshot() as snapshot:
            families = snapshot.streams_of([part.number])
            for row in snapshot.batches(families):
                layout = snapshot.intact_layout(row.layout)
                if layout is None:
                    continue
                shards = tuple(dict.fromkeys(stream.shard for stream in families[row.family]))
                yield _batch(snapshot, row, layout, shards)


def _batch(
    snapshot: RunsSnapshot, row: BatchRow, layout: LogLayout, shards: tuple[int | None, ...]
) -> BatchSummary:
    steps: dict[str, StepRange] = {}
    scalars: dict[str, ScalarStatistics] = {}
    if snapshot.has_checksums:
        names = [name for name, _ in layout.steps]
        steps, scalars = statistics_from(row.statistics, names, _leaf_names(layout))
    return BatchSummary(
        row.arrived,
        row.process,
        shards,
        layout.site,
        tuple(layout.keys_by_name),
        row.records,
        steps,
        scalars,
    )


def _leaf_names(layout: LogLayout) -> list[str]:
    """Return the name of each array; all arrays of a histogram have the name of their leaf."""
    found = []
    for key in layout.keys:
        for parts, media_kind in zip(leaf_paths(key.outline), key.media_kinds, strict=True):
            found += ["/".join((key.name, *parts))] * number_of_arrays(media_kind)
    return found

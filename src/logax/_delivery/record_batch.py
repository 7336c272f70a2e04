"""Columnar record batches, as sinks receive them, and the runs and streams they belong to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._logdict.logdict import leaf_name
from logax._support.validation import warn_of_misspelling


@dataclasses.dataclass(frozen=True, eq=False)
class RunInfo:
    """Identity and metadata of one run, as sinks get it.

    There is one object for each run; it is hashable and equal only to itself.

    Attributes:
      id: Unique id: letters, digits and `-`, so that it can name a file.
      name: Name from the user, or the id.
      config: Config from the user: strings, numbers, NumPy arrays, lists and dictionaries.
      began: Start time, in seconds since the epoch.
      machine: Host, process, device, and versions of Python, JAX and logax.
      group: Name that all runs of one `init` share, with `lanes="group"`; otherwise None.
      lane: Indices of the lane of the `vmap` around `init`; () elsewhere.
      lanes: Number of lanes that this run aggregates, with `lanes="aggregate"`; otherwise None.
      resumed: True if this run continues an earlier one with the same id.
    """

    id: str
    name: str
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    began: float = 0.0
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    group: str | None = None
    lane: tuple[int, ...] = ()
    lanes: int | None = None
    resumed: bool = False

    @property
    def given_name(self) -> str | None:
        """Name to write: None for a resumed run without a new name, which keeps its old one."""
        return None if self.resumed and self.name == self.id else self.name


class KnownRuns(NamedTuple):
    """The runs of a destination that can be resumed.

    Attributes:
      where: Place that holds the runs, for messages: a path, or "the project 'seeds'".
      names: Name of each run by id, oldest first; the id of a run without a name. None if the
        destination cannot list its runs, and so accepts any id.
      running: Ids of runs that a process is known to write still.
    """

    where: str
    names: Mapping[str, str] | None
    running: Collection[str] = ()


class Stream(NamedTuple):
    """One sequence of records of a run: usually all of them, or those of one lane or shard.

    Attributes:
      run: The run.
      lane: Indices of the lane within the run; () if the run has no lanes.
      shard: Index of the shard under `shard_map`; None elsewhere.
    """

    run: RunInfo
    lane: tuple[int, ...] = ()
    shard: int | None = None


class RunRecord(NamedTuple):
    """One record of a stream. Its values and steps are NumPy arrays without a record axis.

    Attributes:
      stream: Stream that the record belongs to.
      values: Value of each key: an array, or a pytree of arrays.
      steps: Step counters, by name.
    """

    stream: Stream
    values: dict[str, Any]
    steps: dict[str, Any]


def flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return each array with its flat name: the key, or `key/path/to/leaf`."""
    return [
        (leaf_name(key, path), leaf)
        for key, value in values.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordBatch:
    """Records of one `log` call in columns: every array has the shape (streams, records, ...).

    A sink that prefers single records iterates over `batch.records()`.

    Attributes:
      streams: Stream of each index along the first axis.
      values: Value of each key, a pytree of arrays. Typed PRNG keys are JAX arrays, all others are
        NumPy arrays. A histogram is a `logax.HistogramBins`, an image a `logax.ImagePixels`.
      steps: Step counters of the records, by name.
      order: Position of each record among all records of the logger, integers of shape (streams,
        records). It grows along the records of a stream, and orders records of different batches.
        For each key, batches come in order.
      real: Mask of the records that exist, of shape (streams, records); None if all do.
      site: File and line of the `log` call. Several calls that log the same keys share a batch.
      tags: Tags of the `log` call.
    """

    streams: tuple[Stream, ...]
    values: Mapping[str, Any]
    steps: Mapping[str, Any]
    order: Any
    real: Any = None
    site: str = ""
    tags: tuple[str, ...] = ()

    @staticmethod
    def of(
        runs: Sequence[RunInfo], values: Mapping[str, Any], *, real: Any = None, **steps: Any
    ) -> RecordBatch:
        """Return a batch with one stream per run, from arrays of shape (runs, records, ...).

        For tests of sinks.

        Args:
          runs: The runs.
          values: Value of each key.
          real: Mask of the records that exist; None if all do.
          **steps: Step counters of the records, by name.
        """
        warn_of_misspelling("`RecordBatch.of`, among its steps,", steps, ("real",))
        arrays = [*jax.tree.leaves(dict(values)), *steps.values()]
        shape = np.shape(arrays[0])[:2] if arrays else (len(runs), 0)
        order = np.broadcast_to(np.arange(shape[1]), shape)
        return RecordBatch(tuple(Stream(run) for run in runs), values, steps, order, real)

    @functools.cached_property
    def number(self) -> int:
        """Number of records of all streams together."""
        return int(np.size(self.order) if self.real is None else np.count_nonzero(self.real))

    @functools.cached_property
    def leaves(self) -> dict[str, Any]:
        """All arrays of `values` by flat name: the key, or `key/path/to/leaf`."""
        return dict(flat(self.values))

    def only(self, numbers: Sequence[int]) -> RecordBatch:
        """Return the batch with only the streams at these indices."""
        if list(numbers) == list(range(len(self.streams))):
            return self
        index = np.asarray(numbers, np.int64)
        return dataclasses.replace(
            self,
            streams=tuple(self.streams[number] for number in numbers),
            values={k: jax.tree.map(lambda x: x[index], v) for k, v in self.values.items()},
            steps={name: step[index] for name, step in self.steps.items()},
            order=self.order[index],
            real=None if self.real is None else self.real[index],
        )

    def of_stream(self, number: int) -> RecordBatch:
        """Return the real records of one stream, as a batch without a mask."""
        where = slice(None) if self.real is None else np.flatnonzero(self.real[number])

        def own(x: Any) -> Any:
            return x[number][where][None]

        return dataclasses.replace(
            self,
            streams=(self.streams[number],),
            values={key: jax.tree.map(own, value) for key, value in self.values.items()},
            steps={name: own(step) for name, step in self.steps.items()},
            order=own(self.order),
            real=None,
        )

    def records(self) -> Iterator[RunRecord]:
        """Yield single records: one stream after the other, each in its order."""
        for number in range(len(self.streams)):
            own = self.of_stream(number)
            for row in range(own.order.shape[1]):

                def at(x: Any, row: int = row) -> Any:
                    return x[0, row]

                yield RunRecord(
                    self.streams[number],
                    {key: jax.tree.map(at, value) for key, value in own.values.items()},
                    {name: at(step) for name, step in own.steps.items()},
                )

"""Records on the host, by column: the batches that sinks receive, and the runs they belong to."""

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
    """One run, as a sink knows it. Each is one object, and equal to itself only.

    Attributes:
      id: Of no other run, here or elsewhere: letters, digits and `-`, so a name for a file too.
      name: What the user called it, or the id.
      config: The config that was given: strings, numbers, NumPy arrays, lists and dictionaries.
      began: When, in seconds since the epoch.
      machine: Host, process, versions.
      group: What the runs of one `init` have in common, if they are to be grouped; else None.
      lane: Which lane of the `vmap` around `init` it was; () elsewhere.
      lanes: How many lanes are taken together in this run, if it is an aggregate; else None.
      resumed: Whether a run of this id was written before, and goes on.
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
        """The name; None for a resumed run that was given no name and so keeps its own."""
        return None if self.resumed and self.name == self.id else self.name


class KnownRuns(NamedTuple):
    """The runs of a destination that can be resumed.

    Attributes:
      where: The place that holds them, for errors: a path, or "the project 'seeds'".
      names: The name of each run by its id, the oldest first; the id of one that has no name. None
        if the destination cannot list its runs: then it takes any id.
      running: Ids of runs that some process is known to be still writing.
    """

    where: str
    names: Mapping[str, str] | None
    running: Collection[str] = ()


class Stream(NamedTuple):
    """What one lane or shard of a run says.

    Attributes:
      run: The run.
      lane: The indices of the lane within the run; () where the run has no lanes.
      shard: The index of the shard, or None.
    """

    run: RunInfo
    lane: tuple[int, ...] = ()
    shard: int | None = None


class RunRecord(NamedTuple):
    """One record of one stream: its values and steps are NumPy arrays without record axis."""

    stream: Stream
    values: dict[str, Any]
    steps: dict[str, Any]


def flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every array with its flat name: the key, or `key/path/to/leaf`."""
    return [
        (leaf_name(key, path), leaf)
        for key, value in values.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(value)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordBatch:
    """Records of one `log` call, by column: every array has the shape (streams, records, ...).

    Attributes:
      streams: Whose records these are, along the first axis.
      values: By key, a pytree of arrays. Typed PRNG keys are arrays of JAX's, all else is NumPy's.
        A histogram is a `logax.HistogramBins`, an image a `logax.ImagePixels`.
      steps: By name, the step of each record.
      order: Where each record stands among all of the program, an array of integers (streams,
        records): of two records of a stream the one with the less came first. Portions come in an
        order that is right for every key by itself.
      real: Which records there are, an array of booleans (streams, records); None for all.
      site: File and line of the `log` call.
      tags: Its tags.
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
        """A portion with one stream for each run, from arrays (runs, records, ...)."""
        warn_of_misspelling("`RecordBatch.of`, among its steps,", steps, ("real",))
        arrays = [*jax.tree.leaves(dict(values)), *steps.values()]
        shape = np.shape(arrays[0])[:2] if arrays else (len(runs), 0)
        order = np.broadcast_to(np.arange(shape[1]), shape)
        return RecordBatch(tuple(Stream(run) for run in runs), values, steps, order, real)

    @functools.cached_property
    def number(self) -> int:
        """How many records there are, of all streams together."""
        return int(self.order.size if self.real is None else self.real.sum())

    @functools.cached_property
    def leaves(self) -> dict[str, Any]:
        """Every array by its flat name: the key, or `key/path/to/leaf`."""
        return dict(flat(self.values))

    def only(self, numbers: Sequence[int]) -> RecordBatch:
        """Some of the streams."""
        if len(numbers) == len(self.streams):
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
        """The records of one stream, of which all are real."""
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
        """Each record by itself: one stream after the other, each in its order."""
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

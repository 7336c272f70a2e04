"""The runs of a logger: their ids and metadata, and the numbers by which programs know them.

A run gets its number when it begins, in Python or on an XLA thread while a program runs. Its id
consists of the time, random bytes of the process, and a counter, so that ids are unique anywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.record_batch import RunInfo
from logax._runs.identity import lane_suffix, machine_facts, new_run_id, split_run_id
from logax._support.processes import reset_after_fork

LANES = ("split", "aggregate", "group")


class ResumedRuns(NamedTuple):
    """Earlier runs that are resumed.

    Attributes:
      ids: Id of the run of each lane.
      sweep: Id that all runs share, if they are all lanes of one sweep, in order; the id of a
        single run without lanes; otherwise None.
    """

    ids: tuple[str, ...]
    sweep: str | None

    def ids_for(self, lanes: str) -> tuple[str, ...]:
        """Return the ids of the runs in a destination with this setting of `lanes`."""
        if lanes != "aggregate":
            return self.ids
        return () if self.sweep is None else (self.sweep,)


class RunSet:
    """All runs of one `init`: one, or one for each lane of the `vmap` around it.

    Args:
      name: Name of the runs, to which lanes are appended; None to use their ids.
      config: Function that returns the config of a lane, or for None that of all lanes.
      lanes: Number of lanes at each level of `vmap`.
      keys: Bits of the key of each lane.
      resumed: The earlier runs to resume, if any.
      shard: Index of the shard, if `init` was called inside a `shard_map`: each shard begins its
        own runs.
    """

    def __init__(
        self,
        name: str | None,
        config: Callable[[int | None], Mapping[str, Any]],
        lanes: tuple[int, ...],
        keys: Any = None,
        resumed: ResumedRuns | None = None,
        shard: int | None = None,
    ) -> None:
        self._name, self._config, self._keys = name, config, keys
        self.lanes, self.shard = lanes, shard
        self.began = time.time()
        self._process = os.getpid()
        self._resumed = resumed
        sweep = None if resumed is None else resumed.sweep
        self.id = sweep or new_run_id(self.began)

    @property
    def is_of_this_process(self) -> bool:
        """True if the runs began in this process. A forked process does not end them."""
        return self._process == os.getpid()

    @property
    def number(self) -> int:
        """Number of runs."""
        return int(np.prod(self.lanes))

    def run(self, index: int, grouped: bool = False) -> RunInfo:
        """Return the run of one lane; with `grouped`, as a member of a group."""
        lane: tuple[int, ...] = () if self.shard is None else (self.shard,)
        if self.lanes:
            lane += tuple(int(i) for i in np.unravel_index(index, self.lanes))
        end = lane_suffix(lane)
        own = f"{self.id}{end}" if self._resumed is None else self._resumed.ids[index]
        if self._resumed is not None:  # a resumed run keeps its lane
            lane = split_run_id(own)[1]
        name = own if self._name is None else f"{self._name}{end}"
        machine = machine_facts()
        if self._keys is not None:
            machine = {**machine, "key": self._keys[index].tolist()}
        return RunInfo(
            own,
            name,
            dict(self._config(index)),
            self.began,
            machine,
            group=self._group if grouped else None,
            lane=lane,
            resumed=self._resumed is not None,
        )

    @functools.cached_property
    def aggregate(self) -> RunInfo:
        """The one run that aggregates all lanes."""
        if not self.lanes:
            return self.run(0)
        return RunInfo(
            self.id,
            self._name or self.id,
            dict(self._config(None)),
            self.began,
            machine_facts(),
            lanes=self.number,
            resumed=self._resumed is not None and self._resumed.sweep is not None,
        )

    @property
    def _group(self) -> str | None:
        """Name of the group of its runs; None for resumed runs, which stay in their group."""
        return self._name if self._resumed is not None else self._name or self.id


@dataclasses.dataclass(eq=False)
class OpenRun:
    """A run that has begun and not ended.

    Attributes:
      number: Number by which programs know the run.
      run_set: All runs of the same `init`.
      index: Index of the lane in the run set.
    """

    number: int
    run_set: RunSet
    index: int
    _infos: dict[str, RunInfo] = dataclasses.field(default_factory=dict)

    def info(self, lanes: str) -> RunInfo:
        """Return the run as a sink with this setting of `lanes` sees it."""
        if lanes == "aggregate":
            return self.run_set.aggregate
        info = self._infos.get(lanes)
        if info is None:  # `setdefault`, so that two threads get the same object
            info = self._infos.setdefault(lanes, self.run_set.run(self.index, lanes == "group"))
        return info

    @property
    def label(self) -> RunLabel:
        """Id and name of the run."""
        info = self.info("split")
        return RunLabel(info.id, info.name)


class RunLabel(NamedTuple):
    """Id and name of a run."""

    id: str
    name: str


_UNKNOWN_RUN = RunLabel("unknown", "unknown")


class RunRegistry:
    """The runs of one logger."""

    def __init__(self) -> None:
        self._reset()
        reset_after_fork(self)
        self._numbers = itertools.count(1)
        self._open: dict[int, OpenRun] = {}
        self._closed: dict[int, RunLabel] = {}

    def _reset(self) -> None:
        """Renew the lock in a forked process, which keeps the runs of its parent."""
        self._lock = threading.Lock()

    def begin(self, run_set: RunSet) -> list[OpenRun]:
        """Register the runs of a new `init`."""
        with self._lock:
            runs = [OpenRun(next(self._numbers), run_set, i) for i in range(run_set.number)]
            self._open.update((run.number, run) for run in runs)
        return runs

    def find(self, number: int) -> OpenRun | None:
        """Return the run with this number, or None if it has ended."""
        return self._open.get(number)

    def label(self, number: int) -> RunLabel:
        """Return the id and the name of a run, even if it has ended."""
        run = self._open.get(number)
        return self._closed.get(number, _UNKNOWN_RUN) if run is None else run.label

    def end(self, runs: Sequence[OpenRun]) -> list[OpenRun]:
        """Mark runs as ended, and return those that were open."""
        with self._lock:
            ended = [run for run in runs if self._open.pop(run.number, None) is not None]
            self._closed.update((run.number, run.label) for run in ended)
        return ended

    def has_open_runs(self) -> bool:
        """Return whether any run is open."""
        return bool(self._open)

    def __iter__(self) -> Iterator[OpenRun]:
        with self._lock:
            return iter(list(self._open.values()))

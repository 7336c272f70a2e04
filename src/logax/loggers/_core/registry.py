"""Where a run takes place, and with what.

Which run a number stands for, and how it ends.

A number is given out when a run begins, wherever that is: in Python, or on a thread of XLA's while
a program runs. The id of a run is made of the time, of random bytes that this process has, and of a
count, so that no two runs anywhere have the same.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._delivery.record_batch import RunInfo
from logax._runs.search import id_parts, lane_suffix
from logax._support.forks import renew_after_fork
from logax._version import __version__


@functools.cache
def machine_facts() -> Mapping[str, Any]:
    """What is written down with every run of this process."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "logax": __version__,
        "device": _device_kind(),
    }


@functools.cache
def _device_kind() -> str:
    """Asked for once: in a process that was forked, JAX may wait for threads that are not there."""
    try:
        return str(jax.devices()[0].device_kind)
    except RuntimeError:  # JAX finds no device, which it tells whoever computes
        return "none"


os.register_at_fork(after_in_child=machine_facts.cache_clear)


LANES = ("split", "aggregate", "group")


class ResumedRuns(NamedTuple):
    """Earlier runs that are resumed.

    Attributes:
      ids: Id of each lane's run.
      sweep: Id that they share, if they are all lanes of one sweep, in order; the id of a single
        run without lanes; otherwise None.
    """

    ids: tuple[str, ...]
    sweep: str | None

    def in_branch(self, lanes: str) -> tuple[str, ...]:
        """Return the ids of the runs in a destination with this setting of `lanes`."""
        if lanes != "aggregate":
            return self.ids
        return () if self.sweep is None else (self.sweep,)


class Seeds:
    """All runs of one `init`: one, or one for each lane of the `vmap` around it.

    Args:
      name: Name of the runs, to which lanes are appended; None to use their ids.
      config: Returns the config of a lane, or for None that of all lanes.
      lanes: How many lanes there are at each level.
      keys: The bits of the key of each lane.
      resumed: The earlier runs to resume, if any.
      shard: Which shard of a `shard_map` this `init` was on, if it was inside of one: each shard
        begins runs of its own.
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
        self.id = sweep or _new_id(self.began)

    @property
    def of_here(self) -> bool:
        """Whether they began in this process: one that was forked does not end its parent's."""
        return self._process == os.getpid()

    @property
    def number(self) -> int:
        """How many runs there are."""
        return int(np.prod(self.lanes))

    def run(self, index: int, grouped: bool = False) -> RunInfo:
        """The run of one lane."""
        lane: tuple[int, ...] = () if self.shard is None else (self.shard,)
        if self.lanes:
            lane += tuple(int(i) for i in np.unravel_index(index, self.lanes))
        end = lane_suffix(lane)
        own = f"{self.id}{end}" if self._resumed is None else self._resumed.ids[index]
        if self._resumed is not None:  # it keeps the lane that it began in
            lane = id_parts(own)[1]
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
        """All lanes as one run."""
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
class LiveRun:
    """A run that has begun and not ended.

    Attributes:
      number: By which programs know it.
      seeds: The `init` that it is of.
      index: Which of its lanes it is.
    """

    number: int
    seeds: Seeds
    index: int
    _infos: dict[str, RunInfo] = dataclasses.field(default_factory=dict)

    def info(self, lanes: str) -> RunInfo:
        """What a sink knows it by, which depends on what becomes of lanes."""
        if lanes == "aggregate":
            return self.seeds.aggregate
        info = self._infos.get(lanes)
        if info is None:  # of two threads that make one, both get that of the first
            info = self._infos.setdefault(lanes, self.seeds.run(self.index, lanes == "group"))
        return info

    @property
    def named(self) -> Named:
        """Its id and its name."""
        info = self.info("split")
        return Named(info.id, info.name)


class Named(NamedTuple):
    """What a run is known by."""

    id: str
    name: str


_UNKNOWN = Named("unknown", "unknown")


class Register:
    """The runs of one logger."""

    def __init__(self) -> None:
        self._reset()
        renew_after_fork(self)
        self._numbers = itertools.count(1)
        self._live: dict[int, LiveRun] = {}
        self._ended: dict[int, Named] = {}

    def _reset(self) -> None:
        """Have a lock that nobody holds; the runs of a process that was forked are known here."""
        self._lock = threading.Lock()

    def begin(self, seeds: Seeds) -> list[LiveRun]:
        """The runs of a new `init`."""
        with self._lock:
            runs = [LiveRun(next(self._numbers), seeds, i) for i in range(seeds.number)]
            self._live.update((run.number, run) for run in runs)
        return runs

    def find(self, number: int) -> LiveRun | None:
        """The run of a number, if it has not ended."""
        return self._live.get(number)

    def named(self, number: int) -> Named:
        """The id and the name of a run, also of one that has ended."""
        run = self._live.get(number)
        return self._ended.get(number, _UNKNOWN) if run is None else run.named

    def end(self, runs: Sequence[LiveRun]) -> list[LiveRun]:
        """Have runs ended, and give those that were not before."""
        with self._lock:
            ended = [run for run in runs if self._live.pop(run.number, None) is not None]
            self._ended.update((run.number, run.named) for run in ended)
        return ended

    def has_any(self) -> bool:
        """Whether a run has not ended."""
        return bool(self._live)

    def __iter__(self) -> Iterator[LiveRun]:
        with self._lock:
            return iter(list(self._live.values()))


def _new_id(now: float) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{_process_token(os.getpid())}-{next(_count)}"


@functools.cache
def _process_token(process: int) -> str:
    """Random letters, others in a process that was forked."""
    return secrets.token_hex(4)


_count = itertools.count()

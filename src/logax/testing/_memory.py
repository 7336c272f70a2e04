"""Keep records in memory, for tests: `MemoryLogger` and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo, RunRecord, flat
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class MemoryRun:
    """One run of a `MemoryLogger`.

    Attributes:
      info: Identity of the run: name, id, config and group.
      status: "running", "finished" or "crashed".
      records: Records of the run, in order.
    """

    def __init__(self, info: RunInfo) -> None:
        self.info, self.status = info, "running"
        self.records: list[RunRecord] = []

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.info.name

    @property
    def config(self) -> Mapping[str, Any]:
        """Config of the run."""
        return self.info.config

    @property
    def columns(self) -> dict[str, list[tuple[Any, Any]]]:
        """Records of each array, by its flat name (`net/w/0`): a list of pairs `(x, value)`.

        The x is the step called `step`, else the first named step, else the position in the list.
        """
        columns: dict[str, list[tuple[Any, Any]]] = {}
        for record in self.records:
            for name, value in flat(record.values):
                column = columns.setdefault(name, [])
                column.append((x_of(record.steps, len(column)), value))
        return columns

    def __repr__(self) -> str:
        return f"<run {self.name}, {self.status}, {len(self.records)} records>"


class MemoryLogger(Logger):
    """Logger that keeps all records in memory, for tests.

        logger = logax.testing.MemoryLogger()
        with logger.run(name="a") as state:
            logger.tap(train, state)(key)
        (run,) = logger.runs
        assert run.columns["loss"] == [(0, 2.0), (1, 4.0)]

    It has the methods of every logger: `run`, `init`, `tap`, `spool`, `live`, `log`, `loop`. Call
    `logax.flush()` before you read `runs`, unless the block of `run` has ended.

    Args:
      lanes: Treatment of the lanes of a vmapped `init`: "split" makes one run per lane, "aggregate"
        one run with mean, minimum and maximum over the lanes, "group" one run per lane with a
        common `info.group`.

    Attributes:
      runs: All runs, in the order in which they began.
    """

    def __init__(self, *, lanes: str = "split") -> None:
        sink = _Memory()
        super().__init__(sink, lanes=lanes)
        self._sink = sink

    @property
    def runs(self) -> Sequence[MemoryRun]:
        """All runs, in the order in which they began. Call `logax.flush()` first."""
        return list(self._sink.runs.values())


class _Memory(Sink):
    def __init__(self) -> None:
        self.runs: dict[RunInfo, MemoryRun] = {}

    def open(self, runs: Sequence[RunInfo]) -> None:
        self.runs.update((run, MemoryRun(run)) for run in runs)

    def write(self, batch: RecordBatch) -> None:
        for record in batch.records():
            self.runs[record.stream.run].records.append(record)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        for run in runs:
            self.runs[run].status = status

    def known_runs(self) -> KnownRuns:
        return KnownRuns("memory", {run.id: run.name for run in self.runs})


def x_of(steps: Mapping[str, Any], count: int) -> Any:
    """Return the x of a record: its step, or the number of earlier records."""
    if not steps:
        return count
    return np.asarray(steps["step"] if "step" in steps else next(iter(steps.values()))).item()

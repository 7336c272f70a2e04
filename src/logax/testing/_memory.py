"""A logger that keeps what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo, RunRecord, flat
from logax.loggers._core.logger import Logger
from logax.loggers.sink import Sink


class MemoryRun:
    """One run, as it was given.

    Attributes:
      info: The run.
      status: "running", "finished" or "crashed".
      records: Its records, in order.
    """

    def __init__(self, info: RunInfo) -> None:
        self.info, self.status = info, "running"
        self.records: list[RunRecord] = []

    @property
    def name(self) -> str:
        """What it is called."""
        return self.info.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The config of the run."""
        return self.info.config

    @property
    def columns(self) -> dict[str, list[tuple[Any, Any]]]:
        """By the flat name of each array its records: x and value of each."""
        columns: dict[str, list[tuple[Any, Any]]] = {}
        for record in self.records:
            for name, value in flat(record.values):
                column = columns.setdefault(name, [])
                column.append((x_of(record.steps, len(column)), value))
        return columns

    def __repr__(self) -> str:
        return f"<run {self.name}, {self.status}, {len(self.records)} records>"


class MemoryLogger(Logger):
    """Keeps all records in memory, for tests.

    Args:
      lanes: What becomes of seeds: "split", "aggregate" or "group".

    Attributes:
      runs: All runs, in the order in which they began. `logax.flush()` first.
    """

    def __init__(self, *, lanes: str = "split") -> None:
        sink = _Memory()
        super().__init__(sink, lanes=lanes)
        self._sink = sink

    @property
    def runs(self) -> Sequence[MemoryRun]:
        """All runs, in the order in which they began."""
        return list(self._sink.runs.values())


class _Memory(Sink):
    def __init__(self) -> None:
        self.runs: dict[RunInfo, MemoryRun] = {}

    def open(self, runs: Sequence[RunInfo]) -> None:
        self.runs.update((run, MemoryRun(run)) for run in runs)

    def write(self, portion: RecordBatch) -> None:
        for record in portion.records():
            self.runs[record.stream.run].records.append(record)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        for run in runs:
            self.runs[run].status = status

    def known_runs(self) -> KnownRuns:
        return KnownRuns("memory", {run.id: run.name for run in self.runs})


def x_of(steps: Mapping[str, Any], count: int) -> Any:
    """Where a record stands on the axis that a destination shows."""
    if not steps:
        return count
    return np.asarray(steps["step"] if "step" in steps else next(iter(steps.values()))).item()

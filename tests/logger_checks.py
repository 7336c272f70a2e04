"""What is demanded of loggers, as functions of a program and of states to start it from.

Each check compares with the oracle: a run has every record of its lane once, each key in order.
`buffer` is that of the logger's `tap`; with None it is the logger's `spool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import logax
from logax._delivery.record_batch import RunRecord
from logax.testing import MemoryLogger
from oracle import Program, against, lane, oracle
from oracle_checks import assert_same_trees, capacity_of, stacked
from programs import State
from recorder import Record, is_key
from tap_checks import assert_delivered, assert_in_order


def logged(logger: MemoryLogger, program: Program, run: Any, buffer: int | None) -> Any:
    """The program with its logs sent to the run."""
    function = against(program, logax.log)
    if buffer is None:
        return logger.spool(function, run, capacity=capacity_of(program))
    return logger.tap(function, run, buffer=buffer)


def check_logged(program: Program, buffer: int | None, *states: State) -> None:
    """A run for each state, and one more for all of them in turn."""
    logger = MemoryLogger()
    recordings = []
    together = logger.init(jax.random.key(0))
    for state in states:
        with logger.run() as run:
            wanted, recording = oracle(program, state)
            recordings.append(recording.chosen().records)
            assert_same_trees(logged(logger, program, run, buffer)(state), wanted)
        logged(logger, program, together, buffer)(state)
    logax.flush()
    all_of_them = [record for records in recordings for record in records]
    for kept, records in zip(logger.runs, [all_of_them, *recordings], strict=True):
        assert_logged(kept.records, records, whole=buffer is None)


def check_logged_lanes(program: Program, buffer: int | None, lanes: Sequence[State]) -> None:
    """Under `vmap`: a run for each lane, with its own output and records."""
    logger = MemoryLogger()

    def seed(key: Any, state: State) -> Any:
        return logged(logger, program, logger.init(key), buffer)(state)

    keys = jax.random.split(jax.random.key(0), len(lanes))
    out = jax.jit(jax.vmap(seed))(keys, stacked(lanes))
    logax.flush()
    assert len(logger.runs) == len(lanes)
    for index, state in enumerate(lanes):
        wanted, recording = oracle(program, state)
        assert_same_trees(lane(out, index), wanted)
        records = logger.runs[index].records
        assert_logged(records, recording.chosen().records, whole=buffer is None)


def check_lanes_of_one_run(program: Program, buffer: int | None, lanes: Sequence[State]) -> None:
    """One state given to a vmapped function: its lanes are lanes of that one run."""
    logger = MemoryLogger()
    with logger.run() as run:
        jax.jit(jax.vmap(logged(logger, program, run, buffer)))(stacked(lanes))
    (only,) = logger.runs
    for index, state in enumerate(lanes):
        own = [record for record in only.records if record.stream.lane == (index,)]
        assert_logged(own, oracle(program, state)[1].chosen().records, whole=buffer is None)
    assert {record.stream.lane for record in only.records} <= {(i,) for i in range(len(lanes))}


def check_aggregate(program: Program, buffer: int | None, lanes: Sequence[State]) -> None:
    """`lanes="aggregate"`: one run, with mean, least and greatest of each record over the lanes.

    For programs of which all lanes log equally often, with the same steps.
    """
    logger = MemoryLogger(lanes="aggregate")

    def seed(key: Any, state: State) -> Any:
        return logged(logger, program, logger.init(key), buffer)(state)

    jax.jit(jax.vmap(seed))(jax.random.split(jax.random.key(0), len(lanes)), stacked(lanes))
    logax.flush()
    (run,) = logger.runs
    recordings = [oracle(program, state)[1].chosen().records for state in lanes]
    keys = {record.key for record in recordings[0]}
    found = {key for record in run.records for key in record.values}
    assert found == {f"{key}/{name}" for key in keys for name in AGGREGATES}
    for key in keys:
        columns = [[r.value for r in records if r.key == key] for records in recordings]
        for name, aggregate in AGGREGATES.items():
            values = [
                record.values[f"{key}/{name}"]
                for record in run.records
                if f"{key}/{name}" in record.values
            ]
            np.testing.assert_array_equal(values, aggregate(np.asarray(columns, np.float64), 0))


AGGREGATES: dict[str, Callable[..., Any]] = {"mean": np.mean, "min": np.min, "max": np.max}


def assert_logged(
    found: Sequence[RunRecord], records: Sequence[Record], *, whole: bool = False
) -> None:
    """Raise unless exactly these records came, those of each key in this order.

    `whole`: out of a logdict, with all shards in one record, and the dtype that the key has at all
    its sites together.
    """
    keys = list(dict.fromkeys(record.key for record in records))
    assert {key for one in found for key in one.values} == set(keys)
    for key in keys:
        own = [_Logged(one, key) for one in found if key in one.values]
        wanted = [record for record in records if record.key == key]
        if whole:
            own = [one.like(record) for one, record in zip(own, wanted, strict=True)]
        (assert_in_order if whole else assert_delivered)(own, wanted)


class _Logged(dict[str, Any]):
    """One key of a record, as `assert_delivered` takes it."""

    def __init__(self, record: RunRecord, key: str) -> None:
        super().__init__({key: record.values[key]})
        self.steps, self.shard = record.steps, record.stream.shard

    def like(self, record: Record) -> _Logged:
        """The same with the dtypes of this record."""
        assert self.steps.keys() == record.steps.keys()
        for key, value in self.items():
            self[key] = jax.tree.map(
                lambda x, y: x if is_key(x) else np.asarray(x).astype(y.dtype), value, record.value
            )
        self.steps = {
            name: np.asarray(self.steps[name]).astype(step.dtype)
            for name, step in record.steps.items()
        }
        return self

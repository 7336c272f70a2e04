"""Random batches, read back and compared with what a dictionary remembers of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax.loggers.save import SaveSink

KEYS = ["loss", "../x", "", "a//b", "ключ", "'; DROP TABLE runs"]
FORMS: Mapping[str, tuple[type, tuple[int, ...]]] = {
    "loss": (np.float32, ()),
    "../x": (np.int64, (2,)),
    "": (np.bool_, ()),
    "a//b": (np.float64, (0, 3)),
    "ключ": (np.complex64, (1,)),
    "'; DROP TABLE runs": (np.uint8, (4096,)),  # large soon
}
STEPS: Mapping[str, type] = {"step": np.int32, "epoch": np.float32}
LANES = ((), (3,))


class Reference:
    """By run, lane and key, all records, each with the steps it has."""

    def __init__(self) -> None:
        self.records: dict[Any, list[tuple[Any, dict[str, Any]]]] = {}

    def take(self, batch: RecordBatch) -> None:
        for number, stream in enumerate(batch.streams):
            for key, x in batch.values.items():
                own = self.records.setdefault((stream.run.id, key), {}).setdefault(stream.lane, [])
                for row in range(batch.order.shape[1]):
                    if batch.real is None or batch.real[number, row]:
                        steps = {name: s[number, row] for name, s in batch.steps.items()}
                        own.append((x[number, row], steps))


@strategies.composite
def programs(draw: Any) -> list[Any]:
    """What is done, in order: a batch, a flush, the end of a file, or of a run."""
    number = draw(strategies.integers(1, 4))
    shape = draw(strategies.sampled_from(LANES))
    runs = [RunInfo(f"run-{i}", f"run-{i}", began=float(i), resumed=True) for i in range(number)]
    done: list[Any] = []
    for _ in range(draw(strategies.integers(1, 6))):
        what = draw(strategies.sampled_from(["batch"] * 5 + ["flush", "end"]))
        done.append(draw(batches(runs, shape)) if what == "batch" else what)
    return done


@strategies.composite
def batches(draw: Any, runs: list[RunInfo], shape: tuple[int, ...]) -> RecordBatch:
    streams = [Stream(run, lane) for run in runs for lane in np.ndindex(shape)]
    chosen = draw(strategies.lists(strategies.sampled_from(streams), min_size=1, unique=True))
    records = draw(strategies.sampled_from([0, 1, 1, 3, 70]))
    keys = draw(strategies.lists(strategies.sampled_from(KEYS), min_size=1, unique=True))
    names = draw(strategies.lists(strategies.sampled_from(list(STEPS)), unique=True))
    generator = np.random.default_rng(draw(strategies.integers(0, 2**32)))
    rows = len(chosen), records
    values = {key: _numbers(generator, FORMS[key][0], (*rows, *FORMS[key][1])) for key in keys}
    alike = draw(strategies.booleans())
    steps = {}
    for name in names:
        step = generator.integers(0, 9, rows).astype(STEPS[name])
        steps[name] = np.broadcast_to(step[:1], rows) if alike else step
    real = draw(strategies.sampled_from([None, 0.0, 0.3, 0.9, 1.0]))
    mask = None if real is None else generator.random(rows) < real
    order = np.broadcast_to(np.arange(records), rows)
    return RecordBatch(
        tuple(chosen), values, steps, order, mask, draw(strategies.sampled_from("ab"))
    )


def _numbers(generator: Any, kind: type, shape: tuple[int, ...]) -> Any:
    numbers = generator.normal(size=shape) * 100
    if np.issubdtype(kind, np.floating):
        numbers[generator.random(shape) < 0.2] = np.nan
        numbers[generator.random(shape) < 0.2] = np.inf
    return (numbers > 0) if kind is np.bool_ else np.abs(numbers).astype(kind)


def check(done: list[Any]) -> None:
    reference = Reference()
    with tempfile.TemporaryDirectory() as folder:
        sink = SaveSink(folder)
        for each in done:
            if each == "flush":
                sink.flush()
            elif each == "end":
                sink.end()
            else:
                new = {stream.run for stream in each.streams}
                sink.open([run for run in new if run.id not in {r for r, _ in reference.records}])
                sink.write(each)
                reference.take(each)
        sink.flush()
        compare(logax.load(folder), reference)
        sink.end()
        compare(logax.load(folder), reference)


def compare(runs: Any, reference: Reference) -> None:
    assert set(runs) == {run for run, _ in reference.records}
    for (name, key), lanes in reference.records.items():
        logs = runs[name].logdict(key)
        kind, shape = FORMS[key]
        has_lanes = () not in lanes
        counts = np.atleast_1d(np.asarray(logs.count[key]))
        columns = logs[key] if has_lanes else logs[key][None]
        assert columns.dtype == kind
        assert columns.shape[2:] == shape
        assert sum(counts) == sum(map(len, lanes.values()))
        for lane, records in lanes.items():
            at = lane[0] if has_lanes else 0
            assert counts[at] == len(records)
            expected = np.array([value for value, _ in records], kind).reshape(len(records), *shape)
            np.testing.assert_array_equal(columns[at, : len(records)], expected)
            for step, column in logs.steps.items():
                found = column[key] if has_lanes else column[key][None]
                missing = logax._logdict.logdict.missing_step(STEPS[step])
                wanted = [steps.get(step, missing) for _, steps in records]
                np.testing.assert_array_equal(found[at, : len(records)], wanted)
    for key in {key for _, key in reference.records}:
        array = runs[key]
        for at, name in enumerate(runs):
            lanes = reference.records.get((name, key), {})
            rows = array[at] if len(array.shape) - len(FORMS[key][1]) == 3 else array[at][None]
            for lane, records in lanes.items():
                expected = np.array([x for x, _ in records], FORMS[key][0])
                found = rows[lane[0] if lane else 0, : len(records)]
                np.testing.assert_array_equal(found, expected.reshape(found.shape))


@hypothesis.given(programs())
@hypothesis.settings(max_examples=25)
def test_random_batches_read_back_as_they_were_written(done: list[Any]) -> None:
    check(done)


@pytest.mark.slow
@hypothesis.given(programs())
def test_many_random_batches_read_back_as_they_were_written(done: list[Any]) -> None:
    check(done)

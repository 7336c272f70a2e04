"""Parts of a run: their order without clocks, who may resume, version 1, and statistics."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._runs.batch_statistics import ScalarStatistics, StepRange
from logax._runs.errors import RefusedRunsError
from logax._runs.lock_files import LockFile
from logax._runs.run import summarize_batches
from logax.loggers import SaveLogger
from logax.loggers.save import SaveSink
from storage_processes import start

OLD = "20250102-030405-0a1b2c3d-0-0"
KEY = jax.random.key(0)


def write_part(folder: Path, values: list[int], now: float, *, resumed: bool) -> None:
    """Write a part of the run "a" in a process whose clock says `now`."""
    sink = SaveSink(folder, clock=lambda: now)
    run = RunInfo("a", "a", {"now": now}, began=now, resumed=resumed)
    sink.open([run])
    sink.write(RecordBatch.of([run], {"x": np.array([values])}, step=np.array([values])))
    sink.close([run], "finished")
    sink.end()


# Clocks.


def test_a_clock_that_is_set_back_changes_neither_order_nor_beginning(tmp_path: Path) -> None:
    write_part(tmp_path, [0, 1, 2], 1000.0, resumed=False)
    write_part(tmp_path, [3, 4, 5], 940.0, resumed=True)
    write_part(tmp_path, [6, 7], 880.0, resumed=True)
    run = logax.load(tmp_path)["a"]
    assert run["x"].tolist() == run.steps["step"]["x"].tolist() == [*range(8)]
    assert (run.began, run.ended, run.resumed) == (1000.0, 1000.0, 2)
    assert run.config == {"now": 880.0}
    write_part(tmp_path, [8], 2000.0, resumed=True)
    again = logax.load(tmp_path)["a"]
    assert (again["x"].tolist(), again.began, again.ended) == ([*range(9)], 1000.0, 2000.0)


# Who may resume.


RESUMES = """
import logax
from logax.loggers import SaveLogger
import numpy as np

logger = SaveLogger(folder)
print("ready")
open(arguments[0]).close()  # opens when the other end does: both at the same moment
try:
    with logger.run(resume="shared") as state:
        logger.log(state, {"x": np.float32(arguments[1])}, step=1)
        logax.flush()
        print("won")
        signal.pause()
except ValueError as error:
    print(error)
"""


def begin(folder: Path) -> str:
    logger = SaveLogger(folder)
    with logger.run(name="shared") as state:
        logger.log(state, {"x": jnp.float32(0)}, step=0)
    logger.close()
    return next(iter(logax.load(folder)))


@pytest.mark.slow
def test_of_two_processes_that_resume_a_run_at_the_same_moment_one_gets_it(tmp_path: Path) -> None:
    identity = begin(tmp_path)
    for number in range(8):
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        children = [start(RESUMES, tmp_path, str(gate), 10 * number + i) for i in (1, 2)]
        assert [child.line() for child in children] == ["ready", "ready"]
        with open(gate, "w"):
            said = [child.line() for child in children]
        assert said.count("won") == 1, said
        (lost,) = (each for each in said if each != "won")
        assert lost.startswith("`SaveLogger.run` cannot resume ")
        assert identity in lost
        assert "still writes" in lost
        for child, each in zip(children, said, strict=True):
            if each == "won":
                child.kill()
            child.finish()
        gate.unlink()
        run = logax.load(tmp_path)[identity]
        assert run.resumed == number + 1
        assert len(run["x"]) == number + 2
        assert run["x"][-1] == 10 * number + said.index("won") + 1


def test_a_run_that_another_logger_has_claimed_cannot_be_resumed(tmp_path: Path) -> None:
    identity = begin(tmp_path)
    first, second = SaveSink(tmp_path), SaveSink(tmp_path)
    first.claim([identity])
    first.claim([identity])  # it has it
    with pytest.raises(ValueError, match=f"or logger has resumed the run {identity}, and still"):
        second.claim([identity])
    again = SaveLogger(tmp_path)
    with (
        pytest.raises(ValueError, match=r"`SaveLogger\.run` cannot resume a run: another process"),
        again.run(resume="shared"),
    ):
        pass
    run = RunInfo(identity, "shared", resumed=True)
    with pytest.raises(RefusedRunsError, match="Wait until it has finished") as refused:
        second.open([run])
    assert refused.value.runs == [run]
    second.end()
    first.release([identity])
    with again.run(resume="shared") as state:
        again.log(state, {"x": jnp.float32(1)}, step=1)
    again.close()
    first.end()
    assert logax.load(tmp_path)[identity]["x"].tolist() == [0, 1]
    assert not [each for each in tmp_path.iterdir() if each.suffix in (".claim", ".lock")]


def test_records_of_a_run_that_cannot_be_resumed_are_counted_and_others_are_kept(
    tmp_path: Path,
) -> None:
    with contextlib.closing(SaveLogger(tmp_path)) as logger:
        states = jax.vmap(lambda key: logger.init(key, name="n"))(jax.random.split(KEY, 3))
        logger.finish(states)

        @jax.jit
        def program(x: jax.Array) -> None:
            def lane(key: jax.Array) -> None:
                state = logger.init(key, resume="n")
                logger.log(state, {"x": x}, step=0)
                logger.log(state, {"x": x + 1}, step=1)
                logger.finish(state)

            jax.vmap(lane)(jax.random.split(KEY, 3))

        program(10.0)
        logax.flush()
        other = SaveSink(tmp_path)
        ids = list(logax.load(tmp_path))
        other.claim([ids[1]])
        for number in (20.0, 30.0):  # each time new runs are refused, and their records counted
            program(number)
            with pytest.raises(logax.DeliveryError) as told:
                logax.flush()
            assert str(told.value) == (
                f"`SaveLogger` could not open the run {ids[1]}: ValueError: another process or "
                f"logger has resumed the run {ids[1]}, and still writes to it. Wait until it "
                "has finished; records of two writers have no order. Number of records lost with "
                "it so far: 2."
            )
            logax.flush()  # nothing else was lost
        other.end()
        program(40.0)
    runs = logax.load(tmp_path)
    expected = [10, 11, 20, 21, 30, 31, 40, 41]
    assert [runs[each]["x"].tolist() for each in ids] == [expected, [10, 11, 40, 41], expected]
    assert [run.resumed for run in runs.values()] == [4, 2, 4]
    assert [run.status for run in runs.values()] == ["finished"] * 3


def test_what_is_lost_of_a_refused_run_is_counted_until_it_ends(tmp_path: Path) -> None:
    identity = begin(tmp_path)
    logger, other = SaveLogger(tmp_path), SaveSink(tmp_path)
    program = jax.jit(lambda key: logger.init(key, resume="shared"))
    logger.finish(program(KEY))
    other.claim([identity])
    state = program(KEY)
    with pytest.raises(logax.DeliveryError, match=r"records of two writers have no order\.$"):
        logax.flush()
    for lost in (1, 2):
        logger.log(state, {"x": jnp.float32(lost)}, step=lost)
        with pytest.raises(logax.DeliveryError, match=f"lost with it so far: {lost}\\.$"):
            logax.flush()
    other.end()
    logger.close()
    assert logax.load(tmp_path)[identity]["x"].tolist() == [0]


def test_runs_that_cannot_be_claimed_in_the_folder_are_refused_and_others_are_open(
    tmp_path: Path,
) -> None:
    identity = begin(tmp_path)
    sink = SaveSink(tmp_path)
    old, new = RunInfo(identity, "shared", resumed=True), RunInfo("new", "new")
    shutil.move(tmp_path, tmp_path.with_suffix(".aside"))
    tmp_path.write_text("in the way")
    with pytest.raises(RefusedRunsError, match="Not a directory") as refused:
        sink.open([old, new])
    assert refused.value.runs == [old]
    assert isinstance(refused.value.__cause__, FileExistsError)  # of the new one, which waits
    tmp_path.unlink()
    shutil.move(tmp_path.with_suffix(".aside"), tmp_path)
    sink.write(RecordBatch.of([new], {"x": np.ones((1, 2))}))
    sink.close([new], "finished")
    sink.end()
    assert logax.load(tmp_path)["new"]["x"].tolist() == [1, 1]
    assert logax.load(tmp_path)[identity].resumed == 0


# Claims that no logger has written.


DAMAGED = [
    b"",
    b"null",
    b'"abc"',
    b"[1, 2]",
    b'[["a"]]',
    b'{"a": 1}',
    b"\xff\xfe",
    b"[" * 100_000,
    b"[" + b"9" * 10_000 + b"]",
]


def test_a_damaged_claim_is_an_error_while_it_is_held_and_otherwise_removed(tmp_path: Path) -> None:
    identity = begin(tmp_path)
    claim = tmp_path / "1-00.claim"
    with contextlib.closing(SaveLogger(tmp_path)) as logger:
        for content in DAMAGED:
            lock = LockFile(str(claim), content)
            with pytest.raises(ValueError) as told, logger.run(resume="shared"):  # noqa: PT011
                pass
            assert str(told.value) == (
                f"`SaveLogger.run` cannot resume a run: the claim {claim} is damaged, and a "
                "process holds it, so that the runs of that process are unknown. End that process, "
                "or remove the file if the process has no run."
            )
            lock.release()
        target = tmp_path / "target"
        target.write_text("mine")
        for make in (
            lambda: claim.write_bytes(DAMAGED[-1]),
            lambda: claim.symlink_to(target),
            lambda: claim.symlink_to("none"),
        ):
            make()
            with logger.run(resume="shared") as state:
                logger.log(state, {"x": jnp.float32(1)}, step=1)
            claim.unlink(missing_ok=True)
        claim.mkdir()
        with logger.run(resume="shared") as state:
            logger.log(state, {"x": jnp.float32(2)}, step=2)
    assert target.read_text() == "mine"
    assert logax.load(tmp_path)[identity]["x"].tolist() == [0, 1, 1, 1, 2]


def test_a_claim_that_is_damaged_when_a_program_resumes_loses_the_records_and_counts_them(
    tmp_path: Path,
) -> None:
    identity = begin(tmp_path)
    logger = SaveLogger(tmp_path)

    @jax.jit
    def program(x: jax.Array) -> None:
        old, new = logger.init(KEY, resume="shared"), logger.init(KEY, name="new")
        logger.log(old, {"x": x})
        logger.log(new, {"x": x})
        logger.finish(old)
        logger.finish(new)

    program(1.0)
    logax.flush()
    lock = LockFile(str(tmp_path / "1-00.claim"), b"[")
    program(2.0)
    with pytest.raises(
        logax.DeliveryError, match=r"1-00.claim is damaged, and a .* lost with it so far: 1\.$"
    ):
        logax.flush()
    lock.release()
    logger.close()
    runs = logax.load(tmp_path)
    assert runs[identity]["x"].tolist() == [0, 1]
    assert sorted(run["x"].item() for run in runs.values() if run.name == "new") == [1, 2]


# Version 1.


def test_files_of_version_1_are_read(version_1: Path) -> None:
    runs = logax.load(version_1)
    run = runs[OLD]
    assert (run.name, run.status, run.config) == ("old-0", "finished", {"rate": 0.0})
    assert run["loss"].tolist() == [0, 1, 2, 10, 11]
    assert run.steps["step"]["loss"].tolist() == [0, 1, 2, 3, 4]
    assert run["tree"]["w"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert runs["loss"][1].tolist()[:4] == [3, 4, 5, 12]
    assert [batch.scalars for batch in summarize_batches(run)] == [{}, {}]


def test_a_run_of_version_1_is_resumed_in_a_file_of_version_2(version_1: Path) -> None:
    logger = SaveLogger(version_1)
    with logger.run(resume="old-0", config={"rate": 2.0}) as state:
        logger.log(state, {"loss": jnp.float32(99)}, step=5)
    logger.close()
    run = logax.load(version_1)[OLD]
    assert run["loss"].tolist() == [0, 1, 2, 10, 11, 99]
    assert (run.began, run.config, run.resumed) == (1735787045.0, {"rate": 2.0}, 1)


# Statistics.


def test_batches_have_statistics_of_their_scalars(tmp_path: Path) -> None:
    now = [100.0]
    sink = SaveSink(tmp_path, clock=lambda: now[0])
    runs = [RunInfo(name, name) for name in ("a", "b")]
    sink.open(runs)
    values = {
        "f": np.array([[1.0, np.nan, 3.0], [-np.inf, 2.0, 7.0]], np.float32),
        "i": np.array([[2**62, 1, 2], [3, 4, -5]]),
        "b": np.array([[True, False, True], [True, True, True]]),
        "half": jnp.array([[0.5, 1, 2], [3, 4, 5]], jnp.bfloat16),
        "tree": {"none": np.full((2, 3), np.nan), "vector": np.ones((2, 3, 2))},
        "complex": np.ones((2, 3), complex),
    }
    values["half"] = np.asarray(values["half"])
    sink.write(RecordBatch.of(runs, values, step=np.array([[4, 5, 6], [7, 8, 9]])))
    now[0] = 50.0
    real = np.array([[True, False, False], [True, True, False]])
    sink.write(RecordBatch.of(runs, {"f": values["f"]}, real=real))
    streams = tuple(Stream(runs[0], (), shard) for shard in (0, 3))
    empty = np.zeros((2, 0))
    sink.write(RecordBatch(streams, {"f": empty}, {"step": empty}, empty, site="file.py:7"))
    sink.close(runs, "finished")
    sink.end()
    first, ragged, none = summarize_batches(logax.load(tmp_path)["a"])
    assert (first.arrived, first.process, first.shards, first.records) == (100.0, 0, (None,), 3)
    assert first.steps == {"step": StepRange(4, 9)}
    assert first.scalars == {
        "f": ScalarStatistics(6, 1, -np.inf, 7.0),
        "i": ScalarStatistics(6, 0, -5, 2**62),
        "b": ScalarStatistics(6, 0, 0, 1),
        "half": ScalarStatistics(6, 0, 0.5, 5.0),
        "tree/none": ScalarStatistics(6, 6, None, None),
    }
    assert first.keys == tuple(values)
    assert (ragged.arrived, ragged.steps) == (50.0, {})
    assert ragged.scalars == {"f": ScalarStatistics(3, 0, -np.inf, 2.0)}
    assert (none.shards, none.site, none.records) == ((0, 3), "file.py:7", 0)
    assert none.steps == {"step": StepRange(None, None)}
    assert none.scalars == {"f": ScalarStatistics(0, 0, None, None)}

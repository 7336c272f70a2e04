"""Kills of a program that streams to `SaveLogger` at full speed, and what they lose.

A child notes, in a file that survives it, when each record leaves the program. What is not stored
after the kill is lost, and the age of the oldest lost record is what the docs promise a bound on.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax.loggers import SaveLogger
from storage_processes import start

MAX_AGE_SECONDS = 1.0
NOTES = 2**21  # as many as a child may make
BUFFERS = (1, 64, None)
RUNS = (1, 64)

STREAMS = """
import jax
import logax
from logax._delivery.worker import worker
from logax.loggers import SaveLogger

buffer, runs, notes = arguments
with open(folder / "notes", "wb") as file:
    file.truncate(notes * 16)
log = np.memmap(folder / "notes", np.float64, "r+", shape=(notes, 2))
number, add = 0, worker.add

def noted(size, run, item, records=1, kind=None):
    global number
    if number == 0:
        print("running", flush=True)
    if number < notes:
        log[number] = time.time(), records
    number += 1
    return add(size, run, item, records, kind)

worker.add = noted
logger = SaveLogger(folder / "runs")

def count(first):
    def step(i, _):
        logax.log({"n": i, "half": 0.5 * i}, step=i)
        return i + 1, None
    return jax.lax.scan(step, first, length=2**30)[0]

def run(key):
    return logger.tap(count, logger.init(key, name="run"), buffer=buffer)(0)

if runs == 1:
    run(jax.random.key(0)).block_until_ready()
else:
    jax.block_until_ready(jax.vmap(run)(jax.random.split(jax.random.key(0), runs)))
"""


def kill_streams(folder: Path, buffer: int | None, runs: int, seed: int) -> dict[str, float]:
    """Kill one child at a random moment; return what was stored and what was lost."""
    child = start(STREAMS, folder, buffer, runs, NOTES)
    assert child.line() == "running"
    time.sleep(random.Random(seed).uniform(0.3, 4))  # the moment of death is a random one
    child.kill(signal.SIGKILL)
    killed_at = time.time()
    code, _, errors = child.finish()
    assert (code, errors) == (-signal.SIGKILL, "")
    notes = np.memmap(folder / "notes", np.float64, "r", shape=(NOTES, 2))
    notes = notes[: int((notes[:, 0] > 0).sum())]
    left = np.cumsum(notes[:, 1]) / runs
    stored = [stored_records(run) for run in logax.load(folder / "runs").values()]
    assert len(stored) == runs or left[-1] < 1
    fewest = min(stored, default=0)
    lost = notes[left > fewest, 0]
    age = float(killed_at - lost[0]) if len(lost) else 0.0
    check_resume(folder)
    return {"stored": float(sum(stored)), "left": float(left[-1] * runs), "age": age}


def stored_records(run: Any) -> int:
    """Return how many records a run has, of which none is torn, missing or out of order."""
    logs = run.logs
    if "n" not in logs:
        return 0
    number = len(logs["n"])
    np.testing.assert_array_equal(logs["n"], np.arange(number))
    half = np.arange(number).astype(np.float32) * np.float32(0.5)
    np.testing.assert_array_equal(logs["half"], half)
    np.testing.assert_array_equal(logs.step["n"], np.arange(number))
    return number


def check_resume(folder: Path) -> None:
    """Resume one of the runs where it ended, and read it back as one."""
    found = next((run for run in logax.load(folder / "runs").values() if "n" in run.logs), None)
    if found is None:
        return
    number = len(found.logs["n"])
    logger = SaveLogger(folder / "runs")
    with logger.run(resume=found.id) as state:
        for i in range(number, number + 3):
            values = {"n": np.int32(i), "half": np.float32(0.5 * i)}
            logger.log(state, values, step=np.int32(i))
    logger.close()
    run = logax.load(folder / "runs")[found.id]
    assert stored_records(run) == number + 3
    assert run.status == "finished"


CASES = [(buffer, runs) for buffer in BUFFERS for runs in RUNS]


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "runs"), [(1, 1), (None, 1), (64, 64)])
def test_a_kill_at_full_speed_tears_and_reorders_nothing(
    tmp_path: Path, buffer: int | None, runs: int
) -> None:
    found = kill_streams(tmp_path, buffer, runs, seed=0)
    assert 0 < found["stored"] <= found["left"]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 35))
@pytest.mark.parametrize(("buffer", "runs"), CASES)
def test_two_hundred_kills_at_full_speed_lose_at_most_a_second_each(
    tmp_path: Path,
    buffer: int | None,
    runs: int,
    seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    found = kill_streams(tmp_path, buffer, runs, seed)
    record_property("kills", 1)
    record_property("records stored", int(found["stored"]))
    record_property("records that left the program", int(found["left"]))
    record_property("age of the oldest lost record in seconds", round(found["age"], 3))
    assert found["age"] <= MAX_AGE_SECONDS

"""Single flipped bits and cut-off ends: values are right, or damage is reported."""

from __future__ import annotations

import collections
import random
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.save import SaveSink

KINDS = ("complete", "killed")


def write(folder: Path, *, is_killed: bool) -> Path:
    """Write a file with many batches, or copy it as a killed process leaves it; return it."""
    live = folder / "live"
    sink = SaveSink(live)
    runs = [RunInfo(f"run-{i}", f"name-{i}", {"rate": 0.5 * i}, 1.0, {"h": 1}) for i in range(3)]
    sink.open(runs)
    for number in range(40):
        values = {
            "x": np.full((3, 4), 1500.0 + number),
            "n": np.arange(12).reshape(3, 4) + number,
            "flag": np.ones((3, 4), bool),
        }
        steps = np.broadcast_to(np.arange(4) + 4 * number, (3, 4))
        sink.write(RecordBatch.of(runs, values, step=steps))
        if number % 10 == 0:
            large = np.arange(3 * 2 * 2000.0).reshape(3, 2, 2000) + number
            sink.write(RecordBatch.of(runs[:2], {"large": large[:2]}, step=steps[:2, :2]))
        if number % 5 == 4:
            sink.flush()
    if not is_killed:
        sink.close(runs, "finished")
        sink.end()
        (file,) = live.glob("*.sqlite")
        return file
    sink.flush()
    copy = folder / "copy"
    copy.mkdir()
    for file in live.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copy(file, copy / file.name)
    sink.end()
    (file,) = copy.glob("*.sqlite")
    return file


def content(path: Path) -> dict[str, Any]:
    """Return everything in a file that a user can read."""
    found: dict[str, Any] = {}
    for name, run in logax.load(path).items():
        logs = run.logs
        steps = {step: dict(columns) for step, columns in logs.steps.items()}
        facts = run.name, run.config, run.machine, run.status, run.began, run.resumed, run.updated
        found[name] = facts, dict(logs), steps
    return found


def are_equal(one: Any, two: Any) -> bool:
    leaves, form = jax.tree.flatten(one)
    others, other_form = jax.tree.flatten(two)
    pairs = zip(leaves, others, strict=False)
    return form == other_form and all(np.array_equal(a, b) for a, b in pairs)


def outcome(path: Path, expected: dict[str, Any]) -> str:
    """Read a damaged file: "right", "reported", "refused", or what is silently wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = content(path)
        except logax.RunsError:
            return "refused"
    if any(issubclass(each.category, logax.DamageWarning) for each in caught):
        return "reported"
    return "right" if are_equal(expected, found) else "silent"


def damage_at_random(
    folder: Path, kind: str, flips: int, cuts: int, seed: int
) -> collections.Counter[str]:
    """Flip single bits, and cut off ends; count the outcomes."""
    chance = random.Random(seed)
    original = write(folder, is_killed=kind == "killed")
    expected = content(original)
    files = {
        file: file.read_bytes()
        for file in original.parent.iterdir()
        if not file.name.endswith("-shm")
    }
    outcomes: collections.Counter[str] = collections.Counter()
    bad = folder / "bad"
    for number in range(flips + cuts):
        # Where in all bytes of the file, its log and its lock.
        at = chance.randrange(sum(map(len, files.values())))
        if bad.exists():
            shutil.rmtree(bad)
        bad.mkdir()
        where = ""
        for file, data in files.items():
            changed = bytearray(data)
            if 0 <= at < len(data):
                where = f"{file.suffix} {at}"
                if number < flips:
                    changed[at] ^= 1 << chance.randrange(8)
                elif chance.random() < 0.5:
                    del changed[at:]
                else:  # within the last page
                    del changed[max(len(data) - 1 - chance.randrange(8192), 0) :]
            at -= len(data)
            (bad / file.name).write_bytes(changed)
        found = outcome(bad / original.name, expected)
        assert found != "silent", (number < flips, where)
        outcomes[found] += 1
    return outcomes


def test_every_kind_of_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        path = write(tmp_path / kind, is_killed=kind == "killed")
        found = content(path)
        assert outcome(path, found) == "right"
        assert found["run-1"][1]["x"].tolist() == [1500.0 + i for i in range(40) for _ in range(4)]
        assert found["run-2"][0][3] == ("crashed" if kind == "killed" else "finished")


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_and_cuts_are_never_silent(tmp_path: Path, kind: str) -> None:
    outcomes = damage_at_random(tmp_path, kind, 20, 10, 0)
    assert outcomes["reported"] + outcomes["refused"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_flipped_bits_and_cuts_are_never_silent(tmp_path: Path, kind: str) -> None:
    damage_at_random(tmp_path, kind, 100, 40, 1)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_flipped_bits_and_cuts_are_never_silent(
    tmp_path: Path, kind: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    outcomes = damage_at_random(tmp_path, kind, 100, 40, seed)
    record_property("flips", 100)
    record_property("truncations", 40)
    record_property("outcomes", dict(outcomes))


def frame_of(log: Path, *, is_commit: bool) -> bytes:
    """Return a frame of the current turn of a log, with a wrong checksum."""
    _, _, size, _, *salts = struct.unpack_from(">6I", log.read_bytes())
    return struct.pack(">6I", 1, int(is_commit), *salts, 1, 2) + bytes(size)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_frame_that_a_kill_left_unfinished_is_no_damage(tmp_path: Path, is_commit: bool) -> None:
    path = write(tmp_path, is_killed=True)
    expected = content(path)
    log = path.with_name(f"{path.name}-wal")
    with log.open("ab") as file:
        file.write(frame_of(log, is_commit=is_commit))
        file.write(frame_of(log, is_commit=False))
    assert are_equal(content(path), expected)
    with log.open("ab") as file:
        file.write(frame_of(log, is_commit=True))
    with pytest.warns(logax.DamageWarning, match="its log is damaged from frame"):
        assert are_equal(content(path), expected)

"""Writers that are killed at any moment: safe rows are in the file, and runs can continue it."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logax.storage import HDF5StorageReader, resume_state
from storage_processes import (
    SCHEDULES,
    Child,
    check_rows,
    count_rows,
    eight_arrays,
    eight_row,
    eight_writer,
    run,
    start,
    write_rows,
)

SMALL, LARGE = 10, 2**18  # numbers in a row; the second are 2 MB
ENDS = [signal.SIGKILL, signal.SIGTERM]

# Writes until it is killed. Prints its first step after the first call of `log`.
ENDLESS = """
size, options, back = arguments
begin = 0
if options["mode"] == "a" and path.exists():
    with HDF5StorageReader(path) as reader:
        begin = max(0, len(reader.focus_group("rows")) - back)
    if back:
        options["start_step"] = begin
print("enters")
with writer(path, size, flush_seconds=0.02, queue_bytes=2**24, **options) as logger:
    for step in range(begin, 10**9):
        logger.log(row(step, size), step)
        if step == begin:
            print(begin)
"""


@dataclasses.dataclass
class Case:
    """One process, and the way it ends."""

    size: int
    end: int
    options: dict[str, Any]
    back: int  # number of rows that a continued file drops
    is_late: bool  # killed while it writes, not while it starts
    wait: float  # seconds until it is killed

    @classmethod
    def drawn(cls, draw: random.Random, mode: str) -> Case:
        size = draw.choice([SMALL, SMALL, LARGE])
        options: dict[str, Any] = {"mode": mode}
        if draw.random() < 0.3:
            options["compression"] = draw.choice(["gzip", 1])
        if draw.random() < 0.3:
            options["total_steps"] = draw.choice([50, 10_000])
        if draw.random() < 0.1:
            options["sync"] = True
        is_late = draw.random() < 0.85
        wait = draw.uniform(0, 0.15) if is_late else draw.uniform(0, 0.05)
        back = draw.choice([0, 0, 3, 2000])
        return cls(size, draw.choice(ENDS), options, back, is_late, wait)


def seen_until(reader: HDF5StorageReader[Any], end: float) -> int:
    """Return the number of safe rows at the last look before the end."""
    pause = threading.Event()
    while True:
        reader.refresh()
        rows = len(reader.focus_group("rows"))
        if pause.wait(max(0.0, min(0.005, end - time.monotonic()))) or time.monotonic() >= end:
            return rows


def kill(child: Child, path: Path, case: Case) -> int:
    """Kill a writer at its moment, and return the number of rows known to be safe."""
    assert child.line() == "enters"
    safe = 0
    if case.is_late:
        safe = int(child.line())
        with HDF5StorageReader(path) as reader:
            safe = max(safe, seen_until(reader, time.monotonic() + case.wait))
    else:
        time.sleep(case.wait)
    child.kill(case.end)
    code, _, errors = child.finish()
    assert (code, errors) == (-case.end, "")
    return safe


def check_killed(path: Path, case: Case, safe: int) -> int:
    """Check the rows of a killed writer: all safe ones, and only correct ones."""
    if not path.exists():
        assert not case.is_late
        return 0
    found = count_rows(path, case.size, complete=False)
    assert found >= safe
    return found


def check_kills(folder: Path, seed: int, files: int) -> int:
    """Kill a writer, in most cases another one that goes on, and then complete the file.

    Return the number of kills.
    """
    draw, kills = random.Random(seed), files
    for number in range(files):
        own = folder / str(number)
        own.mkdir()
        path = own / "run.h5"
        case = Case.drawn(draw, "x")
        found = check_killed(path, case, kill(_started(own, case), path, case))
        for _ in range(draw.choice([0, 1, 1, 2])):
            kills += 1
            then = dataclasses.replace(Case.drawn(draw, "a"), size=case.size)
            safe = kill(_started(own, then), path, then)
            if path.exists():
                found = check_killed(path, then, safe)
        write_rows(path, 5, case.size, start=found, mode="a")
        assert count_rows(path, case.size, complete=True) == found + 5
        path.unlink()
        left = list(own.iterdir())  # partial files of writers that were killed early
        assert all(each.suffix == ".part" for each in left)
    return kills


def _started(folder: Path, case: Case) -> Child:
    return start(ENDLESS, folder, case.size, case.options, case.back)


def test_a_kill_at_any_moment_leaves_what_was_safe_and_the_file_can_go_on(tmp_path: Path) -> None:
    check_kills(tmp_path, 0, 3)


@pytest.mark.slow
def test_kills_leave_what_was_safe(tmp_path: Path) -> None:
    check_kills(tmp_path, 1, 6)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2, 12))
def test_hundreds_of_kills_leave_what_was_safe(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("kills", check_kills(tmp_path, seed, 12))


# Writes eight groups at full speed until it is killed, and records the time of each `log`.
FULL_SPEED = """
size, options = arguments
_, begin = resume_state(path, "g0", eight_row("g0", 0, size))
note = os.open(folder / f"times.{begin}", os.O_WRONLY | os.O_CREAT)
with eight_writer(path, size, mode="a", start_step=begin, **options) as logger:
    for step in range(begin, 10**9):
        logger.log(eight_arrays(step, size), step)
        os.write(note, np.float64(time.monotonic()).tobytes())
        if step == begin:
            print(begin)
"""


def check_eight(path: Path, size: int, *, complete: bool) -> int:
    """Check that all groups end at the same step; return the number of steps."""
    with HDF5StorageReader(path) as reader:
        assert reader.complete is complete
        steps = reader.actual_steps
        for name, every in SCHEDULES.items():
            group = reader.focus_group(name)
            np.testing.assert_array_equal(group.steps, np.arange(0, steps, every))
            for step, found in zip(group.steps, group, strict=True):
                np.testing.assert_array_equal(found, eight_row(name, step, size))
    return steps


def check_full_speed(folder: Path, seed: int, kills: int) -> float:
    """Kill writers at full speed and resume each file; return the age of the oldest lost row."""
    draw, oldest = random.Random(seed), 0.0
    for number in range(kills):
        own = folder / str(number)
        own.mkdir()
        path, size = own / "run.h5", draw.choice([8, 2**15, 2**18, 2**18])
        options = {"compression": draw.choice(["gzip", "gzip", 1, 9 if size < 2**18 else 2])}
        child = start(FULL_SPEED, own, size, options)
        begin = int(child.line())
        threading.Event().wait(draw.uniform(0, 2.5))
        child.kill()
        killed = time.monotonic()
        code, _, errors = child.finish()
        assert (code, errors) == (-signal.SIGKILL, "")
        stored = check_eight(path, size, complete=False)
        logged = np.fromfile(own / f"times.{begin}")[stored - begin :]
        oldest = max(oldest, killed - logged[0] if len(logged) else 0.0)
        state, first = resume_state(path, "g0", eight_row("g0", 0, size))
        assert first == stored
        assert not first or state[1] == eight_row("g0", first - 1, size)[1]
        with eight_writer(path, size, mode="a", start_step=first) as logger:
            for step in range(first, first + 3):
                logger.log(eight_arrays(step, size), step)
        assert check_eight(path, size, complete=True) == first + 3
        path.unlink()
    return oldest


@pytest.mark.slow
def test_kills_at_full_speed_end_all_groups_at_the_same_step(tmp_path: Path) -> None:
    check_full_speed(tmp_path, 0, 4)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_kills_at_full_speed_lose_at_most_a_second(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    oldest = check_full_speed(tmp_path, seed, 10)
    record_property("kills", 10)
    record_property("oldest_lost_seconds", round(float(oldest), 3))
    assert oldest <= 1.0


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"sync": True}])
def test_rows_are_safe_soon_also_if_none_follows(tmp_path: Path, options: dict[str, Any]) -> None:
    child = start(
        """
        with writer(path, flush_seconds=0.02, **arguments[0]) as logger:
            for step in range(1234):
                logger.log(row(step), step)
            print("waits")
            signal.pause()
        """,
        tmp_path,
        options,
    )
    path = tmp_path / "run.h5"
    assert child.line() == "waits"
    with HDF5StorageReader(path) as reader:
        while len(reader.focus_group("rows")) < 1234:
            reader.refresh()
    child.kill()
    assert child.finish() == (-signal.SIGKILL, "", "")
    assert count_rows(path, complete=False) == 1234


def test_an_array_that_is_written_once_outlives_a_kill(tmp_path: Path) -> None:
    child = start(
        """
        with HDF5StorageWriter(path, two_groups(), row(0, 5000), flush_seconds=0.02) as logger:
            for step in range(3):
                logger.log(row(step, 5000), step)
            print("waits")
            signal.pause()
        """,
        tmp_path,
    )
    assert child.line() == "waits"
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        while len(reader.focus_group("rows")) < 3:
            reader.refresh()
    child.kill()
    child.finish()
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        assert check_rows(reader, 5000) == 3
        assert reader.focus_group("start")[...]["x"].sum() == sum(range(5000)) * 1_000_003


def test_a_program_that_makes_an_exit_of_the_signal_keeps_all_rows(tmp_path: Path) -> None:
    child = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        with writer(path, flush_seconds=60) as logger:
            for step in range(100):
                logger.log(row(step), step)
            print("waits")
            signal.pause()
        """,
        tmp_path,
    )
    assert child.line() == "waits"
    child.kill(signal.SIGTERM)
    assert child.finish() == (3, "", "")
    assert count_rows(tmp_path / "run.h5", complete=True) == 100


def test_a_file_that_is_continued_after_each_of_many_kills_misses_nothing(tmp_path: Path) -> None:
    code, said, errors = run(
        """
        for turn in range(4):
            pid = os.fork()
            if not pid:
                with writer(path, mode="a", flush_seconds=0) as logger:
                    for step in range(turn * 300, turn * 300 + 300):
                        logger.log(row(step), step)
                    with HDF5StorageReader(path) as reader:
                        while len(reader.focus_group("rows")) < turn * 300 + 300:
                            reader.refresh()
                    os.kill(os.getpid(), signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            assert count_rows(path, complete=False) == turn * 300 + 300
        print(path.stat().st_size)
        """,
        tmp_path,
    )
    assert (code, errors) == (0, "")
    rows_bytes = 4 * 300 * 11 * 8
    assert int(said) < 4 * rows_bytes  # a kill leaves little unused space

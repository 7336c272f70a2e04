"""An hour's worth of records in a minute: none is lost or wrong, and no memory stays behind."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.processes import answer
from soak.volume import KEYS, QUEUE, read, write

FLAT = 12 * 2**20  # bytes, by which what is resident may differ from itself
OBJECTS = 2_000
ROOM = 3 * 2**30  # bytes


def assert_flat(took: dict[str, list[int]]) -> float:
    """Neither bytes nor objects stay, once a fifth has warmed up; the bytes that there are."""
    level, blocks = (statistics.median(took[each][4:8]) for each in ("resident", "blocks"))
    assert abs(statistics.median(took["resident"][-4:]) - level) < FLAT
    assert abs(statistics.median(took["blocks"][-4:]) - blocks) < OBJECTS
    return level


@pytest.mark.slow
def test_millions_of_scalars_are_all_on_disk_and_leave_no_memory_behind(tmp_path: Path) -> None:
    check_volume(tmp_path, 20_000_000, 100, 100)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("lanes", "buffer"),
    [(1, 5_000), (1_000, 50)],
    ids=["one run of 10 million records", "a thousand runs of 10,000"],
)
def test_a_hundred_million_scalars_are_all_on_disk_and_leave_no_memory_behind(
    lanes: int, buffer: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    room = shutil.disk_usage(tmp_path).free
    assert room >= ROOM, f"needs {ROOM:,} bytes in {tmp_path}, and there are {room:,}"
    check_volume(tmp_path, 100_000_000, lanes, buffer)
    record_property("scalars", 100_000_000)


def check_volume(tmp_path: Path, scalars: int, lanes: int, buffer: int) -> None:
    steps, folder = scalars // KEYS // lanes, tmp_path / "runs"
    took = answer(write, folder, lanes, steps, 100, buffer)

    # Of the eight million records, or of all lanes' transfers, none leaves an object or two bytes.
    level = assert_flat(took)
    assert took["most"][-1] < level + 8 * QUEUE

    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size <= 1.3 * 4 * scalars
    found = answer(read, folder, lanes, steps)
    assert found["number"] == scalars
    assert found["taken"] < size / 2  # to read a key is not to read all of them
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_transfer_for_each_record_leaves_no_memory_behind(tmp_path: Path) -> None:
    steps = 200_000
    # Of 140,000 transfers none leaves an object.
    assert_flat(answer(write, tmp_path, 1, steps, 20, 1))
    assert answer(read, tmp_path, 1, steps)["number"] == steps * KEYS

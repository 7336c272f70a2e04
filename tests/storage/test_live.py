"""Reading a trajectory while another process writes it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from logax.storage import HDF5StorageReader
from storage_processes import row, rows_in, start, writer

FOLLOWS = """
size, rows = arguments
with HDF5StorageReader(path) as reader:
    for step, found in enumerate(reader.follow("rows", poll_seconds=0.002)):
        wanted = row(step, size)
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted), step
        if step == 0:
            print("ready")
    assert reader.complete
print(step + 1)
"""
INDEXES = """
size, rows = arguments
seen = looks = 0
with HDF5StorageReader(path) as reader:
    group = reader.focus_group("rows")
    while not reader.complete:
        reader.refresh()
        n = len(group)
        assert n >= seen
        for step in {n - 1, seen, n // 2}:
            if 0 <= step < n:
                found, wanted = group[step], row(step, size)
                assert all(np.array_equal(found[name], wanted[name]) for name in wanted), step
        assert n <= reader.actual_steps
        if not looks:
            print("ready")
        seen, looks = n, looks + 1
    print(check_rows(reader, size))
"""
REOPENS = """
size, rows = arguments
seen, is_complete = 0, False
while not is_complete:
    with HDF5StorageReader(path) as reader:
        n, is_complete = len(reader.focus_group("rows")), reader.complete
        assert n >= seen
        if n > seen:
            check_rows(reader, size)
        if not seen:
            print("ready")
        seen = max(n, 1)
print(n)
"""
# What is in the datasets before the end is not all that is safe, and of the arrays of a row some
# may be there before others; what must hold is that nothing fails and that each value is right.
PLAIN = """
size, rows = arguments
name, scale = ("x0", 10) if size == 10 else ("x", 1)
with h5py.File(path, "r", swmr=True) as file:
    steps, x = file["rows/step"], file[f"rows/{name}"]
    print("ready")
    there = 0
    while there < rows:
        for dataset in (steps, x):
            dataset.refresh()
        found = steps[...]
        assert np.all((found == np.arange(len(found))) | (found == -1))
        first = x[...] if size == 10 else x[:, 0]
        assert np.all((first == np.arange(len(first)) * scale) | (first == 0))
        there = min(np.count_nonzero(found >= 0), np.count_nonzero(first) + 1)
print(there)
"""


def check_readers(folder: Path, size: int, rows: int, programs: list[str]) -> None:
    """Have programs read while rows are written; each says in its last line how many it got."""
    path = folder / "run.h5"
    with writer(path, size, flush_seconds=0.005, queue_bytes=2**24) as logger:
        logger.log(row(0, size), 0)
        readers = [start(program, folder, size, rows) for program in programs]
        assert [reader.line() for reader in readers] == ["ready"] * len(readers)
        for step in range(1, rows):
            logger.log(row(step, size), step)
    for reader in readers:
        assert reader.finish() == (0, f"{rows}\n", "")
    assert rows_in(path, size, complete=True) == rows


def test_readers_of_all_kinds_get_every_row_once_and_in_order(tmp_path: Path) -> None:
    check_readers(tmp_path, 10, 3000, [FOLLOWS, INDEXES, PLAIN])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rows"), [(10, 50_000), (3000, 3000), (2**17, 300)])
def test_readers_of_long_runs_see_nothing_wrong(tmp_path: Path, size: int, rows: int) -> None:
    check_readers(tmp_path, size, rows, [FOLLOWS, INDEXES, REOPENS, PLAIN])


def test_following_ends_with_a_warning_where_the_writer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    child = start(
        """
        with writer(path, flush_seconds=0.005) as logger:
            for step in range(50):
                logger.log(row(step), step)
            print("waits")
            signal.pause()
        """,
        tmp_path,
    )
    assert child.line() == "waits"
    got = []
    with HDF5StorageReader(path) as reader:
        rows = reader.follow("rows", poll_seconds=0.002)
        for found in rows:
            got.append(found["x0"])
            if len(got) == 50:
                break
        child.kill()
        assert child.finish()[0] == -signal.SIGKILL
        with pytest.warns(UserWarning, match="nobody writes to it: its writer was killed. 50 rows"):
            assert list(rows) == []
    assert got == [step * 10 for step in range(50)]


def test_a_reader_sees_the_file_as_it_was_until_it_looks_again(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with writer(path, flush_seconds=0) as logger, HDF5StorageReader(path) as reader:
        group = reader.focus_group("rows")
        assert (len(group), reader.complete, reader.actual_steps) == (0, False, 0)
        for step in range(1000):
            logger.log(row(step), step)
        while len(group) < 1000:
            assert len(group) == len(group.steps) == len(group[...]["x9"])
            reader.refresh()
        assert [row["x1"] for row in group] == [step * 10 + 1 for step in range(1000)]

"""Read a trajectory while it is written, and while another run continues it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from logax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    StorageError,
    WriterGroupConfig,
)
from storage_processes import Child, count_rows, row, start, write_rows, writer

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
# Before the end, the datasets do not hold all safe rows, and may hold only some arrays of a row.
# Plain h5py must read them without an error, and every value must be correct.
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
    """Run readers while rows are written; the last line of each is its number of rows."""
    path = folder / "run.h5"
    with writer(path, size, flush_seconds=0.005, queue_bytes=2**24) as logger:
        logger.log(row(0, size), 0)
        readers = [start(program, folder, size, rows) for program in programs]
        assert [reader.line() for reader in readers] == ["ready"] * len(readers)
        for step in range(1, rows):
            logger.log(row(step, size), step)
    for reader in readers:
        assert reader.finish() == (0, f"{rows}\n", "")
    assert count_rows(path, size, complete=True) == rows


def test_readers_of_all_kinds_get_every_row_once_and_in_order(tmp_path: Path) -> None:
    check_readers(tmp_path, 10, 3000, [FOLLOWS, INDEXES, PLAIN])


@pytest.mark.slow
def test_readers_that_reopen_the_file_see_nothing_wrong(tmp_path: Path) -> None:
    check_readers(tmp_path, 3000, 1000, [FOLLOWS, INDEXES, REOPENS, PLAIN])


@pytest.mark.campaign
@pytest.mark.parametrize(("size", "rows"), [(10, 50_000), (3000, 3000), (2**17, 300)])
def test_readers_of_long_runs_see_nothing_wrong(
    tmp_path: Path, size: int, rows: int, record_property: Callable[[str, object], None]
) -> None:
    check_readers(tmp_path, size, rows, [FOLLOWS, INDEXES, REOPENS, PLAIN])
    record_property("rows", rows)


def writing(folder: Path) -> Child:
    """Return a process that has written fifty rows, and waits with the file open."""
    child = start(
        """
        with writer(path, flush_seconds=0.005) as logger:
            for step in range(50):
                logger.log(row(step), step)
            print("waits")
            signal.pause()
        """,
        folder,
    )
    assert child.line() == "waits"
    return child


def taken(rows: Iterator[Any], number: int) -> list[float]:
    """Return the next rows."""
    return [float(next(rows)["x0"]) for _ in range(number)]


@contextlib.contextmanager
def followed_until_killed(folder: Path) -> Iterator[Iterator[Any]]:
    """Yield an iterator that has returned all fifty rows of a writer that was then killed."""
    child = writing(folder)
    with HDF5StorageReader(folder / "run.h5") as reader:
        rows = reader.follow("rows", poll_seconds=0.002)
        assert taken(rows, 50) == [step * 10 for step in range(50)]
        child.kill()
        assert child.finish()[0] == -signal.SIGKILL
        yield rows


def test_following_ends_with_a_warning_where_the_writer_was_killed(tmp_path: Path) -> None:
    expected = "has no writer any more: its writer was killed, or has "
    with followed_until_killed(tmp_path) as rows, pytest.warns(UserWarning, match=expected):
        assert list(rows) == []


def test_following_says_that_another_file_has_taken_the_place(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    # The second writer has the new file open while the reader follows the first one.
    with followed_until_killed(tmp_path) as rows, writer(path, mode="w") as other:
        other.log(row(7), 7)
        with pytest.warns(UserWarning, match=r"run.h5 is another file now.* 50 rows of `rows`"):
            assert list(rows) == []


def test_following_says_that_the_file_is_gone(tmp_path: Path) -> None:
    with followed_until_killed(tmp_path) as rows:
        (tmp_path / "run.h5").unlink()
        with pytest.warns(UserWarning, match=r"run.h5 is gone.* returned 50 rows of `rows`"):
            assert list(rows) == []


def at_next_pause(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function when `follow` has found no new row, and is about to wait."""
    usual, acts = time.sleep, [act]

    def sleep(seconds: float) -> None:
        if acts:
            acts.pop()()
        usual(seconds)

    monkeypatch.setattr(time, "sleep", sleep)


def test_a_file_is_followed_to_its_end_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "logax.storage.reader._WRITER_CHECK_SECONDS", 0
    )  # it looks for a writer at once
    path = tmp_path / "run.h5"
    with HDF5StorageWriter(path, RUN, np.float64(0), flush_seconds=0) as first:
        first.log(np.float64(0), 0)
        with HDF5StorageReader(path) as reader:
            rows = reader.follow("rows", poll_seconds=0.002)
            assert next(rows) == 0
            path.rename(tmp_path / "renamed.h5")
            write_rows(path, 20)  # another writer may use its name
            at_next_pause(monkeypatch, lambda: first.log(np.float64(1), 1))
            assert next(rows) == 1
            with pytest.raises(StorageError, match=r"was replaced by .* Rows .*: 2 of `rows`"):
                first.__exit__(None, None, None)
            with pytest.warns(
                UserWarning, match=r"is another file now.* returned 2 rows of `rows`"
            ):
                assert list(rows) == []


def test_where_nobody_can_tell_who_writes_a_file_is_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, kind: int) -> None:
        raise OSError(errno.EBADF, "no locks on files that are open for reading")

    monkeypatch.setattr("logax.storage.reader._WRITER_CHECK_SECONDS", 0)
    with writer(tmp_path / "run.h5", flush_seconds=0) as logger:
        logger.log(row(0), 0)
        with HDF5StorageReader(tmp_path / "run.h5") as reader:
            rows = reader.follow("rows", poll_seconds=0.002)
            assert taken(rows, 1) == [0]
            monkeypatch.setattr(fcntl, "flock", no_locks)
            at_next_pause(monkeypatch, lambda: logger.log(row(1), 1))
            assert taken(rows, 1) == [10]


RUN = {"rows": WriterGroupConfig(lambda state: state, 1)}


def log(path: Path, run: int, steps: Iterable[int], **options: Any) -> None:
    """Write a run that stores its number and its steps: 307 is step 7 of run 3."""
    with HDF5StorageWriter(path, RUN, np.float64(0), **options) as logger:
        for step in steps:
            logger.log(np.float64(100 * run + step), step)


@pytest.mark.parametrize(
    ("first", "runs", "seen"),
    [
        (range(10), [(4, range(4, 10))], range(104, 110)),
        (range(10), [(4, range(4, 13))], range(104, 113)),
        (range(10), [(4, [])], []),
        (range(10), [(0, range(3))], range(100, 103)),
        (range(10), [(None, range(10, 13))], range(110, 113)),
        (range(10), [(None, [])], []),
        (range(10), [(None, [3])], [103]),
        (range(10), [(10, range(10, 12))], [110, 111]),
        (range(10), [(2, range(2, 10)), (8, [8, 9])], [*range(102, 108), 208, 209]),
        (range(10), [(7, [7, 8, 9]), (4, [4, 5]), (None, [6, 7])], [204, 205, 306, 307]),
        (range(10), [(9, [9]), (None, [10]), (5, range(5, 30))], range(305, 330)),
        # More runs than a commit has separate entries for.
        (
            range(10),
            [(start_step, range(start_step, 10)) for start_step in (1, 3, 5, 7, 8, 9)],
            [101, 102, 203, 204, 305, 306, 407, 508, 609],
        ),
        # A cut makes the rows at and after step 3 void, as earlier steps are among them.
        ([0, 5, 1, 6, 2, 7], [(3, [3, 4, 5])], [103, 104, 105]),
        ([0, 5, 1, 6, 2, 7], [(3, [3, 4]), (4, [4]), (1, [1, 2])], [301, 302]),
        ([3, 2, 1, 0], [(2, [2, 3])], [102, 103]),
        ([3, 2, 1, 0], [(2, [2, 3]), (0, [0])], [200]),
    ],
)
def test_following_goes_on_with_the_rows_of_the_next_run(
    first: Iterable[int], runs: list[tuple[int | None, Iterable[int]]], seen: Any, tmp_path: Path
) -> None:
    path = tmp_path / "run.h5"
    with HDF5StorageWriter(path, RUN, np.float64(0), flush_seconds=0) as logger:
        for step in first:
            logger.log(np.float64(step), step)
        reader = HDF5StorageReader(path)
        rows = reader.follow("rows")
        assert [next(rows) for _ in first] == list(first)
    for number, (start_step, steps) in enumerate(runs, 1):
        log(path, number, steps, mode="a", start_step=start_step)
    with reader:
        assert list(rows) == list(seen)


def test_the_rows_of_the_next_run_come_also_if_it_was_looked_at_before_it_had_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.h5"
    options: dict[str, Any] = {"flush_seconds": 0, "initial_state": 0.0, "config": RUN}
    with HDF5StorageWriter(path, **options) as first, HDF5StorageReader(path) as reader:
        rows = reader.follow("rows", poll_seconds=0.001)
        for step in range(5):
            first.log(np.float64(step), step)
        assert [next(rows) for _ in range(5)] == [0, 1, 2, 3, 4]
        first.__exit__(None, None, None)
        with HDF5StorageWriter(path, mode="a", start_step=2, **options) as second:
            at_next_pause(monkeypatch, lambda: second.log(np.float64(102), 2))
            assert next(rows) == 102
        assert list(rows) == []


def test_who_looks_again_while_they_follow_gets_the_rows_of_the_next_run(tmp_path: Path) -> None:
    path, size = write_rows(tmp_path / "run.h5", 8, 2**17), 2**17  # four are read at a time
    with HDF5StorageReader(path) as reader:
        rows = reader.follow("rows", poll_seconds=0)
        assert next(rows)["x"][0] == 0
        with writer(path, size, mode="a", start_step=2) as logger:
            for step in range(2, 8):
                logger.log(row(step + 100, size), step)
        reader.refresh()
        assert [int(each["x"][0]) for each in rows] == [1, 2, 3, *range(102, 108)]


def test_a_row_that_is_damaged_is_told_where_it_is_followed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run.h5", 8, 2**17)  # four rows are read at a time
    with h5py.File(path) as file:
        at = file["rows/x"].id.get_chunk_info_by_coord((5, 0)).byte_offset
    with open(path, "r+b") as raw:
        raw.seek(at)
        raw.write(bytes(100))
    with HDF5StorageReader(path) as reader:
        rows = reader.follow("rows", poll_seconds=0)
        assert [int(next(rows)["x"][0]) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(StorageError, match=r"cannot read `rows/x` in .*, which is damaged"):
            next(rows)


def test_what_is_written_once_comes_again_where_a_run_begins_anew(tmp_path: Path) -> None:
    config = {"start": WriterGroupConfig(lambda state: state, Once())}

    def begun(value: float, **options: Any) -> HDF5StorageWriter:
        logger = HDF5StorageWriter(tmp_path / "run.h5", config, 0.0, flush_seconds=0, **options)
        logger.__enter__().log(value, 0)
        return logger

    first = begun(1.0)
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        rows = reader.follow("start")
        assert next(rows) == 1
        first.__exit__(None, None, None)
        second = begun(2.0, mode="a")
        second.__exit__(None, None, None)
        third = begun(3.0, mode="a", start_step=0)
        assert next(rows) == 3
        third.__exit__(None, None, None)
        assert list(rows) == []


def test_who_follows_through_many_runs_has_each_row_as_it_was_written_last(tmp_path: Path) -> None:
    for seed in range(12):
        chance = random.Random(seed)
        path = tmp_path / f"{seed}.h5"
        log(path, 0, [])
        with HDF5StorageReader(path) as reader:
            group = reader.focus_group("rows")
            rows: Iterator[Any] = iter(())
            came: list[float] = []
            for number in range(1, chance.randint(2, 9)):
                start_step = chance.choice([None, chance.randint(0, 25)])
                steps = list(range(start_step or 0, 30))[: chance.randint(0, 30)]
                if chance.random() < 0.3:
                    chance.shuffle(steps)
                with HDF5StorageWriter(
                    path, RUN, 0.0, mode="a", start_step=start_step, flush_seconds=0
                ) as logger:
                    if number == 1:
                        rows = reader.follow(group, poll_seconds=0)
                    for step in steps:
                        logger.log(100.0 * number + step, step)
                    if chance.random() < 0.6:  # read some rows before the next run
                        came += [float(next(rows)) for _ in range(chance.randint(0, len(steps)))]
            came += map(float, rows)
            reader.refresh()
            assert len(set(came)) == len(came), seed
            last = {value % 100: value for value in came}
            assert [last[step] for step in group.steps] == group[...].tolist(), seed
            assert reader.complete


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    path, size, number = tmp_path / "run.h5", 3000, 300
    errors: list[BaseException] = []

    def reads(reader: HDF5StorageReader[Any], ends: threading.Event) -> None:
        group = reader.focus_group("rows")
        try:
            while not ends.is_set():
                reader.refresh()
                for step in range(0, len(group), 7):
                    np.testing.assert_array_equal(group[step]["x"], row(step, size)["x"])
            assert sum(1 for _ in reader.follow(group)) == number
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    with writer(path, size, flush_seconds=0.001) as logger, HDF5StorageReader(path) as reader:
        ends = threading.Event()
        threads = [threading.Thread(target=reads, args=(reader, ends)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for step in range(number):
            logger.log(row(step, size), step)
        ends.set()
        logger.__exit__(None, None, None)
        for thread in threads:
            thread.join()
    assert not errors, errors[0]


def test_a_reader_works_in_a_process_that_is_forked_while_a_thread_reads(tmp_path: Path) -> None:
    write_rows(tmp_path / "run.h5", 100)
    code, out, errors = start(
        """
        warnings.simplefilter("ignore")  # Python warns of threads at a fork
        reader = HDF5StorageReader(path)
        group = reader.focus_group("rows")
        holds, ends = threading.Event(), threading.Event()

        def hold():
            with reader._source.lock:
                holds.set()
                ends.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        holds.wait()
        child = os.fork()
        if not child:
            print(group[-1]["x0"], flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        ends.set()
        thread.join()
        """,
        tmp_path,
    ).finish()
    assert (code, out, errors) == (0, "990.0\n0\n", "")


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

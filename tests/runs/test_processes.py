"""Runs under real processes: killed, forked, side by side, on a full disk, without permission."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax._runs.journal import Journal, JournalEntry
from logax.loggers.save import SaveSink
from storage_processes import disk_limits, run, start

BEGIN = """
import numpy as np
import logax
from logax.loggers.save import SaveSink
from logax._delivery.record_batch import RecordBatch, RunInfo

def batch(run, number, size):
    return RecordBatch.of([run], {"x": np.full((1, 3, size), number), "n": np.full((1, 3), number)},
                      step=np.arange(number * 3, number * 3 + 3)[None])
"""
WRITES = (
    BEGIN
    + """
name, size, most = arguments
sink, run = SaveSink(folder), RunInfo(name, name, began=time.time())
sink.open([run])
for number in range(most):
    sink.write(batch(run, number, size))
    if number % 3 == 2:
        sink.flush()
        print(number, flush=True)
signal.pause()
"""
)


def check(run: Any, size: int) -> int:
    """How many batches there are: the first ones, none is missing and none wrong."""
    logs = run.logs
    assert logs.count["x"] == logs.count["n"]
    number, rest = divmod(int(logs.count["n"]), 3)
    assert rest == 0
    np.testing.assert_array_equal(logs["n"], np.repeat(np.arange(number), 3))
    np.testing.assert_array_equal(
        logs["x"], np.repeat(np.arange(number), 3)[:, None] * np.ones(size)
    )
    np.testing.assert_array_equal(logs.step["x"], np.arange(number * 3))
    return number


# Killed.


def kill_at_random(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(times):
        name, size = f"run-{number}", chance.choice([2, 2**12, 2**17])
        child = start(WRITES, folder, name, size, 10**9)
        said = [int(child.line()) for _ in range(chance.choice([1, 1, 2, 3 if size > 2 else 40]))]
        time.sleep(chance.random() * 0.02)  # the moment of death is not to be that of a flush
        child.kill(signal.SIGKILL)
        code, rest, errors = child.finish()
        assert (code, errors) == (-signal.SIGKILL, "")
        said += [int(line) for line in rest.splitlines()]
        runs = logax.load(folder)
        assert runs[name].status == "crashed"
        assert check(runs[name], size) >= said[-1] + 1
        assert list(runs) == [f"run-{i}" for i in range(number + 1)]


def test_whatever_was_flushed_survives_a_kill_and_others_write_on(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 4, 1)


@pytest.mark.slow
def test_whatever_was_flushed_survives_ten_kills(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 10, 0)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2, 12))
def test_whatever_was_flushed_survives_ten_kills_of_a_hundred(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    kill_at_random(tmp_path, 10, seed)
    record_property("kills", 10)


# Side by side.


def test_two_processes_write_beside_each_other_while_a_reader_follows(tmp_path: Path) -> None:
    children = [start(WRITES, tmp_path, name, 200, 60) for name in ("a", "b")]
    first = [child.line() for child in children]
    assert first == ["2", "2"]
    runs = logax.load(tmp_path)
    seen = {"a": 0, "b": 0}
    for _ in range(19):
        for name, child in zip(seen, children, strict=True):
            flushed = int(child.line()) + 1
            number = check(runs[name], 200)
            assert number >= max(flushed, seen[name])
            seen[name] = number
            assert runs[name].status == "running"
        assert len(runs["n"]) == 2
    assert len(list(tmp_path.glob("*.sqlite"))) == 2
    for child in children:
        child.kill()
        assert child.finish()[0] == -signal.SIGKILL
    assert [each.status for each in runs.values()] == ["crashed", "crashed"]


def test_a_writer_that_ends_while_somebody_reads_leaves_everything_readable(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
    sink, run = SaveSink(folder), RunInfo("a", "a")
    sink.open([run])
    for number in range(40):
        sink.write(batch(run, number, 10))
        sink.flush()
        print(number)
    sink.close([run], "finished")
    sink.end()
    """.replace("\n    ", "\n")
    )
    child = start(program, tmp_path)
    assert child.line() == "0"
    runs = logax.load(tmp_path)
    while runs["a"].status == "running":
        check(runs["a"], 10)
    assert child.finish()[::2] == (0, "")
    assert runs["a"].status == "finished"
    assert check(runs["a"], 10) == 40


# Forked.


def test_a_forked_child_writes_a_file_of_its_own_to_the_same_run(tmp_path: Path) -> None:
    code, said, errors = run(
        BEGIN
        + """
warnings.simplefilter("ignore")
sink, run = SaveSink(folder), RunInfo("a", "a", began=1.0)
sink.open([run])
sink.write(batch(run, 0, 2))
sink.flush()
sink.write(batch(run, 1, 2))  # not flushed: it is for the parent to do
pid = os.fork()
if not pid:
    child = RunInfo("child", "child", began=2.0)
    sink.open([child])
    sink.write(batch(child, 0, 2))
    sink.write(batch(run, 5, 2))
    sink.close([child], "finished")
    sink.flush()
    sink.end()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(logax.load(folder)["a"].status)
for _ in range(2):
    pid = os.fork()
    if not pid:
        sink.flush() if _ else sink.end()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
sink.write(batch(run, 2, 2))
sink.close([run], "finished")
sink.end()
""",
        tmp_path,
    )
    assert (code, said, errors) == (0, "running\n", "")
    runs = logax.load(tmp_path)
    assert [(each.id, each.status, each.resumed) for each in runs.values()] == [
        ("a", "finished", 0),
        ("child", "finished", 0),
    ]
    assert runs["a"]["n"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [5] * 3
    assert runs["child"]["n"].tolist() == [0] * 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_child_that_outlives_its_parent_does_not_make_it_look_alive(tmp_path: Path) -> None:
    child = start(
        BEGIN
        + """
warnings.simplefilter("ignore")
sink, run = SaveSink(folder), RunInfo("a", "a")
sink.open([run])
sink.flush()
if not os.fork():
    print(os.getpid(), flush=True)  # it has let go of what is not its own
signal.pause()
""",
        tmp_path,
    )
    grandchild = int(child.line())
    try:
        assert logax.load(tmp_path)["a"].status == "running"
        child.kill()
        # Its output stays open in the other one, so that this waits for its end alone.
        assert child._wait(child.pid) == -signal.SIGKILL
        assert logax.load(tmp_path)["a"].status == "crashed"
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.out.close()
        child.errors.close()


def test_a_lock_that_was_let_go_of_stays_that_of_the_other_process(tmp_path: Path) -> None:
    """A fork may come in the middle of anything, also where a file is about to be ended."""
    code, said, errors = run(
        """
        from logax._runs.lock_files import create_writer_lock, is_being_written

        warnings.simplefilter("ignore")
        lock = create_writer_lock(str(path))
        pid = os.fork()
        if not pid:
            lock.close()
            lock.release()
            lock.close()
            sys.exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), is_being_written(str(path)))
        lock.release()
        print(is_being_written(str(path)), os.listdir(folder))
        """,
        tmp_path,
    )
    assert (code, said, errors) == (0, "9 True\nFalse []\n", "")


# A full disk.


@pytest.mark.parametrize("size", [2, 2**12])
def test_a_full_disk_is_told_and_what_waits_is_written_when_there_is_room(
    tmp_path: Path, size: int
) -> None:
    for way in disk_limits():
        folder = tmp_path / way
        folder.mkdir()
        code, said, errors = run(
            BEGIN
            + """
way, size = arguments
disk(way, folder)
sink, run = SaveSink(folder), RunInfo("a", "a")
sink.open([run])
sink.write(batch(run, 0, size))
sink.flush()
fill(way, folder, 2**17)
number = 0
try:
    while True:
        number += 1
        sink.write(batch(run, number, size))
        sink.flush()
except OSError as error:
    print(error)
    print(error.errno, len(logax.load(folder)["a"]["n"]))
for again in range(2):
    number += 1
    try:
        sink.write(batch(run, number, size))
        sink.flush()
    except OSError:
        print("again")
make_room(way, folder)
number += 1
sink.write(batch(run, number, size))
sink.close([run], "finished")
sink.end()
found = logax.load(folder)["a"]
expected = np.repeat(np.arange(number + 1), 3)
print(found.status, found["n"].tolist() == expected.tolist(),
      (found["x"] == expected[:, None]).all(), found["x"].shape == (len(expected), size))
""",
            folder,
            way,
            size,
        )
        assert (code, errors) == (0, ""), errors
        message, safe, *again, last = said.splitlines()
        number, records = safe.split()
        assert number in ("28", "5")
        assert (
            f"The {records} records that were written before are safe; 3 wait in memory" in message
        )
        assert "`SaveLogger` could not write to " in message
        assert len(again) <= 2
        assert last == "finished True True True"


def test_what_the_last_write_cannot_store_is_said_to_be_lost_and_the_file_is_let_go(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        BEGIN
        + """
def last(do):
    try:
        do()
    except OSError as error:
        print(error)
    print(sorted({os.path.splitext(each)[1] for each in os.listdir(folder)} - {".sqlite-wal"}))

sink, run = SaveSink(folder), RunInfo("a", "a")
sink.open([run])
sink.write(batch(run, 0, 2))
sink.flush()
fill("limit", folder, 2**12)
try:
    sink.write(batch(run, 1, 2**16))
    sink.flush()
except OSError:
    pass
last(sink.end)
last(lambda: logax.save({"x": np.zeros(2**20)}, folder))
make_room("limit", folder)
print(logax.load(folder)["a"]["n"].tolist())
""",
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    of_logger, left, of_save, left_of_save, kept = said.splitlines()
    assert "`SaveLogger` could not write to " in of_logger
    assert of_logger.endswith("The 3 records that were written before are safe; 3 are lost.")
    assert "`logax.save` could not write to " in of_save
    assert of_save.endswith("records that were written before are safe; 1048576 are lost.")
    assert left == left_of_save == "['.sqlite']"
    assert kept == "[0, 0, 0]"


def test_a_logger_on_a_full_disk_says_what_waits_and_at_its_end_what_is_lost(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        """
        import jax
        import logax
        from logax.loggers import SaveLogger

        logger = SaveLogger(folder)
        state = logger.init(jax.random.key(0), name="a")
        logger.log(state, {"x": np.zeros(4)}, step=0)
        logax.flush()
        fill("limit", folder, 2**12)
        logger.log(state, {"x": np.zeros(2**16)}, step=1)
        for do in (logax.flush, logax.flush, logger.close, logax.flush):
            try:
                do()
                print("ok")
            except logax.DeliveryError as error:
                print(error)
        make_room("limit", folder)
        (found,) = logax.load(folder).values()
        print(found["x"].shape, found.status)
        """,
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    first, second, closed, after, kept = said.splitlines()
    safe = "The 1 records that were written before are safe; 1 "
    waits = "wait in memory and are written with the next ones, once the disk accepts them."
    assert first.endswith(f"{safe}{waits}")
    assert "`SaveLogger` could not flush its runs: RunsWriteError: [Errno " in first
    assert second.endswith(f"{safe}{waits}")
    assert closed.endswith(f"{safe}are lost.")
    assert after == "ok"
    assert kept == "(1, 4) crashed"


def test_what_finds_no_room_in_memory_either_is_said_to_be_lost(tmp_path: Path) -> None:
    code, said, errors = run(
        BEGIN
        + """
from logax._runs import journal

journal._MAX_PENDING_BYTES = 2**18
sink, run = SaveSink(folder), RunInfo("a", "a")
sink.open([run])
sink.flush()
fill("limit", folder, 2**12)
for number in range(3):
    try:
        sink.write(batch(run, number, 2**12))
        sink.flush()
    except OSError as error:
        print(error)
make_room("limit", folder)
for number in range(3, 6):  # more than there is room for, of which the disk takes some
    sink.write(batch(run, number, 2**12))
sink.close([run], "finished")
sink.end()
print(logax.load(folder)["a"]["n"].tolist())
""",
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    *messages, found = said.splitlines()
    waits = "wait in memory and are written with the next ones, once the disk accepts them."
    assert [message.partition(" are safe; ")[2] for message in messages] == [
        f"3 {waits}",
        f"6 {waits}",
        f"6 {waits} 3 records did not fit into memory and are lost.",
    ]
    assert found == str([number for number in (0, 1, 3, 4, 5) for _ in range(3)])


def test_an_interrupt_where_entries_are_committed_loses_none_of_them(tmp_path: Path) -> None:
    class Interrupted(sqlite3.Connection):
        interrupts = 1

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT" and self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return super().execute(statement, *values)

    path = str(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path, factory=Interrupted, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE found (number)")
        journal = Journal("SaveLogger", connection, path, ())
        for number in range(3):
            add = partial(connection.execute, "INSERT INTO found VALUES (?)", (number,))
            journal.add(JournalEntry(add, 1))
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
        assert (journal.safe_records, connection.in_transaction) == (0, False)
        journal.commit()
        assert journal.safe_records == 3
        assert connection.execute("SELECT * FROM found").fetchall() == [(0,), (1,), (2,)]


def test_a_new_file_that_cannot_have_its_name_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(old: str, new: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink, info = SaveSink(tmp_path), RunInfo("a", "a")
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Input/output error"):
        sink.open([info])
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    sink.write(RecordBatch.of([info], {"x": np.arange(3)[None]}))
    sink.close([info], "finished")
    sink.end()
    found = logax.load(tmp_path)["a"]
    assert (found.status, found["x"].tolist()) == ("finished", [0, 1, 2])


def test_no_room_for_a_new_file_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, said, errors = run(
        BEGIN
        + """
sink, run = SaveSink(folder), RunInfo("a", "a")
fill("limit", folder, 4096)
try:
    sink.open([run])
except OSError as error:
    print(error)
print(os.listdir(folder))
make_room("limit", folder)
sink.write(batch(run, 0, 2))
sink.close([run], "finished")
sink.end()
print(logax.load(folder)["a"].status)
""",
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    message, left, status = said.splitlines()
    assert message.startswith(f"`SaveLogger` could not create a file in {tmp_path}: ")
    assert (left, status) == ("[]", "finished")


def test_a_file_that_somebody_removes_is_told_and_another_goes_on(tmp_path: Path) -> None:
    sink, info = SaveSink(tmp_path / "runs"), RunInfo("a", "a")
    sink.open([info])
    sink.write(RecordBatch.of([info], {"x": np.zeros((1, 4))}))
    sink.flush()
    for each in (tmp_path / "runs").iterdir():
        each.unlink()
    (tmp_path / "runs").rmdir()
    sink.write(RecordBatch.of([info], {"x": np.ones((1, 2))}))
    with pytest.raises(FileNotFoundError, match=r"removed\. The 6 records in it are lost"):
        sink.flush()
    sink.write(RecordBatch.of([info], {"x": np.ones((1, 3))}))
    sink.close([info], "finished")
    sink.end()
    found = logax.load(tmp_path / "runs")["a"]
    assert (found.status, found["x"].tolist()) == ("finished", [1, 1, 1])


# Permission.


def test_folders_that_may_not_be_written_are_told_and_can_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own others may not even enter
        folder = Path(name)
        folder.chmod(0o755)
        sink, info = SaveSink(folder / "runs"), RunInfo("a", "a")
        sink.open([info])
        sink.write(RecordBatch.of([info], {"x": np.arange(3)[None]}))
        sink.close([info], "finished")
        sink.end()
        for each in (*(folder / "runs").iterdir(), folder / "runs", folder):
            each.chmod(each.stat().st_mode & 0o555)
        code, said, errors = run(
            BEGIN
            + """
root = os.geteuid() == 0
if root:
    os.setresuid(65534, 65534, 0)
for path in (folder / "runs", folder / "new" / "er"):
    try:
        SaveSink(path)
    except PermissionError as error:
        print(error)
run = logax.load(folder / "runs")["a"]
print(run.status, run["x"])
if root:  # what is done at exit may be done by whoever started it
    os.setresuid(0, 0, 0)
""",
            folder,
        )
        for each in (folder, folder / "runs"):
            each.chmod(0o755)
    assert (code, errors) == (0, ""), errors
    assert said.splitlines() == [
        f"`SaveLogger` may not write to the folder {name}/runs.",
        f"`SaveLogger` may not make the folder {name}/new/er.",
        "finished [0 1 2]",
    ]


def test_unfinished_files_are_read_where_nothing_may_be_written_unless_a_log_is_left() -> None:
    """SQLite must note that it reads a log, and cannot."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        sink, info = SaveSink(folder / "live"), RunInfo("a", "a")
        sink.open([info])
        sink.write(RecordBatch.of([info], {"x": np.arange(3)[None]}))
        sink.flush()
        (file,) = (folder / "live").glob("*.sqlite")
        for copy in ("with", "without"):
            (folder / copy).mkdir()
            shutil.copy(file, folder / copy / "a.sqlite")
            shutil.copy(f"{file}-wal", folder / copy / "a.sqlite-wal")
        sink.end()
        with closing(sqlite3.connect(folder / "without" / "a.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert [each.name for each in (folder / "without").iterdir()] == ["a.sqlite"]
        for each in ("with", "without"):
            (folder / each).chmod(0o555)
        code, said, errors = run(
            """
            import logax
            logax.load  # imports its module, which the other user may not read
            root = os.geteuid() == 0
            if root:
                os.setresuid(65534, 65534, 0)
            found = logax.load(folder / "without")["a"]
            print(found.status, found["x"])
            try:
                logax.load(folder / "with" / "a.sqlite")["a"]
            except logax.RunsError as error:
                print(error)
            if root:  # what is done at exit may be done by whoever started it
                os.setresuid(0, 0, 0)
            """,
            folder,
        )
        for each in ("with", "without"):
            (folder / each).chmod(0o755)
    assert (code, errors) == (0, ""), errors
    read, told = said.splitlines()
    assert read == "crashed [0 1 2]"
    assert told.startswith(
        f"{name}/with/a.sqlite cannot be read as a file of runs: unable to open database file. "
    )

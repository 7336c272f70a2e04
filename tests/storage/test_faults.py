"""Failures while a trajectory is written: the disk, the device, other writers, forks."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np
import pytest

from gates import pending
from logax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    StorageError,
    WriterGroupConfig,
    _lock,
)
from storage_processes import count_rows, disk_limits, row, run, start, write_rows, writer

NO_ROOM = {"limit": "File too large", "disk": "No space left on device"}


def safe_rows(message: str) -> int:
    """Return the number of safe rows in an error message."""
    found = re.search(r"Rows that are safe in it: (\d+) of `rows`\.", message)
    assert found is not None, message
    return int(found[1])


# A full disk.


@pytest.mark.parametrize(
    ("size", "options"), [(10, {}), (10, {"compression": 1}), (2**13, {}), (2**13, {"sync": True})]
)
def test_a_full_disk_is_told_in_the_loop_and_the_file_goes_on_when_there_is_room(
    tmp_path: Path, size: int, options: dict[str, Any]
) -> None:
    for way in disk_limits():
        code, said, errors = run(
            """
            way, size, options = arguments
            disk(way, folder)
            step = 0
            try:
                with writer(path, size, flush_seconds=0.02, **options) as logger:
                    logger.log(row(0, size), 0)
                    with HDF5StorageReader(path) as reader:
                        while not len(reader.focus_group("rows")):
                            reader.refresh()
                    fill(way, folder, 2**18)
                    for step in range(1, 10**9):
                        logger.log(row(step, size), step)
            except StorageError as error:
                print(" ".join(str(error).split()))
                print(isinstance(error.__cause__, (OSError, RuntimeError)), step)
            safe = count_rows(path, size, complete=False)
            print(safe)
            make_room(way, folder)
            write_rows(path, 5, size, safe, mode="a")
            print(count_rows(path, size, complete=True))
            sys.exit(7)
            """,
            tmp_path,
            way,
            size,
            options,
        )
        assert (code, errors) == (7, "")
        message, cause, safe, then = said.splitlines()
        assert message.startswith("`HDF5StorageWriter` could not write to ")
        assert NO_ROOM[way] in message
        assert 'go on with `mode="a"`' in message
        assert safe_rows(message) == int(safe) > 0
        kind, step = cause.split()
        assert kind == "True"
        assert int(step) > int(safe)
        assert int(then) == int(safe) + 5
        (tmp_path / "run.h5").unlink(missing_ok=True)


def test_a_disk_that_is_full_at_the_end_is_told_at_the_end(tmp_path: Path) -> None:
    for way in disk_limits():
        code, said, errors = run(
            """
            (way,) = arguments
            disk(way, folder)
            try:
                with writer(path, flush_seconds=60) as logger:
                    fill(way, folder, 4096)
                    for step in range(20):
                        logger.log(row(step), step)
                    print("left")
            except StorageError as error:
                print(" ".join(str(error).split()))
            print(count_rows(path, complete=False))
            make_room(way, folder)
            write_rows(path, 5, start=20, mode="a")
            print(count_rows(path, complete=True))
            """,
            tmp_path,
            way,
        )
        assert (code, errors) == (0, ""), errors
        left, message, number, then = said.splitlines()
        assert left == "left"
        assert safe_rows(message) == int(number) == 20  # these fit into the commit
        assert then == "25"
        (tmp_path / "run.h5").unlink(missing_ok=True)


def test_what_is_written_once_is_not_called_safe_before_hdf5_has_passed_it_on(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        """
        try:
            with HDF5StorageWriter(path, two_groups(), row(0), flush_seconds=60) as logger:
                fill("limit", folder, 4096)
                for step in range(20):
                    logger.log(row(step), step)
        except StorageError as error:
            print(error)
        print(count_rows(path, complete=False))
        with HDF5StorageReader(path) as reader:
            print(len(reader.focus_group("start")))
        make_room("limit", folder)
        options = {"mode": "a", "start_step": 0}
        with HDF5StorageWriter(path, two_groups(), row(0), **options) as logger:
            logger.log(row(0), 0)
        with HDF5StorageReader(path) as reader:
            print(reader.focus_group("start")[...] == row(0))
        """,
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    message, rows, once, then = said.splitlines()
    # The rows fit into a commit, but no step is safe in one group and not in another.
    assert "Rows that are safe in it: 0 of `rows`, 0 of `start`. " in message
    assert (rows, once, then) == ("0", "0", "True")


def test_a_disk_that_takes_no_byte_leaves_what_the_last_commit_says(tmp_path: Path) -> None:
    code, said, errors = run(
        """
        try:
            with writer(path, flush_seconds=0.005) as logger:
                logger.log(row(0), 0)
                with HDF5StorageReader(path) as reader:
                    next(reader.follow("rows"))  # it is safe
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                for step in range(1, 10**9):
                    logger.log(row(step), step)
        except StorageError as error:
            print(error)
        print(count_rows(path, complete=False))
        make_room("limit", folder)
        write_rows(path, 5, start=1, mode="a")
        print(count_rows(path, complete=True))
        """,
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    message, rows, then = said.splitlines()
    assert NO_ROOM["limit"] in message
    assert (safe_rows(message), rows, then) == (1, "1", "6")


def test_a_file_that_hdf5_cannot_close_is_told_with_all_rows_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = h5py.File.close

    def close(file: h5py.File) -> None:
        is_written = file.id.valid and file.mode == "r+"
        usual(file)
        if is_written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(h5py.File, "close", close)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        write_rows(tmp_path / "run.h5", 20)
    assert safe_rows(str(caught.value)) == count_rows(tmp_path / "run.h5", complete=False) == 20
    monkeypatch.undo()
    write_rows(tmp_path / "run.h5", 5, start=20, mode="a")
    assert count_rows(tmp_path / "run.h5", complete=True) == 25


FULL_DISK_WHILE = """
with writer(path, 2**13, flush_seconds=60) as logger:
    fill("limit", folder, 2**12)
    logger.log(row(0, 2**13), 0)  # no later `log` can raise the error
    exec(arguments[0])
"""


@pytest.mark.parametrize(
    ("what", "expected", "said"),
    [
        ('raise ValueError("my own")', 1, "ValueError: my own\n`HDF5StorageWriter` could not "),
        ("sys.exit(3)", 3, "UserWarning: `HDF5StorageWriter` could not write to "),
        ("raise KeyboardInterrupt", -signal.SIGINT, "UserWarning: `HDF5StorageWriter` could not "),
        ("pass", 1, "StorageError: `HDF5StorageWriter` could not write to "),
        (
            'warnings.simplefilter("error"); raise KeyboardInterrupt',
            -signal.SIGINT,
            "KeyboardInterrupt\n`HDF5StorageWriter` could not write to ",
        ),
    ],
)
def test_a_full_disk_takes_no_error_and_no_exit_code_from_the_program(
    tmp_path: Path, what: str, expected: int, said: str
) -> None:
    code, out, errors = run(FULL_DISK_WHILE, tmp_path, what)
    assert code == expected
    assert out == ""
    assert said in errors
    assert safe_rows(errors) == count_rows(tmp_path / "run.h5", 2**13, complete=False)


@pytest.mark.parametrize(
    "wrapped",
    [
        'raise ValueError("my own") from failure',
        'raise ExceptionGroup("several", [ValueError("my own"), failure])',
    ],
)
def test_a_full_disk_that_the_program_has_told_of_is_not_told_again(
    tmp_path: Path, wrapped: str
) -> None:
    code, _, errors = run(
        """
        try:
            with writer(path, flush_seconds=0) as logger:
                fill("limit", folder, 2**12)
                try:
                    for step in range(10**9):
                        logger.log(row(step), step)
                except StorageError as error:
                    failure = error
                exec(arguments[0])
        finally:
            make_room("limit", folder)
        """,
        tmp_path,
        wrapped,
    )
    assert code == 1
    assert "ValueError: my own" in errors
    assert errors.count("`HDF5StorageWriter` could not write to ") == 1
    assert safe_rows(errors) == count_rows(tmp_path / "run.h5", complete=False)


def test_a_full_disk_in_a_writer_that_is_never_left_is_told_when_python_exits(
    tmp_path: Path,
) -> None:
    code, _, errors = run(
        """
        logger = writer(path, flush_seconds=60)
        logger.__enter__()
        fill("limit", folder, 4096)
        for step in range(20):
            logger.log(row(step), step)
        """,
        tmp_path,
    )
    assert code == 0
    assert safe_rows(errors) == count_rows(tmp_path / "run.h5", complete=False) == 20


def test_a_writer_that_is_never_left_keeps_all_rows_when_python_exits(tmp_path: Path) -> None:
    code, _, errors = run(
        """
        logger = writer(path, flush_seconds=60)
        logger.__enter__()
        for step in range(2000):
            logger.log(row(step), step)
        sys.exit(3)
        """,
        tmp_path,
    )
    assert (code, errors) == (3, "")
    assert count_rows(tmp_path / "run.h5", complete=True) == 2000


@pytest.mark.parametrize("left", [0, 4096])  # HDF5 fails at once, or later
def test_no_room_for_a_new_file_leaves_nothing_behind(tmp_path: Path, left: int) -> None:
    for way in disk_limits():
        code, said, errors = run(
            """
            way, room = arguments
            disk(way, folder)
            (folder / "old.h5").write_bytes(b"old")
            fill(way, folder, room)
            for name, mode in (("run.h5", "x"), ("run.h5", "a"), ("old.h5", "w")):
                try:
                    with writer(folder / name, mode=mode):
                        pass
                except StorageError as error:
                    print(error)
            print(sorted(each.name for each in folder.iterdir()), (folder / "old.h5").read_text())
            make_room(way, folder)
            """,
            tmp_path,
            way,
            left,
        )
        assert (code, errors) == (0, ""), errors
        *messages, there = said.splitlines()
        number = errno.EFBIG if way == "limit" else errno.ENOSPC
        assert messages == [
            f"`HDF5StorageWriter` cannot create {tmp_path / name}: OSError: [Errno {number}] "
            f"{NO_ROOM[way]}."
            for name in ("run.h5", "run.h5", "old.h5")
        ]
        assert there == f"{['filler'] * (way == 'disk') + ['old.h5']} old"
        (tmp_path / "old.h5").unlink(missing_ok=True)


# Folders and files without permission to write.


def test_a_folder_that_may_not_be_written_is_told_when_the_writer_is_made() -> None:
    with tempfile.TemporaryDirectory() as name:  # other users cannot enter the folder of pytest
        folder = Path(name)
        folder.chmod(0o755)
        write_rows(folder / "run.h5", 30)
        (folder / "run.h5").chmod(0o444)
        folder.chmod(0o555)
        code, said, errors = run(
            """
            root = os.geteuid() == 0
            if root:
                os.setresuid(65534, 65534, 0)
            for name, mode in (("new.h5", "x"), ("run.h5", "w"), ("run.h5", "a")):
                try:
                    writer(folder / name, mode=mode)
                except PermissionError as error:
                    print(error)
            print(count_rows(path, complete=True))
            if root:  # exit handlers may need the rights of root
                os.setresuid(0, 0, 0)
            """,
            folder,
        )
        folder.chmod(0o755)
        assert (code, errors) == (0, ""), errors
        *messages, rows = said.splitlines()
        assert messages == [f"`HDF5StorageWriter` may not write to the folder {name}."] * 3
        assert rows == "30"
        assert stat.S_IMODE((folder / "run.h5").stat().st_mode) == 0o444


# The device.


def test_a_row_whose_computation_fails_is_told_and_those_before_it_are_safe(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        """
        import jax
        import jax.numpy as jnp

        def fail(x):
            raise ValueError("on the device")

        broken = jax.jit(lambda x: jax.pure_callback(fail, x, x))
        slow = jax.jit(lambda x: jnp.max(x @ x @ x @ x) * 0)
        matrix = jnp.zeros((1024, 1024))
        config = {"rows": WriterGroupConfig(lambda state: state)}
        step = 0
        try:
            with HDF5StorageWriter(path, config, jnp.float32(0), flush_seconds=0.02) as logger:
                for step in range(5):
                    logger.log(jnp.float32(step), step)
                logger.log(broken(slow(matrix)), 5)
                print("goes on")
                for step in range(6, 10**9):
                    logger.log(jnp.float32(step), step)
        except StorageError as error:
            print(str(error).replace("\\n", " "))
        with HDF5StorageReader(path) as reader:
            print(reader.complete, *reader.focus_group("rows")[...])
        """,
        tmp_path,
    )
    assert code == 0, errors
    goes_on, message, rows = said.splitlines()
    assert goes_on == "goes on"
    assert "could not write" in message
    assert "on the device" in message
    assert safe_rows(message) == 5
    assert rows == "False 0.0 1.0 2.0 3.0 4.0"


def two_parts(x: Any, y: Any) -> dict[str, Any]:
    return {"x": x, "y": y}


TWO_PARTS = {
    "x": WriterGroupConfig(lambda state: state["x"]),
    "y": WriterGroupConfig(lambda state: state["y"], 2),
}


def test_a_step_is_safe_in_all_groups_or_in_none(tmp_path: Path) -> None:
    gate = threading.Event()
    path, first = tmp_path / "run.h5", two_parts(np.float32(0), np.float32(0))
    with HDF5StorageWriter(path, TWO_PARTS, first, flush_seconds=0) as logger:
        try:
            logger.log(first, 0)
            logger.log(two_parts(np.float32(1), np.float32(1)), 1)
            logger.log(two_parts(np.float32(2), pending(gate)), 2)
            logger.log(two_parts(np.float32(3), np.float32(3)), 3)
            with HDF5StorageReader(path) as reader:
                rows = reader.follow("x", poll_seconds=0.002, timeout=0.2)
                assert [next(rows), next(rows)] == [0, 1]
                with pytest.raises(TimeoutError):  # the rows of step 2 become safe together
                    next(rows)
                assert reader.focus_group("y")[...].tolist() == [0]
                assert reader.actual_steps == 2
                gate.set()
                rows = reader.follow("x", poll_seconds=0.002, timeout=60)
                assert [next(rows) for _ in range(4)] == [0, 1, 2, 3]
                assert reader.focus_group("y")[...].tolist() == [0, 8]
                assert reader.actual_steps == 4
        finally:
            gate.set()


@pytest.mark.parametrize("size", [10, 2**14])  # rows that are stored in a commit, and larger ones
def test_a_step_that_fails_in_one_group_is_in_none(tmp_path: Path, size: int) -> None:
    def fail(x: Any) -> Any:
        raise ValueError("on the device")

    gate = threading.Event()
    path, first = tmp_path / "run.h5", two_parts(np.zeros(size), np.float32(0))

    def go() -> None:
        with HDF5StorageWriter(path, TWO_PARTS, first, flush_seconds=60) as logger:
            for step in range(6):
                logger.log(two_parts(np.full(size, step, float), np.float32(step)), step)
            logger.log(two_parts(np.full(size, 6.0), pending(gate, fail)), 6)
            gate.set()

    with pytest.raises(StorageError, match="on the device") as caught:
        go()
    with HDF5StorageReader(path) as reader:
        steps = [reader.focus_group(name).steps.tolist() for name in "xy"]
        assert (reader.complete, reader.actual_steps) == (False, 6 if size == 10 else 0)
    assert steps == ([[*range(6)], [0, 2, 4]] if size == 10 else [[], []])
    rows = [len(own) for own in steps]
    assert f"Rows that are safe in it: {rows[0]} of `x`, {rows[1]} of `y`." in str(caught.value)


def test_rows_are_safe_in_time_also_while_the_device_has_others_to_compute(tmp_path: Path) -> None:
    """The waiting steps are one job of the thread, and the last one delays it."""
    first, last = threading.Event(), threading.Event()
    config = {"rows": WriterGroupConfig(lambda state: state)}
    path = tmp_path / "run.h5"
    with HDF5StorageWriter(path, config, np.float32(0), flush_seconds=0.02) as logger:
        try:
            logger.log(pending(first), 0)
            for step in range(1, 6):
                logger.log(np.float32(step), step)
            logger.log(pending(last), 6)
            for step in range(7, 10):
                logger.log(np.float32(step), step)
            first.set()
            with HDF5StorageReader(path) as reader:
                rows = reader.follow("rows", poll_seconds=0.002, timeout=60)
                assert [next(rows) for _ in range(6)] == [8, 1, 2, 3, 4, 5]
                assert not last.is_set()
                last.set()
                assert [next(rows) for _ in range(4)] == [8, 7, 8, 9]
        finally:
            first.set()
            last.set()
    with HDF5StorageReader(path) as reader:
        assert reader.complete
        np.testing.assert_array_equal(reader.focus_group("rows").steps, np.arange(10))


# Two writers.


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_second_writer_in_this_process_is_refused_and_harms_nothing(
    tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "run.h5"
    with writer(path, flush_seconds=0.02) as logger:
        for step in range(2000):
            logger.log(row(step), step)
            if step % 500 == 100:
                with pytest.raises(StorageError, match=r"another writer.*has open.*another file"):
                    writer(path, mode=mode).__enter__()
                with pytest.raises(FileExistsError, match='Write `mode="w"` to replace it'):
                    writer(path)
    assert count_rows(path, complete=True) == 2000
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_writer_in_another_process_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with writer(path, flush_seconds=0.02) as logger:
        for step in range(2000):
            logger.log(row(step), step)
            if step == 1000:
                code, said, errors = run(
                    """
                    for mode in ("w", "a"):
                        try:
                            write_rows(path, 5, mode=mode)
                        except StorageError as error:
                            print(error)
                    """,
                    tmp_path,
                )
                assert (code, errors) == (0, ""), errors
    refused = (
        f"`HDF5StorageWriter` got {path}, which another writer, or another program, has open. "
        "Wait for it, or write to another file. A writer of this process that was entered and "
        "not left ends by `writer.__exit__(None, None, None)`."
    )
    assert said.splitlines() == [refused] * 2
    assert count_rows(path, complete=True) == 2000


def test_of_many_writers_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    program = """
    (mode,) = arguments
    signal.sigwait([signal.SIGUSR1])
    try:
        with writer(path, mode=mode) as logger:
            for step in range(30):
                logger.log(row(step), step)
            print("wrote", flush=True)
            signal.sigwait([signal.SIGUSR2])
    except (StorageError, FileExistsError) as error:
        print(type(error).__name__)
    """
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])\n"
    blocked += 'print("ready")\n'
    for mode in ("x", "a", "w"):
        folder = tmp_path / mode
        folder.mkdir()
        dedented = "\n".join(line[4:] for line in program.splitlines())
        children = [start(blocked + dedented, folder, mode) for _ in range(3)]
        assert [child.line() for child in children] == ["ready"] * 3
        for child in children:
            child.kill(signal.SIGUSR1)
        said = [child.line() for child in children]
        assert said.count("wrote") == 1
        refused = {"FileExistsError"} if mode == "x" else {"StorageError"}
        assert set(said) - {"wrote"} == refused
        for child in children:
            if said[children.index(child)] == "wrote":
                child.kill(signal.SIGUSR2)
            assert child.finish()[::2] == (0, "")
        assert count_rows(folder / "run.h5", complete=True) == 30


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_a_file_that_is_replaced_while_a_second_writer_asks_for_it_is_left_alone(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that the second writer opened is replaced before the lock on it is free."""
    path, new = tmp_path / "run.h5", tmp_path / "new.h5"
    write_rows(path, 5)
    write_rows(new, 7)
    monkeypatch.setattr(_lock, "_LOCK_ATTEMPTS", 10**6)  # until it gets the lock
    errors: list[Exception] = []

    def second() -> None:
        try:
            write_rows(path, 1, mode="w")
        except StorageError as error:
            errors.append(error)

    def opened() -> int:
        own = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(fd) and os.path.samefile(fd, path) for fd in own)

    thread = threading.Thread(target=second)
    with open(path, "rb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        thread.start()
        while opened() < 2:
            pass
        if what == "replaced":
            os.replace(new, path)
        else:
            os.unlink(path)
    thread.join()
    assert [str(error).partition(". ")[0] for error in errors] == [
        f"`HDF5StorageWriter` got {path}, which another writer, or another program, has open"
    ]
    assert list(tmp_path.iterdir()) == [path if what == "replaced" else new]
    assert count_rows(path if what == "replaced" else new, complete=True) == 7


def test_a_writer_that_has_lost_its_file_to_another_is_told(tmp_path: Path) -> None:
    """Converting a lock releases it for a moment."""
    path = write_rows(tmp_path / "run.h5", 5)
    lock = _lock.WriteLock(str(path))
    fcntl.flock(lock.fd, fcntl.LOCK_UN)
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another writer, or another program, has open"):
            lock.admit_readers()
    lock.admit_readers()
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, kind: int) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write_rows(tmp_path / "run.h5", 5)
    write_rows(tmp_path / "run.h5", 5, start=5, mode="a")
    assert count_rows(tmp_path / "run.h5", complete=True) == 10
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        assert reader._source.has_writer()  # the file system cannot tell


def test_a_file_system_whose_locks_fail_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, kind: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = write_rows(tmp_path / "run.h5", 5)
    with HDF5StorageReader(path) as reader:
        monkeypatch.setattr(fcntl, "flock", broken)
        with pytest.raises(OSError, match="Input/output error"):
            reader._source.has_writer()
        for name, mode in (("run.h5", "a"), ("run.h5", "w"), ("new.h5", "x")):
            with pytest.raises(OSError, match="Input/output error"):
                write_rows(tmp_path / name, 5, mode=mode)
    assert count_rows(path, complete=True) == 5
    assert list(tmp_path.iterdir()) == [path]


# Power failures.


def test_what_may_be_written_over_is_on_the_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk here holds the data of the last `fsync`, as after a power failure."""
    disk: dict[int, bytes] = {}
    path = tmp_path / "run.h5"

    def keep(fd: int) -> None:
        own = os.fstat(fd)
        if stat.S_ISREG(own.st_mode):
            disk[own.st_ino] = os.pread(fd, own.st_size, 0)

    def left() -> list[int]:
        (tmp_path / "left.h5").write_bytes(disk[path.stat().st_ino])
        with HDF5StorageReader(tmp_path / "left.h5") as reader:
            return list(reader.focus_group("rows").steps)

    monkeypatch.setattr(os, "fsync", keep)
    with writer(path, sync=True, flush_seconds=60):
        assert left() == []
    write_rows(path, 10, start=0, mode="a", sync=True, flush_seconds=60)
    assert left() == list(range(10))
    with writer(path, mode="a", start_step=4, sync=True, flush_seconds=60):
        assert left() == [0, 1, 2, 3]


# Forks.

# Python warns of forks in a process with threads. A child that exits normally may crash at the end,
# inside JAX. The tests require only that it does not hang and does no damage.
FORKS = """
ends, forks = arguments
size = 2**12
warnings.simplefilter("ignore")
with writer(path, size, flush_seconds=0, queue_bytes=2**20) as logger:
    for step in range(forks * 10):
        logger.log(row(step, size), step)
        if step % 10 == 5:
            pid = os.fork()
            if not pid:
                signal.alarm(30)
                try:
                    logger.log(row(step, size), step)
                except RuntimeError as error:
                    print(error)
                    exec(ends)
                os._exit(1)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code in ((9,) if "_exit(9)" in ends else (9, -signal.SIGSEGV)), code
print(count_rows(path, size, complete=True))
"""
FORKED = (
    "`HDF5StorageWriter.log` was called in a process that was forked from the one that writes. "
    "Make another writer there, for another file."
)


def check_forks(folder: Path, ends: str, forks: int) -> None:
    code, said, errors = run(FORKS, folder, ends, forks)
    assert (code, errors) == (0, "")
    assert said.splitlines() == [FORKED] * forks + [f"{forks * 10}"]


@pytest.mark.parametrize("ends", ["os._exit(9)", "sys.exit(9)"])
def test_a_forked_child_harms_nothing_whatever_way_it_ends(tmp_path: Path, ends: str) -> None:
    check_forks(tmp_path, ends, 4)


ENDS = ["os._exit(9)", "sys.exit(9)", "logger.__exit__(None, None, None); sys.exit(9)"]


@pytest.mark.slow
def test_forked_children_that_leave_the_block_harm_nothing(tmp_path: Path) -> None:
    check_forks(tmp_path, ENDS[-1], 12)


@pytest.mark.campaign
@pytest.mark.parametrize("ends", ENDS)
def test_many_forked_children_harm_nothing(
    tmp_path: Path, ends: str, record_property: Callable[[str, object], None]
) -> None:
    check_forks(tmp_path, ends, 60)
    record_property("forks", 60)


def test_a_child_that_is_forked_before_the_first_row_exits_with_its_own_code(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        """
        warnings.simplefilter("ignore")
        with writer(path) as logger:
            for _ in range(3):
                pid = os.fork()
                if not pid:
                    signal.alarm(30)
                    sys.exit(9)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            for step in range(2000):
                logger.log(row(step), step)
        print(count_rows(path, complete=True))
        """,
        tmp_path,
    )
    assert (code, said.split(), errors) == (0, ["9", "9", "9", "2000"], "")


def test_a_writer_that_was_made_before_a_fork_may_be_entered_in_the_child(tmp_path: Path) -> None:
    code, said, errors = run(
        """
        logger = writer(path)
        pid = os.fork()
        if not pid:
            with logger:
                logger.log(row(0), 0)
            sys.exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), count_rows(path, complete=True))
        """,
        tmp_path,
    )
    assert (code, said, errors) == (0, "9 1\n", "")


def test_a_forked_child_keeps_nobody_from_the_file_of_a_parent_that_was_killed(
    tmp_path: Path,
) -> None:
    child = start(
        """
        with writer(path, flush_seconds=0.02) as logger:
            for step in range(100):
                logger.log(row(step), step)
            with HDF5StorageReader(path) as reader:
                while len(reader.focus_group("rows")) < 100:
                    reader.refresh()
            pid = os.fork()
            if not pid:
                os.close(1)
                signal.alarm(60)
                signal.pause()
            print(pid)
            signal.pause()
        """,
        tmp_path,
    )
    other = int(child.line())
    child.kill()
    assert child.finish()[0] == -signal.SIGKILL
    try:
        write_rows(tmp_path / "run.h5", 5, start=100, mode="a")
        assert count_rows(tmp_path / "run.h5", complete=True) == 105
    finally:
        os.kill(other, signal.SIGKILL)


# Interrupts.


def test_an_interrupt_in_the_loop_keeps_all_rows(tmp_path: Path) -> None:
    child = start(
        """
        with writer(path, flush_seconds=60) as logger:
            for step in range(10**9):
                logger.log(row(step), step)
                if step == 5000:
                    print("goes on")
        """,
        tmp_path,
    )
    assert child.line() == "goes on"
    child.kill(signal.SIGINT)
    code, _, errors = child.finish()
    assert code == -signal.SIGINT
    assert errors.endswith("KeyboardInterrupt\n")
    assert count_rows(tmp_path / "run.h5", complete=True) >= 5000


def test_a_second_interrupt_of_the_end_says_what_was_not_written(tmp_path: Path) -> None:
    code, said, errors = run(
        """
        import jax.numpy as jnp
        from gates import pending

        gate, told = threading.Event(), threading.Event()

        def tell(*_):
            told.set()
            raise KeyboardInterrupt

        def interrupt():
            while logger._thread is not None:  # the block has not ended
                time.sleep(0.001)
            for _ in range(2):
                told.clear()
                os.kill(os.getpid(), signal.SIGINT)
                told.wait(60)
            gate.set()

        signal.signal(signal.SIGINT, tell)
        config = {"rows": WriterGroupConfig(lambda state: state)}
        try:
            with HDF5StorageWriter(path, config, jnp.float32(0)) as logger:
                for step in range(5):
                    logger.log(jnp.float32(step), step)
                logger.log(pending(gate), 5)
                for step in range(6, 10):
                    logger.log(jnp.float32(step), step)
                threading.Thread(target=interrupt).start()
        except KeyboardInterrupt as error:
            print(*error.__notes__)
        with HDF5StorageReader(path) as reader:
            print(reader.complete, *reader.focus_group("rows").steps)
        os._exit(0)  # JAX 0.8.0 may crash when Python ends after a callback
        """,
        tmp_path,
    )
    assert (code, errors) == (0, "")
    message, rows = said.splitlines()
    complete, *steps = rows.split()
    assert (complete, steps) == ("False", [str(step) for step in range(len(steps))])
    assert len(steps) in (5, 6)  # the sixth may have begun
    assert message == (
        f"`HDF5StorageWriter` was interrupted at its end, and {10 - len(steps)} rows were not "
        "written."
    )


def test_an_interrupt_of_the_end_after_the_disk_was_full_does_not_hide_that(tmp_path: Path) -> None:
    code, said, errors = run(
        """
        from gates import pending

        gate, told = threading.Event(), threading.Event()

        def tell(*_):
            if not told.is_set():
                told.set()
                raise KeyboardInterrupt

        def interrupt():
            while logger._thread is not None:  # the block has not ended
                time.sleep(0.001)
            while not told.is_set():  # an interrupt before the wait has no effect
                os.kill(os.getpid(), signal.SIGINT)
                told.wait(0.1)
            gate.set()

        signal.signal(signal.SIGINT, tell)
        x = np.zeros(2**14, np.float32)
        config = {"rows": WriterGroupConfig(lambda state: state)}
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with HDF5StorageWriter(path, config, x, flush_seconds=60) as logger:
                    held = x + pending(gate)
                    fill("limit", folder, 2**12)
                    logger.log(held, 0)
                    threading.Thread(target=interrupt).start()
        except KeyboardInterrupt:
            print("interrupted")
        print(*[str(each.message) for each in caught if each.category is UserWarning])
        os._exit(0)  # JAX 0.8.0 may crash when Python ends after a callback
        """,
        tmp_path,
    )
    assert (code, errors) == (0, ""), errors
    interrupted, message = said.splitlines()
    assert interrupted == "interrupted"
    assert message.startswith("`HDF5StorageWriter` could not write to ")
    assert safe_rows(message) == 0


# Memory.


def gated_writer(path: Path, **options: Any) -> HDF5StorageWriter:
    """Return a writer whose queue has room for eight rows of 4,000 bytes and their overhead."""
    config = {"rows": WriterGroupConfig(lambda state: state)}
    first = np.zeros(1000, np.float32)
    with HDF5StorageWriter(path.with_name("warm.h5"), config, first) as warm:
        warm.log(first, 0)  # compiles the view before the gate is closed
        warm.log(jnp.asarray(first), 1)
    return HDF5StorageWriter(path, config, first, queue_bytes=48_000, **options)


def test_a_full_queue_leaves_out_rows_where_it_may_and_says_how_many(tmp_path: Path) -> None:
    gate, logger = threading.Event(), gated_writer(tmp_path / "run.h5", when_full="drop")
    held = jnp.zeros(1000) + pending(gate)

    def loop() -> None:
        with logger:
            try:
                logger.log(held, 0)
                for step in range(1, 100):
                    logger.log(np.full(1000, step, np.float32), step)
            finally:
                gate.set()

    with pytest.warns(UserWarning, match="`HDF5StorageWriter`") as told:
        loop()
    assert [str(each.message) for each in told] == [
        "`HDF5StorageWriter` drops rows, since its queue of 48000 bytes is full. At the end "
        "it warns how many.",
        "`HDF5StorageWriter` dropped 92 rows, since its queue of 48000 bytes was full. Make it "
        'larger, or wait for room: `HDF5StorageWriter(..., queue_bytes=..., when_full="block")`.',
    ]
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        assert reader.complete
        assert reader.actual_steps == 100
        group = reader.focus_group("rows")
        np.testing.assert_array_equal(group.steps, np.arange(8))
        np.testing.assert_array_equal(group[...][:, 0], [8, 1, 2, 3, 4, 5, 6, 7])


def test_rows_that_were_left_out_are_told_beside_what_ends_the_loop(tmp_path: Path) -> None:
    """If warnings are errors, the first one ends the loop, and gets the number as a note."""
    gate, logger = threading.Event(), gated_writer(tmp_path / "run.h5", when_full="drop")
    held = jnp.zeros(1000) + pending(gate)
    with pytest.raises(UserWarning, match="drops rows") as caught, logger:  # noqa: PT012
        try:
            for step in range(100):
                logger.log(held, step)
        finally:
            gate.set()
    (note,) = caught.value.__notes__
    assert note.startswith("`HDF5StorageWriter` dropped 1 rows, since its queue of 48000 bytes")
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        np.testing.assert_array_equal(reader.focus_group("rows").steps, np.arange(8))


def test_a_full_queue_has_the_loop_wait_and_loses_nothing(tmp_path: Path) -> None:
    gate, waits, logged = threading.Event(), threading.Event(), [0]
    logger = gated_writer(tmp_path / "run.h5")
    held = jnp.zeros(1000) + pending(gate)

    def open_the_gate() -> None:
        worker = logger._thread._worker  # type: ignore[union-attr]
        while not (
            worker._num_waiting and worker._bytes + 6000 > worker.queue_bytes
        ):  # a row has no room
            waits.wait(0.001)
        logged.append(logged[0])
        gate.set()

    with logger:
        opener = threading.Thread(target=open_the_gate)
        opener.start()
        logger.log(held, 0)
        for step in range(1, 100):
            logged[0] = step
            logger.log(np.full(1000, step, np.float32), step)
    opener.join()
    assert logged[1] == 8  # the queue has no room for a ninth row
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        np.testing.assert_array_equal(reader.focus_group("rows").steps, np.arange(100))


def test_a_loop_that_is_faster_than_the_disk_takes_no_more_memory_than_the_queue(
    tmp_path: Path,
) -> None:
    code, said, errors = run(
        """
        import resource
        size = 2**18
        with writer(path, size, queue_bytes=2**24, sync=True, flush_seconds=0) as logger:
            for step in range(100):
                logger.log(row(step, size), step)
                if step == 5:
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
        """,
        tmp_path,
    )
    assert (code, errors) == (0, "")
    assert int(said) < 2 * 2**24 < 100 * 2**21

"""Run programs in processes that tests may kill, and write and check trajectories in them.

A fork server is a process that has imported everything and computed nothing. It forks a child for
each program, in milliseconds instead of seconds. A child runs its program as Python runs a script,
with the usual exceptions, exit codes and exit handlers. An alarm ends a child that takes too long.

Programs write rows to the group `rows`; the row of a step is `row(step)`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import json
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from logax.storage import HDF5StorageReader, HDF5StorageWriter, Once, WriterGroupConfig

MAX_CHILD_SECONDS = 150
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # flags of `unshare`
_RECURSIVE, _PRIVATE = 1 << 14, 1 << 18  # flags of `mount`
_BEGIN = """
import contextlib, os, signal, sys, threading, time, warnings
from pathlib import Path
import h5py
import numpy as np
from logax.storage import *
from storage_processes import *
folder = Path(sys.argv[1])
path = folder / "run.h5"
"""


def row(step: int, size: int = 10) -> dict[str, Any]:
    """Return the row of a step: ten numbers, or one array of `size` numbers."""
    if size == 10:
        return {f"x{i}": np.float64(step * 10 + i) for i in range(10)}
    return {"x": large_row(step, size)}


def large_row(step: int, size: int) -> np.ndarray[Any, Any]:
    """Return numbers that identify their step and their index."""
    return np.arange(size, dtype=np.int64) * 1_000_003 + step


def config(schedule: Any = 1) -> dict[str, WriterGroupConfig[Any, Any]]:
    """Return the configuration of one group, `rows`, that stores the whole state."""
    return {"rows": WriterGroupConfig(lambda state: state, schedule)}


def two_groups() -> dict[str, WriterGroupConfig[Any, Any]]:
    """Return the configuration of the group `rows` and of a group that is written once."""
    return config() | {"start": WriterGroupConfig(lambda state: state, Once())}


def writer(path: Path, size: int = 10, **options: Any) -> HDF5StorageWriter:
    """Return a writer for `row(step)`."""
    return HDF5StorageWriter(path, config(), row(0, size), **options)


def write_rows(path: Path, rows: int, size: int = 10, start: int = 0, **options: Any) -> Path:
    """Write the rows of `rows` steps to a file, and return its path."""
    with writer(path, size, **options) as logger:
        for step in range(start, start + rows):
            logger.log(row(step, size), step)
    return path


def check_rows(reader: HDF5StorageReader[Any], size: int = 10) -> int:
    """Check that the rows are those of the first steps, and return their number."""
    group = reader.focus_group("rows")
    steps = group.steps
    np.testing.assert_array_equal(steps, np.arange(len(steps)))
    found = group[...]
    if size == 10:
        for i in range(10):
            np.testing.assert_array_equal(found[f"x{i}"], steps * 10.0 + i)
    else:
        assert found["x"].shape == (len(steps), size)
        for step in steps:
            np.testing.assert_array_equal(found["x"][step], large_row(step, size))
    return len(steps)


def count_rows(path: Path, size: int = 10, *, complete: bool) -> int:
    """Check the rows of a file and its flag `complete`, and return the number of rows."""
    with HDF5StorageReader(path) as reader:
        assert reader.complete is complete
        return check_rows(reader, size)


SCHEDULES = {f"g{i}": every for i, every in enumerate([1, 1, 1, 2, 3, 5, 1, 10])}  # of eight groups


@functools.cache
def _noise(name: str, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(int(name[1:])).integers(0, 2**32, size)


def eight_row(name: str, step: int, size: int) -> np.ndarray[Any, Any]:
    """Return numbers that identify their group and step, and do not compress well."""
    return _noise(name, size) + step


def eight_arrays(step: int, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a state of eight arrays."""
    return {name: eight_row(name, step, size) for name in SCHEDULES}


def eight_writer(path: Path, size: int, **options: Any) -> HDF5StorageWriter:
    """Return a writer for `eight_arrays(step)`, with one group and schedule per array."""
    groups = {
        name: WriterGroupConfig(operator.itemgetter(name), every)
        for name, every in SCHEDULES.items()
    }
    return HDF5StorageWriter(path, groups, eight_arrays(0, size), **options)


def disk(way: str, folder: Path) -> None:
    """Prepare a full disk: a small file system for this process, or a limit on file sizes."""
    if way == "disk":
        libc = ctypes.CDLL(None, use_errno=True)
        spaces = _NEW_MOUNTS if os.geteuid() == 0 else _NEW_MOUNTS | _NEW_USER
        if (
            libc.unshare(spaces)
            or libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)
            or libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=2m")
        ):
            raise OSError(ctypes.get_errno(), "no file system for this process")


def fill(way: str, folder: Path, left: int) -> None:
    """Leave room for `left` bytes, on the disk or in each file."""
    if way == "disk":
        with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        os.truncate(folder / "filler", os.path.getsize(folder / "filler") - left)
    else:
        largest = max((each.stat().st_size for each in folder.iterdir()), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + left, resource.RLIM_INFINITY))


def make_room(way: str, folder: Path) -> None:
    """Make room on the disk again."""
    if way == "disk":
        os.unlink(folder / "filler")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@functools.cache
def disk_limits() -> list[str]:
    """Return the ways to fill a disk here; not all systems let a process mount one."""
    with tempfile.TemporaryDirectory() as folder:
        code, _, _ = run('disk("disk", folder)', Path(folder))
    return ["limit"] if code else ["limit", "disk"]


@dataclasses.dataclass
class Child:
    """A process that runs a program.

    Attributes:
      pid: Its process id.
      out: Its standard output.
      errors: Its standard error.
    """

    pid: int
    out: IO[str]
    errors: IO[str]
    _wait: Callable[[int], int]

    def line(self) -> str:
        """Return its next line of output, or an empty string if it has ended."""
        return self.out.readline().rstrip("\n")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill it, or send it another signal."""
        os.kill(self.pid, number)

    def __del__(self) -> None:
        if not self.out.closed:  # a test has failed before `finish`
            self.kill()
            self.finish()

    def finish(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, the rest of its output, and its errors."""
        with self.out, self.errors:
            output = self.out.read()
            code = self._wait(self.pid)
            self.errors.seek(0)
            return code, output, self.errors.read()


class ForkServer:
    """A process that forks a child for each program."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            # Forking requires a single thread. Children start faster with few devices; gates need
            # two.
            flags = "--xla_force_host_platform_device_count=2"
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": flags}
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        self._answers = self._control.makefile("r")
        atexit.register(self.close)

    def start(self, program: str, folder: Path, *arguments: Any) -> Child:
        """Start a program, which sees the names of `_BEGIN`, `folder` and `arguments`."""
        text = _BEGIN + f"arguments = {arguments!r}\n" + textwrap.dedent(program)
        end, out = os.pipe()
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the child closes it
        request = json.dumps({"program": text, "folder": str(folder)}) + "\n"
        socket.send_fds(self._control, [request.encode()], [out, errors.fileno()])
        pid = int(self._answers.readline())
        os.close(out)
        return Child(pid, open(end), errors, self._wait)

    def run(self, program: str, folder: Path, *arguments: Any) -> tuple[int, str, str]:
        """Run a program, and return its exit code, output and errors."""
        return self.start(program, folder, *arguments).finish()

    def _wait(self, pid: int) -> int:
        socket.send_fds(self._control, [json.dumps({"wait": pid}).encode() + b"\n"], [])
        return os.waitstatus_to_exitcode(int(self._answers.readline()))

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        self._control.close()
        self._process.wait()


@functools.cache
def fork_server() -> ForkServer:
    """Return the fork server of this process, which ends with it."""
    return ForkServer()


def run(program: str, folder: Path, *arguments: Any) -> tuple[int, str, str]:
    """Run a program, and return its exit code, output and errors."""
    return fork_server().run(program, folder, *arguments)


def start(program: str, folder: Path, *arguments: Any) -> Child:
    """Start a program."""
    return fork_server().start(program, folder, *arguments)


def _serve(control: socket.socket) -> dict[str, str]:
    """Fork a child for each request; return the request in the child."""
    text, files = b"", list[int]()
    while True:
        data, more, _, _ = socket.recv_fds(control, 2**20, 2)
        if not data:
            sys.exit()
        text, files = text + data, files + list(more)
        if not text.endswith(b"\n"):
            continue
        request: dict[str, Any] = json.loads(text)
        if "wait" in request:
            answer = os.waitpid(request["wait"], 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                control.close()
                for fd, own in zip(files, (1, 2), strict=True):
                    os.dup2(fd, own)
                    os.close(fd)
                signal.alarm(MAX_CHILD_SECONDS)
                # The parent of the tests may have made them ignore it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
                return request
            for fd in files:
                os.close(fd)
        control.sendall(f"{answer}\n".encode())
        text, files = b"", []


if __name__ == "__main__":
    # Imported here, so that no child has to, also where it could not any more.
    import h5py  # noqa: F401
    import numpy.testing

    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.modules["storage_processes"] = sys.modules["__main__"]
    sys.argv = ["program", request["folder"]]
    exec(compile(request["program"], "program", "exec"), {"__name__": "__main__"})

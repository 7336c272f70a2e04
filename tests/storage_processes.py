"""Processes for the tests of `logax.storage`: real ones, which may be killed, and cost little.

A nursery is a process that has imported everything and computed nothing. It forks a child for each
program that it is given, in a few milliseconds instead of seconds. A child runs its program as
Python runs a script: what it raises, how it exits and what is done at exit are as ever. Nothing
hangs: a child that takes very long is ended by an alarm.

What the programs write: row `step` of the group `rows` is a function of the step, `row(step)`.
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

LONG = 150  # seconds
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # of `unshare`
_RECURSIVE, _PRIVATE = 1 << 14, 1 << 18  # of `mount`
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
    """A row: ten numbers, or as many as it is told."""
    if size == 10:
        return {f"x{i}": np.float64(step * 10 + i) for i in range(10)}
    return {"x": large(step, size)}


def large(step: int, size: int) -> np.ndarray[Any, Any]:
    """Numbers that say of which step they are, and at which place."""
    return np.arange(size, dtype=np.int64) * 1_000_003 + step


def config(schedule: Any = 1) -> dict[str, WriterGroupConfig[Any, Any]]:
    """One group, `rows`, of what a loop has as its state."""
    return {"rows": WriterGroupConfig(lambda state: state, schedule)}


def two_groups() -> dict[str, WriterGroupConfig[Any, Any]]:
    """The group `rows`, and one that is written once."""
    return config() | {"start": WriterGroupConfig(lambda state: state, Once())}


def writer(path: Path, size: int = 10, **options: Any) -> HDF5StorageWriter:
    """Writes `row(step)` to a file."""
    return HDF5StorageWriter(path, config(), row(0, size), **options)


def written(path: Path, rows: int, size: int = 10, start: int = 0, **options: Any) -> Path:
    """A file with the rows of so many steps."""
    with writer(path, size, **options) as logger:
        for step in range(start, start + rows):
            logger.log(row(step, size), step)
    return path


def check_rows(reader: HDF5StorageReader[Any], size: int = 10) -> int:
    """How many rows there are: those of the first steps, none is missing and none wrong."""
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
            np.testing.assert_array_equal(found["x"][step], large(step, size))
    return len(steps)


def rows_in(path: Path, size: int = 10, *, complete: bool) -> int:
    """The same of a file that is complete, or is not."""
    with HDF5StorageReader(path) as reader:
        assert reader.complete is complete
        return check_rows(reader, size)


EIGHT = {f"g{i}": every for i, every in enumerate([1, 1, 1, 2, 3, 5, 1, 10])}  # groups: every n


@functools.cache
def _noise(name: str, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(int(name[1:])).integers(0, 2**32, size)


def eight_row(name: str, step: int, size: int) -> np.ndarray[Any, Any]:
    """Numbers of a group that do not compress well, and say of which step they are."""
    return _noise(name, size) + step


def eight(step: int, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """A state of eight arrays."""
    return {name: eight_row(name, step, size) for name in EIGHT}


def eight_writer(path: Path, size: int, **options: Any) -> HDF5StorageWriter:
    """Writes `eight(step)`: each array to a group with its own schedule."""
    groups = {
        name: WriterGroupConfig(operator.itemgetter(name), every) for name, every in EIGHT.items()
    }
    return HDF5StorageWriter(path, groups, eight(0, size), **options)


def disk(way: str, folder: Path) -> None:
    """Prepare a disk that can be full: a small one of its own, or a limit on the size of files."""
    if way == "disk":
        libc = ctypes.CDLL(None, use_errno=True)
        spaces = _NEW_MOUNTS if os.geteuid() == 0 else _NEW_MOUNTS | _NEW_USER
        if (
            libc.unshare(spaces)
            or libc.mount(None, b"/", None, _RECURSIVE | _PRIVATE, None)
            or libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=2m")
        ):
            raise OSError(ctypes.get_errno(), "no disk of its own")


def fill(way: str, folder: Path, left: int) -> None:
    """Leave room for so many bytes, on the disk or in each file."""
    if way == "disk":
        with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        os.truncate(folder / "filler", os.path.getsize(folder / "filler") - left)
    else:
        largest = max((each.stat().st_size for each in folder.iterdir()), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + left, resource.RLIM_INFINITY))


def make_room(way: str, folder: Path) -> None:
    """Let the disk have room again."""
    if way == "disk":
        os.unlink(folder / "filler")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@functools.cache
def ways() -> list[str]:
    """How a disk can be full here: whether a process may have disks of its own depends."""
    with tempfile.TemporaryDirectory() as folder:
        code, _, _ = run('disk("disk", folder)', Path(folder))
    return ["limit"] if code else ["limit", "disk"]


@dataclasses.dataclass
class Child:
    """A process that runs a program."""

    pid: int
    out: IO[str]
    errors: IO[str]
    _wait: Callable[[int], int]

    def line(self) -> str:
        """What it says next; nothing if it has ended."""
        return self.out.readline().rstrip("\n")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, or send it another signal."""
        os.kill(self.pid, number)

    def __del__(self) -> None:
        if not self.out.closed:  # a test has failed before it came to that
            self.kill()
            self.finish()

    def finish(self) -> tuple[int, str, str]:
        """Its exit code, negative for a signal, the rest of what it says, and its errors."""
        with self.out, self.errors:
            said = self.out.read()
            code = self._wait(self.pid)
            self.errors.seek(0)
            return code, said, self.errors.read()


class Nursery:
    """A process that forks children."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            # A process that forks has one thread. Children begin sooner with few devices, of which
            # gates need two.
            flags = "--xla_force_host_platform_device_count=2"
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "XLA_FLAGS": flags}
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        self._answers = self._control.makefile("r")
        atexit.register(self.close)

    def start(self, program: str, folder: Path, *arguments: Any) -> Child:
        """Run a program, with what `_BEGIN` gives it, `folder`, and what is in `arguments`."""
        text = _BEGIN + f"arguments = {arguments!r}\n" + textwrap.dedent(program)
        end, out = os.pipe()
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the child closes it
        request = json.dumps({"program": text, "folder": str(folder)}) + "\n"
        socket.send_fds(self._control, [request.encode()], [out, errors.fileno()])
        pid = int(self._answers.readline())
        os.close(out)
        return Child(pid, open(end), errors, self._wait)

    def run(self, program: str, folder: Path, *arguments: Any) -> tuple[int, str, str]:
        """Run a program to its end: its exit code, output and errors."""
        return self.start(program, folder, *arguments).finish()

    def _wait(self, pid: int) -> int:
        socket.send_fds(self._control, [json.dumps({"wait": pid}).encode() + b"\n"], [])
        return os.waitstatus_to_exitcode(int(self._answers.readline()))

    def close(self) -> None:
        """Let the process end."""
        self._answers.close()
        self._control.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this process, which ends with it."""
    return Nursery()


def run(program: str, folder: Path, *arguments: Any) -> tuple[int, str, str]:
    """Run a program to its end: its exit code, output and errors."""
    return nursery().run(program, folder, *arguments)


def start(program: str, folder: Path, *arguments: Any) -> Child:
    """Start a program."""
    return nursery().start(program, folder, *arguments)


def _serve(control: socket.socket) -> dict[str, str]:
    """Fork a child for each program, and return in it, with what it is to do."""
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
                signal.alarm(LONG)
                # Whoever started the tests may have had them ignore it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
                return request
            for fd in files:
                os.close(fd)
        control.sendall(f"{answer}\n".encode())
        text, files = b"", []


if __name__ == "__main__":
    # So that no child need do that, or may not any more.
    import h5py  # noqa: F401
    import numpy.testing

    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.modules["storage_processes"] = sys.modules["__main__"]
    sys.argv = ["program", request["folder"]]
    exec(compile(request["program"], "program", "exec"), {"__name__": "__main__"})

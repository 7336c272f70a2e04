"""Locks that end with their process: of who writes a file of runs, and of who resumes runs.

Beside a file of runs stands one with the same name and `.lock` at its end, which its writer holds
locked as long as it lives (`flock`, which ends with the process, whatever happens to it). The file
of runs itself must not be used for this: to close a second descriptor of it would end the locks of
SQLite. Where the system has no such locks, a run that was not ended counts as running.

The lock of a writer also counts its commits, after each of them, in one of two slots in turn. A
reader finds from it that the end of a killed writer's file is missing.

Claims on runs that are to be resumed, so that of two processes only one gets a run.

A claim is a file in the folder, `<token>.claim`, with the ids of runs as JSON, which the process
holds locked until these runs have ended. A process takes the lock of the folder, `.resume`, before
it makes a claim, so that no other process looks at the same moment; then nobody may write to the
runs or have a claim on them. A killed process leaves a claim that is not locked, which the next
process removes. The place of the new part among those of its run is decided at the same time.
"""

from __future__ import annotations

import contextlib
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from logax._runs.format import LOCK, SUFFIX

try:
    import fcntl
except ImportError:  # pragma: no cover - not on every system
    fcntl = None  # type: ignore[assignment]


# Not passed on to other programs, and no waiting for what only looks like a file.
_CAREFULLY = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))
_SLOT = struct.Struct("<4sIQQI4x")  # magic, 0, commits, records, CRC-32 of what comes before
_MAGIC = b"LGX2"
_SLOTS = 2


class Progress(NamedTuple):
    """Number of commits that a writer has made, and of the records in them."""

    commits: int
    records: int


def lock_of(path: str) -> str:
    """Return the path of the lock that belongs to a file of runs."""
    return path.removesuffix(SUFFIX) + LOCK


class Lock:
    """A new file that this process and no other holds locked, until `release`.

    Args:
      path: The file, which must not exist.
      content: Bytes to write to it.
    """

    def __init__(self, path: str, content: bytes = b"") -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)
        _locks.add(self)
        try:
            if fcntl is not None:  # pragma: no branch - not on every system
                with contextlib.suppress(OSError):  # of file systems without locks
                    fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, content)
        except BaseException:
            self.release()
            raise

    def note(self, progress: Progress) -> None:
        """Count the commits of a writer."""
        head = _SLOT.pack(_MAGIC, 0, *progress, 0)[:-8]
        slot = head + struct.pack("<I4x", zlib.crc32(head))
        with contextlib.suppress(OSError):  # the commit itself is safe
            os.pwrite(self._fd, slot, progress.commits % _SLOTS * _SLOT.size)

    def let_go(self) -> None:
        """Close what a fork has copied, so that it does not outlive the other process.

        This does not end the lock of that one.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        """Remove the file and end the lock."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self.let_go()


def writer_lock(path: str) -> Lock:
    """Lock a new file of runs for its writer."""
    return Lock(lock_of(path), bytes(_SLOTS * _SLOT.size))


def is_locked(path: str) -> bool:
    """Return whether a process holds a lock."""
    try:
        fd = os.open(path, os.O_RDONLY | _CAREFULLY)
    except OSError:
        return False
    try:
        if fcntl is None:  # pragma: no cover - not on every system
            return True
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # which others who look may have too
    except OSError:  # its writer has it, or the file system has no locks
        return True
    finally:
        os.close(fd)
    return False


def is_alive(path: str) -> bool:
    """Return whether a process writes to a file of runs."""
    return is_locked(lock_of(path))


def noted_progress(path: str) -> Progress:
    """Return what the lock of a file of runs counts; zeros if there is none."""
    try:
        fd = os.open(lock_of(path), os.O_RDONLY | _CAREFULLY)
    except OSError:
        return Progress(0, 0)
    try:
        data = os.read(fd, _SLOTS * _SLOT.size)
    except OSError:
        data = b""
    finally:
        os.close(fd)
    found = [Progress(0, 0)]
    for at in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
        magic, _, commits, records, check = _SLOT.unpack_from(data, at)
        if magic == _MAGIC and check == zlib.crc32(data[at : at + _SLOT.size - 8]):
            found.append(Progress(commits, records))
    return max(found)


@contextlib.contextmanager
def turn_of(path: str) -> Iterator[None]:
    """Wait for a lock that processes take in turn, and hold it. Its file is made if need be."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | _CAREFULLY, 0o666)
    try:
        if fcntl is not None:  # pragma: no branch - not on every system
            with contextlib.suppress(OSError):  # of file systems without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _forked() -> None:
    for lock in list(_locks):
        lock.let_go()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
    os.register_at_fork(after_in_child=_forked)

"""Lock files: which process writes a file of runs, and which one has claimed runs to resume.

The writer of a file of runs holds a lock on a second file, of the same name with the suffix
`.lock`, until it has ended or was killed. The lock cannot be on the file of runs itself: SQLite
loses its locks when any other descriptor of that file is closed. Where the system has no locks, a
run that was not ended counts as running.

The lock file of a writer also counts the writer's commits, in two slots that take turns. After the
writer was killed, a reader concludes from the count that the end of its file is missing.
"""

from __future__ import annotations

import contextlib
import os
import struct
import weakref
import zlib
from typing import NamedTuple

from logax._runs.format import LOCK_SUFFIX, RUNS_SUFFIX
from logax._support.processes import LOCK_FILE_FLAGS, is_path_locked, lock

_SLOT = struct.Struct("<4sIQQI4x")  # magic, 0, commits, records, CRC-32 of the preceding bytes
_MAGIC = b"LGX2"
_SLOTS = 2


class WriterProgress(NamedTuple):
    """Number of commits that a writer has made, and of the records in them."""

    commits: int
    records: int


class LockFile:
    """A new file that this process holds locked until `release`.

    Args:
      path: Path of the file, which must not exist.
      content: Bytes to write to it.
    """

    def __init__(self, path: str, content: bytes = b"") -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | LOCK_FILE_FLAGS, 0o666)
        _lock_files.add(self)
        try:
            with contextlib.suppress(OSError):  # a failed lock must not keep a user from logging
                lock(self._fd)
            os.write(self._fd, content)
        except BaseException:
            self.release()
            raise

    def write_progress(self, progress: WriterProgress) -> None:
        """Write the number of commits to the next slot."""
        head = _SLOT.pack(_MAGIC, 0, *progress, 0)[:-8]
        slot = head + struct.pack("<I4x", zlib.crc32(head))
        with contextlib.suppress(OSError):  # the commit itself is safe
            os.pwrite(self._fd, slot, progress.commits % _SLOTS * _SLOT.size)

    def close(self) -> None:
        """Close the descriptor and leave the file.

        In a forked process this keeps the lock of the parent, and makes sure that the lock does not
        outlive the parent.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        """Remove the file and release the lock."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self.close()


def lock_path(path: str) -> str:
    """Return the path of the lock file that belongs to a file of runs."""
    return path.removesuffix(RUNS_SUFFIX) + LOCK_SUFFIX


def create_writer_lock(path: str) -> LockFile:
    """Lock a new file of runs for its writer."""
    return LockFile(lock_path(path), bytes(_SLOTS * _SLOT.size))


def is_being_written(path: str) -> bool:
    """Return whether a process writes to a file of runs."""
    return is_path_locked(lock_path(path))


def read_progress(path: str) -> WriterProgress:
    """Return the counts in the lock file of a file of runs; zeros if it has no lock file."""
    try:
        fd = os.open(lock_path(path), os.O_RDONLY | LOCK_FILE_FLAGS)
    except OSError:
        return WriterProgress(0, 0)
    try:
        data = os.read(fd, _SLOTS * _SLOT.size)
    except OSError:
        data = b""
    finally:
        os.close(fd)
    found = [WriterProgress(0, 0)]
    for at in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
        magic, _, commits, records, check = _SLOT.unpack_from(data, at)
        if magic == _MAGIC and check == zlib.crc32(data[at : at + _SLOT.size - 8]):
            found.append(WriterProgress(commits, records))
    return max(found)


def _close_after_fork() -> None:
    for lock_file in list(_lock_files):
        lock_file.close()


_lock_files: weakref.WeakSet[LockFile] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
    os.register_at_fork(after_in_child=_close_after_fork)

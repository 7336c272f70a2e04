"""Text files to which several processes, and several loggers of one, add lines.

Each addition holds a lock on the file (`flock`, which ends with the process, whatever happens to
it), so that lines stay whole and stay apart; where a file system has no locks, the additions rely
on `O_APPEND`. Nothing stays open in between: a file that was moved, deleted, truncated or replaced
is noticed (see `TextSink`). An addition that fails, on a full disk say, leaves the file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Any

from logax._support.files import as_path, check_place, make_folder
from logax._support.messages import as_sentence

_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_BLOCK = 2**16


def writable(what: str, path: Any) -> str:
    """The path of a file that can be written, or an error, now and not later.

    Folders above it are made.
    """
    place = os.path.abspath(as_path(what, "path", path))
    folder = os.path.dirname(os.path.realpath(place))
    make_folder(what, folder, "the path of a file in a folder", "Give another path.")
    check_place(what, place)
    if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
        raise PermissionError(f"`{what}` may not write to the file {place}.")
    return place


@contextlib.contextmanager
def locked(path: str) -> Iterator[int]:
    """The descriptor of a file that nobody else adds to meanwhile; the file is made if need be."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd)
            if _is_still_there(fd, path):  # else somebody put a wider one in its place
                yield fd
                return
        finally:
            # Not left to `close`: a process that was forked meanwhile has it open too.
            _lock(fd, fcntl.LOCK_UN)
            os.close(fd)


def append(fd: int, data: bytes) -> None:
    """Add all of this to the end, or nothing."""
    size = os.fstat(fd).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BaseException:
        os.ftruncate(fd, size)
        raise


def whole_lines(fd: int) -> int:
    """How many bytes there are up to the end of the last whole line."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class FileChangedError(OSError):
    """Another program changed a file; what was to be added to it was added.

    Attributes:
      records_lost: Number of records of the failed call that were lost: none.
    """

    records_lost = 0


@contextlib.contextmanager
def telling_loss(what: str, path: str, records: int) -> Iterator[None]:
    """Have an error of the system say what was lost, and where."""
    try:
        yield
    except OSError as error:
        lost = f"{records} records to {path}, and they are lost" if records else f"to {path}"
        why = as_sentence(error.strerror or str(error))
        text = f"`{what}` could not write {lost}: {why}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error


def _lock(fd: int, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(fd, kind)
    except OSError as error:  # pragma: no cover - of file systems without locks
        if error.errno not in _NO_LOCKS:
            raise


def _is_still_there(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False

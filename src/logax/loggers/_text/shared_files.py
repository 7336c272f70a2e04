"""Text files that several processes, and several loggers of one process, append to.

Each append holds a lock on the file (`flock`, which ends with the process), so that lines stay
complete and separate; on file systems without locks, appends rely on `O_APPEND`. Files are not kept
open in between, so that a moved, deleted, truncated or replaced file is noticed (see `TextSink`). A
failed append, for example on a full disk, restores the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from logax._support.files import check_writable, make_folder, validate_path
from logax._support.messages import format_sentence
from logax._support.processes import is_current_file, lock, unlock

_READ_BLOCK_BYTES = 2**16


def writable_path(what: str, path: Any) -> str:
    """Return the absolute path of a writable file, or raise now rather than later.

    Missing parent folders are created.
    """
    place = os.path.abspath(validate_path(what, "path", path))
    folder = os.path.dirname(os.path.realpath(place))
    make_folder(what, folder, "the path of a file in a folder", "Give another path.")
    check_writable(what, place)
    if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
        raise PermissionError(f"`{what}` may not write to the file {place}.")
    return place


@contextlib.contextmanager
def open_locked(path: str) -> Iterator[int]:
    """Yield the descriptor of a locked file, which is created if it does not exist."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(fd)
            if is_current_file(fd, path):  # otherwise another process replaced it
                yield fd
                return
        finally:
            # Explicit, because a process forked in between holds the descriptor open too.
            unlock(fd)
            os.close(fd)


def append_or_undo(fd: int, data: bytes) -> None:
    """Append all of the data, or restore the file and raise."""
    size = os.fstat(fd).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BaseException:
        os.ftruncate(fd, size)
        raise


def end_of_complete_lines(fd: int) -> int:
    """Return the number of bytes up to the end of the last complete line."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _READ_BLOCK_BYTES)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class FileChangedError(OSError):
    """Another program changed a file; the new records were added to it nevertheless.

    Attributes:
      records_lost: Number of records of the failed call that were lost: none.
    """

    records_lost = 0


@contextlib.contextmanager
def report_loss(what: str, path: str, records: int) -> Iterator[None]:
    """Raise errors of the operating system again with the number of lost records and the path."""
    try:
        yield
    except OSError as error:
        lost = f"{records} records to {path}, and they are lost" if records else f"to {path}"
        why = format_sentence(error.strerror or str(error))
        text = f"`{what}` could not write {lost}: {why}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error

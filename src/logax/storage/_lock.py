"""Who writes to a file: at most one writer, and whoever looks can tell whether it lives.

A writer holds a shared lock on its file (`flock`, which ends with the process, whatever happens to
it). Readers of HDF5 take shared locks too, and so may look; another writer asks for an exclusive
one, and is refused.

HDF5 notes that somebody writes, too, in the first bytes of the file. That note outlives a writer
that was killed, and then keeps HDF5 from opening the file: here it is looked at, and taken back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time

from logax._serialization.dtypes import StorageError
from logax.storage._checksums import lookup3

SUPERBLOCK = 48  # bytes of version 3, which begins the file
_BEGIN = b"\x89HDF\r\n\x1a\n\x03\x08\x08"
_FLAGS, _END, _CHECK = 11, 28, 44  # offsets
_TRIES, _PAUSE = 5, 0.002  # seconds
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}  # of file systems without


class Claim:
    """A file descriptor of a file that nobody else writes to.

    Raises:
      StorageError: Somebody does.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._lock(fcntl.LOCK_EX)
            if not self._is_named():  # another writer has replaced it since it was opened
                raise self._taken()
        except BaseException:
            os.close(self.fd)
            raise

    def let_readers_in(self) -> None:
        """Go on with a lock that allows others to look.

        Raises:
          StorageError: Another writer was quicker: for a moment there is no lock.
        """
        self._lock(fcntl.LOCK_SH)

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _lock(self, kind: int) -> None:
        """Have a lock, or raise; who looks whether somebody writes has it for a moment."""
        for _ in range(_TRIES):
            if _locked(self.fd, kind):
                return
            time.sleep(_PAUSE)
        raise self._taken()

    def _is_named(self) -> bool:
        """Whether the file is still the one of this name."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _taken(self) -> StorageError:
        return StorageError(
            f"`HDF5StorageWriter` got {self._path}, which another writer, or another program, has "
            "open. Wait for it, or write to another file. A writer of this process that was "
            "entered and not left ends by `writer.__exit__(None, None, None)`."
        )


def is_written(fd: int) -> bool:
    """Whether somebody writes to a file now, or another program has it open.

    Where the file system cannot tell, somebody may.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS | {errno.EBADF}:  # NFS wants files open for writing
            raise
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _locked(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def unmarked(fd: int, end: int) -> bytes:
    """The beginning of a file, without HDF5's note that somebody writes to it.

    Where the file ends is noted too, and not always up to date: it becomes `end`.
    """
    block = bytearray(os.pread(fd, SUPERBLOCK, 0))
    check = lookup3(bytes(block[:_CHECK])).to_bytes(4, "little")
    if block[: len(_BEGIN)] == _BEGIN and block[_CHECK:] == check:
        block[_FLAGS] = 0
        (noted,) = struct.unpack_from("<Q", block, _END)
        struct.pack_into("<Q", block, _END, max(noted, end))
        struct.pack_into("<I", block, _CHECK, lookup3(bytes(block[:_CHECK])))
    return bytes(block)


def mend_after_kill(fd: int) -> None:
    """Have HDF5 open a file whose writer was killed, and write nothing over what is there."""
    os.pwrite(fd, unmarked(fd, os.fstat(fd).st_size), 0)


def is_marked(fd: int) -> bool:
    """Whether HDF5 has noted in a file that it is open for writing, and has not taken that back."""
    return any(os.pread(fd, SUPERBLOCK, 0)[_FLAGS : _FLAGS + 1])


def cut_off(fd: int) -> None:
    """Have what is still written to this descriptor go nowhere.

    HDF5 crashes at exit if it cannot write what it holds back; and in a process that was forked it
    must not write what is the other process's.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, fd, inheritable=False)
    finally:
        os.close(nowhere)

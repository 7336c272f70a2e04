"""The lock that admits one writer to a file, and HDF5's mark in files that are open for writing.

A writer holds a shared `flock` on its file, which the operating system releases when the process
ends, for whatever reason. HDF5 readers take shared locks too, so they can read meanwhile; another
writer asks for an exclusive lock, and fails.

HDF5 also marks a file as open for writing, in the first bytes of the file. The mark of a writer
that was killed remains, and HDF5 then refuses to open the file. This module reads and clears the
mark.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from logax._serialization.dtypes import StorageError
from logax._support import processes as locks
from logax.storage._checksums import lookup3

SUPERBLOCK_BYTES = 48  # version 3, at the beginning of the file
_SUPERBLOCK_PREFIX = b"\x89HDF\r\n\x1a\n\x03\x08\x08"
_FLAGS_OFFSET, _END_OFFSET, _CHECKSUM_OFFSET = 11, 28, 44
_LOCK_ATTEMPTS, _LOCK_RETRY_SECONDS = 5, 0.002


class WriteLock:
    """The exclusive right to write to a file, with a file descriptor for it.

    Raises:
      StorageError: Another writer or another program has the file open.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._take(shared=False)
            if not locks.is_current_file(self.fd, path):  # another writer has replaced the file
                raise self._in_use_error()
        except BaseException:
            os.close(self.fd)
            raise

    def admit_readers(self) -> None:
        """Replace the exclusive lock by a shared one.

        Raises:
          StorageError: Another writer took the lock in between, as the change is not atomic.
        """
        self._take(shared=True)

    def release(self) -> None:
        """Close the file descriptor, which releases the lock."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _take(self, *, shared: bool) -> None:
        """Take a lock, or raise. A process that tests the lock may hold it for a moment."""
        for _ in range(_LOCK_ATTEMPTS):
            if locks.lock(self.fd, shared=shared, wait=False):
                return
            time.sleep(_LOCK_RETRY_SECONDS)
        raise self._in_use_error()

    def _in_use_error(self) -> StorageError:
        return StorageError(
            f"`HDF5StorageWriter` got {self._path}, which another writer, or another program, has "
            "open. Wait for it, or write to another file. A writer of this process that was "
            "entered and not left ends by `writer.__exit__(None, None, None)`."
        )


def read_clean_superblock(fd: int, end: int) -> bytes:
    """Return the first bytes of a file, with HDF5's mark for open files cleared.

    Args:
      fd: Descriptor of the file.
      end: Minimum for the end of the file that the superblock states, which may be out of date.
    """
    block = bytearray(os.pread(fd, SUPERBLOCK_BYTES, 0))
    check = lookup3(bytes(block[:_CHECKSUM_OFFSET])).to_bytes(4, "little")
    has_prefix = block[: len(_SUPERBLOCK_PREFIX)] == _SUPERBLOCK_PREFIX
    if has_prefix and block[_CHECKSUM_OFFSET:] == check:
        block[_FLAGS_OFFSET] = 0
        (stated,) = struct.unpack_from("<Q", block, _END_OFFSET)
        struct.pack_into("<Q", block, _END_OFFSET, max(stated, end))
        struct.pack_into("<I", block, _CHECKSUM_OFFSET, lookup3(bytes(block[:_CHECKSUM_OFFSET])))
    return bytes(block)


def clear_write_mark(fd: int) -> None:
    """Clear HDF5's mark in a file whose writer was killed, so that HDF5 opens the file.

    The end of the file in the superblock becomes the real one, so that HDF5 overwrites nothing.
    """
    os.pwrite(fd, read_clean_superblock(fd, os.fstat(fd).st_size), 0)


def has_write_mark(fd: int) -> bool:
    """Return whether HDF5 has marked a file as open for writing."""
    return any(os.pread(fd, SUPERBLOCK_BYTES, 0)[_FLAGS_OFFSET : _FLAGS_OFFSET + 1])


def redirect_to_devnull(fd: int) -> None:
    """Discard all further writes to a descriptor.

    HDF5 crashes at exit if it cannot write its buffers. In a forked process it must not write the
    buffers of the parent process.
    """
    devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(devnull, fd, inheritable=False)
    finally:
        os.close(devnull)

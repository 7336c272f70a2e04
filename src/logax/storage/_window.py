"""A file as HDF5 is shown it for reading.

HDF5 keeps one state for all that a process has open of one file: a reader would read what a writer
of the same process has not passed on yet, and could not be opened beside a plain h5py. It also
notes in the file that somebody writes to it, and then wants to be told how to read it. Neither
matters to who looks at the file through a window: it gives HDF5 bytes, of a file that nobody
seems to write to. Who looks at one that is written to must open it anew now and then.
"""

from __future__ import annotations

import io
import os

from logax.storage._claims import SUPERBLOCK, unmarked

_FAR = 2**62  # where the file ends, which may grow; what is not there is found when it is read


class Window:
    """What h5py takes for a file: it reads from a descriptor, which stays its owner's."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self._begin = unmarked(fd, _FAR)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: _FAR}
        self._at = begin[whence] + offset
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def read(self, size: int) -> bytes:  # pragma: no cover - h5py asks for it, and uses `readinto`
        """So many bytes from there on."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer from there on.

        HDF5 reads ahead, past the end of the file, and gets zeros. Where it wants something that
        lies wholly beyond the end, there is an error.
        """
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], self._at + done)
            if not count:
                break
            done += count
        if not done and len(view):
            raise OSError(f"the file ends before {self._at}, where something should be")
        view[done:] = bytes(len(view) - done)
        if self._at < SUPERBLOCK:
            begin = self._begin[self._at : self._at + len(view)]
            view[: len(begin)] = begin
        self._at += len(view)
        return len(view)

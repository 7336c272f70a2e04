"""A pseudo-terminal with an emulated screen."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
from types import TracebackType
from typing import Any, Self

import pyte


def set_size(fd: int, columns: int, lines: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


class Terminal:
    """A pseudo-terminal: `file` is written to, `screen()` is what a person sees."""

    def __init__(self, columns: int = 100, lines: int = 24, encoding: str = "utf-8") -> None:
        self._master, slave = os.openpty()
        set_size(slave, columns, lines)
        self.file: Any = os.fdopen(slave, "w", encoding=encoding)
        self._emulated = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._emulated)
        self._came = threading.Condition()
        self._bytes, self._marks = b"", 0
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        while True:
            try:
                got = os.read(self._master, 65536)
            except OSError:  # all that wrote to it are closed
                return
            if not got:
                return
            with self._came:
                self._bytes += got
                self._stream.feed(got)
                self._came.notify_all()

    def resize(self, columns: int, lines: int) -> None:
        self.written()
        set_size(self.file.fileno(), columns, lines)
        self._emulated.resize(lines, columns)

    def written(self) -> str:
        """Return everything that was written so far."""
        self._marks += 1
        mark = f"\x1b]2;mark {self._marks}\x07".encode()  # sets the title of the window
        self.file.flush()
        os.write(self.file.fileno(), mark)
        with self._came:
            assert self._came.wait_for(lambda: mark in self._bytes, timeout=60)
            for number in range(self._marks):
                self._bytes = self._bytes.replace(f"\x1b]2;mark {number}\x07".encode(), b"")
            return self._bytes.replace(mark, b"").decode(self.file.encoding)

    def wait_for(self, text: str) -> None:
        """Wait until this text was written, perhaps by another process."""
        with self._came:
            assert self._came.wait_for(lambda: text.encode() in self._bytes, timeout=60)

    def screen(self) -> list[str]:
        """The lines of the screen, without the empty ones at its end."""
        self.written()
        with self._came:
            return "\n".join(line.rstrip() for line in self._emulated.display).rstrip().split("\n")

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file.close()
        self._reader.join(60)
        os.close(self._master)

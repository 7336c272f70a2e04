"""Redraw lines at the bottom of a terminal while the program prints above them.

While a screen is open it replaces `sys.stdout` and `sys.stderr`, where they are the same terminal,
by proxies that print complete lines above the painted ones. A proxy that the program kept prints
directly once the screen is closed. One terminal has at most one open screen.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import Any

from logax._support.processes import reset_after_fork
from logax._support.progress_bars import FailSafeFile


class EscapingFile(FailSafeFile):
    """A file that accepts any text: escapes what it cannot encode, and ignores failures."""

    def write(self, text: str) -> None:
        """Write text, with unencodable characters escaped."""
        if self._file is None:  # the process has no standard error
            return
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        super().write(text.encode(encoding, "backslashreplace").decode(encoding))


class Screen:
    """Painted lines at the bottom of a terminal.

    Args:
      file: Terminal.
    """

    def __init__(self, file: Any) -> None:
        self._file = file.stream if isinstance(file, OutputProxy) else file
        self._output = EscapingFile(self._file)
        self._size = (0, 0)
        self._proxies: list[tuple[str, OutputProxy]] = []
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        """Forget painted lines: in a forked process they belong to the parent."""
        self._lock = threading.RLock()
        self._painted: list[str] = []
        self._is_open = False

    def open(self) -> bool:
        """Take the terminal; return False if another screen has it."""
        _screens.append(self)
        if screen_on(self._file) not in (self, None):  # the first of two concurrent ones wins
            _screens.remove(self)
            return False
        self._is_open = True
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if same_terminal(stream, self._file):
                proxy = OutputProxy(self, stream)
                self._proxies.append((name, proxy))
                setattr(sys, name, proxy)
        return True

    def size(self) -> tuple[int, int]:
        """Return the current number of columns and lines."""
        try:
            size = os.get_terminal_size(self._file.fileno())
        except (AttributeError, OSError, ValueError):
            size = os.terminal_size((0, 0))
        if size.columns > 0 and size.lines > 0:
            return size.columns, size.lines
        guessed = shutil.get_terminal_size()
        return guessed.columns, guessed.lines

    def paint(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Replace the painted lines by these, which fit a terminal of this size."""
        with self._lock:
            text = self._erase_codes() + "\n".join(lines)
            self._painted, self._size = list(lines), size
            self._write(text)

    def print(self, text: str) -> None:
        """Print complete lines above the painted ones.

        If the terminal was resized, the painted lines vanish until the next `paint`.
        """
        with self._lock:
            if not self._is_open:
                self._write(text)
                return
            erase_codes = self._erase_codes()
            if self.size() != self._size:
                self._painted = []
            self._write(erase_codes + text + "\n".join(self._painted))

    def close(self) -> None:
        """Leave the painted lines as they are, and release the terminal."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            for name, proxy in self._proxies:
                if getattr(sys, name) is proxy:
                    setattr(sys, name, proxy.stream)
            if self._painted:
                self._write("\n")
            _screens.remove(self)
        # Outside the lock: a printing thread holds the proxy's lock and waits for this one.
        for _, proxy in self._proxies:
            proxy.release_output()

    def _erase_codes(self) -> str:
        lines_above = max(len(self._painted) - 1, 0)
        return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * lines_above if self._painted else ""

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


class OutputProxy:
    """Stand-in for `sys.stdout` or `sys.stderr` while a screen is open.

    Args:
      screen: Open screen.
      stream: Stream that the proxy replaces.
    """

    def __init__(self, screen: Screen, stream: Any) -> None:
        self.stream = stream
        self._screen: Screen | None
        self._reset()
        self._screen = screen
        reset_after_fork(self)

    def _reset(self) -> None:
        """Write directly to the stream in a forked process: the screen belongs to the parent."""
        self._lock = threading.RLock()
        self._screen = None
        self._incomplete: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Print complete lines, and keep an incomplete one per thread."""
        with self._lock:
            if self._screen is None:
                return int(self.stream.write(text) or 0)
            thread = threading.get_ident()
            *lines, line = (self._incomplete.pop(thread, "") + text).split("\n")
            if line:
                self._incomplete[thread] = _visible_part(line)
            if lines:
                self._screen.print("".join(f"{_visible_part(each)}\n" for each in lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write all lines."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Do nothing: complete lines are printed at once."""

    def release_output(self) -> None:
        """Write the incomplete lines, and write directly to the stream from now on."""
        with self._lock:
            self._screen, rest = None, "".join(self._incomplete.values())
            if rest:
                output = EscapingFile(self.stream)
                output.write(rest)
                output.flush()


def _visible_part(line: str) -> str:
    """Return the part of a line after its last carriage return, which is what a terminal shows."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


def same_terminal(a: Any, b: Any) -> bool:
    """Return whether two files are the same terminal."""
    a, b = (x.stream if isinstance(x, OutputProxy) else x for x in (a, b))
    try:
        if not (a.isatty() and b.isatty()):
            return False
        return a is b or os.fstat(a.fileno()).st_rdev == os.fstat(b.fileno()).st_rdev
    except (AttributeError, OSError, ValueError):
        return a is b


def screen_on(file: Any) -> Screen | None:
    """Return the open screen of a terminal, or None."""
    return next((screen for screen in list(_screens) if same_terminal(screen._file, file)), None)


# Terminals are shared by the whole process. Only open screens are listed.
_screens: list[Screen] = []

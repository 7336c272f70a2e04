"""A terminal on which some lines are redrawn in place, while others print to it.

What the program prints meanwhile goes above the lines: where `sys.stdout` and `sys.stderr` are the
same terminal they are replaced as long as the screen is used. A line that is printed appears when
it is complete. Whoever kept a replacement prints as before when the screen is closed.

A terminal is used by one screen at a time.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import Any

from logax._support.forks import renew_after_fork
from logax._support.progress_bars import Canvas


class Paper(Canvas):
    """A file that takes any text: what it cannot encode is escaped, and failures are dropped."""

    def write(self, text: str) -> None:
        """Write what can be written."""
        if self._file is None:  # a program without a standard error
            return
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        super().write(text.encode(encoding, "backslashreplace").decode(encoding))


class Screen:
    """Lines at the bottom of a terminal.

    Args:
      file: The terminal.
    """

    def __init__(self, file: Any) -> None:
        self._file = file.beneath if isinstance(file, Above) else file
        self._paper = Paper(self._file)
        self._size = (0, 0)
        self._above: list[tuple[str, Above]] = []
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        """Have nothing painted; in a process that was forked, what is there is the other's."""
        self._lock = threading.RLock()
        self._painted: list[str] = []
        self._is_open = False

    def open(self) -> bool:
        """Take the terminal, unless another screen has it."""
        _screens.append(self)
        if screen_on(self._file) not in (self, None):  # of two at a time the first has it
            _screens.remove(self)
            return False
        self._is_open = True
        for name in ("stdout", "stderr"):
            beneath = getattr(sys, name)
            if same_terminal(beneath, self._file):
                above = Above(self, beneath)
                self._above.append((name, above))
                setattr(sys, name, above)
        return True

    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        try:
            size = os.get_terminal_size(self._file.fileno())
        except (AttributeError, OSError, ValueError):
            size = os.terminal_size((0, 0))
        if size.columns > 0 and size.lines > 0:
            return size.columns, size.lines
        guessed = shutil.get_terminal_size()
        return guessed.columns, guessed.lines

    def paint(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Show these lines, which fit a terminal of this size, in place of those before."""
        with self._lock:
            text = self._erasing() + "\n".join(lines)
            self._painted, self._size = list(lines), size
            self._write(text)

    def print(self, text: str) -> None:
        """Show whole lines above; in a terminal of another size nothing is below them for now."""
        with self._lock:
            if not self._is_open:
                self._write(text)
                return
            erasing = self._erasing()
            if self.size() != self._size:
                self._painted = []
            self._write(erasing + text + "\n".join(self._painted))

    def close(self) -> None:
        """Leave the lines where they are, and the terminal to others."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            for name, above in self._above:
                if getattr(sys, name) is above:
                    setattr(sys, name, above.beneath)
            if self._painted:
                self._write("\n")
            _screens.remove(self)
        # Not under the lock: a thread that prints holds the other one, and waits for this one.
        for _, above in self._above:
            above.let_go()

    def _erasing(self) -> str:
        above = max(len(self._painted) - 1, 0)
        return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * above if self._painted else ""

    def _write(self, text: str) -> None:
        self._paper.write(text)
        self._paper.flush()


class Above:
    """What stands for `sys.stdout` or `sys.stderr` while a screen is used, by this process.

    Args:
      screen: The screen.
      beneath: What it stands for.
    """

    def __init__(self, screen: Screen, beneath: Any) -> None:
        self.beneath = beneath
        self._screen: Screen | None
        self._reset()
        self._screen = screen
        renew_after_fork(self)

    def _reset(self) -> None:
        """Be what it stands for, in a process that was forked: the screen is the other's."""
        self._lock = threading.RLock()
        self._screen = None
        self._begun: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def write(self, text: str) -> int:
        """Print the lines that are complete, and keep what is not, of each thread by itself."""
        with self._lock:
            if self._screen is None:
                return int(self.beneath.write(text) or 0)
            thread = threading.get_ident()
            *lines, line = (self._begun.pop(thread, "") + text).split("\n")
            if line:
                self._begun[thread] = _overwritten(line)
            if lines:
                self._screen.print("".join(f"{_overwritten(each)}\n" for each in lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them all."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Nothing to do: whole lines are printed at once."""

    def let_go(self) -> None:
        """From now on be what it stands for."""
        with self._lock:
            self._screen, rest = None, "".join(self._begun.values())
            if rest:
                paper = Paper(self.beneath)
                paper.write(rest)
                paper.flush()


def _overwritten(line: str) -> str:
    """What a terminal shows of a line that goes back to its start: the last that was written."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]


def same_terminal(a: Any, b: Any) -> bool:
    """Whether two files are one terminal."""
    a, b = (x.beneath if isinstance(x, Above) else x for x in (a, b))
    try:
        if not (a.isatty() and b.isatty()):
            return False
        return a is b or os.fstat(a.fileno()).st_rdev == os.fstat(b.fileno()).st_rdev
    except (AttributeError, OSError, ValueError):
        return a is b


def screen_on(file: Any) -> Screen | None:
    """The screen that uses a terminal now."""
    return next((screen for screen in list(_screens) if same_terminal(screen._file, file)), None)


# What terminals are used is a fact about the process. Screens are here while they are open only.
_screens: list[Screen] = []

"""What `ConsoleLogger` does with runs and their records: it shows them, and keeps nothing."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers._console.board import Board
from logax.loggers._console.lines import Lines
from logax.loggers._console.screen import Screen
from logax.loggers.sink import Sink

_CANNOT_REDRAW = ("dumb", "unknown")


class ConsoleSink(Sink):
    """Shows runs: all that are open at a time are shown together.

    Args:
      keys: Names or globs of the keys and leaves to show; None for all.
      file: Where to; the standard error if it is None.
      refresh: How often a table is drawn in a second at most.
      window: Over how many of the last records means are taken.
      clock: Tells the time in seconds.
    """

    def __init__(
        self,
        keys: tuple[str, ...] | None = None,
        file: Any = None,
        refresh: int = 4,
        window: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._file = keys, file
        self._refresh, self._window, self._clock = refresh, window, clock
        self._board: Board | None = None
        self._view: Any = None
        self._let_go: Any = None

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Show these too."""
        if self._board is None:
            self._board = Board(self._keys, self._window)
            self._view = self._new_view(self._board)
        self._board.open(runs)
        self._view.opened(runs)

    def _new_view(self, board: Board) -> Any:
        file = sys.stderr if self._file is None else self._file
        if can_redraw(file) and has_rich():
            screen = Screen(file)
            if screen.open():
                # Of a logger that is dropped with open runs, the program gets its output back.
                self._let_go = weakref.finalize(self, screen.close)
                from logax.loggers._console.live_table import Live  # noqa: PLC0415 (needs rich)

                return Live(screen, file, board, self._refresh, self._clock)
        return Lines(file, board, self._clock)

    def write(self, portion: RecordBatch) -> None:
        """Take in the numbers."""
        if self._board is not None:
            self._board.take(portion)
            self._view.wrote()

    def flush(self) -> None:
        """Show them, if the last time is some time ago."""
        if self._board is not None:
            self._board.settle()
            self._view.flushed()

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Show how these ended."""
        if self._board is None:
            return
        self._board.close(runs, status)
        self._view.closed(runs, status)
        if not self._board.is_open:
            self._forget()

    def end(self) -> None:
        """Show all once more, if some runs are open."""
        if self._view is not None:
            try:
                self._view.ended()
            finally:
                self._forget()

    def _forget(self) -> None:
        self._board = self._view = None
        if self._let_go is not None:
            self._let_go.detach()
            self._let_go = None


def can_redraw(file: Any) -> bool:
    """Whether lines of this file can be written again."""
    try:
        is_terminal = bool(file.isatty())
    except (AttributeError, ValueError):  # the second is of files that are closed
        return False
    return is_terminal and os.environ.get("TERM", "").lower() not in _CANNOT_REDRAW


def has_rich() -> bool:
    """Whether rich is installed."""
    try:
        import rich  # noqa: F401, PLC0415 (not required)
    except ImportError:
        return False
    return True

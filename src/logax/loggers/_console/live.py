"""A table that is redrawn in place, a few times a second at most.

Nothing is drawn by a clock of its own: records and flushes draw, on the thread that brings them, so
that where nothing comes the table stands still. Records wait for the flush that follows them,
unless it lets them wait for long.
"""

from __future__ import annotations

import collections
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from logax.loggers._console import words
from logax.loggers._console.board import Board
from logax.loggers._console.pace import Pace
from logax.loggers._console.screen import Screen
from logax.loggers._console.table import lines
from logax.loggers.sink import RunInfo


class Live:
    """Shows a board as a table.

    Args:
      screen: Where to; it is open.
      file: The terminal, to know its signs.
      board: What is shown.
      refresh: How often it is drawn in a second at most.
      clock: Tells the time in seconds.
    """

    def __init__(
        self,
        screen: Screen,
        file: Any,
        board: Board,
        refresh: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._board, self._clock = screen, board, clock
        self._glyphs = words.Glyphs.of(file)
        # It draws for us and writes nothing: what rich does with a broken pipe is to exit.
        self._console = Console(
            file=io.StringIO(), force_terminal=True, force_jupyter=False, highlight=False
        )
        self._pace = Pace(clock())
        self._interval = 1 / refresh
        self._drawn: collections.deque[float] = collections.deque(maxlen=refresh)
        self._new_since: float | None = None

    def opened(self, runs: Sequence[RunInfo]) -> None:
        """Nothing yet: the first records draw."""

    def wrote(self) -> None:
        """Draw, if no flush did for some time."""
        now = self._clock()
        self._new_since = now if self._new_since is None else self._new_since
        if now - self._new_since >= self._interval:
            self._draw_if_due(now)

    def flushed(self) -> None:
        """Draw, if there is something new and it is not too soon."""
        if self._new_since is not None:
            self._draw_if_due(self._clock())

    def closed(self, runs: Sequence[RunInfo], status: str) -> None:
        """Draw; when no run is left, for the last time."""
        if self._board.is_open:
            self._draw_if_due(self._clock())
        else:
            self.ended()

    def ended(self) -> None:
        """Draw for the last time."""
        try:
            self._draw(self._clock(), is_last=True)
        finally:
            self._screen.close()

    def _draw_if_due(self, now: float) -> None:
        if len(self._drawn) < (self._drawn.maxlen or 0) or now - self._drawn[0] >= 1:
            self._draw(now)

    def _draw(self, now: float, is_last: bool = False) -> None:
        self._drawn.append(now)
        self._new_since = None
        self._pace.see(now, self._board.advanced(self._board.rows()))
        rate = self._pace.overall() if is_last else self._pace.lately()
        name = words.plain(self._board.step_name, self._glyphs)
        times = [words.rate(rate, name), words.elapsed(now - self._pace.began)]
        size = self._screen.size()
        self._screen.paint(lines(self._console, self._board, size, times, self._glyphs), size)

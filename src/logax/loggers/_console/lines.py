"""Plain lines, where nothing can be redrawn: one now and then, and one at the end of each run.

    run demo: step 500 loss=0.31 (mean 0.35), 81.2 steps/s, 0:06
    run demo: step 999 loss=0.123 (mean 0.2), finished in 0:12

Runs that end together share their last line. A line has the first keys only, and says how many more
there are; where keys were chosen it has them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from logax._delivery.record_batch import RunInfo
from logax._support import formatting as words
from logax._support.progress_bars import SECONDS_BETWEEN_LINES
from logax._support.summary import Summary
from logax.loggers._console.board import Board, Pace, who
from logax.loggers._console.screen import Paper, screen_on

MOST_KEYS = 8  # in one line, unless they were chosen


class Lines:
    """Shows a board as plain lines.

    Args:
      file: Where to.
      board: What is shown.
      clock: Tells the time in seconds.
    """

    def __init__(
        self, file: Any, board: Board, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._paper = file, Paper(file)
        self._glyphs = words.Glyphs.of(file)
        self._board, self._clock = board, clock
        self._pace = Pace(clock())
        self._due = clock() + SECONDS_BETWEEN_LINES
        self._began: dict[RunInfo, float] = {}
        self._is_new = False

    def opened(self, runs: Sequence[RunInfo]) -> None:
        """Remember when they began."""
        self._began.update(dict.fromkeys(runs, self._clock()))

    def wrote(self) -> None:
        """Nothing yet: lines come with a flush."""
        self._is_new = True

    def flushed(self) -> None:
        """A line, if the last one is long ago."""
        now = self._clock()
        if not self._is_new or now < self._due:
            return
        runs = list(self._board.status)
        rows = self._board.rows(runs)
        self._pace.see(now, self._board.advanced(rows))
        rate = words.rate(self._pace.lately(), self._board.step_name)
        times = [rate, words.elapsed(now - self._pace.began)]
        self._write(runs, rows, ", ".join(filter(None, times)))
        self._due, self._is_new = now + SECONDS_BETWEEN_LINES, False

    def closed(self, runs: Sequence[RunInfo], status: str) -> None:
        """The last line of these runs."""
        began = min(self._began.pop(run, self._pace.began) for run in runs)
        took = words.elapsed(self._clock() - began)
        self._write(runs, self._board.rows(runs), f"{status} in {took}")
        self._is_new = False

    def ended(self) -> None:
        """The last line of all that was not closed, if there is something new."""
        self._due = self._clock()
        self.flushed()

    def _write(self, runs: Sequence[RunInfo], rows: Any, ending: str) -> None:
        step = words.step(self._board.reached(rows), self._board.step_name)
        text = " ".join([words.plain(step, self._glyphs), *self._values(rows)])
        line = f"{who(self._board, runs, self._glyphs)}: {text}, {ending}\n"
        screen = screen_on(self._file)
        if screen is None:
            self._paper.write(line)
            self._paper.flush()
        else:  # another logger draws there
            screen.print(line)

    def _values(self, rows: Any) -> list[str]:
        keys = self._board.keys(rows)
        shown = keys if self._board.are_chosen else keys[:MOST_KEYS]
        values = [self._value(key, self._board.summary(key, rows)) for key in shown]
        more = len(keys) - len(shown)
        return [*values, f"and {more} more {'key' if more == 1 else 'keys'}"] if more else values

    def _value(self, key: str, one: Summary) -> str:
        last = one.remark or words.spread(one.last, self._glyphs, gap="")
        mean = words.spread(one.mean, self._glyphs, gap="")
        beside = [f"mean {mean}" if mean else ""]
        beside.append(f"{one.nonfinite} nonfinite" if one.nonfinite else "")
        inside = ", ".join(filter(None, beside))
        name = words.plain(key, self._glyphs) + one.suffix
        return f"{name}={last}" + (f" ({inside})" if inside else "")

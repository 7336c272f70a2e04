"""A board as lines for a terminal: a heading, a line for each key, and what does not fit.

Where the terminal is narrow, first the sparkline is made shorter, then the least and greatest, the
sparkline and the mean are left out, and keys are cut.

A table that is redrawn in place, a few times a second at most.

Nothing is drawn by a clock of its own: records and flushes draw, on the thread that brings them, so
that where nothing comes the table stands still. Records wait for the flush that follows them,
unless it lets them wait for long.
"""

from __future__ import annotations

import collections
import io
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from logax._delivery.record_batch import RunInfo
from logax._support import formatting as words
from logax._support.summary import Summary
from logax.loggers._console.board import Board, Pace, status, who
from logax.loggers._console.screen import Screen

SPARKLINES = (24, 12)
GAP = 2
LEAST_KEY = 12
_STYLES = {"running": "yellow", "finished": "green", "crashed": "bold red"}


class Fixed(NamedTuple):
    """A column of the table: its heading and a text for each key."""

    heading: str
    cells: list[str]

    @property
    def width(self) -> int:
        """In cells of the terminal."""
        return max(map(cell_len, [self.heading, *self.cells]))


def lines(
    console: Console, board: Board, size: tuple[int, int], times: list[str], glyphs: words.Glyphs
) -> list[str]:
    """The lines of a board, for a terminal of this size, with the codes that color them."""
    width, height = size
    console.size = (max(width, 1), max(height, 1))
    with console.capture() as drawn:
        console.print(picture(board, width, height, times, glyphs))
    return drawn.get().rstrip("\n").split("\n")


def picture(board: Board, width: int, height: int, times: list[str], glyphs: words.Glyphs) -> Group:
    """The same as something to print with rich."""
    title = _title(board, times, glyphs)
    rows = board.rows()
    every = board.keys(rows)
    room = height - 3  # a line for the heading, one for the names, and one that stays free
    if room < min(len(every), 2):
        return Group(title)
    shown = every if len(every) <= room else every[: room - 1]
    parts: list[Any] = [title]
    if shown:
        parts.append(_table([(key, board.summary(key, rows)) for key in shown], width, glyphs))
    if len(shown) < len(every):
        more = f"{glyphs.ellipsis} and {len(every) - len(shown)} more keys"
        parts.append(Text(more, style="dim", no_wrap=True, overflow=_overflow(glyphs)))
    return Group(*parts)


def _title(board: Board, times: list[str], glyphs: words.Glyphs) -> Text:
    at = words.step(board.reached(board.rows()), board.step_name)
    how = status(board.status.values())
    worst = next((word for word in ("crashed", "running") if word in how), how)
    title = Text(no_wrap=True, overflow=_overflow(glyphs))
    title.append(who(board, list(board.status), glyphs), style="bold")
    title.append(f" {glyphs.dot} ", style="dim").append(how, style=_STYLES.get(worst, ""))
    for part in filter(None, [words.plain(at, glyphs), *times]):
        title.append(f" {glyphs.dot} ", style="dim").append(part)
    return title


def _table(shown: list[tuple[str, Summary]], width: int, glyphs: words.Glyphs) -> Table:
    names = [words.plain(key, glyphs) for key, _ in shown]
    suffixes = [one.suffix for _, one in shown]
    key = Fixed("key", [name + suffix for name, suffix in zip(names, suffixes, strict=True)])
    columns, key_width = _chosen([one for _, one in shown], width, key, glyphs)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    table.add_column("key", style="cyan", no_wrap=True, overflow="crop", width=key_width)
    for column in columns:
        right = column.heading not in ("history", "nonfinite")
        table.add_column(
            column.heading, no_wrap=True, justify="right" if right else "left", width=column.width
        )
    for index, (name, suffix, (_, one)) in enumerate(zip(names, suffixes, shown, strict=True)):
        cells = [Text(column.cells[index], style=_style(column.heading, one)) for column in columns]
        table.add_row(_fitted(name, suffix, key_width, glyphs), *cells)
    return table


def _chosen(
    shown: list[Summary], width: int, key: Fixed, glyphs: words.Glyphs
) -> tuple[list[Fixed], int]:
    """The columns that there is room for, and the width of the keys."""
    columns: list[Fixed] = []
    for columns in _choices(shown, glyphs):
        rest = width - sum(column.width + GAP for column in columns)
        if rest >= min(key.width, LEAST_KEY):
            return columns, min(key.width, rest)
    return columns, max(min(key.width, rest), 1)


def _choices(shown: list[Summary], glyphs: words.Glyphs) -> Iterator[list[Fixed]]:
    """From all columns to few."""
    last = Fixed("last", [_last(one, glyphs) for one in shown])
    mean = Fixed("mean", [words.spread(one.mean, glyphs) for one in shown])
    low = Fixed("min", [_bound(one.low) for one in shown])
    high = Fixed("max", [_bound(one.high) for one in shown])
    bad = [one.nonfinite for one in shown]
    nonfinite = [Fixed("nonfinite", [str(n) if n else "" for n in bad])] if any(bad) else []
    wide, narrow = (
        Fixed("history", [words.sparkline(one.history, size, glyphs) for one in shown])
        for size in SPARKLINES
    )
    yield [last, mean, low, high, *nonfinite, wide]
    yield [last, mean, low, high, *nonfinite, narrow]
    yield [last, mean, *nonfinite, narrow]
    yield [last, mean, *nonfinite]
    yield [last, *nonfinite]
    yield [last]


def _last(one: Summary, glyphs: words.Glyphs) -> str:
    return one.remark or words.spread(one.last, glyphs)


def _bound(x: float) -> str:
    return words.number(x) if math.isfinite(x) else ""


def _style(heading: str, one: Summary) -> str:
    if heading == "nonfinite":
        return "bold red"
    if heading == "last":
        return "bold red" if one.last is not None and one.last.nonfinite else "bold"
    return "green" if heading == "history" else ""


def _fitted(name: str, suffix: str, width: int, glyphs: words.Glyphs) -> Text:
    """A key with what stands after it, cut where it is too long for its column."""
    room = width - len(suffix)
    if cell_len(name) > room >= 4:
        widths = itertools.accumulate(map(cell_len, name))
        name = (
            "".join(letter for letter, end in zip(name, widths, strict=True) if end < room)
            + glyphs.ellipsis
        )
    return Text(name + suffix, no_wrap=True, overflow=_overflow(glyphs))


def _overflow(glyphs: words.Glyphs) -> Literal["crop", "ellipsis"]:
    return "crop" if glyphs.is_ascii else "ellipsis"


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

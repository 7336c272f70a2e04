"""A dashboard as a table that is redrawn in place on a terminal.

The table has a heading, a line per key, and a count of the keys that do not fit. On a narrow
terminal the sparkline shrinks first; then minimum and maximum, the sparkline and the mean are left
out, and long keys are cut.

No timer draws. Records and flushes draw on the thread that delivers them, so the table does not
change while nothing arrives. Records wait for the flush that follows them, unless it is late.
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
from logax._support import formatting
from logax._support.formatting import KeySummary
from logax.loggers._console.dashboard import Dashboard, RateMeter, runs_label, status_label
from logax.loggers._console.screen import Screen

SPARKLINE_WIDTHS = (24, 12)
COLUMN_GAP = 2
MIN_KEY_WIDTH = 12
_STYLES = {"running": "yellow", "finished": "green", "crashed": "bold red"}


class TableColumn(NamedTuple):
    """A column of the table: its heading and one text per key."""

    heading: str
    cells: list[str]

    @property
    def width(self) -> int:
        """Width in terminal cells."""
        return max(map(cell_len, [self.heading, *self.cells]))


def render_lines(
    console: Console,
    dashboard: Dashboard,
    size: tuple[int, int],
    times: list[str],
    glyphs: formatting.Glyphs,
) -> list[str]:
    """Return the lines of a dashboard for a terminal of this size, with color codes."""
    width, height = size
    console.size = (max(width, 1), max(height, 1))
    with console.capture() as drawn:
        console.print(render_dashboard(dashboard, width, height, times, glyphs))
    return drawn.get().rstrip("\n").split("\n")


def render_dashboard(
    dashboard: Dashboard, width: int, height: int, times: list[str], glyphs: formatting.Glyphs
) -> Group:
    """Return the dashboard as a renderable of rich."""
    title = _title(dashboard, times, glyphs)
    rows = dashboard.rows()
    every = dashboard.keys(rows)
    room = height - 3  # the heading, the column names, and one free line
    if room < min(len(every), 2):
        return Group(title)
    shown = every if len(every) <= room else every[: room - 1]
    parts: list[Any] = [title]
    if shown:
        parts.append(_table([(key, dashboard.summary(key, rows)) for key in shown], width, glyphs))
    if len(shown) < len(every):
        more = f"{glyphs.ellipsis} and {len(every) - len(shown)} more keys"
        parts.append(Text(more, style="dim", no_wrap=True, overflow=_overflow(glyphs)))
    return Group(*parts)


def _title(dashboard: Dashboard, times: list[str], glyphs: formatting.Glyphs) -> Text:
    at = formatting.format_step(dashboard.step_range(dashboard.rows()), dashboard.step_name)
    how = status_label(dashboard.status.values())
    worst = next((word for word in ("crashed", "running") if word in how), how)
    title = Text(no_wrap=True, overflow=_overflow(glyphs))
    title.append(runs_label(dashboard, list(dashboard.status), glyphs), style="bold")
    title.append(f" {glyphs.dot} ", style="dim").append(how, style=_STYLES.get(worst, ""))
    for part in filter(None, [formatting.format_text(at, glyphs), *times]):
        title.append(f" {glyphs.dot} ", style="dim").append(part)
    return title


def _table(shown: list[tuple[str, KeySummary]], width: int, glyphs: formatting.Glyphs) -> Table:
    names = [formatting.format_text(key, glyphs) for key, _ in shown]
    suffixes = [one.suffix for _, one in shown]
    key = TableColumn("key", [name + suffix for name, suffix in zip(names, suffixes, strict=True)])
    columns, key_width = _choose_columns([one for _, one in shown], width, key, glyphs)
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="dim")
    table.add_column("key", style="cyan", no_wrap=True, overflow="crop", width=key_width)
    for column in columns:
        right = column.heading not in ("history", "nonfinite")
        table.add_column(
            column.heading, no_wrap=True, justify="right" if right else "left", width=column.width
        )
    for index, (name, suffix, (_, one)) in enumerate(zip(names, suffixes, shown, strict=True)):
        cells = [Text(column.cells[index], style=_style(column.heading, one)) for column in columns]
        table.add_row(_fit_key(name, suffix, key_width, glyphs), *cells)
    return table


def _choose_columns(
    shown: list[KeySummary], width: int, key: TableColumn, glyphs: formatting.Glyphs
) -> tuple[list[TableColumn], int]:
    """Return the columns that fit, and the width of the key column."""
    columns: list[TableColumn] = []
    for columns in _column_choices(shown, glyphs):
        rest = width - sum(column.width + COLUMN_GAP for column in columns)
        if rest >= min(key.width, MIN_KEY_WIDTH):
            return columns, min(key.width, rest)
    return columns, max(min(key.width, rest), 1)


def _column_choices(
    shown: list[KeySummary], glyphs: formatting.Glyphs
) -> Iterator[list[TableColumn]]:
    """Yield selections of columns, from all to one."""
    last = TableColumn("last", [_last(one, glyphs) for one in shown])
    mean = TableColumn("mean", [formatting.format_spread(one.mean, glyphs) for one in shown])
    low = TableColumn("min", [_bound(one.low) for one in shown])
    high = TableColumn("max", [_bound(one.high) for one in shown])
    bad = [one.nonfinite for one in shown]
    nonfinite = [TableColumn("nonfinite", [str(n) if n else "" for n in bad])] if any(bad) else []
    wide, narrow = (
        TableColumn("history", [formatting.sparkline(one.history, size, glyphs) for one in shown])
        for size in SPARKLINE_WIDTHS
    )
    yield [last, mean, low, high, *nonfinite, wide]
    yield [last, mean, low, high, *nonfinite, narrow]
    yield [last, mean, *nonfinite, narrow]
    yield [last, mean, *nonfinite]
    yield [last, *nonfinite]
    yield [last]


def _last(one: KeySummary, glyphs: formatting.Glyphs) -> str:
    return one.remark or formatting.format_spread(one.last, glyphs)


def _bound(x: float) -> str:
    return formatting.format_number(x) if math.isfinite(x) else ""


def _style(heading: str, one: KeySummary) -> str:
    if heading == "nonfinite":
        return "bold red"
    if heading == "last":
        return "bold red" if one.last is not None and one.last.nonfinite else "bold"
    return "green" if heading == "history" else ""


def _fit_key(name: str, suffix: str, width: int, glyphs: formatting.Glyphs) -> Text:
    """Return a key with its suffix, cut to the width of its column."""
    room = width - len(suffix)
    if cell_len(name) > room >= 4:
        widths = itertools.accumulate(map(cell_len, name))
        name = (
            "".join(letter for letter, end in zip(name, widths, strict=True) if end < room)
            + glyphs.ellipsis
        )
    return Text(name + suffix, no_wrap=True, overflow=_overflow(glyphs))


def _overflow(glyphs: formatting.Glyphs) -> Literal["crop", "ellipsis"]:
    return "crop" if glyphs.is_ascii else "ellipsis"


class LiveTable:
    """Show a dashboard as a table.

    Args:
      screen: Screen to draw on; it is open.
      file: Terminal, whose encoding decides which glyphs are used.
      dashboard: Dashboard to show.
      refresh: Maximum number of redraws per second.
      clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        screen: Screen,
        file: Any,
        dashboard: Dashboard,
        refresh: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._dashboard, self._clock = screen, dashboard, clock
        self._glyphs = formatting.Glyphs.of(file)
        # The console only renders: rich exits the process on a broken pipe.
        self._console = Console(
            file=io.StringIO(), force_terminal=True, force_jupyter=False, highlight=False
        )
        self._meter = RateMeter(clock())
        self._interval = 1 / refresh
        self._drawn: collections.deque[float] = collections.deque(maxlen=refresh)
        self._new_since: float | None = None

    def on_open(self, runs: Sequence[RunInfo]) -> None:
        """Draw nothing yet: the first records do."""

    def on_write(self) -> None:
        """Draw if records have waited for a flush too long."""
        now = self._clock()
        self._new_since = now if self._new_since is None else self._new_since
        if now - self._new_since >= self._interval:
            self._draw_if_due(now)

    def on_flush(self) -> None:
        """Draw if there are new records and the last redraw is old enough."""
        if self._new_since is not None:
            self._draw_if_due(self._clock())

    def on_close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Draw; for the last time if no run is left."""
        if self._dashboard.is_open:
            self._draw_if_due(self._clock())
        else:
            self.on_end()

    def on_end(self) -> None:
        """Draw for the last time, and release the terminal."""
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
        self._meter.update(now, self._dashboard.mean_progress(self._dashboard.rows()))
        rate = self._meter.average() if is_last else self._meter.recent()
        name = formatting.format_text(self._dashboard.step_name, self._glyphs)
        times = [
            formatting.format_rate(rate, name),
            formatting.format_clock(now - self._meter.began),
        ]
        size = self._screen.size()
        self._screen.paint(
            render_lines(self._console, self._dashboard, size, times, self._glyphs), size
        )

"""The sink of `ConsoleLogger`: passes runs and records to a dashboard and to its view.

An output that cannot be redrawn gets plain lines, one every few seconds and one per ended run:

    run demo: step 500 loss=0.31 (mean 0.35), 81.2 steps/s, 0:06
    run demo: step 999 loss=0.123 (mean 0.2), finished in 0:12

Runs that end together share their last line. A line shows the first keys and counts the others,
unless the user chose the keys: then it shows all of them.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from logax._delivery.record_batch import RecordBatch, RunInfo
from logax._support import formatting
from logax._support.formatting import KeySummary
from logax._support.progress_bars import LINE_INTERVAL_SECONDS
from logax.loggers._console.dashboard import Dashboard, RateMeter, runs_label
from logax.loggers._console.screen import EscapingFile, Screen, screen_on
from logax.loggers.sink import Sink

_CANNOT_REDRAW = ("dumb", "unknown")


class ConsoleSink(Sink):
    """Show all open runs together, in a live table or in plain lines.

    Args:
      keys: Names or globs of the keys and leaves to show; None for all.
      file: Output file; the standard error if None.
      refresh: Maximum number of redraws per second.
      window: Number of most recent records that means cover.
      clock: Function that returns the time in seconds.
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
        self._dashboard: Dashboard | None = None
        self._view: Any = None
        self._finalizer: Any = None

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Add runs to the dashboard; the first ones create it."""
        if self._dashboard is None:
            self._dashboard = Dashboard(self._keys, self._window)
            self._view = self._new_view(self._dashboard)
        self._dashboard.open(runs)
        self._view.on_open(runs)

    def _new_view(self, dashboard: Dashboard) -> Any:
        file = sys.stderr if self._file is None else self._file
        if can_redraw(file) and has_rich():
            screen = Screen(file)
            if screen.open():
                # A logger that is garbage collected with open runs restores `sys.stdout`.
                self._finalizer = weakref.finalize(self, screen.close)
                from logax.loggers._console.live_table import LiveTable  # noqa: PLC0415 (needs rich)

                return LiveTable(screen, file, dashboard, self._refresh, self._clock)
        return PlainLines(file, dashboard, self._clock)

    def write(self, batch: RecordBatch) -> None:
        """Update the dashboard."""
        if self._dashboard is not None:
            self._dashboard.update(batch)
            self._view.on_write()

    def flush(self) -> None:
        """Let the view draw, at most as often as it may."""
        if self._dashboard is not None:
            self._dashboard.reset_order()
            self._view.on_flush()

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Show how the runs ended, and drop the dashboard with the last of them."""
        if self._dashboard is None:
            return
        self._dashboard.close(runs, status)
        self._view.on_close(runs, status)
        if not self._dashboard.is_open:
            self._forget()

    def end(self) -> None:
        """Draw a last time if runs are still open."""
        if self._view is not None:
            try:
                self._view.on_end()
            finally:
                self._forget()

    def _forget(self) -> None:
        self._dashboard = self._view = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def can_redraw(file: Any) -> bool:
    """Return whether the file is a terminal on which lines can be overwritten."""
    try:
        is_terminal = bool(file.isatty())
    except (AttributeError, ValueError):  # the file is closed
        return False
    return is_terminal and os.environ.get("TERM", "").lower() not in _CANNOT_REDRAW


def has_rich() -> bool:
    """Return whether rich is installed."""
    try:
        import rich  # noqa: F401, PLC0415 (not required)
    except ImportError:
        return False
    return True


MAX_KEYS_PER_LINE = 8  # unless the user chose the keys


class PlainLines:
    """Show a dashboard as plain lines.

    Args:
      file: Output file.
      dashboard: Dashboard to show.
      clock: Function that returns the time in seconds.
    """

    def __init__(
        self, file: Any, dashboard: Dashboard, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._output = file, EscapingFile(file)
        self._glyphs = formatting.Glyphs.of(file)
        self._dashboard, self._clock = dashboard, clock
        self._meter = RateMeter(clock())
        self._due = clock() + LINE_INTERVAL_SECONDS
        self._began: dict[RunInfo, float] = {}
        self._is_new = False

    def on_open(self, runs: Sequence[RunInfo]) -> None:
        """Record the start time of the runs."""
        self._began.update(dict.fromkeys(runs, self._clock()))

    def on_write(self) -> None:
        """Note that there are new records; the next flush may print a line."""
        self._is_new = True

    def on_flush(self) -> None:
        """Print a line if there are new records and the last line is old enough."""
        now = self._clock()
        if not self._is_new or now < self._due:
            return
        runs = list(self._dashboard.status)
        rows = self._dashboard.rows(runs)
        self._meter.update(now, self._dashboard.mean_progress(rows))
        rate = formatting.format_rate(self._meter.recent(), self._dashboard.step_name)
        times = [rate, formatting.format_clock(now - self._meter.began)]
        self._write(runs, rows, ", ".join(filter(None, times)))
        self._due, self._is_new = now + LINE_INTERVAL_SECONDS, False

    def on_close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Print the last line of these runs."""
        began = min(self._began.pop(run, self._meter.began) for run in runs)
        took = formatting.format_clock(self._clock() - began)
        self._write(runs, self._dashboard.rows(runs), f"{status} in {took}")
        self._is_new = False

    def on_end(self) -> None:
        """Print a last line if there are new records of runs that were not closed."""
        self._due = self._clock()
        self.on_flush()

    def _write(self, runs: Sequence[RunInfo], rows: Any, ending: str) -> None:
        step = formatting.format_step(self._dashboard.step_range(rows), self._dashboard.step_name)
        text = " ".join([formatting.format_text(step, self._glyphs), *self._values(rows)])
        line = f"{runs_label(self._dashboard, runs, self._glyphs)}: {text}, {ending}\n"
        screen = screen_on(self._file)
        if screen is None:
            self._output.write(line)
            self._output.flush()
        else:  # another logger redraws lines on this terminal
            screen.print(line)

    def _values(self, rows: Any) -> list[str]:
        keys = self._dashboard.keys(rows)
        shown = keys if self._dashboard.has_chosen_keys else keys[:MAX_KEYS_PER_LINE]
        values = [self._value(key, self._dashboard.summary(key, rows)) for key in shown]
        more = len(keys) - len(shown)
        return [*values, f"and {more} more {'key' if more == 1 else 'keys'}"] if more else values

    def _value(self, key: str, one: KeySummary) -> str:
        last = one.remark or formatting.format_spread(one.last, self._glyphs, gap="")
        mean = formatting.format_spread(one.mean, self._glyphs, gap="")
        beside = [f"mean {mean}" if mean else ""]
        beside.append(f"{one.nonfinite} nonfinite" if one.nonfinite else "")
        inside = ", ".join(filter(None, beside))
        name = formatting.format_text(key, self._glyphs) + one.suffix
        return f"{name}={last}" + (f" ({inside})" if inside else "")

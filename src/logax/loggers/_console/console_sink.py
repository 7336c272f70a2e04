"""The sink of `ConsoleLogger`: passes runs and records to a dashboard and to its view."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers._console.dashboard import Dashboard
from logax.loggers._console.plain_lines import PlainLines
from logax.loggers._console.screen import Screen
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

"""Plain lines for outputs that cannot be redrawn: one every few seconds, and one per ended run.

    run demo: step 500 loss=0.31 (mean 0.35), 81.2 steps/s, 0:06
    run demo: step 999 loss=0.123 (mean 0.2), finished in 0:12

Runs that end together share their last line. A line shows the first keys and counts the others,
unless the user chose the keys: then it shows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from logax._delivery.record_batch import RunInfo
from logax._support import formatting
from logax._support.progress_bars import LINE_INTERVAL_SECONDS
from logax._support.summary import KeySummary
from logax.loggers._console.dashboard import Dashboard, RateMeter, runs_label
from logax.loggers._console.screen import EscapingFile, screen_on

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

"""`ConsoleLogger`: live statistics of runs in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from logax._support.imports import import_optional
from logax._support.validation import validate_file, validate_minimum, validate_names
from logax.loggers._console.console_sink import ConsoleSink, can_redraw
from logax.loggers._core.logger import Logger

_NAME = "ConsoleLogger"


class ConsoleLogger(Logger):
    """Show statistics of runs while they run: a live table in a terminal, lines elsewhere.

        logger = ConsoleLogger()
        with logger.run(name="first") as state:
            weights = logger.tap(train, state, buffer=64)(key)

    **Table.** Each key has a line: the last number, the mean over the last `window` records, the
    minimum and maximum of all records, and a sparkline of the last `window`. The heading shows the
    run, its status, its step, steps per second and the elapsed time. The table is redrawn at most
    `refresh` times per second, however many records arrive, and not at all while none do. When all
    runs have ended it stays as it is, and the next run starts a new table. Keys that exceed the
    height of the terminal are counted below. Output that the program prints meanwhile appears
    above.

    **Lanes.** All runs and lanes that are open at the same time share one table. Last and mean are
    means over them with the standard deviation; minimum and maximum are those of all. The heading
    shows the steps of the slowest and the fastest. Runs that have ended leave the table when other
    runs start.

    **Values.** An array is shown as the mean of its elements (`x[64] mean`), a complex number as
    its magnitude, a `Histogram` as a sparkline of the last bins, and an `Image` as its size. PRNG
    keys are left out. Means and extremes cover finite numbers; a last number that is not finite is
    shown, with the number of such records.

    **Without a terminal**, as in files and notebooks, the logger prints a line at most every five
    seconds, and a last line for runs that end, shared by runs that end together:

        run first: step 999 loss=0.123 (mean 0.2), finished in 0:12

    It does the same while another `ConsoleLogger` draws on the terminal. An output that cannot be
    written to, such as a closed file, does not stop the program.

    Args:
      keys: Names or globs of the keys and leaves to show; all by default.
      file: Output file; the standard error by default.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.
      refresh: Maximum number of redraws per second.
      window: Number of most recent records that mean and sparkline cover. Each takes 4 or 8 bytes
        per key and lane.

    Raises:
      ImportError: The output is a terminal, and rich is not installed.
      TypeError: `keys` are not strings, or `file` cannot be written to.
      ValueError: `refresh` or `window` is not an integer of at least 1.
    """

    def __init__(
        self,
        *,
        keys: str | Iterable[str] | None = None,
        file: Any = None,
        lanes: str = "split",
        refresh: int = 4,
        window: int = 100,
    ) -> None:
        names = validate_names("keys", keys)
        validate_file(_NAME, file)
        refresh = validate_minimum(1, _NAME, "refresh", refresh)
        window = validate_minimum(1, _NAME, "window", window)
        if can_redraw(sys.stderr if file is None else file):
            import_optional("rich", _NAME)
        super().__init__(ConsoleSink(names, file, refresh, window), lanes=lanes)

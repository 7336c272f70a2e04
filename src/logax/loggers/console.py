"""Numbers of runs while they run, in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from logax._support.imports import imported
from logax._support.validation import as_names, at_least, check_file
from logax.loggers._console.sink import ConsoleSink, can_redraw
from logax.loggers._core.logger import Logger

_NAME = "ConsoleLogger"


class ConsoleLogger(Logger):
    """Shows the numbers of runs while they run: a live table in a terminal, lines elsewhere.

        logger = ConsoleLogger()
        with logger.run(name="first") as state:
            weights = logger.tap(train, state, buffer=64)(key)

    **The table** has a line for each key: the last number, the mean over the last `window` records,
    the least and the greatest of all records, and a sparkline of the last `window`. Above it stand
    the run, its status, its step, steps a second and the time since it began. It is redrawn a few
    times a second at most however many records come, and stands still while none come. When all
    runs have ended it stays as it is, and the next run begins a new one. Keys that do not fit the
    height of the terminal are counted below. What the program prints meanwhile appears above.

    **Seeds.** All runs and lanes that are open at a time share one table: last and mean are means
    over them, with the standard deviation, least and greatest are those of all. The heading says
    where the slowest and the fastest are. Runs that have ended leave the table when others begin.

    **Values.** Of an array the mean of its elements is shown (`x[64] mean`), of a complex number
    the magnitude, of a `Histogram` the bins of the last one as a sparkline, of an `Image` the size.
    PRNG keys are left out. Means and extremes are those of the finite numbers; a last number that
    is not finite is shown, and how many records there were of which it is so.

    **Elsewhere** than in a terminal, as in files and notebooks, there is a line every five seconds
    at most, and a last one for runs that end, together where they end together:

        run first: step 999 loss=0.123 (mean 0.2), finished in 0:12

    The same is done where another `ConsoleLogger` draws on that terminal at the time. That nothing
    can be written, to a closed file say, stops nothing.

    Args:
      keys: Names or globs of the keys and leaves to show; all if it is not given.
      file: Where to write; the standard error if it is not given.
      lanes: What becomes of seeds; see `Logger`.
      refresh: How often the table is redrawn in a second at most.
      window: How many of the last records count for mean and sparkline. Each takes 4 or 8 bytes for
        each key and seed.

    Raises:
      ImportError: The output is a terminal, and rich is not installed.
      TypeError: `keys` are no strings, or nothing can be written to `file`.
      ValueError: `refresh` or `window` is no whole number of 1 or more.
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
        names = as_names("keys", keys)
        check_file(_NAME, file)
        refresh = at_least(1, _NAME, "refresh", refresh)
        window = at_least(1, _NAME, "window", window)
        if can_redraw(sys.stderr if file is None else file):
            imported("rich", _NAME)
        super().__init__(ConsoleSink(names, file, refresh, window), lanes=lanes)

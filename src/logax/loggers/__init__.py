"""Loggers for harvested functions: what becomes of records that are streamed.

A logger is given to `tap` or `live` as a callback, and used as a context manager:

    with ProgressLogger(show="loss") as progress:
        weights = logax.tap(train, progress, buffer=64)(key)

On the way out it waits for all records and ends what it shows.
"""

from logax.loggers.progress import ProgressLogger as ProgressLogger

__all__ = ["ProgressLogger"]

"""What cannot be read, as one type of error."""

from __future__ import annotations


class RunsError(ValueError):
    """A file does not hold runs, or holds something that no logger has written.

    What SQLite or the system said is its `__cause__`.
    """

    __module__ = "logax"


class RemovedError(RunsError):
    """A file of runs was removed, or another file has its name now."""

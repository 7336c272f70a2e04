"""Errors and warnings of files of runs that cannot be read, or not all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logax._delivery.record_batch import RunInfo


class RunsError(ValueError):
    """A file does not hold runs, or holds something that no logger has written.

    The error of SQLite or of the system is its `__cause__`.
    """

    __module__ = "logax"


class RemovedError(RunsError):
    """A file of runs was removed, or another file has its name now."""


class AllDamagedError(RunsError):
    """All records of a key are damaged; a `DamageWarning` has reported each part of them."""


class RefusedRunsError(Exception):
    """Some of the runs that a sink was to open cannot be opened; all others are open.

    Attributes:
      runs: The runs that cannot be opened.
      reason: The error that says why.
    """

    def __init__(self, runs: Sequence[RunInfo], reason: Exception) -> None:
        super().__init__(str(reason))
        self.runs, self.reason = runs, reason


class RunsWriteError(OSError):
    """The disk refuses records; the message says how many are safe, wait in memory, or are lost."""


class DamageWarning(UserWarning):
    """A part of a file of runs is damaged: it is left out, and the rest is read."""

    __module__ = "logax"


class ChecksumError(ValueError):
    """A row or its bytes are not what was written."""


class Damage(NamedTuple):
    """A damaged part of a file of runs.

    Attributes:
      path: The file.
      why: Sentence without its full stop that says what is damaged.
      runs: Ids of the runs whose records are left out; () if that cannot be told.
      key: Key of these records; None if that cannot be told.
      first: Number of the first of these records among those that the file has of the key.
      last: Number of the last of them.
    """

    path: str
    why: str
    runs: tuple[str, ...] = ()
    key: str | None = None
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        if self.key is None:
            return f"{self.path} is damaged: {self.why}."
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return (
            f"{self.path} is damaged: {self.why}. Records {self.first} to {self.last} of "
            f"{self.key!r} of run {self.runs[0]}{more} are left out."
        )

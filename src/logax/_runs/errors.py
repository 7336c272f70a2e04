"""Errors and warnings about files of runs that are damaged, missing or cannot be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logax._delivery.record_batch import RunInfo


class RunsError(ValueError):
    """A file or folder of runs cannot be read.

    `logax.load`, `Runs` and `Run` raise it for a file that is not a file of runs, whose damage
    affects all that was asked for, or that was removed or replaced since its runs were listed. The
    error of SQLite or of the operating system, if there is one, is its `__cause__`. The command
    `logax verify` lists all damage in a file or folder.
    """

    __module__ = "logax"


class RemovedError(RunsError):
    """A file of runs was removed, or another file has its name now."""


class AllDamagedError(RunsError):
    """All records of a key are damaged; a `DamageWarning` was issued for each damaged part."""


class RefusedRunsError(Exception):
    """A sink could not open some of its runs; all others are open.

    Attributes:
      runs: Runs that could not be opened.
      reason: Error that explains why.
    """

    def __init__(self, runs: Sequence[RunInfo], reason: Exception) -> None:
        super().__init__(str(reason))
        self.runs, self.reason = runs, reason


class RunsWriteError(OSError):
    """Records could not be written to disk.

    The message says how many are safe, how many wait in memory, and how many are lost.
    """


class DamageWarning(UserWarning):
    """A part of a file of runs is damaged, and the rest was read without it.

    The message names the file, the damage, and the records that are left out. Each damage is
    reported once per `Runs`. To stop instead of reading on, turn the warning into an error:

        warnings.simplefilter("error", logax.DamageWarning)
    """

    __module__ = "logax"


class ChecksumError(ValueError):
    """A row of a file, or bytes that belong to it, differ from their checksum."""


class Damage(NamedTuple):
    """A damaged part of a file of runs.

    Attributes:
      path: Path of the file.
      why: Description of the damage: a sentence without its full stop.
      runs: Ids of the runs whose records are left out; () if unknown.
      key: Key of these records; None if unknown.
      first: Number of the first of these records among the records of the key in this file.
      last: Number of the last of these records.
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

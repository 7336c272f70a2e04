"""What a destination is: it opens runs, takes portions of their records, and closes runs.

A sink knows nothing about JAX's transformations. The shell (`Logger`) hands it records that are
NumPy arrays by column, many at a time, on one thread and in this order:

    open(runs)                 once for each run, before its first record
    write(portion) ...         as often as there are records
    flush()                    after some of them, and after runs were opened or closed: now all of
                               it must be safe, and seen by readers
    close(runs, status)        once for each run
    end()                      when the logger is closed, or Python exits

Only `known_runs()`, `claim()` and `release()` are called on another thread, that of the user who
resumes a run; that thread has waited for all of the above.

What a sink raises stops neither the program nor other sinks: it is kept, and raised by
`logax.flush()` and by the next call of the logger.

**Streams.** A stream is what one lane says: usually a run is one stream. Where one state was given
to a function under `vmap`, a run has a stream for each lane, and under `shard_map` one for each
shard. All streams that log side by side come in one portion, along the first axis of every array.

What is done for each of several runs, of which one that fails stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._support.messages import add_note, raise_together


class Sink:
    """The base of all destinations. Its methods do nothing: override those that matter.

    Attributes:
      takes_lanes: Whether it takes runs with several streams. If not, it is given their mean, least
        and greatest: `loss/mean`, `loss/min`, `loss/max`.
      opens_later: What becomes of runs where `open` has raised. If True they are open: the sink
        minds by itself which of them it could not open, tries again or raises in `write`, and
        `close` is called for all. If False their records are lost, and `close` is not called.
      has_unsafe: Whether a failed `flush` has left records in memory that the next one may make
        safe. Then every `logax.flush()` calls `flush`, until that succeeds.
    """

    takes_lanes = True
    opens_later = False
    has_unsafe = False

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Runs begin."""

    def write(self, portion: RecordBatch) -> None:
        """Take records of runs that are open."""

    def flush(self) -> None:
        """Make all that was written safe, and seen by readers."""

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Runs have ended: their status is "finished", or "crashed"."""

    def end(self) -> None:
        """There will be nothing more: let go of files and connections."""

    def known_runs(self) -> KnownRuns | None:
        """Return the runs that can be resumed; None if this destination keeps none."""
        return None

    def claim(self, ids: Sequence[str]) -> None:
        """Keep other processes from resuming these runs, which are to be resumed here.

        Raises:
          ValueError: Another process has resumed one of them. The message begins in lower case.
        """

    def release(self, ids: Sequence[str]) -> None:
        """Let others resume these runs, which are not resumed here after all."""


T = TypeVar("T")


def for_each(
    name: str,
    several: Iterable[T],
    do: Callable[[T], object],
    until: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Do it for all of them, those after a failure too, and then raise what failed.

    Args:
      name: Of the logger, for errors.
      several: What it is done for.
      do: What is done.
      until: Errors after which no other is tried, since they would fare the same.
    """
    every, errors = list(several), list[BaseException]()
    for number, one in enumerate(every, 1):
        try:
            do(one)
        except Exception as error:  # noqa: BLE001 - the others must have theirs
            errors.append(error)
            if isinstance(error, until):
                if number < len(every):
                    add_note(error, f"{len(every) - number} more were not tried.")
                break
    raise_together(f"`{name}` could not write several runs", errors)

"""`Sink`, the base class of destinations: it opens runs, writes batches of records, closes runs.

A sink needs no knowledge of JAX's transformations. A `Logger` calls it with NumPy arrays in
columns, many records at a time, on one thread and in this order:

    open(runs)                 once for each run, before its first record
    write(batch)               as often as there are records
    flush()                    after some writes, and after runs were opened or closed: all records
                               must now be safe on disk, and visible to readers
    close(runs, status)        once for each run
    end()                      when the logger is closed, or Python exits

Only `known_runs()`, `claim()` and `release()` run on another thread, that of the user who resumes a
run; that thread has waited for all of the above.

An error of a sink stops neither the program nor other sinks: `logax.flush()` and the next call of
the logger raise it.

**Streams.** A stream is the sequence of records of one lane; usually a run is one stream. If one
state is passed to a function under `vmap`, its run has a stream for each lane, and under
`shard_map` one for each shard. Streams that log side by side come in one batch, along the first
axis of every array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._support.messages import add_note, raise_together


class Sink:
    """Base class of destinations. Its methods do nothing: override those that you need.

        class PrintSink(Sink):
            def write(self, batch):
                for record in batch.records():
                    print(record.stream.run.name, record.steps, record.values)

        logger = Logger(PrintSink())

    All calls come on one thread. See the documentation on writing a sink.

    Attributes:
      takes_lanes: True if the sink accepts runs with several streams. If not, it gets their mean,
        minimum and maximum instead: `loss/mean`, `loss/min`, `loss/max`.
      opens_later: Treatment of runs after `open` has raised. If True, they count as open: the sink
        remembers which of them it could not open, tries again or raises in `write`, and `close` is
        called for all of them. If False, their records are lost, and `close` is not called.
      has_unsafe: True if a failed `flush` has left records in memory that the next `flush` may
        write. Then every `logax.flush()` calls `flush` until it succeeds.
    """

    takes_lanes = True
    opens_later = False
    has_unsafe = False

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Open runs, before their first record.

        Args:
          runs: The runs.
        """

    def write(self, batch: RecordBatch) -> None:
        """Write records of open runs.

        Args:
          batch: The records. Other sinks may share its arrays: do not modify them.
        """

    def flush(self) -> None:
        """Make all written records safe on disk, or at the destination, and visible to readers."""

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Close runs, after their last record.

        Args:
          runs: The runs.
          status: "finished" or "crashed".
        """

    def end(self) -> None:
        """Release files and connections, because the logger is closed or Python exits."""

    def known_runs(self) -> KnownRuns | None:
        """Return the runs that can be resumed; None if the destination cannot resume runs."""
        return None

    def claim(self, ids: Sequence[str]) -> None:
        """Prevent other processes from resuming these runs, because this one is about to.

        Args:
          ids: Ids of the runs.

        Raises:
          ValueError: Another process has claimed one of them. The message begins in lower case.
        """

    def release(self, ids: Sequence[str]) -> None:
        """Withdraw a claim, because the runs are not resumed after all.

        Args:
          ids: Ids of the runs.
        """


T = TypeVar("T")


def for_each(
    name: str,
    items: Iterable[T],
    do: Callable[[T], object],
    until: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Call `do` for each item, even after failures, and then raise all errors together.

    Args:
      name: Name of the logger, for messages.
      items: The items.
      do: Function of one item.
      until: Types of errors after which the other items are not tried, as they would fail too.
    """
    every, errors = list(items), list[BaseException]()
    for number, one in enumerate(every, 1):
        try:
            do(one)
        except Exception as error:  # noqa: BLE001 - the other items must be tried
            errors.append(error)
            if isinstance(error, until):
                if number < len(every):
                    add_note(error, f"{len(every) - number} more were not tried.")
                break
    raise_together(f"`{name}` could not write several runs", errors)

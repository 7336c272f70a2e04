"""The thread that writes an open trajectory.

`WriterThread.put` queues the rows of a step. The thread waits until the device has computed all
rows of the step, and adds them to the file together, in the order in which they were logged; it
commits earlier steps in time meanwhile.

A row is safe at most `flush_seconds` after `log` has returned (or one second, if that is more),
however fast the loop is. Three bounds ensure that: the queue admits as many rows as the thread
writes in a tenth of that time; a commit is due when its oldest row is a quarter of that time old;
and if one step takes longer than that to write, `log` returns only when the step is written. Only
rows that the device has not computed yet wait longer.

The next `log` and the end of the block raise errors of the thread. The end waits for all rows, even
if it is interrupted; a second interrupt gives up the rows that still wait.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.shutdown import run_at_termination
from logax._delivery.worker import Worker
from logax._serialization.dtypes import StorageError
from logax._support.messages import add_note, describe_error, note_or_warn, warn_user
from logax._support.progress_bars import Bar
from logax.storage._commits import Numbers
from logax.storage._trajectory import Trajectory
from logax.storage._view import Row, is_row_ready

THREAD_NAME = "logax-storage"
_ROW_OVERHEAD_BYTES = 2000  # of the arrays of JAX, and of the queue
_MAX_INTERRUPTS = 3  # after more, the end does not wait for anything
_PROGRESS_DELAY_SECONDS = 1.0  # before the end of a block shows a progress bar
_FORGOTTEN_WAIT_SECONDS = 1.0  # for the end of a writer that was never left

MIN_SAFE_DELAY_SECONDS = 1.0
_QUEUE_SHARE, _COMMIT_SHARE = 0.1, 0.25  # of the promised time
_MIN_COMMIT_GAP_SECONDS = 0.02  # between commits while rows wait
_FIRST_BYTES_PER_SECOND = 10e6  # assumed until a large row was written
_MIN_MEASURED_BYTES = 2**16  # smaller steps do not predict the time for larger ones
_BYTES_PER_RECORD = 4096  # in the queue
_MIN_QUEUE_BYTES = 2**20
_SLOW_STEP_DECAY = 0.8  # factor by which a slow step counts less with every large step after it


class RemainingRowsBar:
    """A progress bar for the rows that remain at the end of a block.

    Failures of the bar do not stop the end of the block; they are collected in `problems`.
    Interrupts are raised.

    Args:
      total: Number of remaining rows.

    Attributes:
      problems: Messages about failures of the bar.
    """

    def __init__(self, total: int) -> None:
        self.problems: list[str] = []
        self._total = total
        self._bar: Bar | None = None

    def draw(self, done: int) -> None:
        """Show the number of written rows, if a redraw is due."""
        if not self.problems:
            self._attempt(lambda: self._draw(done))

    def close(self, done: int) -> None:
        """Show the final number of written rows."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._attempt(lambda: bar.close(done))

    def _draw(self, done: int) -> None:
        if self._bar is None:
            self._bar = Bar(None, self._total, 0, "writing rows")
        if time.monotonic() >= self._bar.due:
            self._bar.draw(done)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Warning as warning:  # where warnings are errors
            self.problems = self.problems or [str(warning)]
        except Exception as error:  # noqa: BLE001 - reported at the end
            message = f"The progress bar cannot be drawn: {describe_error(error)}"
            self.problems = self.problems or [message]


class QueuedStep(NamedTuple):
    """The rows of one step in the queue.

    Attributes:
      thread: Thread that writes them.
      number: Number of the step.
      rows: Number of the group and row, for each group that is due.
      size: Size of the rows in the queue, in bytes.
      logged: Time of the call of `log`, by `time.monotonic`.
    """

    thread: WriterThread
    number: int
    rows: list[tuple[int, Row]]
    size: int
    logged: float


class WriterThread:
    """An open trajectory, and the thread that writes it.

    Args:
      path: Path of the file, for messages.
      trajectory: The open trajectory.
      flush_seconds: Maximum time until a row is safe.
      sync: True to wait for the disk in every commit.

    Attributes:
      trajectory: The open trajectory.
      logged_steps: Number of steps that have run, by the calls of `log`.
    """

    def __init__(self, path: str, trajectory: Trajectory, flush_seconds: float, sync: bool) -> None:
        self._path, self.trajectory = path, trajectory
        self._sync = sync
        promised_seconds = max(flush_seconds, MIN_SAFE_DELAY_SECONDS)
        self._commit_delay = min(flush_seconds, promised_seconds * _COMMIT_SHARE)
        self._max_write_seconds = promised_seconds * _COMMIT_SHARE
        self._worker = Worker(
            THREAD_NAME,
            short_turns=False,
            grows=False,
            queue_seconds=promised_seconds * _QUEUE_SHARE,
            min_records=_MIN_QUEUE_BYTES // _BYTES_PER_RECORD,
        )
        self._seconds_per_byte = 1 / _FIRST_BYTES_PER_SECOND
        self._is_measured = False
        # Number of steps that have run, by the calls of `log`, and by the rows in the stores.
        self.logged_steps = self._stored_steps = trajectory.actual_steps
        # Numbers of steps that have rows.
        self._queued_steps = self._added_steps = 0
        self._commit_due = self._next_commit = 0.0
        self._failure: StorageError | None = None
        self._is_commit_planned = False
        self._lost_rows = self._dropped_rows = 0
        self._queued_rows = self._written_rows = 0
        self._put_lock, self._is_ending = threading.Lock(), False
        self._has_given_up = self._is_over = False
        self._end_messages: list[str] = []

    def start(self, queue_bytes: int, *, blocks_when_full: bool) -> None:
        """Start the thread."""
        self._worker.queue_bytes = queue_bytes
        self._worker.blocks_when_full = blocks_when_full
        self._worker.start()
        run_at_termination(self._worker, "safe", self._commit)

    def put(self, number: int, rows: list[tuple[int, Row]], row_bytes: int) -> None:
        """Queue the rows of a step; wait if they would not be safe in time otherwise."""
        size = row_bytes + _ROW_OVERHEAD_BYTES * len(rows)
        step = QueuedStep(self, number, rows, size, time.monotonic())
        with self._put_lock:
            if self._is_ending:
                raise RuntimeError(
                    "`HDF5StorageWriter.log` was called while its block ended, and the rows of "
                    f"step {number} were not stored. Leave the block when all threads are done."
                )
            # The worker limits the queue by records. Counting bytes as records makes the limit
            # right for a mixture of steps with and without large rows.
            records = 1 + size // _BYTES_PER_RECORD
            is_queued = self._worker.add(size, _add_coalesced, step, records)
            self._queued_steps += is_queued
        if is_queued:
            self._queued_rows += len(rows)
            is_slow = size * self._seconds_per_byte > self._max_write_seconds
            if self._worker.blocks_when_full and is_slow:
                self._worker.drain(None)
                self.raise_failure()
            return
        is_first = not self._dropped_rows
        self._dropped_rows += len(rows)  # first, as the warning may be an error
        if is_first:
            warn_user(
                "`HDF5StorageWriter` drops rows, since its queue of "
                f"{self._worker.queue_bytes} bytes is full. At the end it warns how many."
            )

    def raise_failure(self) -> None:
        """Raise the error of the thread, if it has failed."""
        if self._failure is not None:
            raise self._failure

    def end(self, error: BaseException | None = None) -> None:
        """Write all remaining rows, close the file, and report failures.

        Args:
          error: The exception that ended the block, if any.
        """
        # One interrupt does not lose rows; only a second one does.
        interrupts = [] if error is None or isinstance(error, Exception) else [error]
        self._is_ending = True
        self._wait_through_interrupts(self._wait_for_put, interrupts)
        self._wait_through_interrupts(self._drain, interrupts)
        self._worker.put(0, self._finish, waits=False)
        self._wait_through_interrupts(lambda: self._worker.drain(None), interrupts)
        self._worker.stop(waits=True)  # HDF5 must not be stopped in the middle of an operation
        self._report_end(error, next((each for each in interrupts if each is not error), None))

    def end_forgotten(self) -> None:
        """End a run whose block was never left.

        Python may call this at any point, also where the current thread holds a lock that the
        writer thread needs. So another thread does it, and this one waits only briefly.
        """
        thread = threading.Thread(target=self.end, name=f"{THREAD_NAME}-end")
        if threading.main_thread().is_alive() or self._worker.is_current():
            try:
                thread.start()
            except RuntimeError:  # Python is exiting, or the system allows no more threads
                pass
            else:
                if not self._worker.is_current():
                    thread.join(_FORGOTTEN_WAIT_SECONDS)
                return
        self.end()  # Python does not wait for threads any more

    @property
    def is_over(self) -> bool:
        """True if the file is closed."""
        return self._is_over

    def _wait_for_put(self) -> None:
        """Wait for a `put` that another thread has begun."""
        with self._put_lock:
            pass

    def _wait_through_interrupts(
        self, wait: Callable[[], object], interrupts: list[BaseException]
    ) -> None:
        """Wait despite an interrupt; after the second one, give up the remaining rows."""
        while True:
            try:
                wait()
                return
            except BaseException as interrupt:
                interrupts.append(interrupt)
                self._has_given_up = len(interrupts) > 1
                if len(interrupts) > _MAX_INTERRUPTS:
                    raise

    def _report_end(self, error: BaseException | None, interrupt: BaseException | None) -> None:
        """Raise the exception that the block ends with, and report all other failures.

        This is an interrupt of the end if there was one, else the error of the loop, which the
        caller raises, else the error of the thread.
        """
        failure = None if _is_caused_by(error, self._failure) else self._failure
        final = next((x for x in (interrupt, error, failure) if x is not None), None)
        messages = [] if failure is None or failure is final else [str(failure)]
        if self._dropped_rows:
            messages.append(
                f"`HDF5StorageWriter` dropped {self._dropped_rows} rows, since its queue of "
                f"{self._worker.queue_bytes} bytes was full. Make it larger, or wait for room: "
                '`HDF5StorageWriter(..., queue_bytes=..., when_full="block")`.'
            )
        messages += self._end_messages
        if interrupt is not None and self._lost_rows and self._failure is None:
            add_note(
                interrupt,
                f"`HDF5StorageWriter` was interrupted at its end, and {self._lost_rows} rows were "
                "not written.",
            )
        if messages:
            note_or_warn(final, " ".join(messages))
        if final is not None and final is not error:
            raise final

    def _drain(self) -> None:
        """Wait until all rows are written, with a progress bar if that takes long."""
        if self._worker.drain(time.monotonic() + _PROGRESS_DELAY_SECONDS):
            return
        before = self._written_rows
        bar = RemainingRowsBar(self._queued_rows - before)
        try:
            while not self._worker.drain(time.monotonic() + 0.1):
                bar.draw(self._written_rows - before)
        finally:
            bar.close(self._written_rows - before)
            self._end_messages += bar.problems

    # The thread calls the methods below.

    def add(self, steps: collections.deque[QueuedStep]) -> None:
        """Add steps to the stores, remove them from the queue, and commit in time."""
        try:
            while steps and not self._must_stop():
                step = steps[0]
                rows = self._fetch_rows(step)
                if self._must_stop():
                    break
                begin = time.monotonic()
                self.trajectory.add(rows, step.number)
                steps.popleft()
                self._written_rows += len(rows)
                self._added_steps += 1
                self._stored_steps = max(self._stored_steps, step.number + 1)
                self._plan_commit(step, begin)
        except BaseException as error:  # noqa: BLE001 - raised by the next `log`, and at the end
            self._fail(error)
        self._lost_rows += sum(len(step.rows) for step in steps)

    def _fetch_rows(self, step: QueuedStep) -> list[tuple[int, list[Numbers]]]:
        """Return the rows of a step when the device has computed them.

        Earlier rows are committed in the meantime. The result is empty if the thread must stop.
        """
        rows = [row for _, row in step.rows]
        with contextlib.ExitStack() as waits:
            if not all(map(is_row_ready, rows)):
                waits.enter_context(self._worker.awaiting_device())
                self._worker.wait_until(lambda: self._must_stop() or all(map(is_row_ready, rows)))
            if self._must_stop():
                return []
            return [(number, [np.asarray(x) for x in row]) for number, row in step.rows]

    def _plan_commit(self, step: QueuedStep, begin: float) -> None:
        """Plan a commit for a step that was written from `begin` on, or commit it if it is due."""
        now = time.monotonic()
        if step.size > _MIN_MEASURED_BYTES:
            seconds_per_byte = (now - begin) / step.size
            before = _SLOW_STEP_DECAY * self._seconds_per_byte if self._is_measured else 0.0
            self._seconds_per_byte, self._is_measured = max(seconds_per_byte, before), True
        if not self._is_commit_planned:
            self._is_commit_planned = True
            self._commit_due = max(step.logged + self._commit_delay, self._next_commit)
            self._worker.call_later(max(self._commit_due - now, 0), self._commit)
        if now >= max(self._commit_due, self._next_commit):
            self._commit()

    def _must_stop(self) -> bool:
        return self._failure is not None or self._has_given_up

    def _commit(self) -> None:
        if self._is_commit_planned:
            self._is_commit_planned = False
            self._call_unless_failed(self.trajectory.commit)
            gap = max(self._commit_delay * _COMMIT_SHARE, _MIN_COMMIT_GAP_SECONDS)
            self._next_commit = time.monotonic() + gap

    def _actual_steps(self) -> int:
        """Return the number of steps that have run and whose rows are all in the stores."""
        steps = self.logged_steps  # read first, as steps that are queued later are later steps
        if self._added_steps == self._queued_steps:
            return max(self._stored_steps, steps)
        return self._stored_steps

    def _finish(self) -> None:
        self._call_unless_failed(self.trajectory.finish, is_complete=not self._has_given_up)
        self._is_over = True

    def _call_unless_failed(self, action: Callable[..., None], **options: Any) -> None:
        if self._failure is None and not self._is_over:
            try:
                action(self._actual_steps(), sync=self._sync, **options)
            except BaseException as error:  # noqa: BLE001 - raised by the next `log`, and at the end
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Abandon the file, and keep the error for the loop."""
        try:
            self.trajectory.abandon(self._actual_steps())
        finally:
            safe = self.trajectory.safe_rows
            rows = ", ".join(f"{number} of `{name}`" for name, number in safe.items())
            failure = StorageError(
                f"`HDF5StorageWriter` could not write to {self._path}: "
                f"{describe_write_error(error)} Rows that are safe in it: {rows}. When the cause "
                'is fixed, go on with `mode="a"`.'
            )
            failure.__cause__ = error
            self._failure = failure


def _add_coalesced(steps: collections.deque[QueuedStep]) -> None:
    """Add steps on their thread; the worker coalesces items of the same function."""
    steps[0].thread.add(steps)


def describe_write_error(error: BaseException) -> str:
    """Describe an error; if HDF5 wraps an error of the system, describe that one."""
    found = re.search(r"errno = (\d+)", str(error))
    if found is not None:
        error = OSError(int(found[1]), os.strerror(int(found[1])))
    return describe_error(error)


def _is_caused_by(error: BaseException | None, failure: BaseException | None) -> bool:
    """Return whether an error is `failure`, or has it as a cause, a context or a part."""
    if error is None or failure is None:
        return False
    if error is failure:
        return True
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    causes = (*parts, error.__cause__, error.__context__)
    return any(_is_caused_by(cause, failure) for cause in causes)

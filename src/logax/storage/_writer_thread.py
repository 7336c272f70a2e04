"""What is left to write at the end of a block, shown to whoever waits for it.

One run of a writer: the open file, and the thread that writes to it.

Steps come in the order in which they were logged. The thread waits until the device has computed
all rows of a step, and adds them together; it commits earlier steps in time meanwhile.

A row is safe at most `flush_seconds` after `log` has returned (one second if that is less), however
fast the loop is. Three bounds together keep that promise: the queue admits as many rows as the
thread writes in a tenth of that time; a commit is due when the oldest row that it would make safe
is a quarter of that time old; and where one step takes longer than that to write, `log` returns
when the step is written. Only rows that the device has not computed yet wait longer.

What fails on the thread comes out of the next `log` and of the end of the block. The end waits for
all rows, also where it is interrupted; only a second interrupt gives up those that still wait.
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

from logax._delivery.shutdown import at_termination
from logax._delivery.worker import Worker
from logax._serialization.dtypes import StorageError
from logax._support.messages import add_note, described, tell_at_end, warn_user
from logax._support.progress_bars import Bar
from logax.storage._commits import Numbers
from logax.storage._trajectory import Trajectory
from logax.storage._view import Row, is_there


class Remaining:
    """A progress bar that costs nothing but itself where it cannot be drawn.

    An interrupt comes out, as from anything that is waited for.

    Attributes:
      troubles: What to tell of the bar, when there is time for that.
    """

    def __init__(self, total: int) -> None:
        self.troubles: list[str] = []
        self._total = total
        self._bar: Bar | None = None

    def draw(self, done: int) -> None:
        """Show how many are written, if it is time."""
        if not self.troubles:
            self._attempt(lambda: self._draw(done))

    def close(self, done: int) -> None:
        """Show it for the last time."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._attempt(lambda: bar.close(done))

    def _draw(self, done: int) -> None:
        if self._bar is None:
            self._bar = Bar(None, self._total, 0, "writing rows")
        if time.monotonic() >= self._bar.due:
            self._bar.draw(done)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Warning as warning:  # where warnings are errors
            self.troubles = self.troubles or [str(warning)]
        except Exception as error:  # noqa: BLE001 - told at the end
            told = f"The progress bar cannot be drawn: {described(error)}"
            self.troubles = self.troubles or [told]


THREAD = "logax-storage"
_HELD = 2000  # bytes that a row takes besides its numbers, in arrays of JAX's and in the queue
_ENOUGH = 3  # interrupts, after which nothing is waited for
_PATIENCE = 1.0  # seconds before the end of a block shows what it waits for

MIN_SAFE_DELAY_SECONDS = 1.0
_QUEUE_SHARE, _COMMIT_SHARE = 0.1, 0.25  # of the promised time
_MIN_COMMIT_GAP_SECONDS = 0.02  # between commits in the middle of rows that wait
_FIRST_BYTES_PER_SECOND = 10e6  # assumed until a large row was written
_MEASURED_BYTES = 2**16  # a step of fewer bytes says nothing about the time that larger ones take
_BYTES_PER_RECORD = 4096  # as the queue counts them
_MIN_QUEUE_BYTES = 2**20
_SLOW_STEP_DECAY = 0.8  # factor by which a slow step counts less with every large one after it


class Step(NamedTuple):
    """The rows of one step on their way to the file.

    Attributes:
      run: The run that writes them.
      number: Number of the step.
      rows: Number of the group and row, for each group that is due.
      size: Bytes that the rows take in the queue.
      logged: Time at which the rows were handed over, by `time.monotonic`.
    """

    run: Run
    number: int
    rows: list[tuple[int, Row]]
    size: int
    logged: float


class Run:
    """A file that is open, and the thread that writes to it."""

    def __init__(self, path: str, trajectory: Trajectory, seconds: float, sync: bool) -> None:
        self._path, self.trajectory = path, trajectory
        self._sync = sync
        promise = max(seconds, MIN_SAFE_DELAY_SECONDS)
        self._commit_delay = min(seconds, promise * _COMMIT_SHARE)
        self._longest_write = promise * _COMMIT_SHARE
        self._worker = Worker(
            THREAD,
            short_turns=False,
            grows=False,
            queue_seconds=promise * _QUEUE_SHARE,
            min_records=_MIN_QUEUE_BYTES // _BYTES_PER_RECORD,
        )
        self._seconds_per_byte = 1 / _FIRST_BYTES_PER_SECOND
        self._is_measured = False
        # How many steps have run, by `log`, and by the rows that are in the stores.
        self.logged_steps = self._stored_steps = trajectory.actual_steps
        self._queued = self._taken = 0  # steps with rows
        self._commit_due = self._next_commit = 0.0
        self._failure: StorageError | None = None
        self._is_safe = True  # all that was written, or it is being made so
        self._lost = self._dropped = 0
        self._put_in = self._written = 0  # rows
        self._entrance, self._ends = threading.Lock(), False
        self._given_up = self._is_over = False
        self._untold: list[str] = []  # what else is to be told at the end

    def begin(self, limit: int, drops: bool) -> None:
        """Start the thread, with a queue of so many bytes."""
        self._worker.limit, self._worker.blocks = limit, not drops
        self._worker.start()
        at_termination(self._worker, "safe", self._commit)

    def put(self, number: int, rows: list[tuple[int, Row]], row_bytes: int) -> None:
        """Have the rows of a step written; wait where they would not be safe in time otherwise."""
        step = Step(self, number, rows, row_bytes + _HELD * len(rows), time.monotonic())
        with self._entrance:
            if self._ends:
                raise RuntimeError(
                    "`HDF5StorageWriter.log` was called while its block ended, and the rows of "
                    f"step {number} were not stored. Leave the block when all threads are done."
                )
            # The bound in time goes by bytes: steps with and without large rows take turns.
            records = 1 + step.size // _BYTES_PER_RECORD
            takes = self._worker.add(step.size, _add_steps, step, records)
            self._queued += takes
        if takes:
            self._put_in += len(rows)
            if self._worker.blocks and step.size * self._seconds_per_byte > self._longest_write:
                self._worker.drain(None)
                self.tell()
            return
        is_first = not self._dropped
        self._dropped += len(rows)  # first: where warnings are errors, the next line raises
        if is_first:
            warn_user(
                "`HDF5StorageWriter` leaves out rows, since its queue of "
                f"{self._worker.limit} bytes is full. At the end it says how many."
            )

    def tell(self) -> None:
        """Raise what went wrong on the thread."""
        if self._failure is not None:
            raise self._failure

    def end(self, error: BaseException | None = None) -> None:
        """Write all that is left, close the file, and tell what went wrong."""
        # Who interrupts the end gets all rows all the same, unless they do so again.
        interrupts = [] if error is None or isinstance(error, Exception) else [error]
        self._ends = True
        self._insist(self._let_in_who_is_there, interrupts)
        self._insist(self._drain, interrupts)
        self._worker.put(0, self._finish, waits=False)
        self._insist(lambda: self._worker.drain(None), interrupts)
        self._worker.stop(waits=True)  # HDF5 must not be left in the middle of something
        self._tell_at_end(error, next((each for each in interrupts if each is not error), None))

    def end_forgotten(self) -> None:
        """End a run that nobody has left, from wherever Python found that out.

        That may be in the middle of anything, also where this thread holds a lock that the thread
        behind the queue needs. So a thread of its own does it, for which nobody waits for long.
        """
        thread = threading.Thread(target=self.end, name=f"{THREAD}-end")
        if threading.main_thread().is_alive() or self._worker.is_current():
            try:
                thread.start()
            except RuntimeError:  # Python exits already, or there is no room for a thread
                pass
            else:
                if not self._worker.is_current():
                    thread.join(_PATIENCE)
                return
        self.end()  # Python waits for no thread any more

    @property
    def is_over(self) -> bool:
        """Whether the file is closed."""
        return self._is_over

    def _let_in_who_is_there(self) -> None:
        with self._entrance:
            pass

    def _insist(self, wait: Callable[[], object], interrupts: list[BaseException]) -> None:
        """Wait for something, through an interrupt; after the second one rows are given up."""
        while True:
            try:
                wait()
                return
            except BaseException as interrupt:
                interrupts.append(interrupt)
                self._given_up = len(interrupts) > 1
                if len(interrupts) > _ENOUGH:
                    raise

    def _tell_at_end(self, error: BaseException | None, interrupt: BaseException | None) -> None:
        """Raise what the block ends with, if that is not the loop's own error, and tell the rest.

        An interrupt of the end comes out, so that whoever waits for it gets it; else the error of
        the loop does, and else what failed on the thread.
        """
        failure = None if _leads_to(error, self._failure) else self._failure
        ends_with = next((x for x in (interrupt, error, failure) if x is not None), None)
        untold = [] if failure is None or failure is ends_with else [str(failure)]
        if self._dropped:
            untold.append(
                f"`HDF5StorageWriter` left out {self._dropped} rows, since its queue of "
                f"{self._worker.limit} bytes was full. Make it larger, or wait for room: "
                '`HDF5StorageWriter(..., queue_bytes=..., when_full="block")`.'
            )
        untold += self._untold
        if interrupt is not None and self._lost and self._failure is None:
            add_note(interrupt, _left_out(self._lost))
        if untold:
            tell_at_end(ends_with, " ".join(untold))
        if ends_with is not None and ends_with is not error:
            raise ends_with

    def _drain(self) -> None:
        """Wait until all rows are written; where that takes long, show how many are left."""
        if self._worker.drain(time.monotonic() + _PATIENCE):
            return
        before = self._written
        shown = Remaining(self._put_in - before)
        try:
            while not self._worker.drain(time.monotonic() + 0.1):
                shown.draw(self._written - before)
        finally:
            shown.close(self._written - before)
            self._untold += shown.troubles

    # On the thread.

    def add(self, steps: collections.deque[Step]) -> None:
        """Add steps to the stores, remove them from the queue, and commit in time."""
        try:
            while steps and not self._stops():
                step = steps[0]
                rows = self._fetched(step)
                if self._stops():
                    break
                begin = time.monotonic()
                self.trajectory.add(rows, step.number)
                steps.popleft()
                self._written += len(rows)
                self._taken += 1
                self._stored_steps = max(self._stored_steps, step.number + 1)
                self._plan_commit(step, begin)
        except BaseException as error:  # noqa: BLE001 - raised by the next `log`, and at the end
            self._fail(error)
        self._lost += sum(len(step.rows) for step in steps)

    def _fetched(self, step: Step) -> list[tuple[int, list[Numbers]]]:
        """Wait for the rows of a step, unless the run stops; commit earlier ones meanwhile."""
        rows = [row for _, row in step.rows]
        with contextlib.ExitStack() as waits:
            if not all(map(is_there, rows)):
                waits.enter_context(self._worker.awaiting_device())
                self._worker.wait_until(lambda: self._stops() or all(map(is_there, rows)))
            if self._stops():
                return []
            return [(number, [np.asarray(x) for x in row]) for number, row in step.rows]

    def _plan_commit(self, step: Step, begin: float) -> None:
        """Commit a step that was written in time, at once if it is due."""
        now = time.monotonic()
        if step.size > _MEASURED_BYTES:
            seconds_per_byte = (now - begin) / step.size
            before = _SLOW_STEP_DECAY * self._seconds_per_byte if self._is_measured else 0.0
            self._seconds_per_byte, self._is_measured = max(seconds_per_byte, before), True
        if self._is_safe:
            self._is_safe = False
            self._commit_due = max(step.logged + self._commit_delay, self._next_commit)
            self._worker.after(max(self._commit_due - now, 0), self._commit)
        if now >= max(self._commit_due, self._next_commit):
            self._commit()

    def _stops(self) -> bool:
        return self._failure is not None or self._given_up

    def _commit(self) -> None:
        if not self._is_safe:
            self._is_safe = True
            self._unless_failed(self.trajectory.commit)
            gap = max(self._commit_delay * _COMMIT_SHARE, _MIN_COMMIT_GAP_SECONDS)
            self._next_commit = time.monotonic() + gap

    def _actual_steps(self) -> int:
        """Number of steps that have run and whose rows are all in the stores."""
        steps = self.logged_steps  # first: what is queued later has later steps
        return max(self._stored_steps, steps) if self._taken == self._queued else self._stored_steps

    def _finish(self) -> None:
        self._unless_failed(self.trajectory.finish, is_complete=not self._given_up)
        self._is_over = True

    def _unless_failed(self, act: Callable[..., None], **options: Any) -> None:
        if self._failure is None and not self._is_over:
            try:
                act(self._actual_steps(), sync=self._sync, **options)
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Leave the file as it is, and keep the error for the loop."""
        try:
            self.trajectory.abandon(self._actual_steps())
        finally:
            safe = self.trajectory.safe_rows
            rows = ", ".join(f"{number} of `{name}`" for name, number in safe.items())
            failure = StorageError(
                f"`HDF5StorageWriter` could not write to {self._path}: {told(error)} Rows that "
                f'are safe in it: {rows}. When the cause is fixed, go on with `mode="a"`.'
            )
            failure.__cause__ = error
            self._failure = failure


def _add_steps(steps: collections.deque[Step]) -> None:
    """Add steps on the thread of their run; the worker coalesces items of one function."""
    steps[0].run.add(steps)


def told(error: BaseException) -> str:
    """What was raised; of what HDF5 says of the system's errors, what the system said."""
    found = re.search(r"errno = (\d+)", str(error))
    return described(error if found is None else OSError(int(found[1]), os.strerror(int(found[1]))))


def _left_out(number: int) -> str:
    return f"`HDF5StorageWriter` was interrupted at its end, and {number} rows were not written."


def _leads_to(error: BaseException | None, failure: BaseException | None) -> bool:
    """Whether one is the other, or came of it."""
    if error is None or failure is None:
        return False
    if error is failure:
        return True
    others = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(_leads_to(each, failure) for each in (*others, error.__cause__, error.__context__))

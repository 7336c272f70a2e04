"""Run jobs from a bounded queue on one background thread.

A producer, such as an XLA thread, waits only while the queue is full; callbacks and sinks run on
the worker thread. The thread starts with the first job, starts again in a forked process, and
finishes its jobs when Python exits.

The queue is bounded in bytes and in time. A compiled program makes records faster than any callback
handles them, so a bound in bytes alone would let a live view fall minutes behind. The worker
measures its rate in records per second, and admits as many records as it handles in
`queue_seconds`: a record is delivered that soon after it has left the program, and the program
waits instead.

All records pass through `worker`. A sink that waits for a network has its own `Worker`, so that
the other sinks do not wait for the network; those queues are bounded in bytes only.
"""

from __future__ import annotations

import collections
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from logax._delivery.errors import DeliveryError, delivery_errors
from logax._support.messages import describe_error
from logax._support.processes import reset_after_fork

QUEUE_BYTES = 256 * 2**20
QUEUE_SECONDS = 0.2
WHEN_FULL = ("block", "drop")

RATE_SECONDS = 0.05  # minimum time over which the rate is measured
MAX_EARLY_RATE = 100_000  # records per second, trusted before that time
FIRST_WINDOW_RECORDS = 16  # admitted before the worker has measured its rate
JOBS_PER_WINDOW = 4
MAX_COALESCED_ITEMS = 4096
MAX_COALESCED_BYTES = 2**20

# Switch interval of Python while there are jobs: the program must not wait longer for the GIL.
_SWITCH_INTERVAL_SECONDS = 5e-5
# An idle worker waits this long for more jobs, because waking up for each record is expensive...
_COALESCE_SECONDS = 2e-2
_MAX_COALESCE_BYTES = 4 * 2**20  # ...but not when jobs hold more than this.
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 2e-5, 5e-3
# A worker without progress for this long may be waiting for the program that waits for it.
_STALL_SECONDS = 5.0
_STALL_GROWTH_BYTES = 16 * 2**20  # by which the queue then grows


class _Job:
    """A call for the worker thread: `run(*arguments)`.

    Attributes:
      size: Number of bytes that the job holds.
      records: Upper bound on the number of records that it delivers.
      items: Items that were coalesced into this job; None for a job that accepts none.
      kind: Only items of the same kind are coalesced.
    """

    __slots__ = ("arguments", "items", "kind", "records", "run", "size")

    def __init__(
        self,
        size: int,
        run: Callable[..., object],
        arguments: tuple[Any, ...],
        records: int = 0,
        items: collections.deque[Any] | None = None,
        kind: Any = None,
    ) -> None:
        self.size, self.run, self.arguments = size, run, arguments
        self.records, self.items, self.kind = records, items, kind

    def accepts(self, run: Callable[..., object], kind: Any, size: int, max_records: float) -> bool:
        """Return whether an item for `run` may be coalesced into this job."""
        items = self.items
        return (
            items is not None
            and self.run is run
            and self.kind == kind
            and len(items) < MAX_COALESCED_ITEMS
            and self.records < max_records
            and self.size + size <= MAX_COALESCED_BYTES
        )


class Worker:
    """A queue of jobs, bounded in bytes and in time, and the thread that runs them.

    Args:
      name: Name of the thread.
      short_turns: True if to shorten Python's switch interval while there are jobs, so that other
        threads get the GIL soon.
      grows: True if the queue admits more than its bounds allow after a long time without progress.
      queue_seconds: Time within which all admitted records are expected to be delivered.
      min_records: Number of records that may wait however slow the thread is.

    Attributes:
      queue_bytes: Maximum number of bytes that may wait.
      blocks_when_full: True if a producer waits for room; otherwise the queue rejects its item.
      running: Kind and function of the user's code that runs now, for messages.
      progress: Counter that grows with every job and record that is done.
      job_records: Maximum number of records in one job. Several such jobs may wait.
      is_discarding: True if routes count records instead of delivering them.
      num_discarded: Number of records counted that way.
      is_exiting: True if Python exits.
    """

    on_start: ClassVar[list[Callable[[], None]]] = []  # called after a thread was started
    running: tuple[str, Any] | None
    progress: int
    job_records: float
    is_discarding: bool
    num_discarded: int

    def __init__(
        self,
        name: str = "logax",
        *,
        short_turns: bool = True,
        grows: bool = True,
        queue_seconds: float = math.inf,
        min_records: int = 1,
    ) -> None:
        self._min_records = min_records
        self._name, self._short_turns, self._grows = name, short_turns, grows
        self.queue_bytes = QUEUE_BYTES
        self.queue_seconds = queue_seconds
        self.blocks_when_full = True
        self.is_exiting = False
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._bytes = 0
        self._records = 0
        self._rate = 0.0  # records per second; 0 until the first are delivered
        self._recent_records, self._recent_seconds = 0.0, 0.0
        self.job_records = self._timely_records() / JOBS_PER_WINDOW
        self._measured_until = time.perf_counter()
        self._idle = False  # the thread waits for a job
        self._pauses = False  # it has a job, and waits for more
        self._stops = False  # it ends when the queue is empty
        self._num_waiting = 0  # threads that wait for jobs to be done
        self._num_waiting_for_room = 0  # those of them that wait for room in the queue
        self.progress = 0
        self.running = None
        self.is_discarding, self.num_discarded = False, 0
        self._extra = 0  # bytes admitted beyond the bound
        self._stalled_at = -1  # value of `progress` at the last stall
        self._awaits_device = False
        self._later: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs. Call this early: Python starts none while it exits."""
        if self._thread is None:
            with self._changed:
                if self._thread is None:  # pragma: no branch - else another thread was faster
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # Python exits already, or there is no room for a thread
                        return  # then `drain` runs the jobs
                    self._thread = thread
            for call in self.on_start:
                call()

    def stop(self, *, waits: bool = False) -> None:
        """Stop the thread when all jobs are done. A later job starts another thread.

        With `waits`, return after the thread has ended, so that it holds no references any more.
        """
        with self._changed:
            thread = self._thread
            self._stops = thread is not None
            self._changed.notify_all()
            if waits:  # this releases the lock, even if an interrupt left it acquired twice
                self._changed.wait_for(lambda: self._thread is not thread or thread is None)
        if waits and thread is not None:
            thread.join()

    def put(
        self, size: int, job: Callable[..., object], *arguments: Any, waits: bool = True
    ) -> bool:
        """Queue a job that holds `size` bytes.

        A job that is larger than the bound is admitted when the queue is empty. The worker thread
        never waits for room.

        Args:
          size: Number of bytes that the job holds.
          job: The function to call.
          *arguments: Its arguments.
          waits: True if the bounds apply; otherwise the job is queued at once.

        Returns:
          False if the queue is full and `blocks_when_full` is off.
        """
        with self._changed:
            if waits and not self._make_room(size, 0):
                return False
            self._append(_Job(size, job, arguments))
        return True

    def add(
        self,
        size: int,
        run: Callable[[collections.deque[Any]], None],
        item: Any,
        records: int = 1,
        kind: Any = None,
    ) -> bool:
        """Queue an item for `run`, coalesced with the items that were added just before.

        A job has a fixed cost, and a program that adds small items quickly adds many of them.

        Args:
          size: Number of bytes that the item holds.
          run: Function that processes a deque of items, and removes those it has processed.
          item: The item.
          records: Upper bound on the number of records that the item delivers.
          kind: Items of different kinds are never coalesced.

        Returns:
          False if the queue is full and `blocks_when_full` is off.
        """
        with self._changed:
            # `_has_room`, inlined: this runs for every record of a program.
            if (
                self._bytes
                and (
                    self._bytes + size > self.queue_bytes
                    or self._records + records > self._window()
                )
                and not self._make_room(size, records)
            ):
                return False
            jobs = self._jobs
            if jobs and jobs[-1].accepts(run, kind, size, self.job_records):
                job = jobs[-1]
                job.items.append(item)  # type: ignore[union-attr]
                job.size += size
                job.records += records
                self._bytes += size
                self._records += records
                if self._pauses and self._bytes > _MAX_COALESCE_BYTES:
                    self._changed.notify_all()
                return True
            items = collections.deque([item])
            self._append(_Job(size, run, (items,), records, items, kind))
        return True

    def _append(self, job: _Job) -> None:
        self._jobs.append(job)
        self._bytes += job.size
        self._records += job.records
        self.start()
        if self._idle or (self._pauses and self._bytes > _MAX_COALESCE_BYTES):
            self._changed.notify_all()

    def _make_room(self, size: int, records: int) -> bool:
        if self._has_room(size, records):
            return True
        if self.blocks_when_full:
            self._await_room(size, records)
        return self.blocks_when_full

    def call_later(self, seconds: float, job: Callable[[], None]) -> None:
        """Run `job` after `seconds`. A later call replaces it, and `drain` does not wait for it.

        Only jobs may call this.
        """
        self._later = (time.monotonic() + seconds, job)

    @contextlib.contextmanager
    def awaiting_device(self) -> Iterator[None]:
        """Lift the bound in time while a job waits for arrays to be computed.

        The program that computes them may be the one that waits for room. Only jobs may call this.
        """
        with self._changed:
            self._awaits_device = True
            if self._num_waiting_for_room:
                self._changed.notify_all()
        try:
            yield
        finally:
            self._awaits_device = False

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Poll until `is_ready`, and run a job of `call_later` on time meanwhile.

        Returns at once if there is no such job: then the caller can block on its array instead.
        Only jobs may call this.
        """
        interval = _MIN_POLL_SECONDS
        while self._later is not None and not is_ready():
            later = self._pop_due_job()
            if later is not None:
                self._run_job(_Job(0, later, ()))
                continue
            time.sleep(min(self._seconds_left() or 0, interval))
            interval = min(2 * interval, _MAX_POLL_SECONDS)  # most arrays are ready soon

    def extend_last(self, extend: Callable[[Callable[..., object]], bool]) -> bool:
        """Call `extend` with the function of the last waiting job; return whether it agreed."""
        with self._changed:
            return bool(self._jobs) and extend(self._jobs[-1].run)

    def _await_room(self, size: int, records: int) -> None:
        """Wait for room in the queue, and exceed its bounds if the worker stalls.

        A callback that calls JAX may wait for the program that waits here. So after
        `_STALL_SECONDS` without progress the bound in time is lifted until there is progress, and
        after as long again the bound in bytes grows.
        """
        with self._without_pauses(), self._waiting_for_room():
            while not (self._has_room(size, records) or self.is_current() or self._thread is None):
                progress = self.progress
                moved = self._changed.wait_for(
                    lambda: self._has_room(size, records) or self._thread is None, _STALL_SECONDS
                )
                if moved or self.progress != progress or not self._grows:
                    continue
                if self._stalled_at != progress:
                    self._stalled_at = progress
                    delivery_errors.add_warning(
                        f"A callback has not returned for {_STALL_SECONDS:g} s, and the queue is "
                        "full. It may wait for the program that waits for it, so the queue grows "
                        "beyond its bound."
                    )
                else:
                    self._extra += _STALL_GROWTH_BYTES

    def drain(self, deadline: float | None) -> bool:
        """Wait until all jobs are done; return False if the deadline passes before.

        Without a thread, as at exit, run the jobs here.
        """
        while True:
            while self._thread is None and self._jobs:
                self._run_job(self._jobs.popleft())
            with self._changed, self._without_pauses():
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                self._changed.wait_for(lambda: self.is_done() or self._thread is None, left)
                if self.is_done() or self._thread is not None:
                    return self.is_done()

    def drain_queued(self, deadline: float) -> bool:
        """Wait until the jobs that are queued now are done; return False after the deadline."""
        if self._thread is None and not self._jobs:
            return True
        done = threading.Event()
        self.put(0, done.set, waits=False)
        with self._changed, self._without_pauses(), self._waiting_for_room():
            left = max(deadline - time.monotonic(), 0)
            return self._changed.wait_for(done.is_set, left)

    @property
    def waiting_records(self) -> int:
        """Upper bound on the number of records that are not delivered yet."""
        return self._records

    def is_done(self) -> bool:
        """Return whether no job waits or runs."""
        return not self._jobs and (self._idle or self._thread is None)

    @contextlib.contextmanager
    def _without_pauses(self) -> Iterator[None]:
        """Keep the thread from pausing to coalesce jobs, because the caller waits for it."""
        self._num_waiting += 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._num_waiting -= 1

    @contextlib.contextmanager
    def _waiting_for_room(self) -> Iterator[None]:
        """Have the thread notify the caller after every job, which is expensive for both."""
        self._num_waiting_for_room += 1
        try:
            yield
        finally:
            self._num_waiting_for_room -= 1

    def is_current(self) -> bool:
        """Return whether the caller runs on the worker thread."""
        return threading.current_thread() is self._thread

    def _has_room(self, size: int, records: int) -> bool:
        if not self._bytes:
            return True
        if self._bytes + size > self.queue_bytes + self._extra:
            return False
        return self._records + records <= self._window()

    def _window(self) -> float:
        """Return the number of records that may wait: those delivered in `queue_seconds`.

        There is no such bound if records that find no room are dropped, so that a burst is not
        lost; nor while the thread waits for the device, which may wait for this queue.
        """
        if not self.blocks_when_full or self._awaits_device or self._stalled_at == self.progress:
            return math.inf
        return self._timely_records()

    def _timely_records(self) -> float:
        """Return the number of records that the worker is expected to deliver in time."""
        if math.isinf(self.queue_seconds):
            return math.inf
        records = self._rate * self.queue_seconds if self._rate else FIRST_WINDOW_RECORDS
        return max(self._min_records, records)

    def _measure(self, records: int, seconds: float) -> None:
        """Update the rate with a job, as a moving average over the last jobs.

        A single job says little, since some jobs only gather records and others write them. The
        time of `call_later` jobs counts too: sinks write and commit in them.
        """
        if records and self._recent_seconds > RATE_SECONDS:
            self._recent_records *= 0.5
            self._recent_seconds *= 0.5
        self._recent_records += records
        self._recent_seconds += seconds
        if self._recent_records:
            self._rate = self._recent_records / max(self._recent_seconds, 1e-9)
            if self._recent_seconds < RATE_SECONDS:
                # The first jobs only gather what later ones write: do not trust a high rate yet.
                sure = max(self._recent_records / RATE_SECONDS, MAX_EARLY_RATE)
                self._rate = min(self._rate, sure)
            # A job frees its room only when all of it is done, so the window holds several jobs.
            self.job_records = self._timely_records() / JOBS_PER_WINDOW

    def _run(self) -> None:
        """Run jobs until the thread is stopped.

        After an error outside of the jobs, the next job starts another thread.
        """
        try:
            self._run_jobs()
        except BaseException as error:  # noqa: BLE001 - raised by the next `flush`
            with self._changed:
                self._thread, self._idle, self._pauses = None, False, False
                self._changed.notify_all()
            _store_error(self._run, error)

    def _run_jobs(self) -> None:
        usual = turn = sys.getswitchinterval()
        while True:
            later = self._pop_due_job()
            if later is not None:
                self._run_job(_Job(0, later, ()), is_measured=True)
            with self._changed:
                if not self._jobs:
                    self._idle = True
                    self._changed.notify_all()
                    if self._short_turns and sys.getswitchinterval() == turn:
                        sys.setswitchinterval(usual)  # unless the user has set it meanwhile
                    left = self._seconds_left()
                    self._changed.wait_for(lambda: self._stops or bool(self._jobs), left)
                    self._idle = False
                    if not self._jobs:
                        if not self._stops:
                            continue
                        self._stops, self._thread, self._later = False, None, None
                        self._changed.notify_all()
                        return
                    # More jobs usually follow the first: let them come, and run all at once.
                    self._pauses = True
                    self._changed.wait_for(self._must_start, _COALESCE_SECONDS)
                    self._pauses = False
                    self._measured_until = time.perf_counter()
                    if self._short_turns:
                        usual = sys.getswitchinterval()
                        sys.setswitchinterval(min(usual, _SWITCH_INTERVAL_SECONDS))
                        turn = sys.getswitchinterval()  # as rounded by Python
                entry = self._jobs.popleft()
            self._run_job(entry)
            del entry

    def _must_start(self) -> bool:
        """Return whether the thread must stop pausing for more jobs."""
        return self._num_waiting > 0 or self._bytes > _MAX_COALESCE_BYTES

    def _seconds_left(self) -> float | None:
        """Return the seconds until the job of `call_later` is due."""
        if self._later is None:
            return None
        return min(max(self._later[0] - time.monotonic(), 0), threading.TIMEOUT_MAX)

    def _pop_due_job(self) -> Callable[[], None] | None:
        """Return the job of `call_later` if it is due, once."""
        if self._later is None or time.monotonic() < self._later[0]:
            return None
        (_, job), self._later = self._later, None
        return job

    def _run_job(self, job: _Job, is_measured: bool = False) -> None:
        attempt(job.run, *job.arguments)
        with self._changed:
            self._bytes -= job.size
            self._records -= job.records
            if job.records or is_measured:
                # From the end of the last job: a busy program makes this thread wait in between.
                now = time.perf_counter()
                self._measure(job.records, now - self._measured_until)
                self._measured_until = now
            self.progress += 1
            self._extra = 0
            if self._num_waiting_for_room:
                self._changed.notify_all()


def attempt(job: Callable[..., object], *arguments: Any) -> None:
    """Run a job, and store what it raises for the next `flush`."""
    try:
        job(*arguments)
    except BaseException as error:  # noqa: BLE001 - the thread must live on
        _store_error(job, error)


def _store_error(source: Callable[..., object], error: BaseException) -> None:
    failure = DeliveryError(f"Delivery failed: {describe_error(error)}")
    failure.__cause__ = error
    delivery_errors.add(source, failure)


worker = Worker(queue_seconds=QUEUE_SECONDS)

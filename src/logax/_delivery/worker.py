"""The bounded queue of jobs and the one thread behind it.

XLA's threads, and whoever else adds a job, wait only while the queue is full; users' code runs on
the thread behind it. The thread starts when it is first needed, starts again in a forked process,
and is given the time to finish when Python exits.

The queue is bounded in bytes and in time. A compiled program makes records faster than any callback
takes them, so a bound in bytes alone lets a live view fall minutes behind. The worker measures how
many records it handles a second, and admits as many as it handles in `queue_seconds`: whatever has
left the program is delivered that soon, and the program waits instead.

All records go through `worker`. Sinks that wait for a network have a `Worker` of their own, so that
records do not wait for the network; those queues are bounded in bytes only.
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

from logax._delivery.errors import DeliveryError, troubles
from logax._support.forks import renew_after_fork
from logax._support.messages import described

QUEUE_BYTES = 256 * 2**20
QUEUE_SECONDS = 0.2
WHEN_FULL = ("block", "drop")

RATE_SECONDS = 0.05  # over which the rate is measured, at least
FIRST_WINDOW_RECORDS = 16  # admitted before the worker has measured its rate
JOBS_PER_WINDOW = 4
MAX_COALESCED_ITEMS = 4096
MAX_COALESCED_BYTES = 2**20

_TURN = 5e-5  # seconds: a program must not wait longer for the thread to let go of Python
_PAUSE = 2e-2  # seconds: nobody sees a record sooner, and being woken for each is dear
_PLENTY = 4 * 2**20  # bytes: for so many there is no pause, their memory is needed again
_LOOK = 2e-5, 5e-3  # seconds: how often to see whether something is there, ever less
_VERY_LONG = 5.0  # seconds: where nothing is done for so long, whoever should may wait for us
_MORE = 16 * 2**20  # bytes: by so many the queue then grows


class _Job:
    """Something to do on the thread: `run(*arguments)`.

    Attributes:
      size: Bytes that it holds.
      records: Upper bound on the number of records that it delivers.
      items: Arguments that were coalesced into this one job; None for a job that takes no more.
    """

    __slots__ = ("arguments", "items", "kind", "records", "run", "size")

    def __init__(
        self,
        size: int,
        run: Callable[..., None],
        arguments: tuple[Any, ...],
        records: int = 0,
        items: collections.deque[Any] | None = None,
        kind: Any = None,
    ) -> None:
        self.size, self.run, self.arguments = size, run, arguments
        self.records, self.items, self.kind = records, items, kind

    def takes(self, run: Callable[..., None], kind: Any, size: int, most_records: float) -> bool:
        """Whether an item for the same function may be coalesced into this job."""
        items = self.items
        return (
            items is not None
            and self.run is run
            and self.kind == kind
            and len(items) < MAX_COALESCED_ITEMS
            and self.records < most_records
            and self.size + size <= MAX_COALESCED_BYTES
        )


class Worker:
    """A queue of jobs, bounded in bytes and in time, and the thread that does them.

    Args:
      name: Name of the thread.
      short_turns: Whether other threads need not wait long for Python while there are jobs.
      grows: Whether more is admitted than the bounds allow after nothing was done for very long.
      queue_seconds: Time within which all admitted records are expected to be delivered.
      min_records: Number of records that may wait however slow the thread is.

    Attributes:
      job_records: Number of records in one job, at most. Several such jobs may wait.
    """

    when_started: ClassVar[list[Callable[[], None]]] = []  # called when a thread was started
    running: tuple[str, Any] | None  # kind and function of the user's code that runs, if known
    done: int  # grows as long as something is done
    job_records: float
    discards: bool  # whether records are counted instead of delivered
    discarded: int

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
        self.limit = QUEUE_BYTES
        self.queue_seconds = queue_seconds
        self.blocks = True
        self.exits = False  # whether Python does
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._bytes = 0
        self._records = 0
        self._rate = 0.0  # records a second; 0 until the first were delivered
        self._recent_records, self._recent_seconds = 0.0, 0.0
        self.job_records = self._timely_records() / JOBS_PER_WINDOW
        self._measured_until = time.perf_counter()
        self._idle = False  # the thread waits for something to do
        self._pauses = False  # it has that, and waits for more
        self._stops = False  # it ends when there is nothing to do
        self._hurry = 0  # how many wait for it
        self._cramped = 0  # how many of them for room
        self.done = 0
        self.running = None
        self.discards, self.discarded = False, 0
        self._extra = 0  # bytes admitted beyond the bound
        self._stalled_at = -1  # the value of `done` at which nothing was done for very long
        self._awaits_device = False
        self._later: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; early, since Python starts none when it exits."""
        if self._thread is None:
            with self._changed:
                if self._thread is None:  # pragma: no branch - else another thread was faster
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # Python exits already, or there is no room for a thread
                        return  # then `drain` does what there is
                    self._thread = thread
            for call in self.when_started:
                call()

    def stop(self, *, waits: bool = False) -> None:
        """Have the thread end when all jobs are done. A job that is put in later starts another.

        Who waits finds that nothing is held by the thread any more, not even while it ends.
        """
        with self._changed:
            thread = self._thread
            self._stops = thread is not None
            self._changed.notify_all()
            if waits:  # which lets go of the lock, also of one that an interrupt has left behind
                self._changed.wait_for(lambda: self._thread is not thread or thread is None)
        if waits and thread is not None:
            thread.join()

    def put(self, size: int, job: Callable[..., None], *arguments: Any, waits: bool = True) -> bool:
        """Queue a job that holds so many bytes; False if it is full and nobody may wait.

        A job that is larger than the bound is admitted when the queue is empty. The thread itself
        never waits for itself.
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
        """Queue an item for `run`, which is called once with items that were added in a row.

        A job has its price on the thread, and whoever adds small items quickly adds many alike.

        Args:
          size: Bytes that the item holds.
          run: Does what there is to do with some items of one kind, and removes those it has done.
          item: The item.
          records: Upper bound on the number of records that it delivers.
          kind: Items of different kinds are never coalesced.

        Returns:
          False if the queue is full and `blocks` is off.
        """
        with self._changed:
            # `_has_room`, written out: this is called for every record of a program.
            if (
                self._bytes
                and (self._bytes + size > self.limit or self._records + records > self._window())
                and not self._make_room(size, records)
            ):
                return False
            jobs = self._jobs
            if jobs and jobs[-1].takes(run, kind, size, self.job_records):
                job = jobs[-1]
                job.items.append(item)  # type: ignore[union-attr]
                job.size += size
                job.records += records
                self._bytes += size
                self._records += records
                if self._pauses and self._bytes > _PLENTY:
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
        if self._idle or (self._pauses and self._bytes > _PLENTY):
            self._changed.notify_all()

    def _make_room(self, size: int, records: int) -> bool:
        if self._has_room(size, records):
            return True
        if self.blocks:
            self._await_room(size, records)
        return self.blocks

    def after(self, seconds: float, job: Callable[[], None]) -> None:
        """Have this done once so many seconds have passed; one at a time, and nobody waits for it.

        For jobs to ask for.
        """
        self._later = (time.monotonic() + seconds, job)

    @contextlib.contextmanager
    def awaiting_device(self) -> Iterator[None]:
        """For jobs: lift the bound in time while the job waits for arrays to be computed.

        The program that computes them may be the one that waits for room.
        """
        with self._changed:
            self._awaits_device = True
            if self._cramped:
                self._changed.notify_all()
        try:
            yield
        finally:
            self._awaits_device = False

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """For jobs: wait for something that tells nobody when it is there, as JAX's arrays do.

        What was put off is done in time meanwhile. Where nothing is, who needs it can just wait.
        """
        look = _LOOK[0]
        while self._later is not None and not is_there():
            later = self._due()
            if later is not None:
                self._do(_Job(0, later, ()))
                continue
            time.sleep(min(self._left() or 0, look))
            look = min(2 * look, _LOOK[1])  # most are there soon

    def extend_last(self, extend: Callable[[Callable[..., None]], bool]) -> bool:
        """Have the last waiting job take in something of no size; return whether it did."""
        with self._changed:
            return bool(self._jobs) and extend(self._jobs[-1].run)

    def _await_room(self, size: int, records: int) -> None:
        """Wait for room, unless whoever should make it seems to wait for us.

        A callback that calls JAX may wait for the very program that waits here. So after nothing
        was done for very long, the bound in time is lifted until something is done, and after as
        long again the bound in bytes grows.
        """
        with self._in_a_hurry(), self._short_of_room():
            while not (self._has_room(size, records) or self.is_current() or self._thread is None):
                done = self.done
                moved = self._changed.wait_for(
                    lambda: self._has_room(size, records) or self._thread is None, _VERY_LONG
                )
                if moved or self.done != done or not self._grows:
                    continue
                if self._stalled_at != done:
                    self._stalled_at = done
                    troubles.warn(
                        f"A callback has not returned for {_VERY_LONG:g} s, and the queue is full. "
                        "It may wait for the program that waits for it, so the queue grows beyond "
                        "its bound."
                    )
                else:
                    self._extra += _MORE

    def drain(self, deadline: float | None) -> bool:
        """Wait until all jobs are done, and say whether they are."""
        while True:
            while self._thread is None and self._jobs:
                self._do(self._jobs.popleft())
            with self._changed, self._in_a_hurry():
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                self._changed.wait_for(lambda: self.is_done() or self._thread is None, left)
                if self.is_done() or self._thread is not None:
                    return self.is_done()

    def reach(self, deadline: float) -> bool:
        """Wait until the jobs that are queued now are done, and say whether they are."""
        if self._thread is None and not self._jobs:
            return True
        reached = threading.Event()
        self.put(0, reached.set, waits=False)
        with self._changed, self._in_a_hurry(), self._short_of_room():
            left = max(deadline - time.monotonic(), 0)
            return self._changed.wait_for(reached.is_set, left)

    @property
    def waiting_records(self) -> int:
        """Upper bound on the number of records that are not delivered yet."""
        return self._records

    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs and (self._idle or self._thread is None)

    @contextlib.contextmanager
    def _in_a_hurry(self) -> Iterator[None]:
        """Have the thread take no pauses while somebody waits for it."""
        self._hurry += 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._hurry -= 1

    @contextlib.contextmanager
    def _short_of_room(self) -> Iterator[None]:
        """Be told of every job that is done, which is dear for both."""
        self._cramped += 1
        try:
            yield
        finally:
            self._cramped -= 1

    def is_current(self) -> bool:
        """Whether this is the thread behind the queue."""
        return threading.current_thread() is self._thread

    def _has_room(self, size: int, records: int) -> bool:
        if not self._bytes:
            return True
        if self._bytes + size > self.limit + self._extra:
            return False
        return self._records + records <= self._window()

    def _window(self) -> float:
        """Number of records that may wait: those that are delivered in `queue_seconds`.

        There is no such bound where a record that finds no room is lost, since a burst must not
        be; nor while the thread waits for the device, which may wait for this queue.
        """
        if not self.blocks or self._awaits_device or self._stalled_at == self.done:
            return math.inf
        return self._timely_records()

    def _timely_records(self) -> float:
        """Return how many records are expected to be delivered in `queue_seconds`."""
        if math.isinf(self.queue_seconds):
            return math.inf
        records = self._rate * self.queue_seconds if self._rate else FIRST_WINDOW_RECORDS
        return max(self._min_records, records)

    def _measure(self, records: int, seconds: float) -> None:
        """Update the rate: that of the last jobs which delivered records.

        Jobs take turns that write much and that only gather, so that the last two say little.

        The time of jobs that were put off counts too: sinks write and commit in them.
        """
        if records and self._recent_seconds > RATE_SECONDS:
            self._recent_records *= 0.5
            self._recent_seconds *= 0.5
        self._recent_records += records
        self._recent_seconds += seconds
        if self._recent_records:
            # The first jobs only gather what later ones write, so their short time means little.
            self._rate = self._recent_records / max(self._recent_seconds, RATE_SECONDS)
            # The room of a job is free again when all of it is done, so there must be several.
            self.job_records = self._timely_records() / JOBS_PER_WINDOW

    def _run(self) -> None:
        """Do the jobs; who comes after a fault of ours, or one of Python's, starts another thread.

        A job's own errors are no such fault.
        """
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - told at the next chance
            with self._changed:
                self._thread, self._idle, self._pauses = None, False, False
                self._changed.notify_all()
            _tell(self._run, error)

    def _work(self) -> None:
        usual = turn = sys.getswitchinterval()
        while True:
            later = self._due()
            if later is not None:
                self._do(_Job(0, later, ()), measured=True)
            with self._changed:
                if not self._jobs:
                    self._idle = True
                    self._changed.notify_all()
                    if self._short_turns and sys.getswitchinterval() == turn:
                        sys.setswitchinterval(usual)  # else somebody else has set it
                    self._changed.wait_for(lambda: self._stops or bool(self._jobs), self._left())
                    self._idle = False
                    if not self._jobs:
                        if not self._stops:
                            continue
                        self._stops, self._thread, self._later = False, None, None
                        self._changed.notify_all()
                        return
                    # Whoever puts in one thing puts in more: let them, and then do all at once.
                    self._pauses = True
                    self._changed.wait_for(lambda: self._hurry > 0 or self._bytes > _PLENTY, _PAUSE)
                    self._pauses = False
                    self._measured_until = time.perf_counter()
                    if self._short_turns:
                        usual = sys.getswitchinterval()
                        sys.setswitchinterval(min(usual, _TURN))
                        turn = sys.getswitchinterval()  # which Python has rounded
                entry = self._jobs.popleft()
            self._do(entry)
            del entry

    def _left(self) -> float | None:
        """Seconds until something is to be done that was put off."""
        if self._later is None:
            return None
        return min(max(self._later[0] - time.monotonic(), 0), threading.TIMEOUT_MAX)

    def _due(self) -> Callable[[], None] | None:
        """What was put off until now."""
        if self._later is None or time.monotonic() < self._later[0]:
            return None
        (_, job), self._later = self._later, None
        return job

    def _do(self, job: _Job, measured: bool = False) -> None:
        attempt(job.run, *job.arguments)
        with self._changed:
            self._bytes -= job.size
            self._records -= job.records
            if job.records or measured:
                # From the end of the job before: a busy program has this thread wait between jobs.
                now = time.perf_counter()
                self._measure(job.records, now - self._measured_until)
                self._measured_until = now
            self.done += 1
            self._extra = 0
            if self._cramped:
                self._changed.notify_all()


def attempt(job: Callable[..., None], *arguments: Any) -> None:
    """Do a job on the thread; what it raises is told at the next chance."""
    try:
        job(*arguments)
    except BaseException as error:  # noqa: BLE001 - the thread must live on
        _tell(job, error)


def _tell(who: Callable[..., None], error: BaseException) -> None:
    failure = DeliveryError(f"Delivery failed: {described(error)}")
    failure.__cause__ = error
    troubles.failed(who, failure)


worker = Worker(queue_seconds=QUEUE_SECONDS)

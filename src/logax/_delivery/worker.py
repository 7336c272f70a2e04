"""The bounded queue and the one thread behind it.

Whoever puts something in, XLA's threads above all, only waits where the queue is full; whatever
users' code does happens on the thread. It is started when first needed, again in a process that
was forked, and is given the time to finish when Python exits.

All records go through `worker`. What waits long for something else, a network say, has a `Worker`
of its own, so that records need not wait for that.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from logax._delivery.forks import renew_after_fork
from logax._delivery.troubles import DeliveryError, troubles
from logax._errors import described

QUEUE_BYTES = 256 * 2**20
WHEN_FULL = ("block", "drop")

_TURN = 5e-5  # seconds: a program must not wait longer for the thread to let go of Python
_PAUSE = 2e-2  # seconds: nobody sees a record sooner, and being woken for each is dear
_PLENTY = 4 * 2**20  # bytes: for so many there is no pause, their memory is needed again
_LOOK = 2e-5, 5e-3  # seconds: how often to see whether something is there, ever less
_VERY_LONG = 5.0  # seconds: where nothing is done for so long, whoever should may wait for us
_MORE = 16 * 2**20  # bytes: by so many the queue then grows


class Worker:
    """A queue of jobs, bounded in the bytes that they hold, and the thread that does them.

    Args:
      name: Of the thread.
      short_turns: Whether other threads need not wait long for Python while there are jobs.
      grows: Whether more is let in than the bound allows where nothing is done for very long.
    """

    done: int  # grows as long as something is done
    discards: bool  # whether records are counted instead of delivered
    discarded: int

    def __init__(
        self, name: str = "logax", *, short_turns: bool = True, grows: bool = True
    ) -> None:
        self._name, self._short_turns, self._grows = name, short_turns, grows
        self.limit = QUEUE_BYTES
        self.blocks = True
        self.exits = False  # whether Python does
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: collections.deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = (
            collections.deque()
        )
        self._bytes = 0
        self._idle = False  # the thread waits for something to do
        self._pauses = False  # it has that, and waits for more
        self._stops = False  # it ends when there is nothing to do
        self._hurry = 0  # how many wait for it
        self._cramped = 0  # how many of them for room
        self.done = 0
        self.discards, self.discarded = False, 0
        self._extra = 0
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

        Something larger than the bound goes in when the queue is empty. The thread itself never
        waits for itself.
        """
        with self._changed:
            if waits and not self._has_room(size):
                if not self.blocks:
                    return False
                self._await_room(size)
            self._jobs.append((size, job, arguments))
            self._bytes += size
            self.start()
            if self._idle or (self._pauses and self._bytes > _PLENTY):
                self._changed.notify_all()
        return True

    def after(self, seconds: float, job: Callable[[], None]) -> None:
        """Have this done once so many seconds have passed; one at a time, and nobody waits for it.

        For jobs to ask for.
        """
        self._later = (time.monotonic() + seconds, job)

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """For jobs: wait for something that tells nobody when it is there, as JAX's arrays do.

        What was put off is done in time meanwhile. Where nothing is, who needs it can just wait.
        """
        look = _LOOK[0]
        while self._later is not None and not is_there():
            later = self._due()
            if later is not None:
                self._do(0, later, ())
                continue
            time.sleep(min(self._left() or 0, look))
            look = min(2 * look, _LOOK[1])  # most are there soon

    def extend_last(self, extend: Callable[[Callable[..., None]], bool], size: int = 0) -> bool:
        """Have the last job that waits take in something more of a size, and say whether it did."""
        with self._changed:
            if not self._jobs or (size and not self._has_room(size)):
                return False
            before, job, arguments = self._jobs[-1]
            if not extend(job):
                return False
            self._jobs[-1] = (before + size, job, arguments)
            self._bytes += size
            if self._pauses and self._bytes > _PLENTY:
                self._changed.notify_all()
            return True

    def _await_room(self, size: int) -> None:
        """Wait for room, unless whoever should make it seems to wait for us.

        A callback that calls JAX may wait for the very program that waits here. So where nothing is
        done for very long, more is let in, and more again after as long, until something is.
        """
        with self._in_a_hurry(), self._short_of_room():
            while not (self._has_room(size) or self.is_current() or self._thread is None):
                done = self.done
                moved = self._changed.wait_for(
                    lambda: self._has_room(size) or self._thread is None, _VERY_LONG
                )
                if not moved and self.done == done and self._grows:
                    if not self._extra:
                        troubles.warn(
                            f"A callback has not returned for {_VERY_LONG:g} s, and the queue is "
                            "full. It may wait for the program that waits for it, so the queue "
                            "grows beyond its bound."
                        )
                    self._extra += _MORE

    def drain(self, deadline: float | None) -> bool:
        """Wait until all jobs are done, and say whether they are."""
        while True:
            while self._thread is None and self._jobs:
                self._do(*self._jobs.popleft())
            with self._changed, self._in_a_hurry():
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                self._changed.wait_for(lambda: self.is_done() or self._thread is None, left)
                if self.is_done() or self._thread is not None:
                    return self.is_done()

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

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self.limit + self._extra

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
                self._do(0, later, ())
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
                    if self._short_turns:
                        usual = sys.getswitchinterval()
                        sys.setswitchinterval(min(usual, _TURN))
                        turn = sys.getswitchinterval()  # which Python has rounded
                entry = self._jobs.popleft()
            self._do(*entry)
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

    def _do(self, size: int, job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        attempt(job, *arguments)
        with self._changed:
            self._bytes -= size
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


worker = Worker()

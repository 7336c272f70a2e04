"""The bounded queue and the one thread behind it.

Whoever puts something in, XLA's threads above all, only waits where the queue is full; whatever
users' code does happens on the thread. It is started when first needed, again in a process that
was forked, and is given the time to finish when Python exits.

All records go through `worker`. What waits long for something else, a network say, has a `Worker`
of its own, so that records need not wait for that.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from logax._checks import at_least, in_seconds, one_of
from logax._errors import described, raise_together, warn_user

WHEN_FULL = ("block", "drop")

_TURN = 5e-5  # seconds: a program must not wait longer for the thread to let go of Python
_PAUSE = 2e-2  # seconds: nobody sees a record sooner, and being woken for each is dear
_PLENTY = 4 * 2**20  # bytes: for so many there is no pause, their memory is needed again
_VERY_LONG = 5.0
_MORE = 16 * 2**20  # bytes


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
        self.limit = 256 * 2**20
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
        self._hurry = 0
        self.done = 0
        self.discards, self.discarded = False, 0
        self._extra = 0
        self._later: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; early, since Python starts none when it exits."""
        if self._thread is None:
            with self._changed:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # Python exits already; then `drain` does what there is
                        return
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
        with self._in_a_hurry():
            while not (self._has_room(size) or self.is_current() or self._thread is None):
                done = self.done
                moved = self._changed.wait_for(lambda: self._has_room(size), _VERY_LONG)
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
        while self._thread is None and self._jobs:
            self._do(*self._jobs.popleft())
        return self.wait_until(self.is_done, deadline)

    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs and (self._idle or self._thread is None)

    def wait_until(self, holds: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until jobs have made something hold, and say whether it does."""
        with self._changed:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            with self._in_a_hurry():
                return self._changed.wait_for(holds, left)

    @contextlib.contextmanager
    def _in_a_hurry(self) -> Iterator[None]:
        """Have the thread take no pauses while somebody waits for it."""
        self._hurry += 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._hurry -= 1

    def is_current(self) -> bool:
        """Whether this is the thread behind the queue."""
        return threading.current_thread() is self._thread

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self.limit + self._extra

    def _run(self) -> None:
        usual = sys.getswitchinterval()
        while True:
            later = self._due()
            if later is not None:
                self._do(0, later, ())
            with self._changed:
                if not self._jobs:
                    self._idle = True
                    self._changed.notify_all()
                    if self._short_turns and sys.getswitchinterval() == _TURN:
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
                entry = self._jobs.popleft()
            self._do(*entry)
            del entry

    def _left(self) -> float | None:
        """Seconds until something is to be done that was put off."""
        return None if self._later is None else max(self._later[0] - time.monotonic(), 0)

    def _due(self) -> Callable[[], None] | None:
        """What was put off until now."""
        if self._later is None or time.monotonic() < self._later[0]:
            return None
        (_, job), self._later = self._later, None
        return job

    def _do(self, size: int, job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            job(*arguments)
        except BaseException as error:  # noqa: BLE001 - the thread must live on
            failure = DeliveryError(f"Delivery failed: {described(error)}")
            failure.__cause__ = error
            troubles.failed(job, failure)
        with self._changed:
            self._bytes -= size
            self.done += 1
            self._extra = 0
            if self._hurry:
                self._changed.notify_all()


class DeliveryError(RuntimeError):
    """A callback raised. What it raised is the `__cause__` of this."""


class Troubles:
    """What went wrong on the thread, until somebody can be told."""

    def __init__(self) -> None:
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[Any, DeliveryError] = {}
        self._mild: set[Any] = set()
        self._more: collections.Counter[Any] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()
        self._warnings: list[str] = []

    def failed(self, who: Any, error: DeliveryError, raises: bool = True) -> None:
        """Keep the first error of each culprit, to raise or to warn of, and count the others."""
        with self._lock:
            if not raises:
                self._mild.add(who)
            if who in self._errors:
                self._more[who] += 1
            else:
                self._errors[who] = error

    def warn(self, message: str) -> None:
        """Say this when somebody asks."""
        with self._lock:
            self._warnings.append(message)

    def dropped(self, what: str, number: int) -> None:
        """Count records that there was no room for."""
        with self._lock:
            self._dropped[what] += number

    def tell(self, who: Any = None) -> None:
        """Raise or warn of what was kept, of one culprit or of all, and of what was dropped."""
        if not (self._errors or self._dropped or self._warnings):
            return
        with self._lock:
            culprits = [who] if who is not None else list(self._errors)
            told = {each: self._told(each) for each in culprits if each in self._errors}
            dropped, self._dropped = self._dropped, collections.Counter()
            messages, self._warnings = self._warnings, []
        errors = [error for each, error in told.items() if each not in self._mild]
        for each in self._mild & set(told):
            messages.append(" ".join([str(told[each]), *getattr(told[each], "__notes__", [])]))
        if dropped:
            each = ", ".join(f"{number} of {what}" for what, number in dropped.items())
            messages.append(
                f"{sum(dropped.values())} records were dropped because the queue of "
                f"{worker.limit} bytes was full: {each}. Make it larger, or wait for room: "
                '`logax.configure(queue_bytes=..., when_full="block")`.'
            )
        for message in messages:
            warn_user(message)
        raise_together("several callbacks raised", errors)

    def _told(self, who: Any) -> DeliveryError:
        error, more = self._errors.pop(who), self._more.pop(who, 0)
        if more:
            error.add_note(f"It raised for {more} more records after that one.")
        return error


def configure(*, queue_bytes: int | None = None, when_full: str | None = None) -> None:
    """Set the bounds of delivery, for the whole process.

    Args:
      queue_bytes: How much may wait on the host for callbacks and loggers (256 MiB).
      when_full: "block", the default: the program waits for room; or "drop": records are left
        out, counted, and a warning says how many.
    """
    size = worker.limit
    if queue_bytes is not None:
        size = at_least(1, "configure", "queue_bytes", queue_bytes)
    if when_full is not None:
        one_of("configure", "when_full", when_full, WHEN_FULL)
    worker.limit = size
    worker.blocks = worker.blocks if when_full is None else when_full == "block"


def flush(timeout: float | None = None) -> None:
    """Return when all that was emitted so far has been delivered.

    Waits for the programs that run. Raises what callbacks raised, and warns of dropped records.

    Args:
      timeout: Seconds to wait at most.

    Raises:
      TimeoutError: They have passed.
      DeliveryError: A callback raised; several together in an `ExceptionGroup`.
    """
    if worker.is_current():
        raise RuntimeError(
            "`flush` was called in a callback, and waits for that callback. Call it outside."
        )
    deadline = None
    if timeout is not None:
        deadline = time.monotonic() + in_seconds("flush", "timeout", timeout)
    ended = [await_programs(deadline) for await_programs in _before_flush]
    if not (all(ended) and worker.drain(deadline)):
        raise TimeoutError(
            f"`flush` waited {timeout} s, and records are still on their way. A program is still "
            "running, or a callback takes long."
        )
    troubles.tell()


def discard() -> int:
    """Drop the records that wait for callbacks, as after an interrupt, and say how many.

    A callback that is at work finishes first. Programs that still run go on, and what they say from
    then on is delivered.
    """
    if worker.is_current():
        raise RuntimeError(
            "`discard` was called in a callback, and waits for that callback. Call it outside."
        )
    with _discarding:
        worker.discards, worker.discarded = True, 0
        try:
            worker.drain(None)
        finally:
            worker.discards = False
        return worker.discarded


def before_flush(await_programs: Callable[[float | None], bool]) -> None:
    """Have this called by every `flush`: it waits for programs, and says if they have ended."""
    _before_flush.append(await_programs)


class Renewable(Protocol):
    """What has locks and threads, which a process that is forked has not."""

    def _reset(self) -> None:
        """Be as it was made; what was under way is the other process's."""


def renew_after_fork(each: Renewable) -> None:
    """Have it reset in every process that is forked, as long as it lives."""
    _renewed.add(each)


def _reset_after_fork() -> None:
    for each in list(_renewed):
        each._reset()


def _flush_at_exit() -> None:
    worker.exits = True
    try:
        flush()
    except BaseException:  # noqa: BLE001 - there is nobody left to raise it to
        traceback.print_exc()


_before_flush: list[Callable[[float | None], bool]] = []
_discarding = threading.Lock()
_renewed: weakref.WeakSet[Renewable] = weakref.WeakSet()
worker = Worker()
troubles = Troubles()
atexit.register(_flush_at_exit)
os.register_at_fork(after_in_child=_reset_after_fork)

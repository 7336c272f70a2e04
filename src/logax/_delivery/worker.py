"""The bounded queue and the one thread behind it.

Whoever puts something in, XLA's threads above all, only waits where the queue is full; whatever
users' code does happens on the thread. It is started when first needed, again in a process that
was forked, and is given the time to finish when Python exits.
"""

from __future__ import annotations

import atexit
import collections
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from logax._log import warn_user
from logax._schedule import whole


class Worker:
    """A queue of jobs, bounded in the bytes that they hold, and the thread that does them."""

    def __init__(self) -> None:
        self.limit = 256 * 2**20
        self.blocks = True
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._jobs: collections.deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = (
            collections.deque()
        )
        self._bytes = 0
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, size: int, job: Callable[..., None], *arguments: Any, waits: bool = True) -> bool:
        """Queue a job that holds so many bytes; False if it is full and nobody may wait.

        Something larger than the bound goes in when the queue is empty. The thread itself never
        waits for itself.
        """
        with self._changed:
            if waits and self.blocks:
                self._changed.wait_for(lambda: self._has_room(size) or self.is_current())
            elif waits and not self._has_room(size):
                return False
            self._jobs.append((size, job, arguments))
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logax", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def drain(self, deadline: float | None) -> bool:
        """Wait until all jobs are done, and say whether they are."""
        with self._changed:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, left)

    def is_current(self) -> bool:
        """Whether this is the thread behind the queue."""
        return threading.current_thread() is self._thread

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self.limit

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._jobs))
                size, job, arguments = self._jobs.popleft()
                self._busy = True
            job(*arguments)
            del job, arguments
            with self._changed:
                self._bytes -= size


class DeliveryError(RuntimeError):
    """A callback raised. What it raised is the `__cause__` of this."""


class Troubles:
    """What went wrong on the thread, until somebody can be told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[Any, DeliveryError] = {}
        self._more: collections.Counter[Any] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()

    def failed(self, who: Any, error: DeliveryError) -> None:
        """Keep the first error of each culprit, and count the others."""
        with self._lock:
            if who in self._errors:
                self._more[who] += 1
            else:
                self._errors[who] = error

    def dropped(self, what: str, number: int) -> None:
        """Count records that there was no room for."""
        with self._lock:
            self._dropped[what] += number

    def tell(self, who: Any = None) -> None:
        """Raise what was kept, of one culprit or of all, and warn of what was dropped."""
        if not self._errors and not self._dropped:
            return
        with self._lock:
            culprits = [who] if who is not None else list(self._errors)
            errors = [self._told(each) for each in culprits if each in self._errors]
            dropped, self._dropped = self._dropped, collections.Counter()
        if dropped:
            each = ", ".join(f"{number} of {what}" for what, number in dropped.items())
            warn_user(
                f"{sum(dropped.values())} records were dropped because the queue of "
                f"{worker.limit} bytes was full: {each}. Make it larger, or wait for room: "
                '`logax.configure(queue_bytes=..., when_full="block")`.'
            )
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several callbacks raised", errors)

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
    if queue_bytes is not None:
        size = whole(queue_bytes, 1)
        if size is None:
            raise ValueError(
                f"`configure` takes `queue_bytes` of 1 or more, and got {queue_bytes!r}."
            )
        worker.limit = size
    if when_full is not None:
        if when_full not in ("block", "drop"):
            raise ValueError(
                f"`configure` takes `when_full` as 'block' or 'drop', and got {when_full!r}."
            )
        worker.blocks = when_full == "block"


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
    deadline = None if timeout is None else time.monotonic() + timeout
    ended = _await_programs(deadline)
    for prepare in _before_flush:
        prepare()
    if not (ended and worker.drain(deadline)):
        raise TimeoutError(
            f"`flush` waited {timeout} s, and records are still on their way. A program is still "
            "running, or a callback takes long."
        )
    troubles.tell()


def _await_programs(deadline: float | None) -> bool:
    """Wait until the programs that emit have ended, and say whether they have."""
    if deadline is None:
        jax.effects_barrier()
        return True
    ended = threading.Thread(target=jax.effects_barrier, name="logax-flush", daemon=True)
    ended.start()
    ended.join(max(deadline - time.monotonic(), 0))
    return not ended.is_alive()


def before_flush(prepare: Callable[[], None]) -> None:
    """Have this called by every `flush`, once programs have ended and before it waits."""
    _before_flush.append(prepare)


_before_flush: list[Callable[[], None]] = []
worker = Worker()
troubles = Troubles()
atexit.register(flush)
os.register_at_fork(after_in_child=worker._reset)

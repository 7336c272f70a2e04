"""Control delivery: set its bounds, wait for it, drop what waits, and end it with the process."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

from logax._delivery.errors import troubles
from logax._delivery.shutdown import (
    drained_at_termination,
    fail_exit,
    report,
    report_error,
    watcher,
)
from logax._delivery.worker import WHEN_FULL, Worker, worker
from logax._support.validation import at_least, in_seconds, one_of


def configure(
    *,
    queue_bytes: int | None = None,
    queue_seconds: float | None = None,
    when_full: str | None = None,
    sigterm_seconds: float | None = None,
) -> None:
    """Set the bounds of delivery, for the whole process.

    Args:
      queue_bytes: Number of bytes that may wait on the host for callbacks and loggers (256 MiB).
      queue_seconds: Time within which records that wait there are expected to be delivered (0.2):
        as many may wait as callbacks and loggers took in that time lately. With more, a live view
        may lag, and a kill may lose, as much more.
      when_full: "block", the default: the program waits for room; or "drop": records are left
        out, counted, and a warning says how many.
      sigterm_seconds: Time limit for making records safe when SIGTERM arrives, before it ends the
        process (8). With 0 it ends the process at once. Call this on the main thread.
    """
    size, seconds = worker.limit, worker.queue_seconds
    if queue_bytes is not None:
        size = at_least(1, "configure", "queue_bytes", queue_bytes)
    if queue_seconds is not None:
        seconds = in_seconds("configure", "queue_seconds", queue_seconds)
    if when_full is not None:
        one_of("configure", "when_full", when_full, WHEN_FULL)
    if sigterm_seconds is not None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "`configure` was called with `sigterm_seconds` in the thread "
                f"{threading.current_thread().name!r}, and Python lets only the main thread handle "
                "signals. Call it there."
            )
        watcher.set_seconds(in_seconds("configure", "sigterm_seconds", sigterm_seconds))
    worker.limit = troubles.queue_bytes = size
    worker.queue_seconds = seconds
    worker.blocks = worker.blocks if when_full is None else when_full == "block"


def flush(timeout: float | None = None) -> None:
    """Return when all that was emitted so far has been delivered.

    Waits for the programs that run. Raises what callbacks raised, and warns of dropped records.

    Args:
      timeout: Seconds to wait at most.

    Raises:
      TimeoutError: They have passed.
      DeliveryError: A callback raised; several together in an `ExceptionGroup`.
      RuntimeError: It was called in a callback or a sink.
    """
    if any(each.is_current() for each in _workers()):
        raise RuntimeError(
            "`flush` was called in a callback or a sink, and waits for that. Call it outside."
        )
    watcher.start()
    if _exit.was_interrupted:
        troubles.tell()
        return
    deadline = None
    if timeout is not None:
        deadline = time.monotonic() + in_seconds("flush", "timeout", timeout)
    try:
        ended = [await_programs(deadline) for await_programs in _before_flush]
        is_done = all(ended) and all(each.drain(deadline) for each in _workers())
    except KeyboardInterrupt:
        _exit.was_interrupted = watcher.exit_waits
        raise
    if not is_done:
        raise TimeoutError(
            f"`flush` waited {timeout} s, and records are still on their way. A program is still "
            "running, or a callback takes long."
        )
    troubles.tell()


def discard() -> int:
    """Drop the records that wait for callbacks, as after an interrupt, and say how many.

    A callback that is at work finishes first. Programs that still run go on, and what they say from
    then on is delivered.

    Raises:
      RuntimeError: It was called in a callback.
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


def drained_by_flush(other: Worker) -> None:
    """Have every `flush` wait for this worker too, as long as it lives."""
    _others.append(weakref.ref(other, _others.remove))
    drained_at_termination(other)


def _workers() -> list[Worker]:
    """All there are, in the order in which they are drained: the others get jobs from the first."""
    others = [reference() for reference in list(_others)]  # others may come and go meanwhile
    return [worker, *(other for other in others if other is not None)]


def wait_at_exit(wait: Callable[[], None]) -> None:
    """For exit functions: wait for records, and tell what went wrong, since none can be raised to.

    An interrupt ends this wait and later ones.
    """
    if _exit.was_interrupted:
        return
    try:
        with watcher.exiting():
            wait()
    except KeyboardInterrupt:
        waiting = sum(each.waiting_records for each in _workers())
        lost = f"the exit was interrupted, and up to {waiting} records were not delivered."
        report(lost + fail_exit())
    except BaseException as error:  # noqa: BLE001 - there is nobody left to raise it to
        untold = "delivery failed, and nothing had raised that before the exit. "
        advice = "Call `logax.flush()` at the end of the program to handle it there."
        report_error(untold + advice + fail_exit(), error)


def _flush_at_exit() -> None:
    worker.exits = True
    wait_at_exit(flush)
    watcher.stop()


class _Exit:
    was_interrupted = False


_exit = _Exit()
_before_flush: list[Callable[[float | None], bool]] = []
_discarding = threading.Lock()
_others: list[weakref.ref[Worker]] = []
troubles.queue_bytes = worker.limit
drained_at_termination(worker)
atexit.register(_flush_at_exit)

"""Configure, flush and discard the delivery of records, and flush it when Python exits."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from logax._delivery.errors import delivery_errors
from logax._delivery.shutdown import (
    drain_at_termination,
    fail_exit,
    report,
    report_error,
    watcher,
)
from logax._delivery.worker import WHEN_FULL, Worker, worker
from logax._support.exit_functions import call_at_exit
from logax._support.validation import validate_choice, validate_minimum, validate_seconds


def configure(
    *,
    queue_bytes: int | None = None,
    queue_seconds: float | None = None,
    when_full: str | None = None,
    sigterm_seconds: float | None = None,
) -> None:
    """Set the limits of delivery, for the whole process. Omitted options keep their value.

    Records that have left a program wait in a queue for callbacks and loggers. The queue is limited
    in bytes and in time, so that memory stays bounded and a live view stays current.

    Args:
      queue_bytes: Maximum number of bytes in the queue. The default is 256 MiB.
      queue_seconds: Time within which the records in the queue are expected to be delivered, at the
        rate of the last deliveries. The default is 0.2 s. A larger value evens out bursts; a live
        view may lag by that time, and a killed process may lose that much.
      when_full: "block", the default: the program waits for room. "drop": records that find no room
        are dropped and counted, and `flush` warns with their number.
      sigterm_seconds: Time limit for writing the queued records when SIGTERM arrives, before it
        ends the process. The default is 8 s. 0 ends the process at once. Only the main thread may
        set this.

    Raises:
      TypeError: A value has the wrong type.
      ValueError: A value is out of its range.
      RuntimeError: `sigterm_seconds` was given on another thread than the main one.
    """
    size, seconds = worker.queue_bytes, worker.queue_seconds
    if queue_bytes is not None:
        size = validate_minimum(1, "configure", "queue_bytes", queue_bytes)
    if queue_seconds is not None:
        seconds = validate_seconds("configure", "queue_seconds", queue_seconds)
    if when_full is not None:
        validate_choice("configure", "when_full", when_full, WHEN_FULL)
    if sigterm_seconds is not None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "`configure` was called with `sigterm_seconds` in the thread "
                f"{threading.current_thread().name!r}, and Python lets only the main thread handle "
                "signals. Call it there."
            )
        watcher.set_seconds(validate_seconds("configure", "sigterm_seconds", sigterm_seconds))
    worker.queue_bytes = delivery_errors.queue_bytes = size
    worker.queue_seconds = seconds
    worker.blocks_when_full = worker.blocks_when_full if when_full is None else when_full == "block"


def flush(timeout: float | None = None) -> None:
    """Wait until all records that were logged so far are delivered.

    Waits for running programs, then for callbacks and sinks. Raises the errors of callbacks and
    sinks that no other call has raised, and warns about dropped records.

    Args:
      timeout: Maximum number of seconds to wait. By default there is no limit.

    Raises:
      TimeoutError: Records are not delivered after `timeout` seconds.
      DeliveryError: A callback or a sink failed. Several errors are raised as an `ExceptionGroup`.
      RuntimeError: `flush` was called in a callback or a sink, which it would wait for.
    """
    if any(each.is_current() for each in _workers()):
        raise RuntimeError(
            "`flush` was called in a callback or a sink, and waits for that. Call it outside."
        )
    watcher.start()
    if _exit.was_interrupted:
        delivery_errors.raise_pending()
        return
    deadline = None
    if timeout is not None:
        deadline = time.monotonic() + validate_seconds("flush", "timeout", timeout)
    try:
        ended = [await_programs(deadline) for await_programs in _before_flush]
        is_done = all(ended) and all(each.drain(deadline) for each in _workers())
    except KeyboardInterrupt:
        _exit.was_interrupted = watcher.is_exit_waiting
        raise
    if not is_done:
        raise TimeoutError(
            f"`flush` waited {timeout} s, and records are still on their way. A program is still "
            "running, or a callback takes long."
        )
    delivery_errors.raise_pending()


def discard() -> int:
    """Drop the records that wait for callbacks and loggers, for example after an interrupt.

    Waits for a callback that runs now. Programs that run continue, and their later records are
    delivered.

    Returns:
      Number of records that were dropped.

    Raises:
      RuntimeError: `discard` was called in a callback, which it would wait for.
    """
    if worker.is_current():
        raise RuntimeError(
            "`discard` was called in a callback, and waits for that callback. Call it outside."
        )
    with _discarding:
        worker.is_discarding, worker.num_discarded = True, 0
        try:
            worker.drain(None)
        finally:
            worker.is_discarding = False
        return worker.num_discarded


def register_flush_hook(await_programs: Callable[[float | None], bool]) -> None:
    """Call a function at the start of every `flush`, with the deadline of the `flush`.

    Args:
      await_programs: Waits for programs, and returns False if the deadline passes before they end.
    """
    _before_flush.append(await_programs)


def register_worker(other: Worker) -> None:
    """Have `flush` and SIGTERM wait for another worker, as long as that worker lives."""
    _others.append(weakref.ref(other, _others.remove))
    drain_at_termination(other)


def _workers() -> list[Worker]:
    """Return all workers in draining order: the first one gives jobs to the others."""
    others = [reference() for reference in list(_others)]  # a copy: workers may end meanwhile
    return [worker, *(other for other in others if other is not None)]


def wait_at_exit(wait: Callable[[], None]) -> None:
    """Call `wait` in an exit function, and print its errors, since nothing can catch them.

    An interrupt ends this wait and all later ones.
    """
    if _exit.was_interrupted:
        return
    try:
        with watcher.watch_exit():
            wait()
    except KeyboardInterrupt:
        waiting = sum(each.waiting_records for each in _workers())
        lost = f"the exit was interrupted, and up to {waiting} records were not delivered."
        report(lost + fail_exit())
    except BaseException as error:  # noqa: BLE001 - no caller is left to raise it to
        failure = "delivery failed, and nothing had raised that before the exit. "
        advice = "Call `logax.flush()` at the end of the program to handle it there."
        report_error(failure + advice + fail_exit(), error)


def _flush_at_exit() -> None:
    worker.is_exiting = True
    wait_at_exit(flush)
    watcher.stop()


class _Exit:
    was_interrupted = False


_exit = _Exit()
_before_flush: list[Callable[[float | None], bool]] = []
_discarding = threading.Lock()
_others: list[weakref.ref[Worker]] = []
delivery_errors.queue_bytes = worker.queue_bytes
drain_at_termination(worker)
call_at_exit(_flush_at_exit)

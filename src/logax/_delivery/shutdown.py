"""Deliver records before SIGTERM ends the process, and report an exit that takes long or fails.

**SIGTERM.** Schedulers send it some seconds before they kill a process. The handler makes all
records that have left the program safe, closes the open runs as crashed, and then ends the process
by SIGTERM, as the default handler would have done at once. The first use of delivery on the main
thread installs it, if the signal has no other handler.

Python runs signal handlers on the main thread between two bytecodes, and so not while that thread
waits for a compiled program. But the C handler writes to `signal.set_wakeup_fd` at once, on any
thread: the watcher thread reads that pipe and does all of the work. Blocking the signal and waiting
for it (`sigwait`) would not work: XLA's threads exist already, and subprocesses would inherit the
mask. The program continues meanwhile, since it may hold locks that the records need.

If other code, such as asyncio, owns the wakeup descriptor, our Python handler writes to the pipe:
then delivery begins when the main thread is back in Python.

**Exit.** If an exit waits for a callback or a sink for long, the watcher thread prints its name. An
error that no call has raised makes the exit status 120, Python's own status for a failure in its
cleanup. Only a failing flush of the standard streams sets this status and still lets other exit
handlers run: so `_FailingStream` makes that flush fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from logax._delivery.errors import delivery_errors
from logax._delivery.worker import Worker, worker
from logax._support.processes import reset_after_fork
from logax._support.redaction import redact

SIGTERM_SECONDS = 8.0  # `docker stop` kills after 10 s, most schedulers after 30 s
NOTICE_SECONDS, MAX_NOTICE_SECONDS = 5.0, 600.0  # first and largest interval between notices
EXIT_STATUS = 120

# Bytes in the pipe of the watcher thread: from Python's C handler, from our handler, from the exit.
_SIGNAL, _TERMINATE, _EXIT = bytes([signal.SIGTERM]), b"\xff", b"\x00"
_STAGES = ("safe", "close")


class Watcher:
    """A thread that waits for SIGTERM, and reports an exit that takes long.

    Attributes:
      seconds: Time limit for delivery after SIGTERM; 0 ends the process at once.
    """

    def __init__(self) -> None:
        self.seconds = SIGTERM_SECONDS
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._is_installed = self._was_tried = False
        self._waits = 0  # number of exit functions that wait for records
        reset_after_fork(self)

    def _reset(self) -> None:
        """Restore the default handler in a forked process, until that process delivers too."""
        self._remove_handler()
        pipe, self._pipe, self._thread = self._pipe, None, None
        self._lock = threading.Lock()
        self._waits = 0
        if pipe is not None:
            for fd in pipe:
                os.close(fd)

    def start(self) -> None:
        """Start the thread; on the main thread, also handle SIGTERM if it has no handler."""
        if self._was_tried and self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                pipe = self._pipe or os.pipe()
                os.set_blocking(pipe[1], False)
                self._pipe = pipe
                thread = threading.Thread(target=self._run, name="logax-watcher", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # Python exits already, or there is no room for a thread
                    return
                self._thread = thread
            if threading.current_thread() is threading.main_thread():
                self._install_handler(self._pipe)  # type: ignore[arg-type]

    def set_seconds(self, seconds: float) -> None:
        """Set the time limit; 0 restores the default handler."""
        self.seconds = seconds
        if threading.current_thread() is threading.main_thread():
            if not seconds:
                self._remove_handler()
            elif self._thread is not None:
                self._was_tried = False
                self.start()

    def _install_handler(self, pipe: tuple[int, int]) -> None:
        self._was_tried = True
        # Python does not know of handlers in C++, such as that of JAX's preemption service.
        unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not _c_handler()
        if not (self.seconds and unhandled):
            return
        try:
            signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:  # pragma: no cover - in a subinterpreter
            return
        self._is_installed = True
        other = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
        if other not in (-1, pipe[1]):
            signal.set_wakeup_fd(other)

    def _remove_handler(self) -> None:
        """Restore the default handler, unless other code has replaced ours."""
        if self._is_installed and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._is_installed and self._pipe is not None:
            other = signal.set_wakeup_fd(-1)
            if other not in (-1, self._pipe[1]):
                signal.set_wakeup_fd(other)
        self._is_installed = self._was_tried = False

    def _on_signal(self, number: int, frame: Any) -> None:
        """Wake the thread. Python calls this, or a later handler that chains to ours does."""
        if not self._wake(_TERMINATE):
            _end_by_signal()

    def _wake(self, reason: bytes) -> bool:
        if self._pipe is None or self._thread is None or not self._thread.is_alive():
            return False
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the thread is awake
            os.write(self._pipe[1], reason)
        return True

    @property
    def is_exit_waiting(self) -> bool:
        """True while an exit function waits for records."""
        return self._waits > 0

    @contextlib.contextmanager
    def watch_exit(self) -> Iterator[None]:
        """Have the thread report what an exit function waits for, if the block takes long."""
        self._waits += 1
        self._wake(_EXIT)
        try:
            yield
        finally:
            self._waits -= 1

    def stop(self) -> None:
        """Restore the default handler, because the watcher thread ends with Python."""
        if threading.current_thread() is threading.main_thread():
            self._remove_handler()

    # On the watcher thread.

    def _run(self) -> None:
        pipe = self._pipe
        if pipe is None:  # pragma: no cover - forked meanwhile
            return
        pause, notice = NOTICE_SECONDS, None
        while True:
            left = None if notice is None else max(notice - time.monotonic(), 0)
            if select.select([pipe[0]], [], [], left)[0]:
                reasons = os.read(pipe[0], 256)
                is_ours = signal.getsignal(signal.SIGTERM) == self._on_signal
                if _TERMINATE in reasons or (_SIGNAL in reasons and is_ours):
                    _terminate(self.seconds)
                if _EXIT in reasons and notice is None:
                    notice = time.monotonic() + pause
            elif notice is not None:
                if self.is_exit_waiting:
                    _report_exit_wait()
                    pause = min(2 * pause, MAX_NOTICE_SECONDS)
                notice = time.monotonic() + pause


def drain_at_termination(other: Worker) -> None:
    """Have SIGTERM wait until a worker has finished its jobs, as long as the worker lives."""
    _jobs[0].setdefault(other, [])


def run_at_termination(on: Worker, stage: str, job: Callable[[], None]) -> None:
    """Run a job on a worker before SIGTERM ends the process, as long as the worker lives.

    Args:
      on: Worker that runs the job.
      stage: "safe" for jobs that write records, which run first; "close" for jobs that close runs.
      job: A function, or a bound method, whose object this does not keep alive.
    """
    drain_at_termination(on)
    jobs = _jobs[_STAGES.index(stage)].setdefault(on, [])
    jobs[:] = [reference for reference in jobs if reference() is not None]
    jobs.append(weakref.WeakMethod(job) if hasattr(job, "__self__") else lambda: job)


def _terminate(seconds: float) -> None:
    """Make all records safe, close the runs, and end the process by SIGTERM."""
    deadline = time.monotonic() + seconds
    try:
        is_done = True
        for jobs in _jobs:
            for each in _delivery_worker_first(jobs):
                for reference in list(jobs[each]):
                    job = reference()
                    if job is not None:
                        each.put(0, job, waits=False)
            for each in _delivery_worker_first(_jobs[0]):  # the first gives jobs to the others
                is_done = each.drain_queued(deadline) and is_done
            # Later records of the program came after the signal, and find no open run.
            worker.is_discarding = True
        if not is_done:
            waiting = _describe_waiting()
            report(f"SIGTERM ends the process after {seconds:g} s {waiting}, which are lost.")
        try:
            delivery_errors.raise_pending()
        except Exception as error:  # noqa: BLE001 - no caller is left to raise it to
            report_error("SIGTERM ends the process, and delivery had failed before:", error)
    finally:
        _end_by_signal()


def _delivery_worker_first(jobs: weakref.WeakKeyDictionary[Worker, Any]) -> list[Worker]:
    """Return the workers, the one that gives jobs to the others first."""
    return sorted(jobs, key=lambda each: each is not worker)


def _c_handler() -> int:
    """Return the address of the handler in C; 0 for the default."""
    get = ctypes.pythonapi.PyOS_getsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    return get(signal.SIGTERM) or 0


def _end_by_signal() -> None:
    """End the process as SIGTERM does by default. `signal.signal` needs the main thread."""
    put = ctypes.pythonapi.PyOS_setsig
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    put(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)


def _report_exit_wait() -> None:
    if _busy_workers():
        report(f"the exit is {_describe_waiting()}. Ctrl-C ends the wait, and they are lost.")


def _busy_workers() -> list[Worker]:
    return [each for each in _delivery_worker_first(_jobs[0]) if not each.is_done()]


def _describe_waiting() -> str:
    """Describe the callbacks and sinks that run, and the number of records that wait for them."""
    names = [each.running for each in _busy_workers()]
    at_work = ", ".join(describe_callable(each) for each in names if each is not None)
    records = sum(each.waiting_records for each in _busy_workers())
    return f"waiting for {at_work or 'records'}, with up to {records} records to deliver"


def describe_callable(running: tuple[str, Any]) -> str:
    """Return the name of a callback or a sink, with the file and line of its code."""
    kind, call = running
    inner = call
    while hasattr(inner, "func"):  # `functools.partial`
        inner = inner.func
    if not hasattr(inner, "__qualname__"):  # a callable object
        inner = type(inner).__call__
    code = getattr(inner, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{kind} `{getattr(inner, '__qualname__', repr(inner))}`{where}"


def report(text: str) -> None:
    """Print a message to the standard error, where no caller is left to raise to."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            sys.stderr.write(redact(f"logax: {text}\n"))
            sys.stderr.flush()


def report_error(text: str, error: BaseException) -> None:
    """Print a message, and an error with its traceback."""
    report(f"{text}\n{''.join(traceback.format_exception(error)).rstrip()}")


class _FailingStream:
    """A wrapper of `sys.stderr` that fails when Python flushes it at the end of the exit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flush the stream; raise if the caller is the interpreter and not a Python function."""
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
        try:
            sys._getframe(1)
        except ValueError:
            raise OSError("Records were lost.") from None


def fail_exit() -> str:
    """Make the exit status 120, unless an uncaught exception makes it 1.

    Returns:
      A sentence for the message that is printed, or "".
    """
    if hasattr(sys, "last_value"):
        return ""
    if not isinstance(sys.stderr, _FailingStream):
        sys.stderr = _FailingStream(sys.stderr)
    return f" The exit status is {EXIT_STATUS}."


_jobs: tuple[weakref.WeakKeyDictionary[Worker, list[Any]], ...] = (
    weakref.WeakKeyDictionary(),
    weakref.WeakKeyDictionary(),
)
watcher = Watcher()
Worker.on_start.append(watcher.start)

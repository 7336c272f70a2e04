"""What happens to records when the process ends: SIGTERM, and an exit that takes long.

**SIGTERM.** Schedulers send it some seconds before they kill a process. The handler makes all
records that have left the program safe, closes the open runs as crashed, and then ends the process
by SIGTERM, as it would have ended at once. It is installed by the first use of delivery on the main
thread, and only where nobody else handles the signal.

Python runs signal handlers on the main thread between two bytecodes, and so not while that thread
waits for a compiled program. But the C handler writes to `signal.set_wakeup_fd` at once, on any
thread: a thread of ours reads there, and does everything. Blocking the signal and waiting for it
(`sigwait`) would not do: the threads of XLA are there already, and subprocesses would inherit the
mask. The program goes on meanwhile, since it may hold locks that the records need.

Where somebody else has the wakeup descriptor, as asyncio may have, the handler writes to ours: then
it begins when the main thread is back in Python.

**Exit.** While an exit waits for a callback or a sink for long, the same thread says for which one.
An error that nobody was told of makes the exit status 120, which is Python's own for a failure in
its cleanup. Only the flush of the standard streams sets it without keeping other exit handlers from
running: so that flush fails.
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

from logax._delivery.errors import troubles
from logax._delivery.worker import Worker, worker
from logax._support.forks import renew_after_fork
from logax._support.redaction import redacted

SIGTERM_SECONDS = 8.0  # a bit less than the ten of `docker stop`; others give thirty
NOTICE_SECONDS, MAX_NOTICE_SECONDS = 5.0, 600.0  # before the first notice, and between later ones
EXIT_STATUS = 120

_SIGNAL = bytes([signal.SIGTERM])  # what Python's handler in C writes
_ASKED, _EXITS = b"\xff", b"\x00"  # what ours writes, and the exit
_KINDS = ("safe", "close")


class Watcher:
    """The thread that waits for SIGTERM and watches the exit.

    Attributes:
      seconds: Time limit of what SIGTERM has done; 0 if it is to end the process at once.
    """

    def __init__(self) -> None:
        self.seconds = SIGTERM_SECONDS
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._is_installed = self._was_tried = False
        self._waits = 0  # exit functions that wait for records
        renew_after_fork(self)

    def _reset(self) -> None:
        """Leave the signal to the default in a process that was forked, until it delivers too."""
        self._remove_handler()
        pipe, self._pipe, self._thread = self._pipe, None, None
        self._lock = threading.Lock()
        self._waits = 0
        if pipe is not None:
            for fd in pipe:
                os.close(fd)

    def start(self) -> None:
        """Start the thread, and handle SIGTERM if nobody does; the latter on the main thread."""
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
        """Set the time limit; 0 leaves the signal to the default again."""
        self.seconds = seconds
        if threading.current_thread() is threading.main_thread():
            if not seconds:
                self._remove_handler()
            elif self._thread is not None:
                self._was_tried = False
                self.start()

    def _install_handler(self, pipe: tuple[int, int]) -> None:
        self._was_tried = True
        # C++ may have a handler that Python knows nothing of, as JAX's service for preemption has.
        unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not _c_handler()
        if not (self.seconds and unhandled):
            return
        try:
            signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:  # pragma: no cover - of an interpreter that is not the main one
            return
        self._is_installed = True
        other = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
        if other not in (-1, pipe[1]):
            signal.set_wakeup_fd(other)

    def _remove_handler(self) -> None:
        """Leave the signal to the default, unless somebody else handles it by now."""
        if self._is_installed and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._is_installed and self._pipe is not None:
            other = signal.set_wakeup_fd(-1)
            if other not in (-1, self._pipe[1]):
                signal.set_wakeup_fd(other)
        self._is_installed = self._was_tried = False

    def _on_signal(self, number: int, frame: Any) -> None:
        """Have the thread act: on the main thread, or called by a handler that took our place."""
        if not self._wake(_ASKED):
            _end_by_signal()

    def _wake(self, why: bytes) -> bool:
        if self._pipe is None or self._thread is None or not self._thread.is_alive():
            return False
        with contextlib.suppress(BlockingIOError):  # then it is awake
            os.write(self._pipe[1], why)
        return True

    @property
    def exit_waits(self) -> bool:
        """Whether an exit function waits for records."""
        return self._waits > 0

    @contextlib.contextmanager
    def exiting(self) -> Iterator[None]:
        """For exit functions: have the thread say what they wait for, if that takes long."""
        self._waits += 1
        self._wake(_EXITS)
        try:
            yield
        finally:
            self._waits -= 1

    def stop(self) -> None:
        """Handle the signal no more: no thread of ours runs when Python has ended."""
        if threading.current_thread() is threading.main_thread():
            self._remove_handler()

    # On the thread.

    def _run(self) -> None:
        pipe = self._pipe
        if pipe is None:  # pragma: no cover - forked meanwhile
            return
        pause, notice = NOTICE_SECONDS, None
        while True:
            left = None if notice is None else max(notice - time.monotonic(), 0)
            if select.select([pipe[0]], [], [], left)[0]:
                why = os.read(pipe[0], 256)
                is_ours = signal.getsignal(signal.SIGTERM) == self._on_signal
                if _ASKED in why or (_SIGNAL in why and is_ours):
                    _terminate(self.seconds)
                if _EXITS in why and notice is None:
                    notice = time.monotonic() + pause
            elif notice is not None:
                if self.exit_waits:
                    _tell_what_exit_waits_for()
                    pause = min(2 * pause, MAX_NOTICE_SECONDS)
                notice = time.monotonic() + pause


def drained_at_termination(other: Worker) -> None:
    """Have SIGTERM wait until a worker has done its jobs, as long as the worker lives."""
    _jobs[0].setdefault(other, [])


def at_termination(on: Worker, kind: str, job: Callable[[], None]) -> None:
    """Have a job done on a worker before SIGTERM ends the process, as long as the worker lives.

    Args:
      on: Worker that does it.
      kind: "safe" makes records safe, and comes first; "close" closes what is open.
      job: A function, or a method, whose object is not kept alive by this.
    """
    drained_at_termination(on)
    jobs = _jobs[_KINDS.index(kind)].setdefault(on, [])
    jobs[:] = [kept for kept in jobs if kept() is not None]
    jobs.append(weakref.WeakMethod(job) if hasattr(job, "__self__") else lambda: job)


def _terminate(seconds: float) -> None:
    """Make all records safe, close the runs, and end the process by SIGTERM."""
    deadline = time.monotonic() + seconds
    try:
        reached = True
        for jobs in _jobs:
            for each in _delivery_worker_first(jobs):
                for kept in list(jobs[each]):
                    job = kept()
                    if job is not None:
                        each.put(0, job, waits=False)
            for each in _delivery_worker_first(_jobs[0]):  # the first gives jobs to the others
                reached = each.reach(deadline) and reached
            # What the program still says came after the signal, and finds no run open.
            worker.discards = True
        if not reached:
            report(f"SIGTERM ends the process after {seconds:g} s {_waiting()}, which are lost.")
        try:
            troubles.tell()
        except Exception as error:  # noqa: BLE001 - there is nobody to raise it to
            report_error("SIGTERM ends the process, and delivery had failed before:", error)
    finally:
        _end_by_signal()


def _delivery_worker_first(jobs: weakref.WeakKeyDictionary[Worker, Any]) -> list[Worker]:
    """Return the workers, with the one that gives jobs to the others first."""
    return sorted(jobs, key=lambda each: each is not worker)


def _c_handler() -> int:
    """Return the address of the handler in C; 0 for the default."""
    get = ctypes.pythonapi.PyOS_getsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    return get(signal.SIGTERM) or 0


def _end_by_signal() -> None:
    """End the process as SIGTERM does by default. `signal.signal` is for the main thread only."""
    put = ctypes.pythonapi.PyOS_setsig
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    put(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)


def _tell_what_exit_waits_for() -> None:
    if _busy():
        report(f"the exit is {_waiting()}. Ctrl-C ends the wait, and they are lost.")


def _busy() -> list[Worker]:
    return [each for each in _delivery_worker_first(_jobs[0]) if not each.is_done()]


def _waiting() -> str:
    """Say which callbacks and sinks are at work, and how many records wait for them."""
    names = [each.running for each in _busy()]
    at_work = ", ".join(describe_callable(each) for each in names if each is not None)
    records = sum(each.waiting_records for each in _busy())
    return f"waiting for {at_work or 'records'}, with up to {records} records to deliver"


def describe_callable(running: tuple[str, Any]) -> str:
    """Return the name of a callback or a sink, with the file and line of its code."""
    kind, call = running
    inner = call
    while hasattr(inner, "func"):  # of `functools.partial`
        inner = inner.func
    if not hasattr(inner, "__qualname__"):  # an object that can be called
        inner = type(inner).__call__
    code = getattr(inner, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{kind} `{getattr(inner, '__qualname__', repr(inner))}`{where}"


def report(text: str) -> None:
    """Print to the standard error, where nobody is left to raise to."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            sys.stderr.write(redacted(f"logax: {text}\n"))
            sys.stderr.flush()


def report_error(text: str, error: BaseException) -> None:
    """Print this, and the error with its traceback."""
    report(f"{text}\n{''.join(traceback.format_exception(error)).rstrip()}")


class _FailingStream:
    """The standard error, whose last flush, which Python itself makes when it exits, fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flush; where no function of Python's calls it, fail, as a flush may."""
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
        try:
            sys._getframe(1)
        except ValueError:
            raise OSError("Records were lost.") from None


def fail_exit() -> str:
    """Have the process end with status 120, unless an error that was not caught ends it with 1.

    Returns:
      A sentence that says so.
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
Worker.when_started.append(watcher.start)

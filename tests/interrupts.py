"""Interrupts of the main thread by another one that are not lost."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

AGAIN = 0.1  # seconds


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """What interrupts the main thread once, like Ctrl-C, and returns when that was heard.

    A signal that comes when the thread has just looked for signals, and not yet begun to wait for
    something, does not wake it. So it comes again until it is heard.
    """
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()
    calling = threading.Lock()
    enough = False

    def hear(*_: Any) -> None:
        nonlocal enough
        heard.put(None)
        if not enough:
            enough = True
            raise KeyboardInterrupt

    def interrupt() -> None:
        with calling:
            while True:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                with contextlib.suppress(queue.Empty):
                    return heard.get(timeout=AGAIN)

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield interrupt
    finally:
        enough = True
        heard.put(None)
        with calling:  # no signal comes later
            signal.signal(signal.SIGINT, before)

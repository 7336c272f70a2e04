"""Bars that are through, and wait for values of the last iteration before they end.

What leads is at its end, but what the program logs after it, in the same iteration, is still to
come. Where the program says how often it logs, the bar ends with the last of it; where it does not
(a log under `cond`, one that no record was of yet), only whoever waits for the program knows that
nothing more comes. So such a bar rests until its key leads again, its logger is closed, a `flush`
has delivered everything, or another bar begins, which would be drawn below it.

A bar that rests stands at its end. Time stands still for it.

All others are brought up to date by a `flush`: nobody may have drawn them since the last records.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from logax._delivery.control import before_flush
from logax._delivery.worker import worker
from logax._support.forks import renew_after_fork
from logax._support.progress_bars import Bar


class PatientBar(Bar):
    """A bar that can rest before it is closed.

    Attributes:
      rests_at: The position at which it rests; None before it does.
    """

    rests_at: int | None = None
    _since: float | None = None  # up to when its time was counted, once it rests

    def rest(self, position: int, values: str) -> None:
        """Stand at a position from now on; on a screen, show it with these values."""
        self.rests_at = position
        self._hold()
        if self._on_screen:
            self.draw(position, values)

    def close(self, position: int | None, values: str | None = None) -> None:
        """End it at a position, or where it is, with the time at which it began to rest."""
        if self.rests_at is not None:
            self._hold()
        super().close(position, values)

    def _hold(self) -> None:
        """Count no time since this was called first."""
        now = time.monotonic()
        if self._since is not None and not self._bar.disable:
            self._bar.start_t += now - self._since
            self._bar.last_print_t += now - self._since  # one before the start was never shown
        self._since = now


class Resting:
    """All bars that rest, in this process, and those that a `flush` brings up to date.

    Attributes:
      lock: For every use of any bar of a logger: one that begins ends those of others.
    """

    def __init__(self) -> None:
        self._owners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._reset()
        renew_after_fork(self)
        before_flush(self._end_with_flush)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._all: dict[Callable[[], None], None] = {}

    def expect(self, owner: Any, catch_up: Callable[[Any], None]) -> None:
        """Bars of an owner may be there, now or later; with it, this brings them up to date."""
        self._owners[owner] = catch_up

    def add(self, end: Callable[[], None]) -> None:
        """A bar rests, which this ends; whoever it is of is kept until then."""
        self._all[end] = None

    def discard(self, end: Callable[[], None]) -> None:
        """It rests no more."""
        self._all.pop(end, None)

    def end_all(self) -> None:
        """Nothing more comes for any of them, or another bar needs the line."""
        with self.lock:
            for end in list(self._all):
                end()

    def _end_with_flush(self, deadline: float | None) -> bool:
        """The programs have ended, unless time has passed: end bars behind all of their records."""
        if self._owners and (deadline is None or time.monotonic() < deadline):
            worker.put(0, self._bring_up_to_date, waits=False)
        return True

    def _bring_up_to_date(self) -> None:
        self.end_all()
        for owner, catch_up in list(self._owners.items()):
            catch_up(owner)


resting = Resting()

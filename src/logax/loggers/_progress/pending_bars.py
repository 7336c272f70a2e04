"""Bars that are complete, and wait for values of the last iteration before they close.

The leading key is complete, but the program still logs other keys in the same iteration. If the
program states how often it logs them, the bar closes with the last of those records. If it does not
(a log under `cond`, or a key without any record yet), only code that waits for the program knows
that no more records follow. Such a bar is paused until its key leads again, its logger is closed, a
`flush` has delivered everything, or another bar starts, which would be drawn below it.

A paused bar shows its last position, and its clock stops.

A `flush` also redraws all other bars, because the latest records may not have been drawn yet.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from logax._delivery.control import register_flush_hook
from logax._delivery.worker import worker
from logax._support.forks import reset_after_fork
from logax._support.progress_bars import Bar


class PausableBar(Bar):
    """A bar that can be paused before it is closed.

    Attributes:
      paused_at: Position at which the bar is paused; None while it is not.
    """

    paused_at: int | None = None
    _paused_since: float | None = None

    def pause(self, position: int, values: str) -> None:
        """Stop at a position; on a screen, draw it with these values."""
        self.paused_at = position
        self._stop_clock()
        if self._on_screen:
            self.draw(position, values)

    def close(self, position: int | None, values: str | None = None) -> None:
        """Close at a position, or at the current one, without the time spent paused."""
        if self.paused_at is not None:
            self._stop_clock()
        super().close(position, values)

    def _stop_clock(self) -> None:
        """Exclude the time since the first call from the elapsed time."""
        now = time.monotonic()
        if self._paused_since is not None and not self._bar.disable:
            paused = now - self._paused_since
            self._bar.start_t += paused
            # tqdm assumes that nothing was shown if the last print precedes the start.
            self._bar.last_print_t += paused
        self._paused_since = now


class BarRegistry:
    """All paused bars of this process, and the owners whose bars a `flush` redraws.

    Attributes:
      lock: Lock for every use of a logger's bar, because a new bar closes the bars of other
        loggers.
    """

    def __init__(self) -> None:
        self._owners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._reset()
        reset_after_fork(self)
        register_flush_hook(self._before_flush)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self._end_calls: dict[Callable[[], None], None] = {}

    def register(self, owner: Any, catch_up: Callable[[Any], None]) -> None:
        """Call `catch_up(owner)` on every flush for as long as the owner exists."""
        self._owners[owner] = catch_up

    def add_paused(self, end: Callable[[], None]) -> None:
        """Add the function that closes a paused bar; it keeps the bar's owner alive until then."""
        self._end_calls[end] = None

    def discard_paused(self, end: Callable[[], None]) -> None:
        """Remove a bar that is no longer paused."""
        self._end_calls.pop(end, None)

    def end_paused(self) -> None:
        """Close all paused bars: no more values follow, or another bar needs the line."""
        with self.lock:
            for end in list(self._end_calls):
                end()

    def _before_flush(self, deadline: float | None) -> bool:
        """Queue an update of all bars behind the records of the ended programs.

        Past the deadline programs may still run, and the bars stay as they are.
        """
        if self._owners and (deadline is None or time.monotonic() < deadline):
            worker.put(0, self._update_bars, waits=False)
        return True

    def _update_bars(self) -> None:
        self.end_paused()
        for owner, catch_up in list(self._owners.items()):
            catch_up(owner)


bar_registry = BarRegistry()

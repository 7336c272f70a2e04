"""A progress bar for loops that run inside one compiled function.

A bar may be complete and wait for values of the last iteration before it closes: the leading key is
complete, but the program still logs other keys in the same iteration. If the
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
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from logax._delivery.control import flush, register_flush_hook
from logax._delivery.routes import record
from logax._delivery.worker import worker
from logax._support.processes import reset_after_fork
from logax._support.progress_bars import Bar
from logax._support.validation import validate_file, validate_minimum, validate_names
from logax.loggers._progress_state import LaneProgress, LeadingKey, ShownValues


class ProgressLogger:
    """Show the progress of a compiled loop: percentage, rate, elapsed and remaining time.

        with ProgressLogger(show="loss") as progress:
            weights = logax.tap(train, progress, buffer=64)(key)

    A `ProgressLogger` is a callback for `tap` and `live`. In a terminal or a notebook it draws a
    bar a few times per second, however many records arrive; elsewhere it prints a line every five
    seconds. Time counts from the first record.

    **Total.** A loop whose length the program fixes (`scan`, `fori_loop`) needs no `total`: the bar
    counts records and reads their number from `record.total`. For other loops (`while_loop`) the
    bar counts up; pass a `total`, for example the maximum number of iterations, to see a
    percentage. The position is then the step called `step` plus one, or the number of records if
    they have no such step. If a program logs several keys, the bar follows the one with the most
    records.

    **Lanes.** Under `vmap` the bar shows the position of the slowest lane. A lane of a `while_loop`
    that ends early no longer counts once it has been silent for more than twice its longest silence
    so far, measured in records of the other lanes; that is three iterations if lanes log side by
    side. When all lanes have ended, the bar shows the position of the last one. Displayed values
    are means over lanes.

    **Values.** The bar closes with the values of the last iteration. It waits for keys that are
    logged after the one it follows: if the program states how often it logs them, until all have
    arrived; otherwise (under `cond`, with `every=`, or for keys that a pattern with `*` may still
    match) until the `with` block ends, `logax.flush()` returns, or another bar starts.

    **Calls.** A bar closes when it reaches its total, and the next call starts a new one. Without a
    known total a step that goes back marks a new call; records without a step are counted through
    all calls. With a `total` of your own one bar continues through all calls until it is reached.
    One logger follows one program at a time: use one per thread.

    **Without `with`**, call `logax.flush()` at the end to update the bar, and `close()` unless all
    totals are known; a `MultiLogger` closes it too. A closed logger ignores records until it enters
    a new `with` block. An exception that leaves the block closes the bar at its current position,
    without waiting for the program.

    Args:
      total: Last position, if the program does not fix it.
      step: Name of the step that is the position.
      show: Names or globs of keys and leaves whose last values appear next to the bar. An array is
        shown as its mean.
      file: Output file; the standard error by default.

    Raises:
      ValueError: `total` is not an integer of at least 1.
      TypeError: `step` or `show` is not a string, or `file` cannot be written to.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        step: str = "step",
        show: str | Iterable[str] = (),
        file: Any = None,
    ) -> None:
        self._total = (
            None if total is None else validate_minimum(1, "ProgressLogger", "total", total)
        )
        if not isinstance(step, str):
            raise TypeError(
                f"`ProgressLogger` takes as `step` the name of a step, and got {step!r}. "
                'Write `log(..., update=i)` and `ProgressLogger(step="update")`.'
            )
        validate_file("ProgressLogger", file)
        self._step, self._file = step, file
        self._patterns = validate_names("show", show) or ()
        self._is_closed = False
        self._start()
        bar_registry.register(self, type(self)._catch_up)

    def _start(self) -> None:
        self._leading_key = LeadingKey(self._total, self._step)
        self._values = ShownValues(self._patterns, has_totals=self._total is None)
        self._bar: PausableBar | None = None
        self._is_draw_queued = False  # a redraw of the paused bar, with newer values

    @property
    def position(self) -> int:
        """Position of the slowest lane; 0 before the first record."""
        with bar_registry.lock:
            lanes = self._leading_key.lanes
            return 0 if lanes is None else lanes.slowest().position

    @property
    def total(self) -> int | None:
        """Last position, if it is known."""
        with bar_registry.lock:
            lanes = self._leading_key.lanes
            return self._total if lanes is None else lanes.total

    def __call__(self, one: record) -> None:
        """Process a record."""
        if not isinstance(one, record):
            raise TypeError(
                f"`ProgressLogger` takes the records of `tap` and `live`, and got {one!r}. Write "
                "`logax.tap(f, progress)(x)`."
            )
        with bar_registry.lock:
            if self._is_closed:
                return
            lanes, begins = self._leading_key.update(one)
            if lanes is not None or self._values.starts_new_call(one):
                self._end_paused_bar()
            if self._bar is not None and lanes is not None:
                if begins:
                    self._end(self._bar, lanes.previous_round_end)
                else:  # the leading key may have changed
                    self._bar.set_total(lanes.total)
            if self._patterns:
                self._values.update(one)
            if lanes is not None and not self._leading_key.is_complete:
                self._show(lanes)
            else:
                self._update_paused_bar()

    def _show(self, lanes: LaneProgress) -> None:
        if self._bar is None:
            bar_registry.end_paused()
            self._bar = PausableBar(self._file, lanes.total, max(lanes.slowest().position - 1, 0))
        if lanes.is_complete():
            position = lanes.slowest().position
            self._leading_key.end_round(lanes)
            if self._awaits_values():
                bar_registry.add_paused(self._end_paused_bar)
                self._bar.pause(position, self._values.format_line())
            else:
                self._end(self._bar, position)
        elif time.monotonic() >= self._bar.due:
            self._bar.draw(lanes.slowest().position, self._values.format_line())

    def _awaits_values(self) -> bool:
        lanes = self._leading_key.lanes
        return lanes is not None and self._values.may_change(self._leading_key.key, lanes.names)

    def _update_paused_bar(self) -> None:
        """Close or redraw the bar after a record that may be the last it waits for."""
        if self._bar is None or self._bar.paused_at is None:
            return
        if not self._awaits_values():
            self._end_paused_bar()
        elif not self._is_draw_queued:
            # Draw once for all records that are queued already, perhaps of thousands of lanes.
            self._is_draw_queued = True
            worker.put(0, self._draw_paused_bar, waits=False)

    def _draw_paused_bar(self) -> None:
        with bar_registry.lock:
            self._is_draw_queued = False
            if self._bar is not None and self._bar.paused_at is not None:
                self._bar.pause(self._bar.paused_at, self._values.format_line())

    def _end_paused_bar(self) -> None:
        """Close the bar if it is paused."""
        if self._bar is not None and self._bar.paused_at is not None:
            self._end(self._bar, self._bar.paused_at)

    def _end(self, bar: PausableBar, position: int | None) -> None:
        self._bar = None
        bar_registry.discard_paused(self._end_paused_bar)
        bar.close(position, self._values.format_line())
        self._values.end()

    def _catch_up(self) -> None:
        """Move the bar to the position of the latest records."""
        with bar_registry.lock:
            lanes = self._leading_key.lanes
            if self._bar is not None and lanes is not None:
                self._bar.move_to(lanes.slowest().position, self._values.format_line())

    def close(self) -> None:
        """Close the bar at its current position, and ignore later records."""
        self._close(all_ended=False)

    def _close(self, all_ended: bool) -> None:
        with bar_registry.lock:
            self._is_closed = True
            self._end_paused_bar()
            lanes = self._leading_key.lanes
            if self._bar is None or lanes is None:
                return
            last = lanes.furthest() if all_ended else lanes.slowest().position
            self._end(self._bar, last)

    def __enter__(self) -> Self:
        with bar_registry.lock:
            self._is_closed = False
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                flush()
        finally:
            self._close(all_ended=kind is None)


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

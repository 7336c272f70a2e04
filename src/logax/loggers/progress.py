"""A progress bar for loops that run inside one compiled function."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from logax._delivery.control import flush
from logax._delivery.routes import record
from logax._delivery.worker import worker
from logax._support.validation import as_names, at_least, check_file
from logax.loggers._progress.lanes import Lanes, Leader
from logax.loggers._progress.pending_bars import PatientBar, resting
from logax.loggers._progress.values import Values


class ProgressLogger:
    """Shows how far a compiled loop is: share done, rate, elapsed and remaining time.

        with ProgressLogger(show="loss") as progress:
            weights = logax.tap(train, progress, buffer=64)(key)

    It is a callback for `tap` and `live`. On a terminal and in a notebook it is a bar, redrawn a
    few times a second however many records come; elsewhere it is a plain line every five seconds.
    Time counts from the first record that arrives.

    **Total.** A loop whose length the program fixes (`scan`, `fori_loop`) needs none: the bar
    counts records, and knows how many there will be (`record.total`). Elsewhere (`while_loop`) the
    bar counts up; give the `total`, perhaps the most iterations that are allowed, to see a share.
    The position is then the step called `step` plus one, or the number of records if they have no
    such step. Of several keys the one with the most records counts.

    **Lanes.** Under `vmap` the slowest lane leads: the bar stands where the lane is that is
    furthest behind. A lane of a `while_loop` that ends early stops leading: it does once it has
    been silent for more than twice as long as ever before, in records of the other lanes, which is
    three iterations where lanes log side by side. When all have ended, the bar stands where the
    last of them did. The values that are shown are means over lanes.

    **Values.** The bar ends with the last values of the last iteration. What is logged after the
    key that counts is waited for: where the program says how often it logs that, until it has come;
    where it does not (under `cond`, with `every=`, and for what a pattern with `*` may still name),
    the bar stands at its total until the block ends, `logax.flush()` returns, or another bar
    begins.

    **Calls.** A bar ends when its total is reached, and the next call starts a new one. Without a
    known total a call is recognized by its step, which goes back; records without a step are
    counted through all calls. With a `total` of your own one bar goes on through all calls until
    it is reached. One logger follows one program at a time: give each thread its own.

    Used without `with`, call `logax.flush()` at the end, which brings the bar up to date, and
    `close()` unless all totals are known; a `MultiLogger` closes it when it is closed itself. After
    that records are ignored, until the logger is used in a new `with`. An exception that leaves the
    block ends the bar where it is, without waiting for the program.

    Args:
      total: The last position, if the program does not fix it.
      step: The name of the step that counts.
      show: Names or patterns of keys and leaves whose last values stand next to the bar. Of
        arrays it is the mean.
      file: Where to write; the standard error if it is not given.

    Raises:
      ValueError: `total` is no whole number of 1 or more.
      TypeError: `step` or `show` are no strings, or nothing can be written to `file`.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        step: str = "step",
        show: str | Iterable[str] = (),
        file: Any = None,
    ) -> None:
        self._total = None if total is None else at_least(1, "ProgressLogger", "total", total)
        if not isinstance(step, str):
            raise TypeError(
                f"`ProgressLogger` takes as `step` the name of a step, and got {step!r}. "
                'Write `log(..., update=i)` and `ProgressLogger(step="update")`.'
            )
        check_file("ProgressLogger", file)
        self._step, self._file = step, file
        self._patterns = as_names("show", show) or ()
        self._closed = False
        self._start()
        resting.expect(self, type(self)._catch_up)

    def _start(self) -> None:
        self._leader = Leader(self._total, self._step)
        self._values = Values(self._patterns, counts=self._total is None)
        self._bar: PatientBar | None = None
        self._will_draw = False  # a bar that rests, with values that have come since

    @property
    def position(self) -> int:
        """How far the slowest lane is; 0 before there is anything to show."""
        with resting.lock:
            lanes = self._leader.lanes
            return 0 if lanes is None else lanes.slowest().position

    @property
    def total(self) -> int | None:
        """The last position, if it is known."""
        with resting.lock:
            lanes = self._leader.lanes
            return self._total if lanes is None else lanes.total

    def __call__(self, one: record) -> None:
        """Take in a record."""
        if not isinstance(one, record):
            raise TypeError(
                f"`ProgressLogger` takes the records of `tap` and `live`, and got {one!r}. Write "
                "`logax.tap(f, progress)(x)`."
            )
        with resting.lock:
            if self._closed:
                return
            lanes, begins = self._leader.take(one)
            if lanes is not None or self._values.comes_again(one):
                self._end_rest()
            if self._bar is not None and lanes is not None:
                if begins:
                    self._end(self._bar, lanes.left_at)
                else:  # perhaps those of another key than before
                    self._bar.set_total(lanes.total)
            if self._patterns:
                self._values.take(one)
            if lanes is not None and not self._leader.is_through:
                self._show(lanes)
            else:
                self._go_on_resting()

    def _show(self, lanes: Lanes) -> None:
        if self._bar is None:
            resting.end_all()
            self._bar = PatientBar(self._file, lanes.total, max(lanes.slowest().position - 1, 0))
        if lanes.complete():
            position = lanes.slowest().position
            self._leader.end_round(lanes)
            if self._may_come():
                resting.add(self._end_rest)
                self._bar.rest(position, self._values.line())
            else:
                self._end(self._bar, position)
        elif time.monotonic() >= self._bar.due:
            self._bar.draw(lanes.slowest().position, self._values.line())

    def _may_come(self) -> bool:
        lanes = self._leader.lanes
        return lanes is not None and self._values.may_come(self._leader.key, lanes.names)

    def _go_on_resting(self) -> None:
        """A record has come that may be the last that a bar waits for."""
        if self._bar is None or self._bar.rests_at is None:
            return
        if not self._may_come():
            self._end_rest()
        elif not self._will_draw:
            # Once for all records that are there already: those of thousands of lanes, say.
            self._will_draw = True
            worker.put(0, self._draw_rest, waits=False)

    def _draw_rest(self) -> None:
        with resting.lock:
            self._will_draw = False
            if self._bar is not None and self._bar.rests_at is not None:
                self._bar.rest(self._bar.rests_at, self._values.line())

    def _end_rest(self) -> None:
        """End the bar if it only waits for values."""
        if self._bar is not None and self._bar.rests_at is not None:
            self._end(self._bar, self._bar.rests_at)

    def _end(self, bar: PatientBar, position: int | None) -> None:
        self._bar = None
        resting.discard(self._end_rest)
        bar.close(position, self._values.line())
        self._values.end()

    def _catch_up(self) -> None:
        """Have the bar stand where the last records are."""
        with resting.lock:
            lanes = self._leader.lanes
            if self._bar is not None and lanes is not None:
                self._bar.stand_at(lanes.slowest().position, self._values.line())

    def close(self) -> None:
        """End the bar where it is; later records are ignored."""
        self._close(all_ended=False)

    def _close(self, all_ended: bool) -> None:
        with resting.lock:
            self._closed = True
            self._end_rest()
            lanes = self._leader.lanes
            if self._bar is None or lanes is None:
                return
            last = lanes.furthest() if all_ended else lanes.slowest().position
            self._end(self._bar, last)

    def __enter__(self) -> Self:
        with resting.lock:
            self._closed = False
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

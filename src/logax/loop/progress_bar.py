"""Show the progress of a Python loop as a bar of tqdm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import jax

from logax._support.messages import describe_error, describe_value
from logax._support.progress_bars import Bar
from logax._support.validation import validate_file, validate_minimum
from logax.loop._pytrees import format_line, is_ready
from logax.loop.protocol import ScheduledLogger, as_step, not_entered_error, validate_view


class TqdmLogger(ScheduledLogger):
    """Show a progress bar: fraction done, rate, elapsed and remaining time, and some values.

        with TqdmLogger(num_steps, lambda state: {"energy": state.energy}) as bar:
            ...

    The bar follows `step`: after step 9 it shows 10, also if the loop logs every tenth step only.
    On a terminal and in a notebook the bar is redrawn a few times a second; elsewhere it is a line
    every five seconds. Only these drawings, and the last step, call `postfix` and wait for the
    device. The rate is therefore that of the device, and all other steps cost a look at the clock.
    A loop that ends early leaves the values of its last step, if they can be read without waiting.

    A `postfix` that raises, or does not return a dictionary, does not stop the run: the bar reports
    it once and continues without values.

    Args:
      num_steps: Number of steps of the whole run.
      postfix: Function from the state to the values to show next to the bar: a dictionary of
        numbers or strings. Arrays are shown by their mean.
      initial: Initial position of the bar, for a run that is resumed.
      file: Text file to write to; by default the standard error.
    """

    def __init__(
        self,
        num_steps: int,
        postfix: Callable[[Any], Mapping[str, Any]] | None = None,
        *,
        initial: int = 0,
        file: Any = None,
    ) -> None:
        super().__init__()
        self._total = validate_minimum(0, "TqdmLogger", "num_steps", num_steps)
        self._initial = validate_minimum(0, "TqdmLogger", "initial", initial)
        validate_file("TqdmLogger", file)
        self._file = file
        self._postfix = None if postfix is None else validate_view("TqdmLogger", postfix)
        self._bar: Bar | None = None
        self._position, self._values = self._initial, ""
        self._shown = self._initial  # position that the values belong to
        self._state: Any = None  # the last one, which may be donated by now
        self._due = -math.inf  # outside of the block, every step takes the slow path, which raises

    @property
    def position(self) -> int:
        """Number of steps done, according to the last call of `log`."""
        return self._position

    def _begin(self) -> None:
        self._position, self._values, self._failed = self._initial, "", False
        self._shown, self._state = self._initial, None
        self._bar = Bar(self._file, self._total, self._initial)
        self._due = self._bar.due

    def log(self, state: Any, step: int) -> None:
        """Move the bar past step `step`, and redraw it if that is due."""
        self._state = state
        if not isinstance(step, int):
            step = as_step(self, step)
        self._position = step + 1
        if monotonic() >= self._due or step + 1 == self._total:
            self._draw(state)

    def _draw(self, state: Any) -> None:
        bar = self._open_bar()
        jax.block_until_ready(state)
        self._update_values(bar, state)
        bar.draw(self._position, self._values)
        self._shown, self._due = self._position, bar.due

    def _open_bar(self) -> Bar:
        """Return the bar; raise outside of the `with` block."""
        if self._bar is None:
            raise not_entered_error(type(self))
        return self._bar

    def _update_values(self, bar: Bar, state: Any) -> None:
        if self._postfix is None or self._failed:
            return
        try:
            values = self._postfix(state)
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"it returned {describe_value(values)}, which is not a dictionary. Write "
                    '`lambda state: {"energy": state.energy}`.'
                )
            self._values = format_line(dict(values))
        except Exception as error:  # noqa: BLE001 - a view that only shows must not stop the run
            self._failed = True
            bar.write(f"`TqdmLogger` continues without its postfix: {describe_error(error)}")

    def _end(self, error: BaseException | None) -> None:
        bar, state = self._open_bar(), self._state
        self._bar, self._state, self._due = None, None, -math.inf
        if self._position != self._shown:  # do not show values of an earlier step
            self._values = ""
            if is_ready(state):  # else it may never be computed
                self._update_values(bar, state)
        bar.close(self._position, self._values)

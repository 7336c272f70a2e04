"""A progress bar for a Python loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import jax

from logax._support.messages import described, received
from logax._support.progress_bars import Bar
from logax._support.validation import at_least, check_file
from logax.loop._base import EnteredLogger, as_step, checked_view, outside
from logax.loop._states import is_there, line


class TqdmLogger(EnteredLogger):
    """Shows how far a loop is: share done, rate, elapsed and remaining time, some values.

        with TqdmLogger(num_steps, lambda state: {"energy": state.energy}) as bar:
            ...

    The bar follows `step`: after step 9 it stands at 10, also if it is told of every tenth step
    only. On a terminal and in a notebook it is redrawn a few times a second, elsewhere it is a line
    every five seconds. Only then, and for the last step, is the view looked at and the device
    waited for; so the rate is that of the device, and steps in between cost a look at the clock.
    A loop that breaks off leaves the values of its last step, if they are still there to be read.

    A view that fails, or gives no dictionary, does not stop the run: the bar says so once and goes
    on without.

    Args:
      num_steps: How many steps there are.
      postfix: What to show of the state next to the bar: a dictionary of numbers, or of texts. Of
        arrays it is the mean.
      initial: Where the bar begins, for a run that is resumed.
      file: Where to; the standard error if it is not given.
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
        self._total = at_least(0, "TqdmLogger", "num_steps", num_steps)
        self._initial = at_least(0, "TqdmLogger", "initial", initial)
        check_file("TqdmLogger", file)
        self._file = file
        self._postfix = None if postfix is None else checked_view("TqdmLogger", postfix)
        self._bar: Bar | None = None
        self._position, self._values = self._initial, ""
        self._shown = self._initial  # the position next to which the values stand
        self._state: Any = None  # the last; it may be donated by now
        self._due = -math.inf  # so that outside of the block every step comes to the slow path

    @property
    def position(self) -> int:
        """How many steps are done, as far as it was told."""
        return self._position

    def _begin(self) -> None:
        self._position, self._values, self._failed = self._initial, "", False
        self._shown, self._state = self._initial, None
        self._bar = Bar(self._file, self._total, self._initial)
        self._due = self._bar.due

    def log(self, state: Any, step: int) -> None:
        """Take in that step `step` is done."""
        self._state = state
        if not isinstance(step, int):
            step = as_step(self, step)
        self._position = step + 1
        if monotonic() >= self._due or step + 1 == self._total:
            self._draw(state)

    def _draw(self, state: Any) -> None:
        bar = self._drawn()
        jax.block_until_ready(state)
        self._look(bar, state)
        bar.draw(self._position, self._values)
        self._shown, self._due = self._position, bar.due

    def _drawn(self) -> Bar:
        """The bar, which is there inside of the block."""
        if self._bar is None:
            raise outside(type(self))
        return self._bar

    def _look(self, bar: Bar, state: Any) -> None:
        if self._postfix is None or self._failed:
            return
        try:
            values = self._postfix(state)
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"it gave {received(values)}, which is no dictionary. Write "
                    '`lambda state: {"energy": state.energy}`.'
                )
            self._values = line(dict(values))
        except Exception as error:  # noqa: BLE001 - a view that only shows must not stop the run
            self._failed = True
            bar.write(f"`TqdmLogger` goes on without its postfix: {described(error)}")

    def _end(self, error: BaseException | None) -> None:
        bar, state = self._drawn(), self._state
        self._bar, self._state, self._due = None, None, -math.inf
        if self._position != self._shown:  # values of an earlier step must not stand next to it
            self._values = ""
            if is_there(state):  # else nobody knows whether it ever will be
                self._look(bar, state)
        bar.close(self._position, self._values)

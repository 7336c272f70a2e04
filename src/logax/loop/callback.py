"""A function as a logger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logax._errors import received
from logax._schedule import Schedule
from logax.loop._entered import EnteredLogger


class CallbackLogger(EnteredLogger):
    """Calls a function on the steps that are due.

    It is called in the loop, and what it raises stops the loop. What it keeps of the state it must
    copy, since the buffers may be donated to the next step.

    Args:
      fn: Called as `fn(state, step)`.
      schedule: When: a schedule, or a number n for every n-th step.
    """

    def __init__(self, fn: Callable[[Any, int], Any], schedule: int | Schedule) -> None:
        if not callable(fn):
            raise TypeError(
                f"`CallbackLogger` takes a function of state and step, and got {received(fn)}."
            )
        super().__init__(schedule)
        self._fn = fn

    def _take(self, state: Any, step: int) -> None:
        self._fn(state, step)

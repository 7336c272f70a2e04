"""What is left to write at the end of a block, shown to whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from logax._bars import Bar
from logax._errors import described


class Remaining:
    """A progress bar that costs nothing but itself where it cannot be drawn.

    An interrupt comes out, as from anything that is waited for.

    Attributes:
      troubles: What to tell of the bar, when there is time for that.
    """

    def __init__(self, total: int) -> None:
        self.troubles: list[str] = []
        self._total = total
        self._bar: Bar | None = None

    def draw(self, done: int) -> None:
        """Show how many are written, if it is time."""
        if not self.troubles:
            self._attempt(lambda: self._draw(done))

    def close(self, done: int) -> None:
        """Show it for the last time."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._attempt(lambda: bar.close(done))

    def _draw(self, done: int) -> None:
        if self._bar is None:
            self._bar = Bar(None, self._total, 0, "writing rows")
        if time.monotonic() >= self._bar.due:
            self._bar.draw(done)

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Warning as warning:  # where warnings are errors
            self.troubles = self.troubles or [str(warning)]
        except Exception as error:  # noqa: BLE001 - told at the end
            told = f"The progress bar cannot be drawn: {described(error)}"
            self.troubles = self.troubles or [told]

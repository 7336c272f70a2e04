"""Progress bars: on a screen they are redrawn a few times a second, elsewhere they are lines."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from typing import Any

from logax._support.messages import described, warn_user

SECONDS_ON_A_SCREEN = 0.25
SECONDS_BETWEEN_LINES = 5.0
# A disk that is full, a file that is closed, and none at all: some programs have no standard error.
_NO_FILE = (OSError, ValueError, AttributeError)


class Bar:
    """A bar of tqdm that draws when its owner says, before anything is computed for it.

    Args:
      file: Where to; the standard error if it is None.
      total: The last position, or None.
      initial: The first one.
      what: What it counts, in a word that stands in front of it.

    Attributes:
      due: The time, of `time.monotonic`, from which on it should be drawn again.
    """

    def __init__(self, file: Any, total: int | None, initial: int, what: str = "") -> None:
        tqdm = importlib.import_module("tqdm.auto").tqdm
        file = sys.stderr if file is None else file
        self._on_screen = _is_terminal(file) or _is_of_notebooks(tqdm)
        self._interval = SECONDS_ON_A_SCREEN if self._on_screen else SECONDS_BETWEEN_LINES
        self._canvas = Canvas(file) if self._on_screen else Lines(file)
        self._bar = tqdm(
            total=total,
            initial=initial,
            desc=what or None,
            file=self._canvas,
            **_width(file, self._on_screen),
            mininterval=0,
            miniters=0,
        )
        self._drawn: int | None = None
        self.due = time.monotonic() + self._interval

    def set_total(self, total: int | None) -> None:
        """Change the last position."""
        self._bar.total = total

    def draw(self, position: int, values: str = "") -> None:
        """Show a position, and some values next to it."""
        self._bar.set_postfix_str(values, refresh=False)
        self._bar.update(position - self._bar.n)
        self._drawn = position
        self.due = time.monotonic() + self._interval
        self._canvas.tell()

    def stand_at(self, position: int, values: str) -> None:
        """Be at a position, with some values; on a screen, show it if that is news."""
        if not self._on_screen:
            self._bar.n = position
            self._bar.set_postfix_str(values, refresh=False)
        elif (position, values) != (self._drawn, self._bar.postfix or ""):
            self.draw(position, values)

    def write(self, text: str) -> None:
        """Write a line above it."""
        self._bar.write(text, file=self._canvas)
        self._canvas.tell()

    def close(self, position: int | None, values: str | None = None) -> None:
        """End it at a position, or where it is; a line that is there is not repeated."""
        self._bar.n = self._bar.n if position is None else position
        if values is not None:
            self._bar.set_postfix_str(values, refresh=False)
        self._bar.leave = self._on_screen or self._drawn != self._bar.n
        self._bar.close()
        self._canvas.tell()


class Canvas:
    """A file for a bar. A bar only shows how things are: that it cannot must stop nothing.

    What goes wrong must not come out of `write`, where tqdm holds a lock for good.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._error: Exception | None = None
        self._is_told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __eq__(self, other: object) -> bool:  # tqdm asks which bars are on a file
        return bool(self._file == getattr(other, "_file", other))

    __hash__ = None  # type: ignore[assignment]

    def write(self, text: str) -> None:
        """Write, or remember why not."""
        try:
            self._file.write(text)
        except _NO_FILE as error:
            self._error = self._error or error

    def flush(self) -> None:
        """Pass it on."""
        try:
            getattr(self._file, "flush", lambda: None)()
        except _NO_FILE as error:
            self._error = self._error or error

    def tell(self) -> None:
        """Warn if something went wrong, once."""
        if self._error is not None and not self._is_told:
            self._is_told = True
            told = described(self._error)
            warn_user(f"The progress bar cannot be drawn: {told} The run goes on.")


class Lines(Canvas):
    """A file for a bar that cannot be redrawn: each drawing is a line."""

    def write(self, text: str) -> None:
        """Write what is drawn, without what moves the cursor."""
        drawn = text.replace("\x1b[A", "").strip()
        if drawn:
            super().write(drawn + "\n")


def _width(file: Any, on_screen: bool) -> dict[str, Any]:
    """How wide the bar is; some terminals do not know how wide they are themselves."""
    try:
        knows = os.get_terminal_size(file.fileno()).columns > 0
    except (AttributeError, OSError, ValueError):
        knows = True
    return {"dynamic_ncols": on_screen} if knows else {"ncols": shutil.get_terminal_size().columns}


def _is_terminal(file: Any) -> bool:
    return bool(getattr(file, "isatty", lambda: False)())


def _is_of_notebooks(kind: Any) -> bool:
    return any(each.__module__ == "tqdm.notebook" for each in kind.__mro__)

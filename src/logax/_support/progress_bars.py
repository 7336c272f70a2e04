"""Progress bars of tqdm: redrawn in place on a screen, written as lines elsewhere."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from typing import Any

from logax._support.messages import describe_error, warn_user

SCREEN_INTERVAL_SECONDS = 0.25
LINE_INTERVAL_SECONDS = 5.0
# Raised by a full disk, a closed file, and None: some programs have no standard error.
_WRITE_ERRORS = (OSError, ValueError, AttributeError)


class Bar:
    """A bar of tqdm whose owner decides when to draw it.

    The owner compares `due` with the clock before it computes values for the bar.

    Args:
      file: Text file to write to; None for the standard error.
      total: Last position, or None if unknown.
      initial: First position.
      what: Label in front of the bar.

    Attributes:
      due: Time of the next drawing, on the clock `time.monotonic`.
    """

    def __init__(self, file: Any, total: int | None, initial: int, what: str = "") -> None:
        tqdm = importlib.import_module("tqdm.auto").tqdm
        file = sys.stderr if file is None else file
        self._on_screen = _is_terminal(file) or _is_of_notebooks(tqdm)
        self._interval = SCREEN_INTERVAL_SECONDS if self._on_screen else LINE_INTERVAL_SECONDS
        self._out = FailSafeFile(file) if self._on_screen else LineFile(file)
        self._bar = tqdm(
            total=total,
            initial=initial,
            desc=what or None,
            file=self._out,
            **_width(file, self._on_screen),
            mininterval=0,
            miniters=0,
        )
        self._drawn: int | None = None
        self.due = time.monotonic() + self._interval

    def set_total(self, total: int | None) -> None:
        """Set the last position."""
        self._bar.total = total

    def draw(self, position: int, values: str = "") -> None:
        """Draw the bar at a position, with some values next to it."""
        self._bar.set_postfix_str(values, refresh=False)
        self._bar.update(position - self._bar.n)
        self._drawn = position
        self.due = time.monotonic() + self._interval
        self._out.warn_once()

    def move_to(self, position: int, values: str) -> None:
        """Set position and values; on a screen, redraw the bar if they changed."""
        if not self._on_screen:
            self._bar.n = position
            self._bar.set_postfix_str(values, refresh=False)
        elif (position, values) != (self._drawn, self._bar.postfix or ""):
            self.draw(position, values)

    def write(self, text: str) -> None:
        """Write a line above the bar."""
        self._bar.write(text, file=self._out)
        self._out.warn_once()

    def close(self, position: int | None, values: str | None = None) -> None:
        """Close the bar at a position, by default the current one, without repeating a line."""
        self._bar.n = self._bar.n if position is None else position
        if values is not None:
            self._bar.set_postfix_str(values, refresh=False)
        self._bar.leave = self._on_screen or self._drawn != self._bar.n
        self._bar.close()
        self._out.warn_once()


class FailSafeFile:
    """File whose failures stop nothing: it keeps the first error, for one warning.

    `write` must not raise, since tqdm would then hold its lock forever.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._error: Exception | None = None
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __eq__(self, other: object) -> bool:  # tqdm looks for the bars of a file
        return bool(self._file == getattr(other, "_file", other))

    __hash__ = None  # type: ignore[assignment]

    def write(self, text: str) -> None:
        """Write, or keep the error."""
        try:
            self._file.write(text)
        except _WRITE_ERRORS as error:
            self._error = self._error or error

    def flush(self) -> None:
        """Flush the file, or keep the error."""
        try:
            getattr(self._file, "flush", lambda: None)()
        except _WRITE_ERRORS as error:
            self._error = self._error or error

    def warn_once(self) -> None:
        """Warn about the first error, once."""
        if self._error is not None and not self._has_warned:
            self._has_warned = True
            reason = describe_error(self._error)
            warn_user(f"The progress bar cannot be drawn: {reason} The run continues.")


class LineFile(FailSafeFile):
    """File that cannot be redrawn: each drawing of a bar is a line."""

    def write(self, text: str) -> None:
        """Write the drawing as a line, without the codes that move the cursor."""
        drawn = text.replace("\x1b[A", "").strip()
        if drawn:
            super().write(drawn + "\n")


def _width(file: Any, on_screen: bool) -> dict[str, Any]:
    """Return the options of tqdm for the width; some terminals report a width of 0."""
    try:
        knows = os.get_terminal_size(file.fileno()).columns > 0
    except (AttributeError, OSError, ValueError):
        knows = True
    return {"dynamic_ncols": on_screen} if knows else {"ncols": shutil.get_terminal_size().columns}


def _is_terminal(file: Any) -> bool:
    return bool(getattr(file, "isatty", lambda: False)())


def _is_of_notebooks(kind: Any) -> bool:
    return any(each.__module__ == "tqdm.notebook" for each in kind.__mro__)

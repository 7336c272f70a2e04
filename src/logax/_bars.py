"""Progress bars: on a screen they are redrawn a few times a second, elsewhere they are lines."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from typing import Any

SECONDS_ON_A_SCREEN = 0.25
SECONDS_BETWEEN_LINES = 5.0


def opened(file: Any, total: int | None, initial: int) -> tuple[Any, float]:
    """A bar of tqdm on `file`, or the standard error, and how many seconds it should wait.

    Whoever opens it decides when it draws, before anything is computed for it.
    """
    tqdm = importlib.import_module("tqdm.auto").tqdm
    file = sys.stderr if file is None else file
    on_screen = _is_terminal(file) or _is_of_notebooks(tqdm)
    bar = tqdm(
        total=total,
        initial=initial,
        file=file if on_screen else Lines(file),
        **_width(file, on_screen),
        mininterval=0,
        miniters=0,
    )
    return bar, SECONDS_ON_A_SCREEN if on_screen else SECONDS_BETWEEN_LINES


class Lines:
    """A file for a bar that cannot be redrawn: each drawing is a line."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.encoding = getattr(file, "encoding", None)

    def write(self, text: str) -> None:
        """Write what is drawn, without what moves the cursor."""
        drawn = text.replace("\x1b[A", "").strip()
        if drawn:
            self._file.write(drawn + "\n")

    def flush(self) -> None:
        """Pass it on."""
        if hasattr(self._file, "flush"):
            self._file.flush()


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

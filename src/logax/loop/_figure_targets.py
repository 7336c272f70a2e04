"""Where a plot is shown: in a file, or below a cell of a notebook."""

from __future__ import annotations

import importlib
import io
import os
import sys
import uuid
from typing import Any

from logax._support.figures import blank
from logax._support.files import check_place, replacing


class File:
    """A picture in a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._format = os.path.splitext(path)[1][1:].lower() or "png"
        self.where = f" to {path}"

    def begin(self) -> None:
        """Raise where it cannot be written, and draw once: the first time takes long."""
        check_place("PlotLogger", self._path)
        drawn(blank(), self._format)

    def show(self, figure: Any) -> None:
        """Replace it."""
        with replacing("PlotLogger", self._path) as file:
            file.write(drawn(figure, self._format))


class Cell:  # pragma: no cover - in the kernel of a notebook
    """What is below a cell of a notebook, and changes in place."""

    where = ""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._display: Any = importlib.import_module("IPython.display")

    def begin(self) -> None:
        """Take a place below the cell that runs now."""
        self._display.display(self._image(blank()), display_id=self._id)

    def show(self, figure: Any) -> None:
        """Change it."""
        self._display.update_display(self._image(figure), display_id=self._id)

    def _image(self, figure: Any) -> Any:
        return self._display.Image(data=drawn(figure, "png"), format="png")


def notebook() -> Any:
    """The shell of the notebook that this runs in, or None."""
    package = sys.modules.get("IPython")
    shell = None if package is None else package.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def drawn(figure: Any, form: str) -> bytes:
    """A figure as the bytes of a file."""
    file = io.BytesIO()
    figure.savefig(file, format=form)
    return file.getvalue()

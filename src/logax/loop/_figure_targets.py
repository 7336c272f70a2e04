"""Targets of `PlotLogger`: an image file, or the output of a notebook cell."""

from __future__ import annotations

import importlib
import io
import os
import sys
import uuid
from typing import Any

from logax._support.figures import empty_figure
from logax._support.files import check_writable, open_atomic


class FigureFile:
    """Image file; the suffix of its path chooses the format.

    Attributes:
      where: The file, as the end of an error message.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._format = os.path.splitext(path)[1][1:].lower() or "png"
        self.where = f" to {path}"

    def begin(self) -> None:
        """Raise if the file cannot be written, and render once: the first rendering is slow."""
        check_writable("PlotLogger", self._path)
        render_figure(empty_figure(), self._format)

    def show(self, figure: Any) -> None:
        """Replace the file with this figure."""
        with open_atomic("PlotLogger", self._path) as file:
            file.write(render_figure(figure, self._format))


class NotebookCell:  # pragma: no cover - in the kernel of a notebook
    """Output of a notebook cell, updated in place."""

    where = ""

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex
        self._display: Any = importlib.import_module("IPython.display")

    def begin(self) -> None:
        """Show an empty figure below the cell that is running."""
        self._display.display(self._image(empty_figure()), display_id=self._id)

    def show(self, figure: Any) -> None:
        """Replace the shown figure with this one."""
        self._display.update_display(self._image(figure), display_id=self._id)

    def _image(self, figure: Any) -> Any:
        return self._display.Image(data=render_figure(figure, "png"), format="png")


def notebook_shell() -> Any:
    """Return IPython's shell if this runs in a notebook kernel, else None."""
    package = sys.modules.get("IPython")
    shell = None if package is None else package.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def render_figure(figure: Any, form: str) -> bytes:
    """Return the figure as the bytes of an image file."""
    file = io.BytesIO()
    figure.savefig(file, format=form)
    return file.getvalue()

"""Plot values against the step while a loop runs, in an image file or a notebook cell.

`log` copies the values on the device. The delivery thread fetches those that are ready and draws
them; the end of the `with` block draws the last plot itself. A step enqueues a drawing if none is
waiting and the last one was long enough ago; each drawing shows all values fetched so far.

The delivery thread never waits for the device here: the values may come from a program that is
itself waiting for that thread.
"""

from __future__ import annotations

import collections
import importlib
import io
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._delivery.worker import worker
from logax._schedule import Schedule
from logax._support.arrays import shape_name
from logax._support.figures import Series, draw_figure, empty_figure
from logax._support.files import check_writable, open_atomic, validate_path
from logax._support.imports import import_optional
from logax._support.messages import (
    add_note,
    describe_error,
    describe_value,
    note_or_warn,
    warn_user,
)
from logax._support.processes import reset_after_fork
from logax._support.validation import validate_seconds
from logax.loop._pytrees import copy_tree, is_ready, leaves_with_names, start_host_transfer
from logax.loop.protocol import ScheduledLogger, validate_view

MAX_PANELS = 8
MAX_DRAWING_SHARE = 0.1  # fraction of the time
MAX_PENDING_STEPS = 256  # whose values wait on the device before they are fetched


class PlotLogger(ScheduledLogger):
    """Plot values against the step while the loop runs, in a notebook or to a file.

        with PlotLogger(lambda state: {"energy": state.energy}, EveryNStep(10)) as logger:
            ...

    The plot has one panel per name. An array with one axis is drawn as one thin line per element.
    Values that are not finite leave gaps. The logger keeps all values in memory; the plot of a long
    run shows the minimum and maximum of each short interval of steps.

    In a notebook, the plot appears below the cell and is updated in place. Elsewhere, or with
    `path`, it is a file, replaced atomically. The end of the block draws the final plot, also if
    the loop failed. `log` does not wait for the device. A drawing that fails is a warning; if the
    final one fails, that is an error.

    Args:
      view: Function from the state to the values to plot: a dictionary of real numbers and arrays
        with one axis, or any pytree of them; at most 8 names.
      schedule: Steps to plot: a schedule, or a number n for every n-th step.
      path: Image file; by default "plot.png", except in a notebook. The suffix chooses the format,
        such as `.png`, `.svg` or `.pdf`. The folder must exist.
      log_scale: Name or names with a logarithmic axis, where values of 0 and less leave gaps.
      seconds_between: Minimum number of seconds between drawings, which take at most a tenth of the
        time.

    Raises:
      ImportError: If Matplotlib is missing.
      ValueError: If an option is invalid.
    """

    def __init__(
        self,
        view: Callable[[Any], Tree],
        schedule: int | Schedule,
        path: str | os.PathLike[str] | None = None,
        *,
        log_scale: str | Iterable[str] = (),
        seconds_between: float = 2.0,
    ) -> None:
        import_optional("matplotlib", "PlotLogger", "matplotlib")
        super().__init__(schedule)
        self._view = validate_view("PlotLogger", view)
        self._log_scale = _validate_names(log_scale)
        self._interval_seconds = validate_seconds("PlotLogger", "seconds_between", seconds_between)
        self._path = None if path is None else validate_path("PlotLogger", "path", path)
        self._plot: _LivePlot  # of one run
        self._lanes: dict[str, int | None] = {}

    def _begin(self) -> None:
        self._lanes = {}
        shell = notebook_shell() if self._path is None else None
        place = FigureFile(self._path or "plot.png") if shell is None else NotebookCell()
        self._plot = _LivePlot(place, self._log_scale, self._interval_seconds)
        place.begin()

    def _take(self, state: Any, step: int) -> None:
        warning = self._plot.take_warning()
        if warning is not None:
            warn_user(warning)
        found = [(name or "value", leaf) for name, leaf in leaves_with_names(self._view(state))]
        names, leaves = [name for name, _ in found], [leaf for _, leaf in found]
        self._check(names, leaves)
        self._plot.add(step, names, start_host_transfer(copy_tree(leaves)))

    def _check(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        """Raise if the values of a step cannot be plotted."""
        for name, leaf in zip(names, leaves, strict=True):
            lanes = _count_lines(name, leaf)
            if self._lanes.setdefault(name, lanes) != lanes:
                before, now = (
                    "one number" if n is None else f"an array of {n}"
                    for n in (self._lanes[name], lanes)
                )
                raise ValueError(
                    f"`PlotLogger` takes `{name}` in the same shape at each step: it was {before} "
                    f"before and is {now} now."
                )
        if len(self._lanes) > MAX_PANELS:
            raise ValueError(
                f"`PlotLogger` has room for {MAX_PANELS} panels, and its view gave "
                f"{len(self._lanes)} names: {', '.join(self._lanes)}. Choose some of them in the "
                "view, put related ones into one array, or make a second logger with another "
                "`path`."
            )
        unknown = [name for name in self._log_scale if name not in self._lanes]
        if unknown:
            raise ValueError(
                f"`PlotLogger` got `{unknown[0]}` in `log_scale`, and its view gives "
                f"{', '.join(f'`{name}`' for name in self._lanes) or 'nothing'}."
            )

    def _end(self, error: BaseException | None) -> None:
        try:
            self._plot.end()
        except Exception as failure:
            message = f"`PlotLogger` could not draw its last plot{self._plot.where}."
            if error is None:
                add_note(failure, message)
                raise
            note_or_warn(error, f"{message} {describe_error(failure)}")
            return
        warning = self._plot.take_warning()
        if warning is not None:
            note_or_warn(error, warning)


class _LivePlot:
    """Values of one run, and the thread-safe drawing of them."""

    def __init__(
        self, place: FigureFile | NotebookCell, log_scale: Sequence[str], interval_seconds: float
    ) -> None:
        self._place, self._log_scale, self._interval_seconds = place, log_scale, interval_seconds
        self.where = place.where
        self._pending: collections.deque[tuple[int, Sequence[str], list[Any]]] = collections.deque()
        self._series: dict[str, Series] = {}
        self._ended = False
        self._has_new_values = False  # not drawn yet
        self._next = 0.0  # earliest time of the next drawing
        self._max_pending = MAX_PENDING_STEPS
        self._failure: str | None = None
        self._has_warned = False
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        self._drawing_lock = threading.Lock()
        self._is_enqueued = False

    def add(self, step: int, names: Sequence[str], leaves: list[Any]) -> None:
        """Add the values of a step, and enqueue a drawing if one is due."""
        self._pending.append((step, names, leaves))
        if self._is_enqueued:
            return
        if len(self._pending) >= self._max_pending or time.monotonic() >= self._next:
            self._is_enqueued = True
            worker.put(0, self._draw_if_due, waits=False)

    def take_warning(self) -> str | None:
        """Return the warning about the first failure, once; else None."""
        if self._has_warned or self._failure is None:
            return None
        self._has_warned = True
        return f"`PlotLogger` {self._failure} The run continues, and so do the drawings."

    def end(self) -> None:
        """Draw the final plot in this thread, which must wait for it anyway."""
        with self._drawing_lock:
            self._ended = True
            self._collect(waits=True)
            self._draw()

    def _draw_if_due(self) -> None:
        """Fetch the values that are ready, and draw them if a drawing is due."""
        if not self._drawing_lock.acquire(blocking=False):
            return  # `end` is drawing the final plot
        try:
            if not self._ended:
                self._collect(waits=False)
                if self._has_new_values and time.monotonic() >= self._next:
                    self._draw()
        except Exception as error:  # noqa: BLE001 - reported in the thread of the loop
            self._failure = self._failure or f"could not draw{self.where}: {describe_error(error)}"
        finally:
            self._is_enqueued = False
            self._drawing_lock.release()

    def _collect(self, waits: bool) -> None:
        """Fetch the values that are ready, or wait for all of them."""
        while self._pending and (waits or is_ready(self._pending[0][2])):
            step, names, leaves = self._pending.popleft()
            self._has_new_values = True
            try:
                for name, leaf in zip(names, jax.device_get(leaves), strict=True):
                    lanes = None if np.ndim(leaf) == 0 else len(leaf)
                    self._series.setdefault(name, Series(lanes)).append(step, leaf)
            except Exception as error:  # noqa: BLE001 - reported in the thread of the loop
                self._failure = self._failure or (
                    f"has no values of step {step}: {describe_error(error)}"
                )
        self._max_pending = len(self._pending) + MAX_PENDING_STEPS

    def _draw(self) -> None:
        begin, self._has_new_values = time.monotonic(), False
        try:
            self._place.show(draw_figure(self._series, self._log_scale))
        finally:
            end = time.monotonic()
            self._next = end + max(
                self._interval_seconds, (end - begin) * (1 / MAX_DRAWING_SHARE - 1)
            )


def _count_lines(name: str, leaf: Any) -> int | None:
    """Return the number of lines of a value, None for a scalar; raise if it cannot be plotted."""
    if isinstance(leaf, (bool, int, float)):
        return None
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        if any(jnp.issubdtype(leaf.dtype, kind) for kind in (np.bool_, jnp.integer, jnp.floating)):
            if leaf.ndim <= 1:
                return None if leaf.ndim == 0 else leaf.shape[0]
            got = f"{shape_name(leaf.dtype, leaf.shape)}. Reduce it to one axis in the view"
        else:
            got = f"{shape_name(leaf.dtype, leaf.shape)}. Make real numbers of it in the view"
    else:
        got = f"{describe_value(leaf)}. Leave it out of the view"
    raise TypeError(
        "`PlotLogger` takes real numbers and arrays of them with one axis, and its view gave "
        f"`{name}` as {got}."
    )


def _validate_names(log_scale: Any) -> tuple[str, ...]:
    given = (log_scale,) if isinstance(log_scale, str) else log_scale
    names = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(
            f'`PlotLogger` takes `log_scale` as names, such as `("loss",)`, and got {log_scale!r}.'
        )
    return names


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

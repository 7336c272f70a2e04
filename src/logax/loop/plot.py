"""A live plot of chosen values.

Values are copied on the device and fetched when they are there; the plot is drawn on the thread
that delivers records, the last one where the block is left. A drawing begins when a step is due,
the one before was long enough ago, and none waits. All values since come along with it.

The thread that draws never waits for the device: what it would wait for may be of a program that
waits for that very thread.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._delivery.worker import worker
from logax._schedule import Schedule
from logax._support.arrays import shape_name
from logax._support.figures import Series, figure_of
from logax._support.files import as_path
from logax._support.forks import renew_after_fork
from logax._support.imports import imported
from logax._support.messages import add_note, described, received, tell_at_end, warn_user
from logax._support.validation import in_seconds
from logax.loop._base import EnteredLogger, checked_view
from logax.loop._figure_targets import Cell, File, notebook
from logax.loop._states import copied, in_order, is_there, on_their_way

PANELS = 8
SHARE = 0.1  # of the time that may be spent drawing
MANY = 256  # steps whose values may wait on the device


class PlotLogger(EnteredLogger):
    """Draws values against the step while the loop runs: in a notebook, or into a file.

        with PlotLogger(lambda state: {"energy": state.energy}, EveryNStep(10)) as logger:
            ...

    Each name has a panel. An array with one axis is drawn as a thin line for each element. Values
    that are not finite are gaps. All values are kept, in memory; of long runs the plot shows the
    least and the greatest of each short stretch of steps.

    In a notebook the plot is below the cell and changes in place. Elsewhere, or if `path` is given,
    it is a file, which is whole whenever it is looked at. It is up to date when the block is left,
    also if the loop failed. A drawing that fails is a warning, and an error if it is the last.

    Args:
      view: What to plot of the state: a dictionary of numbers and arrays with one axis, or any
        pytree of them; at most 8 names.
      schedule: When: a schedule, or a number n for every n-th step.
      path: The file; "plot.png" if it is not given and this is no notebook. Its folder must exist.
        Its ending says what it is, such as `.png`, `.svg` or `.pdf`.
      log_scale: The names whose panels have a logarithmic axis, where values of 0 and less are
        gaps.
      seconds_between: At least so many between drawings. They take a tenth of the time at most.

    Raises:
      ImportError: Matplotlib is missing.
      ValueError: An option is wrong.
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
        imported("matplotlib", "PlotLogger", "matplotlib")
        super().__init__(schedule)
        self._view = checked_view("PlotLogger", view)
        self._log_scale = _names(log_scale)
        self._between = in_seconds("PlotLogger", "seconds_between", seconds_between)
        self._path = None if path is None else as_path("PlotLogger", "path", path)
        self._plot: _Plot  # of one run
        self._lanes: dict[str, int | None] = {}

    def _begin(self) -> None:
        self._lanes = {}
        shell = notebook() if self._path is None else None
        place = File(self._path or "plot.png") if shell is None else Cell()
        self._plot = _Plot(place, self._log_scale, self._between)
        place.begin()

    def _take(self, state: Any, step: int) -> None:
        trouble = self._plot.trouble()
        if trouble is not None:
            warn_user(trouble)
        found = [(name or "value", leaf) for name, leaf in in_order(self._view(state))]
        names, leaves = [name for name, _ in found], [leaf for _, leaf in found]
        self._check(names, leaves)
        self._plot.add(step, names, on_their_way(copied(leaves)))

    def _check(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        """Raise an error that teaches where something cannot be plotted."""
        for name, leaf in zip(names, leaves, strict=True):
            lanes = _lanes_of(name, leaf)
            if self._lanes.setdefault(name, lanes) != lanes:
                before, now = (
                    "one number" if n is None else f"an array of {n}"
                    for n in (self._lanes[name], lanes)
                )
                raise ValueError(
                    f"`PlotLogger` takes `{name}` in the same shape at each step: it was {before} "
                    f"before and is {now} now."
                )
        if len(self._lanes) > PANELS:
            raise ValueError(
                f"`PlotLogger` has room for {PANELS} panels, and its view gave {len(self._lanes)} "
                f"names: {', '.join(self._lanes)}. Choose some of them in the view, put what "
                "belongs together into one array, or make a second logger with another `path`."
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
            tell_at_end(error, f"{message} {described(failure)}")
            return
        trouble = self._plot.trouble()
        if trouble is not None:
            tell_at_end(error, trouble)


class _Plot:
    """The values of one run, and the drawings of them."""

    def __init__(self, place: File | Cell, log_scale: Sequence[str], between: float) -> None:
        self._place, self._log_scale, self._between = place, log_scale, between
        self.where = place.where
        self._pending: collections.deque[tuple[int, Sequence[str], list[Any]]] = collections.deque()
        self._series: dict[str, Series] = {}
        self._ended = False
        self._fresh = False  # there are values that are not drawn yet
        self._next = 0.0  # not before that time
        self._many = MANY
        self._trouble: str | None = None
        self._told = False
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._waits = False  # a drawing

    def add(self, step: int, names: Sequence[str], leaves: list[Any]) -> None:
        """Take in the values of a step, and have them drawn if it is time."""
        self._pending.append((step, names, leaves))
        if self._waits:
            return
        if len(self._pending) >= self._many or time.monotonic() >= self._next:
            self._waits = True
            worker.put(0, self._work, waits=False)

    def trouble(self) -> str | None:
        """What to warn of, if something failed and was not told."""
        if self._told or self._trouble is None:
            return None
        self._told = True
        return f"`PlotLogger` {self._trouble} The run goes on, and so do the drawings."

    def end(self) -> None:
        """Draw for the last time, here: whoever leaves must wait for it anyway."""
        with self._one_at_a_time:
            self._ended = True
            self._collect(waits=True)
            self._draw()

    def _work(self) -> None:
        """Fetch what is there, and draw it if it is time."""
        if not self._one_at_a_time.acquire(blocking=False):
            return  # the last drawing is on its way
        try:
            if not self._ended:
                self._collect(waits=False)
                if self._fresh and time.monotonic() >= self._next:
                    self._draw()
        except Exception as error:  # noqa: BLE001 - told in the thread of the loop
            self._trouble = self._trouble or f"could not draw{self.where}: {described(error)}"
        finally:
            self._waits = False
            self._one_at_a_time.release()

    def _collect(self, waits: bool) -> None:
        """Fetch what is there, or all of it."""
        while self._pending and (waits or is_there(self._pending[0][2])):
            step, names, leaves = self._pending.popleft()
            self._fresh = True
            try:
                for name, leaf in zip(names, jax.device_get(leaves), strict=True):
                    lanes = None if np.ndim(leaf) == 0 else len(leaf)
                    self._series.setdefault(name, Series(lanes)).append(step, leaf)
            except Exception as error:  # noqa: BLE001 - told in the thread of the loop
                self._trouble = self._trouble or (
                    f"has no values of step {step}: {described(error)}"
                )
        self._many = len(self._pending) + MANY

    def _draw(self) -> None:
        begin, self._fresh = time.monotonic(), False
        try:
            self._place.show(figure_of(self._series, self._log_scale))
        finally:
            end = time.monotonic()
            self._next = end + max(self._between, (end - begin) * (1 / SHARE - 1))


def _lanes_of(name: str, leaf: Any) -> int | None:
    """How many lines a value is, None for one number; or an error."""
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
        got = f"{received(leaf)}. Leave it out of the view"
    raise TypeError(
        "`PlotLogger` takes real numbers and arrays of them with one axis, and its view gave "
        f"`{name}` as {got}."
    )


def _names(log_scale: Any) -> tuple[str, ...]:
    given = (log_scale,) if isinstance(log_scale, str) else log_scale
    names = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(
            f'`PlotLogger` takes `log_scale` as names, such as `("loss",)`, and got {log_scale!r}.'
        )
    return names

"""Draw values against the step.

A `Series` keeps all values compactly; only the drawing downsamples them. Figures are created
without pyplot, which has global state and must not be used from several threads.
"""

from __future__ import annotations

import array
import importlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

MAX_POINTS_PER_LINE = 2000  # approximately; more are indistinguishable
WIDTH_INCHES = 8.0
PANEL_HEIGHT_INCHES = 2.0
AXIS_HEIGHT_INCHES = 0.5
MAX_PLOT_VALUE = 1e300  # beyond it, distances overflow as Matplotlib computes axis limits
MAX_MARKED_POINTS = 50  # lines with more points have no markers

Numbers = np.ndarray[Any, Any]


class Series:
    """All values of one name so far.

    Args:
      lanes: Number of values per step, or None for one number per step.
    """

    def __init__(self, lanes: int | None) -> None:
        self.lanes = lanes
        self._steps = array.array("q")
        self._values = array.array("d")

    def append(self, step: int, value: Any) -> None:
        """Add the value of a step: a number, or one number per lane."""
        numbers = np.asarray(value).astype(np.float64)
        self._steps.append(step)
        self._values.frombytes(numbers.tobytes())

    def lines(self) -> list[tuple[Numbers, Numbers]]:
        """Return the steps and values of each line."""
        steps = np.array(self._steps)
        values = np.array(self._values).reshape(len(steps), 1 if self.lanes is None else self.lanes)
        return [(steps, column) for column in values.T]


def downsample(
    steps: Numbers, values: Numbers, points: int = MAX_POINTS_PER_LINE
) -> tuple[Numbers, Numbers]:
    """Return a line of about `points` points that looks the same.

    It keeps the minimum and the maximum of each interval of steps, and the first and last point.
    An interval without finite values stays a gap.
    """
    number = len(steps)
    if number <= points:
        return steps, values
    size = -(-number // (points // 2))
    rows = -(-number // size)
    padded = np.full(rows * size, np.nan)
    padded[:number] = values
    stretches = padded.reshape(rows, size)
    finite = np.isfinite(stretches)
    starts = np.arange(rows) * size
    least = np.where(finite, stretches, np.inf).argmin(axis=1) + starts
    greatest = np.where(finite, stretches, -np.inf).argmax(axis=1) + starts
    kept = np.unique(np.concatenate([[0], least, greatest, [number - 1]]))
    return steps[kept], values[kept]


def empty_figure() -> Any:
    """Return a figure without panels."""
    return draw_figure({})


def draw_figure(series: Mapping[str, Series], log_scale: Collection[str] = ()) -> Any:
    """Return a figure with one panel per name, stacked over a common step axis."""
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(WIDTH_INCHES, PANEL_HEIGHT_INCHES * max(len(series), 1) + AXIS_HEIGHT_INCHES),
        layout="constrained",
    )
    if not series:
        return figure
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (name, one) in zip(panels, series.items(), strict=True):
        # A name is not a formula, even if it contains dollar signs.
        panel.set_title(name, loc="left", fontsize="medium", parse_math=False)
        panel.grid(alpha=0.3)
        _draw(panel, one, name in log_scale)
    locator = importlib.import_module("matplotlib.ticker").MaxNLocator(integer=True)
    panels[-1].xaxis.set_major_locator(locator)
    panels[-1].set_xlabel("step")
    return figure


def _draw(panel: Any, series: Series, logarithmic: bool) -> None:
    lines = series.lines()
    drawn = [np.isfinite(values) & ((values > 0) | (not logarithmic)) for _, values in lines]
    if logarithmic and any(map(np.any, drawn)):  # Matplotlib needs a positive value for it
        panel.set_yscale("log")
    width = 1.5 if series.lanes is None else 0.6
    for (steps, values), is_drawn in zip(lines, drawn, strict=True):
        x, y = downsample(
            steps, np.where(is_drawn, np.clip(values, -MAX_PLOT_VALUE, MAX_PLOT_VALUE), np.nan)
        )
        mark = "." if len(x) <= MAX_MARKED_POINTS else ""
        panel.plot(x, y, color="C0", linewidth=width, marker=mark, markersize=3)
        alone = _isolated_points_mask(y)
        if not mark and alone.any():  # no line segment shows them
            panel.plot(x[alone], y[alone], "C0.", markersize=3)


def _isolated_points_mask(values: Numbers) -> Numbers:
    """Return a mask of the finite values between two gaps."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return np.array(there[1:-1] & ~there[:-2] & ~there[2:])

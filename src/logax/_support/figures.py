"""Series of values against the step, and the figure of them.

A series keeps all values, in few bytes; only what is drawn is thinned. Figures are made without
pyplot, which has a state of its own and must not be used from several threads.
"""

from __future__ import annotations

import array
import importlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

POINTS = 2000  # of a line, about: more cannot be told apart
WIDTH, HEIGHT, MARGIN = 8.0, 2.0, 0.5  # inches: of the figure, of a panel, of the step axis
LARGEST = 1e300  # that axes can be made for: beyond that distances overflow
FEW = 50  # points that are shown one by one

Numbers = np.ndarray[Any, Any]


class Series:
    """All values of one name so far, of one line or of several lanes."""

    def __init__(self, lanes: int | None) -> None:
        self.lanes = lanes
        self._steps = array.array("q")
        self._values = array.array("d")

    def append(self, step: int, value: Any) -> None:
        """Add a number, or a number for each lane."""
        numbers = np.asarray(value).astype(np.float64)
        self._steps.append(step)
        self._values.frombytes(numbers.tobytes())

    def lines(self) -> list[tuple[Numbers, Numbers]]:
        """Steps and values of each line."""
        steps = np.array(self._steps)
        values = np.array(self._values).reshape(len(steps), 1 if self.lanes is None else self.lanes)
        return [(steps, column) for column in values.T]


def thinned(steps: Numbers, values: Numbers, points: int = POINTS) -> tuple[Numbers, Numbers]:
    """A line that looks the same: of stretches of steps the least and the greatest value.

    The first and the last point stay. Values that are not finite stay as gaps where they fill a
    stretch.
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


def blank() -> Any:
    """A figure of nothing."""
    return figure_of({})


def figure_of(series: Mapping[str, Series], log_scale: Collection[str] = ()) -> Any:
    """One panel for each name, one above the other, over the same steps."""
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(WIDTH, HEIGHT * max(len(series), 1) + MARGIN), layout="constrained"
    )
    if not series:
        return figure
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (name, one) in zip(panels, series.items(), strict=True):
        # A name is no formula, whatever signs are in it.
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
    if logarithmic and any(map(np.any, drawn)):  # there is no logarithmic axis of nothing
        panel.set_yscale("log")
    width = 1.5 if series.lanes is None else 0.6
    for (steps, values), is_drawn in zip(lines, drawn, strict=True):
        x, y = thinned(steps, np.where(is_drawn, np.clip(values, -LARGEST, LARGEST), np.nan))
        mark = "." if len(x) <= FEW else ""
        panel.plot(x, y, color="C0", linewidth=width, marker=mark, markersize=3)
        alone = _alone(y)
        if not mark and alone.any():  # no line leads to them
            panel.plot(x[alone], y[alone], "C0.", markersize=3)


def _alone(values: Numbers) -> Numbers:
    """Which values stand between two gaps."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return np.array(there[1:-1] & ~there[:-2] & ~there[2:])

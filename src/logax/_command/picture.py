"""The picture of `logax plot`: one panel for each key, one above the other.

Runs that are drawn together as a band are brought to one x first: where they differ in it, between
the points of each run on a straight line, and not beyond its ends. The line is the mean, the darker
band one standard deviation to each side, the lighter one from the least to the greatest. Numbers
that are not finite are gaps: the legend says how many runs of a band have some, and a line that
ends in them has a cross at its last finite point.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._command.columns import Numbers
from logax._command.lost import Line, is_lost_at_end, number_lost
from logax.loop._drawing import LARGEST, thinned

_COLOURS = (
    "#3b6fb6", "#d9793d", "#4a9a5b", "#b5485d", "#7b62a8", "#8a6d4b", "#c96fa8", "#5f6b76",
    "#a3a033", "#3a9fab",
)  # fmt: skip
_WIDTH, _HEIGHT = 8.0, 3.0  # inches: of the picture, and of a panel
_ALONE = 4.5  # the height of a panel alone
_POINTS = 1000  # along a band
_GREY, _DARK = "#d5d8dc", "#30363d"
_MOST_LABELS = 12
_LONGEST = 40


class Curves(NamedTuple):
    """What is drawn together: one line each, or one band of all."""

    label: str
    lines: Sequence[Line]
    axis: str
    is_band: bool


def figure_of(panels: Mapping[str, Sequence[Curves]], title: str, logarithmic: bool) -> Any:
    """The whole picture."""
    high = _ALONE if len(panels) == 1 else _HEIGHT * len(panels)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(_WIDTH, high), layout="constrained", facecolor="white"
    )
    if title:
        figure.suptitle(_cut(title), fontsize=12, color=_DARK, parse_math=False, fontweight="bold")
    alike = len({curves.axis for each in panels.values() for curves in each}) == 1
    places = figure.subplots(len(panels), 1, sharex=alike, squeeze=False)[:, 0]
    colours = _colours(panels)
    for at, (place, (key, curves)) in enumerate(zip(places, panels.items(), strict=True)):
        _panel(place, key, curves, colours, logarithmic)
        if not alike or at == len(panels) - 1:
            place.set_xlabel(_cut(curves[0].axis), color=_DARK, parse_math=False)
    figure.align_ylabels()
    return figure


def _colours(panels: Mapping[str, Sequence[Curves]]) -> dict[str, str]:
    """The colour of each band and line, the same in all panels."""
    every = [curves for each in panels.values() for curves in each]
    names = [[x.label] if x.is_band else [line.label for line in x.lines] for x in every]
    unique = dict.fromkeys(name for each in names for name in each)
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(unique)}


def _panel(
    place: Any, key: str, curves: Sequence[Curves], colours: Mapping[str, str], logarithmic: bool
) -> None:
    place.set_ylabel(_cut(key), color=_DARK, parse_math=False)
    place.grid(color=_GREY, linewidth=0.6)
    place.set_axisbelow(True)
    place.tick_params(which="both", color=_GREY, labelcolor=_DARK, labelsize=9)
    for side, spine in place.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_GREY)
    drawn = []
    for each in curves:
        if each.is_band:
            drawn.append(_band(place, each, colours[each.label], logarithmic, len(curves) == 1))
        else:
            drawn += [_line(place, x, colours[x.label], logarithmic) for x in each.lines]
    if logarithmic and any(drawn):
        place.set_yscale("log")
    place.margins(x=0.01)
    if len(drawn) > 1 or any(each.is_band for each in curves):
        handles, labels = place.get_legend_handles_labels()
        legend = place.legend(
            handles[:_MOST_LABELS], labels[:_MOST_LABELS], frameon=False, fontsize=9
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
            text.set_color(_DARK)


def _line(place: Any, line: Line, colour: str, logarithmic: bool) -> bool:
    """Draw a run; whether there was something to draw."""
    y = _drawable(line.y, logarithmic)
    if is_lost_at_end(line) and np.isfinite(y).any():
        end = np.flatnonzero(np.isfinite(y))[-1]
        place.plot(
            line.x[end], y[end], "x", color=colour, markersize=9, markeredgewidth=2.2,
            label="_nolegend_",
        )  # fmt: skip
    x, y = thinned(line.x, y)
    marker = "o" if np.isfinite(y).sum() <= 25 else ""
    place.plot(
        x, y, color=colour, linewidth=1.6, marker=marker, markersize=3.5, label=_label(line.label)
    )
    return bool(np.isfinite(y).any())


def _band(place: Any, curves: Curves, colour: str, logarithmic: bool, is_alone: bool) -> bool:
    """Draw the mean of runs, and how far they spread; if it is alone, with a key to both bands."""
    x, rows = together(curves.lines)
    rows = _drawable(rows, logarithmic)
    finite = np.isfinite(rows)
    there = finite.any(axis=0)
    if not there.any():
        return False
    x, rows, finite = x[there], rows[:, there], finite[:, there]
    mean = rows.mean(axis=0, where=finite)
    spread = rows.std(axis=0, where=finite)
    low = rows.min(axis=0, where=finite, initial=np.inf)
    high = rows.max(axis=0, where=finite, initial=-np.inf)
    below = np.maximum(mean - spread, low)  # never less than what there was: an axis may be of logs
    above = np.minimum(mean + spread, high)
    whose = "" if is_alone else f"{curves.label}, "
    lost = number_lost(curves.lines)
    label = _label(f"{whose}mean of {len(rows)}" + (f" ({lost} not finite)" if lost else ""))
    place.plot(x, mean, color=colour, linewidth=1.9, label=label)
    for least, most, alpha, what in (
        (below, above, 0.25, "one standard deviation"),
        (low, high, 0.12, "least to greatest"),
    ):
        shown = what if is_alone else "_nolegend_"
        place.fill_between(x, least, most, color=colour, alpha=alpha, linewidth=0, label=shown)
    return True


def together(lines: Sequence[Line]) -> tuple[Numbers, Numbers]:
    """All lines over one x."""
    known = [line.x[np.isfinite(line.x)] for line in lines]
    same = all(len(x) == len(known[0]) and (x == known[0]).all() for x in known)
    if same and len(known[0]) <= 4 * _POINTS and (np.diff(known[0]) > 0).all():
        return known[0], np.stack([line.y[np.isfinite(line.x)] for line in lines])
    x = np.unique(np.concatenate(known))
    if len(x) > _POINTS:
        x = np.linspace(x[0], x[-1], _POINTS)
    return x, np.stack([_between(line, x) for line in lines])


def _between(line: Line, x: Numbers) -> Numbers:
    """A line at other x; nothing beyond its ends, and in gaps."""
    known = np.isfinite(line.x)
    own, y = line.x[known], line.y[known]
    own, last = np.unique(own[::-1], return_index=True)  # where steps come twice, the later one
    y = y[::-1][last]
    if not len(own):
        return np.full(len(x), np.nan)
    return np.interp(x, own, y, left=np.nan, right=np.nan)


def _drawable(y: Numbers, logarithmic: bool) -> Numbers:
    fits = np.isfinite(y) & ((y > 0) | (not logarithmic))
    return np.where(fits, np.clip(y, -LARGEST, LARGEST), np.nan)


def _label(text: str) -> str:
    """The name of a line. One that begins with `_` would be left out."""
    text = _cut(text, 60)
    return f"\u200b{text}" if text.startswith("_") else text


def _cut(text: str, longest: int = _LONGEST) -> str:
    """A name that fits, without what no font has."""
    shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."

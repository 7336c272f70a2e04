"""Which curves are not finite somewhere: what a picture leaves out is said.

The picture of `logax plot`: one panel for each key, one above the other.

Runs that are drawn together as a band are brought to one x first: where they differ in it, between
the points of each run on a straight line, and not beyond its ends. The line is the mean, the darker
band one standard deviation to each side, the lighter one from the least to the greatest. Numbers
that are not finite are gaps: the legend says how many runs of a band have some, and a line that
ends in them has a cross at its last finite point.

`logax plot`: curves of runs as a picture.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from logax._cli.columns import Column, Numbers, columns_of, in_one_row
from logax._cli.export import check_free, write_whole
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    Wanted,
    add_command,
    add_path,
    opened,
    several,
)
from logax._cli.terminal import number, safe
from logax._runs.run import Run
from logax._support.figures import LARGEST, thinned
from logax._support.imports import imported


class Line(NamedTuple):
    """One run, or one lane of it. Where there is no record, x is NaN."""

    label: str
    x: Numbers
    y: Numbers


def number_lost(lines: Sequence[Line]) -> int:
    """How many lines have numbers that are not finite."""
    return sum(bool(_lost(line).size) for line in lines)


def is_lost_at_end(line: Line) -> bool:
    """Whether the last record of a line is not finite."""
    own = line.y[np.isfinite(line.x)]
    return bool(own.size) and not np.isfinite(own[-1])


def said_of_lost(
    key: str, label: str, lines: Sequence[Line], axis: str, is_band: bool
) -> str | None:
    """The sentence that tells of them; None where all is finite."""
    lost = [_lost(line) for line in lines]
    some = [x for x in lost if x.size]
    if not some:
        return None
    first = number(min(float(x.min()) for x in some))
    many = f" in {len(some)} of {len(lines)}" if len(lines) > 1 else ""
    out = ": the mean and the bands are without them there" if is_band else ""
    where = f"first at {safe(axis)} {first}"
    return f"{safe(key)!r} of {safe(label)} is not finite{many}, {where}{out}."


def _lost(line: Line) -> Numbers:
    """The x of the records that are not finite."""
    found: Numbers = line.x[np.isfinite(line.x) & ~np.isfinite(line.y)]
    return found


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


_EXAMPLE = """\
  logax plot last loss -o loss.png
  logax plot sweep loss accuracy -o sweep.svg --log
  logax plot baseline loss --with wider --with 'lr-*' -o three.pdf"""
_ENDINGS = (".png", ".svg", ".pdf")
_FEW = 5  # runs of a kind that are drawn one by one
_PANELS = 16


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "plot", "draw curves of runs into a picture", _EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUNS_HELP)
    parser.add_argument("keys", nargs="+", metavar="KEY", help="what to draw: names or globs")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="png, svg or pdf")
    parser.add_argument(
        "--with",
        action="append",
        default=[],
        metavar="RUN",
        dest="others",
        help="more runs, in a colour of their own; may be given several times",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--band",
        action="store_true",
        help=f"the mean of the runs and how far they spread; done for more than {_FEW} anyway",
    )
    how.add_argument("--lines", action="store_true", help="every run by itself, however many")
    parser.add_argument("--log", action="store_true", help="a logarithmic axis of values")
    parser.add_argument("--x", metavar="STEP", help="the step for the other axis")
    parser.add_argument("--title", help="what stands above; the name of the run if not given")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    add_path(parser)
    return parser


def run(options: Any) -> int:
    """Write the picture."""
    ending = os.path.splitext(options.output)[1].lower()
    if ending not in _ENDINGS:
        raise CommandError(
            f"the ending of {safe(options.output, 200)} says nothing: end it in .png, .svg or .pdf."
        )
    imported("matplotlib", "logax plot", "matplotlib")
    check_free(options.output, options.force)
    runs = opened(options.path)
    found = _Panels(options)
    for text in dict.fromkeys([options.name, *options.others]):
        found.add(text, several(runs, text))
    found.wanted.check()
    panels = found.curves
    if len(panels) > _PANELS:
        raise CommandError(
            f"{len(panels)} keys are too many for one picture: choose {_PANELS} or less."
        )
    title = _title(options, runs) if options.title is None else options.title
    figure = figure_of(panels, title, options.log)
    file = io.BytesIO()
    figure.savefig(file, format=ending[1:], dpi=150)
    write_whole("logax plot", options.output, file.getvalue())
    _tell_of_lost(panels)
    return 0


def _tell_of_lost(panels: Mapping[str, Sequence[Curves]]) -> None:
    for key, each in panels.items():
        for curves in each:
            said = said_of_lost(key, *curves)
            if said:
                sys.stderr.write(f"logax plot: {said}\n")


def _title(options: Any, runs: Any) -> str:
    if options.others:
        return ""
    found = several(runs, options.name)
    if len(found) == 1:
        return found[0].name
    called = "" if options.name in ("last", "all") else f"{options.name}: "
    return f"{called}{len(found)} runs"


class _Panels:
    """Curves by key."""

    def __init__(self, options: Any) -> None:
        self.curves: dict[str, list[Curves]] = {}
        self._options = options
        self.wanted = Wanted(columns_of)

    def add(self, text: str, runs: Sequence[Run]) -> None:
        """Add the curves of some runs, which are drawn together if they are many."""
        options = self._options
        found: dict[str, list[Line]] = {}
        axes: dict[str, str] = {}
        for key in options.keys:
            for run in runs:
                for column in self.wanted.of(run, key):
                    name, lines = _lines_of(column, run, options.x)
                    found.setdefault(column.name, []).extend(lines)
                    axes.setdefault(column.name, name)
        label = text if len(runs) > 1 else runs[0].name
        for key, lines in found.items():
            many = options.band or (not options.lines and len(lines) > _FEW)
            curves = Curves(label, lines, axes[key], many and len(lines) > 1)
            self.curves.setdefault(key, []).append(curves)


def _lines_of(column: Column, run: Run, step: str | None) -> tuple[str, list[Line]]:
    """A line for each lane of a run."""
    if step is not None and step not in column.steps:
        names = ", ".join(map(safe, column.steps)) or "none"
        raise CommandError(
            f"{safe(column.name)!r} of run {safe(run.name)} has no step {safe(step)!r}: there is "
            f"{names}."
        )
    numbers = column.numbers()
    if numbers is None:
        raise CommandError(
            f"{safe(column.name)!r} is {column.kind}, and no curve can be drawn of it."
        )
    name, x = column.axis(step)
    rows = zip(*(in_one_row(each, x.ndim - 1) for each in (x, numbers)), strict=True)
    return name, [Line(run.name, *pair) for pair in rows]

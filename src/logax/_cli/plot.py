"""`logax plot`: draw curves of runs into a figure with one panel per key.

The runs of a band are interpolated linearly to common x values first, and not extrapolated. The
line of a band is the mean, the darker area is one standard deviation, and the lighter area reaches
from minimum to maximum. Numbers that are not finite are gaps: the legend counts the runs of a band
that have such numbers, a curve that ends in them has a cross at its last finite point, and the
standard error reports the first of them.
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

from logax._cli.columns import Array, LoggedColumn, flatten_lanes, read_columns
from logax._cli.export import check_target, write_file
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    KeySelection,
    add_path_option,
    find_runs,
    open_runs,
)
from logax._cli.terminal import escape
from logax._runs.run import Run
from logax._support.figures import MAX_PLOT_VALUE, downsample
from logax._support.formatting import format_number, truncate
from logax._support.imports import import_optional


class Curve(NamedTuple):
    """Curve of one run or lane. Where there is no record, x is NaN."""

    label: str
    x: Array
    y: Array


def count_nonfinite_curves(lines: Sequence[Curve]) -> int:
    """Return the number of curves with numbers that are not finite."""
    return sum(bool(_nonfinite_x(line).size) for line in lines)


def ends_nonfinite(line: Curve) -> bool:
    """Return True if the last record of a curve is not finite."""
    own = line.y[np.isfinite(line.x)]
    return bool(own.size) and not np.isfinite(own[-1])


def describe_nonfinite(
    key: str, label: str, lines: Sequence[Curve], axis: str, is_band: bool
) -> str | None:
    """Return a sentence about numbers that are not finite; None if all are finite."""
    lost = [_nonfinite_x(line) for line in lines]
    some = [x for x in lost if x.size]
    if not some:
        return None
    first = format_number(min(float(x.min()) for x in some))
    many = f" in {len(some)} of {len(lines)}" if len(lines) > 1 else ""
    out = ": the mean and the bands are without them there" if is_band else ""
    where = f"first at {escape(axis)} {first}"
    return f"{escape(key)!r} of {escape(label)} is not finite{many}, {where}{out}."


def _nonfinite_x(line: Curve) -> Array:
    """Return the x of the records that are not finite."""
    found: Array = line.x[np.isfinite(line.x) & ~np.isfinite(line.y)]
    return found


_COLOURS = (
    "#3b6fb6", "#d9793d", "#4a9a5b", "#b5485d", "#7b62a8", "#8a6d4b", "#c96fa8", "#5f6b76",
    "#a3a033", "#3a9fab",
)  # fmt: skip
_WIDTH_INCHES = 8.0
_PANEL_HEIGHT_INCHES = 3.0
_SINGLE_PANEL_HEIGHT_INCHES = 4.5
_MAX_BAND_POINTS = 1000
_GREY, _DARK = "#d5d8dc", "#30363d"
_MAX_LABELS = 12  # in a legend
_MAX_TITLE_CHARS = 40


class CurveGroup(NamedTuple):
    """Curves that share a label: drawn one by one, or as one band."""

    label: str
    lines: Sequence[Curve]
    axis: str
    is_band: bool


def figure_of(panels: Mapping[str, Sequence[CurveGroup]], title: str, logarithmic: bool) -> Any:
    """Return the figure."""
    high = _SINGLE_PANEL_HEIGHT_INCHES if len(panels) == 1 else _PANEL_HEIGHT_INCHES * len(panels)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(_WIDTH_INCHES, high), layout="constrained", facecolor="white"
    )
    if title:
        figure.suptitle(
            _fit_text(title), fontsize=12, color=_DARK, parse_math=False, fontweight="bold"
        )
    alike = len({curves.axis for each in panels.values() for curves in each}) == 1
    places = figure.subplots(len(panels), 1, sharex=alike, squeeze=False)[:, 0]
    colours = _colours(panels)
    for at, (place, (key, curves)) in enumerate(zip(places, panels.items(), strict=True)):
        _draw_panel(place, key, curves, colours, logarithmic)
        if not alike or at == len(panels) - 1:
            place.set_xlabel(_fit_text(curves[0].axis), color=_DARK, parse_math=False)
    figure.align_ylabels()
    return figure


def _colours(panels: Mapping[str, Sequence[CurveGroup]]) -> dict[str, str]:
    """Return the colour of each band and curve, the same in all panels."""
    every = [curves for each in panels.values() for curves in each]
    names = [[x.label] if x.is_band else [line.label for line in x.lines] for x in every]
    unique = dict.fromkeys(name for each in names for name in each)
    return {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(unique)}


def _draw_panel(
    place: Any,
    key: str,
    curves: Sequence[CurveGroup],
    colours: Mapping[str, str],
    logarithmic: bool,
) -> None:
    place.set_ylabel(_fit_text(key), color=_DARK, parse_math=False)
    place.grid(color=_GREY, linewidth=0.6)
    place.set_axisbelow(True)
    place.tick_params(which="both", color=_GREY, labelcolor=_DARK, labelsize=9)
    for side, spine in place.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_GREY)
    drawn = []
    for each in curves:
        if each.is_band:
            drawn.append(
                _draw_band(place, each, colours[each.label], logarithmic, len(curves) == 1)
            )
        else:
            drawn += [_draw_curve(place, x, colours[x.label], logarithmic) for x in each.lines]
    if logarithmic and any(drawn):
        place.set_yscale("log")
    place.margins(x=0.01)
    if len(drawn) > 1 or any(each.is_band for each in curves):
        handles, labels = place.get_legend_handles_labels()
        legend = place.legend(
            handles[:_MAX_LABELS], labels[:_MAX_LABELS], frameon=False, fontsize=9
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
            text.set_color(_DARK)


def _draw_curve(place: Any, line: Curve, colour: str, logarithmic: bool) -> bool:
    """Draw a curve; return True if it has points."""
    y = _mask_undrawable(line.y, logarithmic)
    if ends_nonfinite(line) and np.isfinite(y).any():
        end = np.flatnonzero(np.isfinite(y))[-1]
        place.plot(
            line.x[end], y[end], "x", color=colour, markersize=9, markeredgewidth=2.2,
            label="_nolegend_",
        )  # fmt: skip
    x, y = downsample(line.x, y)
    marker = "o" if np.isfinite(y).sum() <= 25 else ""
    place.plot(
        x, y, color=colour, linewidth=1.6, marker=marker, markersize=3.5, label=_label(line.label)
    )
    return bool(np.isfinite(y).any())


def _draw_band(
    place: Any, curves: CurveGroup, colour: str, logarithmic: bool, is_alone: bool
) -> bool:
    """Draw the mean and spread of runs; a single band explains its areas in the legend."""
    x, rows = align_curves(curves.lines)
    rows = _mask_undrawable(rows, logarithmic)
    finite = np.isfinite(rows)
    there = finite.any(axis=0)
    if not there.any():
        return False
    x, rows, finite = x[there], rows[:, there], finite[:, there]
    mean = rows.mean(axis=0, where=finite)
    spread = rows.std(axis=0, where=finite)
    low = rows.min(axis=0, where=finite, initial=np.inf)
    high = rows.max(axis=0, where=finite, initial=-np.inf)
    below = np.maximum(mean - spread, low)  # stays positive on a logarithmic axis
    above = np.minimum(mean + spread, high)
    whose = "" if is_alone else f"{curves.label}, "
    lost = count_nonfinite_curves(curves.lines)
    label = _label(f"{whose}mean of {len(rows)}" + (f" ({lost} not finite)" if lost else ""))
    place.plot(x, mean, color=colour, linewidth=1.9, label=label)
    for bottom, top, alpha, what in (
        (below, above, 0.25, "one standard deviation"),
        (low, high, 0.12, "minimum to maximum"),
    ):
        shown = what if is_alone else "_nolegend_"
        place.fill_between(x, bottom, top, color=colour, alpha=alpha, linewidth=0, label=shown)
    return True


def align_curves(lines: Sequence[Curve]) -> tuple[Array, Array]:
    """Return common x values, and the y values of each curve at these."""
    known = [line.x[np.isfinite(line.x)] for line in lines]
    same = all(len(x) == len(known[0]) and (x == known[0]).all() for x in known)
    if same and len(known[0]) <= 4 * _MAX_BAND_POINTS and (np.diff(known[0]) > 0).all():
        return known[0], np.stack([line.y[np.isfinite(line.x)] for line in lines])
    x = np.unique(np.concatenate(known))
    if len(x) > _MAX_BAND_POINTS:
        x = np.linspace(x[0], x[-1], _MAX_BAND_POINTS)
    return x, np.stack([_interpolate(line, x) for line in lines])


def _interpolate(line: Curve, x: Array) -> Array:
    """Interpolate a curve; NaN beyond its ends and in gaps."""
    known = np.isfinite(line.x)
    own, y = line.x[known], line.y[known]
    own, last = np.unique(own[::-1], return_index=True)  # of equal steps the last one
    y = y[::-1][last]
    if not len(own):
        return np.full(len(x), np.nan)
    return np.interp(x, own, y, left=np.nan, right=np.nan)


def _mask_undrawable(y: Array, logarithmic: bool) -> Array:
    fits = np.isfinite(y) & ((y > 0) | (not logarithmic))
    return np.where(fits, np.clip(y, -MAX_PLOT_VALUE, MAX_PLOT_VALUE), np.nan)


def _label(text: str) -> str:
    """Return a label that matplotlib shows: it hides those that begin with `_`."""
    text = _fit_text(text, 60)
    return f"\u200b{text}" if text.startswith("_") else text


def _fit_text(text: str, max_chars: int = _MAX_TITLE_CHARS) -> str:
    """Escape characters that no font has, and truncate a name."""
    shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return truncate(shown, max_chars)


EXAMPLE = """\
  logax plot last loss -o loss.png
  logax plot sweep loss accuracy -o sweep.svg --log
  logax plot baseline loss --with wider --with 'lr-*' -o three.pdf"""
_EXTENSIONS = (".png", ".svg", ".pdf")
_MAX_SEPARATE_CURVES = 5  # more are drawn as a band
_MAX_PANELS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="RUN", help=RUNS_HELP)
    parser.add_argument("keys", nargs="+", metavar="KEY", help="keys to draw: names or globs")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file to write: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--with",
        action="append",
        default=[],
        metavar="RUN",
        dest="others",
        help="more runs, in another colour; may be repeated",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--band",
        action="store_true",
        help=f"draw mean and spread of the runs; the default for more than {_MAX_SEPARATE_CURVES}",
    )
    how.add_argument("--lines", action="store_true", help="draw every run as a separate curve")
    parser.add_argument("--log", action="store_true", help="use a logarithmic y-axis")
    parser.add_argument("--x", metavar="STEP", help="name of the step for the x-axis")
    parser.add_argument("--title", help="title of the figure (default: name of the run)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_path_option(parser)


def run(options: Any) -> int:
    """Write the figure."""
    ending = os.path.splitext(options.output)[1].lower()
    if ending not in _EXTENSIONS:
        raise CommandError(
            f"the format of {escape(options.output, 200)} is unknown: end it in .png, .svg or .pdf."
        )
    import_optional("matplotlib", "logax plot", "matplotlib")
    check_target(options.output, options.force)
    runs = open_runs(options.path)
    found = _Panels(options)
    for text in dict.fromkeys([options.name, *options.others]):
        found.add(text, find_runs(runs, text))
    found.selection.check_found()
    panels = found.curves
    if len(panels) > _MAX_PANELS:
        raise CommandError(
            f"{len(panels)} keys are too many for one figure: choose {_MAX_PANELS} or fewer."
        )
    title = _title(options, runs) if options.title is None else options.title
    figure = figure_of(panels, title, options.log)
    file = io.BytesIO()
    figure.savefig(file, format=ending[1:], dpi=150)
    write_file("logax plot", options.output, file.getvalue())
    _report_nonfinite(panels)
    return 0


def _report_nonfinite(panels: Mapping[str, Sequence[CurveGroup]]) -> None:
    for key, each in panels.items():
        for curves in each:
            said = describe_nonfinite(key, *curves)
            if said:
                sys.stderr.write(f"logax plot: {said}\n")


def _title(options: Any, runs: Any) -> str:
    if options.others:
        return ""
    found = find_runs(runs, options.name)
    if len(found) == 1:
        return found[0].name
    called = "" if options.name in ("last", "all") else f"{options.name}: "
    return f"{called}{len(found)} runs"


class _Panels:
    """Collect the curves of each key."""

    def __init__(self, options: Any) -> None:
        self.curves: dict[str, list[CurveGroup]] = {}
        self._options = options
        self.selection = KeySelection(read_columns)

    def add(self, text: str, runs: Sequence[Run]) -> None:
        """Add the curves of some runs, as a band if there are many."""
        options = self._options
        found: dict[str, list[Curve]] = {}
        axes: dict[str, str] = {}
        for key in options.keys:
            for run in runs:
                for column in self.selection.select(run, key):
                    name, lines = _lane_curves(column, run, options.x)
                    found.setdefault(column.name, []).extend(lines)
                    axes.setdefault(column.name, name)
        label = text if len(runs) > 1 else runs[0].name
        for key, lines in found.items():
            many = options.band or (not options.lines and len(lines) > _MAX_SEPARATE_CURVES)
            curves = CurveGroup(label, lines, axes[key], many and len(lines) > 1)
            self.curves.setdefault(key, []).append(curves)


def _lane_curves(column: LoggedColumn, run: Run, step: str | None) -> tuple[str, list[Curve]]:
    """Return the name of the x-axis, and a curve for each lane of a run."""
    if step is not None and step not in column.steps:
        names = ", ".join(map(escape, column.steps)) or "none"
        raise CommandError(
            f"{escape(column.name)!r} of run {escape(run.name)} has no step {escape(step)!r}: "
            f"there is {names}."
        )
    numbers = column.numbers()
    if numbers is None:
        raise CommandError(
            f"{escape(column.name)!r} is {column.kind}, which cannot be drawn as a curve."
        )
    name, x = column.axis(step)
    rows = zip(*(flatten_lanes(each, x.ndim - 1) for each in (x, numbers)), strict=True)
    return name, [Curve(run.name, *pair) for pair in rows]

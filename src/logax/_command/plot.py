"""`logax plot`: curves of runs as a picture."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from logax._command.choice import opened, several
from logax._command.columns import Column, columns_of, in_one_row
from logax._command.errors import CommandError
from logax._command.export import check_free, write_whole
from logax._command.lost import Line, said_of_lost
from logax._command.options import RUNS_HELP, add_command, add_path
from logax._command.page import safe
from logax._command.picture import Curves, figure_of
from logax._command.wanted import Wanted
from logax._extras import imported
from logax._runs.run import Run

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

"""`logax show`: one run, its keys, and curves of them."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from logax._command.choice import one, opened
from logax._command.columns import Column, Numbers, columns_of, in_one_row
from logax._command.drawing import curve
from logax._command.ls import facts_of
from logax._command.options import RUN_HELP, add_command, add_path
from logax._command.page import (
    brief,
    columns,
    exact,
    flat,
    glyphs,
    number,
    safe,
    table,
    width,
    write,
    write_json,
)
from logax._command.summary import Summary, summary_of
from logax._runs.run import Run
from logax._runs.tables import moment, span
from logax.loggers._console.summary import means
from logax.loggers._console.words import sparkline

_EXAMPLE = """\
  logax show last
  logax show baseline loss 'grad/*'
  logax show baseline --path other-runs --json"""
_HEADS = ("key", "records", "last", "min", "max", "nonfinite", "")
_LINE = 16  # columns of a sparkline
_ROWS = 10  # of a curve


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "show", "show a run, its keys, and curves of them", _EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "keys",
        nargs="*",
        default=[],
        metavar="KEY",
        help="what to draw: names or globs; the first if none",
    )
    add_path(parser)
    parser.add_argument("--no-plot", action="store_true", help="draw no curves")
    parser.add_argument("--json", action="store_true", help="print an object in JSON")
    return parser


def run(options: Any) -> int:
    """Write what is known of the run."""
    found = one(opened(options.path), options.name)
    logged = columns_of(found, options.keys)
    summaries = [summary_of(column) for column in logged]
    if options.json:
        write_json(_facts(found, summaries))
        return 0
    _write_head(found)
    if not logged:
        write("", "Nothing is logged yet.")
        return 0
    write("")
    rows = [_row(*pair) for pair in zip(summaries, logged, strict=True)]
    table(_HEADS, rows, ("records", "last", "min", "max", "nonfinite"))
    if not options.no_plot:
        _write_curves(logged, bool(options.keys))
    return 0


def _facts(run: Run, summaries: list[Summary]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for summary in summaries:  # of a key that changed midway the last
        keys[summary.name] = summary.as_json()
    return {**facts_of(run), "config": run.config, "machine": run.machine, "keys": keys}


def _write_head(run: Run) -> None:
    ended, name = run.ended, run.name
    facts = {
        "run": run.id if name == run.id else f"{safe(name, 80)}  ({run.id})",
        "status": run.status,
        "began": moment(run.began),
        "lasted": "" if ended is None else span(ended - run.began),
        "group": safe(run.group or ""),
        "lane": "-".join(map(str, run.lane)),
        "lanes": str(run.lanes or ""),
    }
    facts |= {f"config {safe(key)}": exact(value, 100) for key, value in flat(run.config).items()}
    machine = {key: value for key, value in flat(run.machine).items() if key != "key"}
    facts["machine"] = ", ".join(f"{safe(key)} {brief(value)}" for key, value in machine.items())
    wide = max(width(key) for key in facts)
    write(*(f"{key}{' ' * (wide - width(key))}  {value}" for key, value in facts.items() if value))


def _row(summary: Summary, column: Column) -> list[str]:
    numbers = column.numbers()
    line = "" if numbers is None else sparkline(_over_lanes(numbers), _LINE, glyphs())
    lanes = "x".join(map(str, summary.lanes))
    return [
        safe(summary.name),
        f"{lanes} lanes: {summary.records}" if lanes else str(summary.records),
        summary.last_text,
        "" if summary.low is None else number(summary.low),
        "" if summary.high is None else number(summary.high),
        str(summary.nonfinite) if summary.nonfinite else "",
        line if summary.records > 1 else "",
    ]


def _write_curves(logged: list[Column], are_chosen: bool) -> None:
    for column in logged:
        numbers = column.numbers()
        if numbers is None or (not are_chosen and column.real.sum() < 2):
            continue
        axis, x = column.axis()
        what = _title(column)
        drawn = curve(what, _over_lanes(x), _over_lanes(numbers), axis, columns(), _ROWS, glyphs())
        if drawn:
            write("", *drawn)
        if not are_chosen:
            return


def _title(column: Column) -> str:
    lanes = "mean of lanes" if column.lanes else ""
    elements = f"mean of {column.kind}" if column.shape else ""
    said = ", ".join(text for text in (elements, lanes) if text)
    return f"{column.name} ({said})" if said else column.name


def _over_lanes(numbers: Numbers) -> Numbers:
    """The mean over lanes of what is finite; a single lane as it is."""
    if numbers.ndim == 1:
        return numbers
    rows = in_one_row(numbers, numbers.ndim - 1)
    finite = np.isfinite(rows)
    mean: Numbers = means(rows.sum(axis=0, where=finite), finite.sum(axis=0))
    return mean

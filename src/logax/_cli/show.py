"""A curve in a terminal, in dots of braille, or in stars where there are no such signs.

`logax show`: one run, its keys, and curves of them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from logax._cli.columns import Column, Numbers, Summary, columns_of, in_one_row, summary_of
from logax._cli.ls import facts_of
from logax._cli.options import RUN_HELP, add_command, add_path, one, opened
from logax._cli.terminal import (
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
from logax._runs.run import Run
from logax._runs.tables import moment, span
from logax._support.figures import LARGEST, thinned
from logax._support.formatting import Glyphs, sparkline
from logax._support.summary import means

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a sign of braille
_BRAILLE = 0x2800


def curve(
    title: str, x: Numbers, y: Numbers, axis: str, columns: int, rows: int, signs: Glyphs
) -> list[str]:
    """A curve with its axes, in so many columns and rows, and a few rows more.

    What is not finite is a gap. An empty list where there is nothing to draw.
    """
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any():
        return []
    y = np.where(there, np.clip(y, -LARGEST, LARGEST), np.nan)
    bottom, top = float(y[there].min()), float(y[there].max())
    labels = [number(top), number(bottom)]
    margin = max(map(len, labels)) + 1
    field = max(columns - margin - 2, 10)
    grid = _dots(x, y, there, field * (1 if signs.is_ascii else 2), rows * _dot_rows(signs))
    lines = [safe(title, columns)]
    tick, bar = ("|", "|") if signs.is_ascii else ("┤", "│")
    for at, text in enumerate(_texts(grid, signs)):
        label = labels[0] if at == 0 else labels[1] if at == rows - 1 else ""
        lines.append(f"{label:>{margin}} {tick if label else bar}{text}".rstrip())
    corner, dash = ("+", "-") if signs.is_ascii else ("└", "─")
    lines.append(" " * (margin + 1) + corner + dash * field)
    ends = number(float(x[there].min())), number(float(x[there].max()))
    lines.append(" " * (margin + 2) + _under(ends, safe(axis, 20), field))
    return lines


def _dot_rows(signs: Glyphs) -> int:
    return 1 if signs.is_ascii else 4


def _under(ends: tuple[str, str], axis: str, field: int) -> str:
    left, right = ends
    if left == right:
        return f"{left} ({axis})"
    free = max(field - len(left) - len(right) - width(axis), 2)
    return left + " " * (free // 2) + axis + " " * (free - free // 2) + right


def _dots(x: Numbers, y: Numbers, there: Numbers, wide: int, high: int) -> Numbers:
    """Which dots of a grid a line through the points touches."""
    x, y = thinned(x, np.where(there, y, np.nan), 8 * wide)
    there = np.isfinite(x) & np.isfinite(y)
    across = _placed(x, there, wide)
    down = high - 1 - _placed(y, there, high)
    grid = np.zeros((high, wide), bool)
    grid[down[there], across[there]] = True
    for at in np.flatnonzero(there[:-1] & there[1:]):
        reach = abs(across[at + 1] - across[at]), abs(down[at + 1] - down[at])
        number_of_dots = int(max(reach)) + 1
        rows = np.rint(np.linspace(down[at], down[at + 1], number_of_dots)).astype(int)
        columns = np.rint(np.linspace(across[at], across[at + 1], number_of_dots)).astype(int)
        grid[rows, columns] = True
    return grid


def _placed(values: Numbers, there: Numbers, most: int) -> Numbers:
    """For each value its place among so many, from the least to the greatest."""
    low, high = float(values[there].min()), float(values[there].max())
    half = high / 2 - low / 2
    share = (values / 2 - low / 2) / half if half > 0 else np.full(len(values), 0.5)
    placed: Numbers = np.rint(np.where(there, share, 0) * (most - 1)).astype(int)
    return placed


def _texts(grid: Numbers, signs: Glyphs) -> list[str]:
    if signs.is_ascii:
        return ["".join("*" if dot else " " for dot in row) for row in grid]
    high, wide = grid.shape
    blocks = grid.reshape(high // 4, 4, wide // 2, 2)
    codes = np.einsum("rycx,yx->rc", blocks.astype(np.int64), _BITS)
    return ["".join(chr(_BRAILLE + code) if code else " " for code in row) for row in codes]


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

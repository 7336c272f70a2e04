"""`logax show`: describe a run, summarize its keys and draw their curves in the terminal.

Curves consist of braille dots, or of stars if the output is not Unicode.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from logax._cli.columns import (
    Array,
    ColumnSummary,
    LoggedColumn,
    flatten_lanes,
    read_columns,
    summarize_column,
)
from logax._cli.ls import run_facts
from logax._cli.options import RUN_HELP, add_json_option, add_path_option, find_run, open_runs
from logax._cli.terminal import (
    escape,
    flatten_config,
    format_exact_value,
    format_value,
    stdout_glyphs,
    terminal_columns,
    write,
    write_json,
    write_table,
)
from logax._runs.run import Run
from logax._support.figures import MAX_PLOT_VALUE, downsample
from logax._support.formatting import (
    Glyphs,
    display_width,
    divide_or_nan,
    format_duration,
    format_number,
    format_time,
    sparkline,
)

_BITS = np.array(
    [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]]
)  # of the dots of a braille character
_BRAILLE = 0x2800


def draw_terminal_curve(
    title: str, x: Array, y: Array, axis: str, columns: int, rows: int, signs: Glyphs
) -> list[str]:
    """Return the lines of a curve with title and axes; [] if no point is finite.

    Args:
      title: First line.
      x: X-coordinates.
      y: Y-coordinates. Numbers that are not finite are gaps.
      axis: Label of the x-axis.
      columns: Width, with labels.
      rows: Height, without title and x-axis.
      signs: Glyphs that the terminal has.
    """
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any():
        return []
    y = np.where(there, np.clip(y, -MAX_PLOT_VALUE, MAX_PLOT_VALUE), np.nan)
    bottom, top = float(y[there].min()), float(y[there].max())
    labels = [format_number(top), format_number(bottom)]
    margin = max(map(len, labels)) + 1
    field = max(columns - margin - 2, 10)
    grid = _dots(x, y, there, field * (1 if signs.is_ascii else 2), rows * _dot_rows(signs))
    lines = [escape(title, columns)]
    tick, bar = ("|", "|") if signs.is_ascii else ("┤", "│")
    for at, text in enumerate(_grid_lines(grid, signs)):
        label = labels[0] if at == 0 else labels[1] if at == rows - 1 else ""
        lines.append(f"{label:>{margin}} {tick if label else bar}{text}".rstrip())
    corner, dash = ("+", "-") if signs.is_ascii else ("└", "─")
    lines.append(" " * (margin + 1) + corner + dash * field)
    ends = format_number(float(x[there].min())), format_number(float(x[there].max()))
    lines.append(" " * (margin + 2) + _axis_line(ends, escape(axis, 20), field))
    return lines


def _dot_rows(signs: Glyphs) -> int:
    return 1 if signs.is_ascii else 4


def _axis_line(ends: tuple[str, str], axis: str, field: int) -> str:
    left, right = ends
    if left == right:
        return f"{left} ({axis})"
    free = max(field - len(left) - len(right) - display_width(axis), 2)
    return left + " " * (free // 2) + axis + " " * (free - free // 2) + right


def _dots(x: Array, y: Array, there: Array, wide: int, high: int) -> Array:
    """Return the grid of dots that a line through the points touches."""
    x, y = downsample(x, np.where(there, y, np.nan), 8 * wide)
    there = np.isfinite(x) & np.isfinite(y)
    across = _bin_indices(x, there, wide)
    down = high - 1 - _bin_indices(y, there, high)
    grid = np.zeros((high, wide), bool)
    grid[down[there], across[there]] = True
    for at in np.flatnonzero(there[:-1] & there[1:]):
        reach = abs(across[at + 1] - across[at]), abs(down[at + 1] - down[at])
        number_of_dots = int(max(reach)) + 1
        rows = np.rint(np.linspace(down[at], down[at + 1], number_of_dots)).astype(int)
        columns = np.rint(np.linspace(across[at], across[at + 1], number_of_dots)).astype(int)
        grid[rows, columns] = True
    return grid


def _bin_indices(values: Array, there: Array, most: int) -> Array:
    """Return the index of each value among `most` bins from minimum to maximum."""
    low, high = float(values[there].min()), float(values[there].max())
    half = high / 2 - low / 2
    share = (values / 2 - low / 2) / half if half > 0 else np.full(len(values), 0.5)
    placed: Array = np.rint(np.where(there, share, 0) * (most - 1)).astype(int)
    return placed


def _grid_lines(grid: Array, signs: Glyphs) -> list[str]:
    if signs.is_ascii:
        return ["".join("*" if dot else " " for dot in row) for row in grid]
    high, wide = grid.shape
    blocks = grid.reshape(high // 4, 4, wide // 2, 2)
    codes = np.einsum("rycx,yx->rc", blocks.astype(np.int64), _BITS)
    return ["".join(chr(_BRAILLE + code) if code else " " for code in row) for row in codes]


EXAMPLE = """\
  logax show last
  logax show baseline loss 'grad/*'
  logax show baseline --path other-runs --json"""
_HEADER = ("key", "records", "last", "min", "max", "nonfinite", "")
_SPARKLINE_COLUMNS = 16
_CURVE_ROWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "keys",
        nargs="*",
        default=[],
        metavar="KEY",
        help="keys to show and draw: names or globs (default: show all, draw the first)",
    )
    add_path_option(parser)
    parser.add_argument("--no-plot", action="store_true", help="do not draw curves")
    add_json_option(parser)


def run(options: Any) -> int:
    """Write the description, the table of keys and the curves."""
    found = find_run(open_runs(options.path), options.name)
    logged = read_columns(found, options.keys)
    summaries = [summarize_column(column) for column in logged]
    if options.json:
        write_json(_facts(found, summaries))
        return 0
    _write_head(found)
    if not logged:
        write("", "Nothing is logged yet.")
        return 0
    write("")
    rows = [_row(*pair) for pair in zip(summaries, logged, strict=True)]
    write_table(_HEADER, rows, ("records", "last", "min", "max", "nonfinite"))
    if not options.no_plot:
        _write_curves(logged, bool(options.keys))
    return 0


def _facts(run: Run, summaries: list[ColumnSummary]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for summary in summaries:  # the last column of a key that changed shape
        keys[summary.name] = summary.json_fields()
    return {**run_facts(run), "config": run.config, "machine": run.machine, "keys": keys}


def _write_head(run: Run) -> None:
    ended, name = run.ended, run.name
    facts = {
        "run": run.id if name == run.id else f"{escape(name, 80)}  ({run.id})",
        "status": run.status,
        "began": format_time(run.began),
        "lasted": "" if ended is None else format_duration(ended - run.began),
        "group": escape(run.group or ""),
        "lane": "-".join(map(str, run.lane)),
        "lanes": str(run.lanes or ""),
    }
    facts |= {
        f"config {escape(key)}": format_exact_value(value, 100)
        for key, value in flatten_config(run.config).items()
    }
    machine = {key: value for key, value in flatten_config(run.machine).items() if key != "key"}
    facts["machine"] = ", ".join(
        f"{escape(key)} {format_value(value)}" for key, value in machine.items()
    )
    wide = max(display_width(key) for key in facts)
    write(
        *(
            f"{key}{' ' * (wide - display_width(key))}  {value}"
            for key, value in facts.items()
            if value
        )
    )


def _row(summary: ColumnSummary, column: LoggedColumn) -> list[str]:
    numbers = column.numbers()
    line = (
        ""
        if numbers is None
        else sparkline(_lane_mean(numbers), _SPARKLINE_COLUMNS, stdout_glyphs())
    )
    lanes = "x".join(map(str, summary.lanes))
    return [
        escape(summary.name),
        f"{lanes} lanes: {summary.records}" if lanes else str(summary.records),
        summary.last_text,
        "" if summary.low is None else format_number(summary.low),
        "" if summary.high is None else format_number(summary.high),
        str(summary.nonfinite) if summary.nonfinite else "",
        line if summary.records > 1 else "",
    ]


def _write_curves(logged: list[LoggedColumn], are_chosen: bool) -> None:
    for column in logged:
        numbers = column.numbers()
        if numbers is None or (not are_chosen and column.real.sum() < 2):
            continue
        axis, x = column.axis()
        what = _title(column)
        drawn = draw_terminal_curve(
            what,
            _lane_mean(x),
            _lane_mean(numbers),
            axis,
            terminal_columns(),
            _CURVE_ROWS,
            stdout_glyphs(),
        )
        if drawn:
            write("", *drawn)
        if not are_chosen:
            return


def _title(column: LoggedColumn) -> str:
    lanes = "mean of lanes" if column.lanes else ""
    elements = f"mean of {column.kind}" if column.shape else ""
    said = ", ".join(text for text in (elements, lanes) if text)
    return f"{column.name} ({said})" if said else column.name


def _lane_mean(numbers: Array) -> Array:
    """Return the mean of the finite numbers over lanes."""
    if numbers.ndim == 1:
        return numbers
    rows = flatten_lanes(numbers, numbers.ndim - 1)
    finite = np.isfinite(rows)
    mean: Array = divide_or_nan(rows.sum(axis=0, where=finite), finite.sum(axis=0))
    return mean

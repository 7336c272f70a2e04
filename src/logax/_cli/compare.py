"""`logax compare`: compare runs in tables.

In a wide terminal each run has columns, and a second table shows the differences of the configs. In
a narrower terminal each run has a row: first the differences, then the last value and the minimum
of each key. If that does not fit either, the minima are left out, then the last columns; a line
reports the number of hidden columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from logax._cli.columns import ColumnSummary, LoggedColumn, read_columns, summarize_column
from logax._cli.ls import run_facts
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    KeySelection,
    add_json_option,
    add_path_option,
    find_all_runs,
    open_runs,
    short_ids,
)
from logax._cli.terminal import (
    escape,
    flatten_config,
    format_value,
    terminal_columns,
    write,
    write_json,
    write_table,
)
from logax._runs.run import Run
from logax._serialization.record_text import to_json_value
from logax._support.formatting import display_width, format_number

Summaries = Sequence[Mapping[str, ColumnSummary]]
Configs = Sequence[Mapping[str, Any]]
_GAP_CHARS = 2  # between two columns of a table


class ComparisonColumn(NamedTuple):
    head: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        return max(map(display_width, (self.head, *self.cells)))


def write_tables(
    labels: Sequence[str], found: Summaries, keys: Sequence[str], configs: Configs
) -> None:
    """Write the values of the keys and the differences of the configs."""
    if not keys:
        write("Nothing is logged in any of them.")
    numbers = [ComparisonColumn("key", [escape(key) for key in keys])]
    for label, each in zip(labels, found, strict=True):
        numbers.append(
            ComparisonColumn(f"{label} last", [_last(each.get(key)) for key in keys], True)
        )
        numbers.append(
            ComparisonColumn(f"{label} min", [_minimum(each.get(key)) for key in keys], True)
        )
    names = list(dict.fromkeys(name for config in configs for name in config))
    given = [ComparisonColumn("config", [escape(name) for name in names])]
    for label, config in zip(labels, configs, strict=True):
        given.append(ComparisonColumn(label, [_config_text(config, name) for name in names]))
    tables = [wanted for wanted, is_there in ((numbers, keys), (given, names)) if is_there]
    if all(_table_width(wanted) <= terminal_columns() for wanted in tables):
        for at, wanted in enumerate(tables):
            write(*[""] * (at > 0 or not keys))
            _write(wanted)
    else:
        _write_rows(labels, found, keys, configs, names)


def _write_rows(
    labels: Sequence[str],
    found: Summaries,
    keys: Sequence[str],
    configs: Configs,
    names: Sequence[str],
) -> None:
    rows = [ComparisonColumn("run", labels)]
    rows += [
        ComparisonColumn(escape(name, 24), [_config_text(config, name) for config in configs])
        for name in names
    ]
    minima = set()
    for key in keys:
        own = [each.get(key) for each in found]
        rows.append(ComparisonColumn(f"{escape(key, 24)} last", [*map(_last, own)], True))
        minima.add(len(rows))
        rows.append(ComparisonColumn(f"{escape(key, 24)} min", [*map(_minimum, own)], True))
    if _table_width(rows) > terminal_columns():
        rows = [column for at, column in enumerate(rows) if at not in minima]
    rows = [column for column in rows if any(column.cells)]
    shown = len(rows)
    while shown > 2 and _table_width(rows[:shown]) > terminal_columns():
        shown -= 1
    _write(rows[:shown])
    hidden = len(rows) - shown
    if hidden:
        are = f"{hidden} more column{'s are' if hidden > 1 else ' is'}"
        write("", f"{are} not shown: choose keys with `--keys`, or take `--json`.")


def _table_width(given: Sequence[ComparisonColumn]) -> int:
    used = [column.width for column in given if any(column.cells)]
    return sum(used) + _GAP_CHARS * (len(used) - 1)


def _write(given: Sequence[ComparisonColumn]) -> None:
    heads = [column.head for column in given]
    cells = zip(*(column.cells for column in given), strict=True)
    write_table(heads, list(cells), [column.head for column in given if column.is_number])


def _last(summary: ColumnSummary | None) -> str:
    return "" if summary is None else summary.last_text


def _minimum(summary: ColumnSummary | None) -> str:
    return "" if summary is None or summary.low is None else format_number(summary.low)


def _config_text(config: Mapping[str, Any], name: str) -> str:
    return format_value(config[name]) if name in config else ""


EXAMPLE = """\
  logax compare baseline wider
  logax compare 'lr-*' --keys loss
  logax compare baseline last --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("names", nargs="+", metavar="RUN", help=RUNS_HELP)
    parser.add_argument(
        "--keys", nargs="+", default=[], metavar="KEY", help="only these keys: names or globs"
    )
    add_path_option(parser)
    add_json_option(parser)


def run(options: Any) -> int:
    """Write the comparison."""
    runs = open_runs(options.path)
    chosen = find_all_runs(runs, options.names)
    if len(chosen) < 2:
        raise CommandError(
            "two runs or more are needed, and "
            f"{' '.join(map(escape, options.names))} selects one: {escape(chosen[0].name)}. Give "
            "another, or a glob of names such as 'lr-*'."
        )
    selection = KeySelection(read_columns)
    found = [_summaries(each, options.keys, selection) for each in chosen]
    selection.check_found()
    keys = list(dict.fromkeys(name for each in found for name in each))
    configs = [flatten_config(each.config) for each in chosen]
    differing, same = _differing_names(configs)
    if options.json:
        write_json(
            _facts(chosen, found, keys, {name: _row_of(configs, name) for name in differing})
        )
        return 0
    labels = _run_labels(chosen, short_ids(runs))
    write_tables(
        labels, found, keys, [{name: x[name] for name in differing if name in x} for x in configs]
    )
    if same and differing:
        write("", f"{same} more in `config` {'are' if same > 1 else 'is'} the same in all.")
    elif same:
        write("", f"All runs share the values in `config` ({same}).")
    return 0


def _summaries(
    run: Run, keys: Sequence[str], selection: KeySelection[LoggedColumn]
) -> dict[str, ColumnSummary]:
    logged = (
        [x for name in keys for x in selection.select(run, name)] if keys else read_columns(run)
    )
    return {column.name: summarize_column(column) for column in logged}


def _run_labels(runs: Sequence[Run], short: Mapping[str, str]) -> list[str]:
    names = [run.name for run in runs]
    return [
        short[run.id] if name == run.id or names.count(name) > 1 else escape(name, 24)
        for run, name in zip(runs, names, strict=True)
    ]


def _row_of(configs: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [config.get(name) for config in configs]


def _differing_names(configs: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Return the names whose values differ, and the number of names whose values do not."""
    names = dict.fromkeys(name for config in configs for name in config)
    texts = {
        name: {
            json.dumps(to_json_value(config[name])) if name in config else None
            for config in configs
        }
        for name in names
    }
    differing = [name for name in names if len(texts[name]) > 1]
    return differing, len(names) - len(differing)


def _facts(
    runs: Sequence[Run],
    found: Sequence[Mapping[str, ColumnSummary]],
    keys: Sequence[str],
    configs: Mapping[str, Any],
) -> dict[str, Any]:
    def of(key: str) -> list[Any]:
        own = [each.get(key) for each in found]
        return [None if one is None else one.json_fields() for one in own]

    return {
        "runs": [run_facts(run) for run in runs],
        "keys": {key: of(key) for key in keys},
        "config": configs,
    }

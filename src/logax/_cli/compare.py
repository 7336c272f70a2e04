"""How runs that are compared stand: side by side, or one below the other.

Side by side, each run has its columns, and a table below shows where the configs differ. In a
narrower terminal each run has a row: the differences first, then the last value and the minimum of
each key. Where that does not fit either, the minima are left out, then columns at the end, and a
line says how many.

`logax compare`: runs side by side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from logax._cli.columns import Column, Summary, columns_of, summary_of
from logax._cli.ls import facts_of
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    Wanted,
    add_command,
    add_path,
    all_of,
    opened,
    short_ids,
)
from logax._cli.terminal import brief, columns, flat, number, safe, table, width, write, write_json
from logax._runs.run import Run
from logax.loggers._text.cells import as_json

Summaries = Sequence[Mapping[str, Summary]]
Configs = Sequence[Mapping[str, Any]]
_GAP = 2  # columns of the terminal between two of a table


class _Column(NamedTuple):
    head: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        return max(map(width, (self.head, *self.cells)))


def write_tables(
    labels: Sequence[str], found: Summaries, keys: Sequence[str], configs: Configs
) -> None:
    """Write what runs have logged, and where their configs differ."""
    if not keys:
        write("Nothing is logged in any of them.")
    numbers = [_Column("key", [safe(key) for key in keys])]
    for label, each in zip(labels, found, strict=True):
        numbers.append(_Column(f"{label} last", [_last(each.get(key)) for key in keys], True))
        numbers.append(_Column(f"{label} min", [_least(each.get(key)) for key in keys], True))
    names = list(dict.fromkeys(name for config in configs for name in config))
    given = [_Column("config", [safe(name) for name in names])]
    for label, config in zip(labels, configs, strict=True):
        given.append(_Column(label, [_given(config, name) for name in names]))
    tables = [wanted for wanted, is_there in ((numbers, keys), (given, names)) if is_there]
    if all(_wide(wanted) <= columns() for wanted in tables):
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
    rows = [_Column("run", labels)]
    rows += [
        _Column(safe(name, 24), [_given(config, name) for config in configs]) for name in names
    ]
    least = set()
    for key in keys:
        own = [each.get(key) for each in found]
        rows.append(_Column(f"{safe(key, 24)} last", [*map(_last, own)], True))
        least.add(len(rows))
        rows.append(_Column(f"{safe(key, 24)} min", [*map(_least, own)], True))
    if _wide(rows) > columns():
        rows = [column for at, column in enumerate(rows) if at not in least]
    rows = [column for column in rows if any(column.cells)]
    shown = len(rows)
    while shown > 2 and _wide(rows[:shown]) > columns():
        shown -= 1
    _write(rows[:shown])
    hidden = len(rows) - shown
    if hidden:
        are = f"{hidden} more column{'s are' if hidden > 1 else ' is'}"
        write("", f"{are} not shown: choose keys with `--keys`, or take `--json`.")


def _wide(given: Sequence[_Column]) -> int:
    used = [column.width for column in given if any(column.cells)]
    return sum(used) + _GAP * (len(used) - 1)


def _write(given: Sequence[_Column]) -> None:
    heads = [column.head for column in given]
    cells = zip(*(column.cells for column in given), strict=True)
    table(heads, list(cells), [column.head for column in given if column.is_number])


def _last(summary: Summary | None) -> str:
    return "" if summary is None else summary.last_text


def _least(summary: Summary | None) -> str:
    return "" if summary is None or summary.low is None else number(summary.low)


def _given(config: Mapping[str, Any], name: str) -> str:
    return brief(config[name]) if name in config else ""


_EXAMPLE = """\
  logax compare baseline wider
  logax compare 'lr-*' --keys loss
  logax compare baseline last --json"""


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "compare", "show runs side by side", _EXAMPLE)
    parser.add_argument("names", nargs="+", metavar="RUN", help=RUNS_HELP)
    parser.add_argument(
        "--keys", nargs="+", default=[], metavar="KEY", help="only these: names or globs"
    )
    add_path(parser)
    parser.add_argument("--json", action="store_true", help="print an object in JSON")
    return parser


def run(options: Any) -> int:
    """Write the tables."""
    runs = opened(options.path)
    chosen = all_of(runs, options.names)
    if len(chosen) < 2:
        raise CommandError(
            f"to compare takes two runs or more, and {' '.join(map(safe, options.names))} means "
            f"one: {safe(chosen[0].name)}. Give another, or a glob of names such as 'lr-*'."
        )
    wanted = Wanted(columns_of)
    found = [_summaries(each, options.keys, wanted) for each in chosen]
    wanted.check()
    keys = list(dict.fromkeys(name for each in found for name in each))
    configs = [flat(each.config) for each in chosen]
    differing, same = _differing(configs)
    if options.json:
        write_json(
            _facts(chosen, found, keys, {name: _row_of(configs, name) for name in differing})
        )
        return 0
    labels = _labels(chosen, short_ids(runs))
    write_tables(
        labels, found, keys, [{name: x[name] for name in differing if name in x} for x in configs]
    )
    if same:
        more = f"{same} more in `config`" if differing else f"What is in `config` ({same})"
        write("", f"{more} {'are' if differing and same > 1 else 'is'} the same in all.")
    return 0


def _summaries(run: Run, keys: Sequence[str], wanted: Wanted[Column]) -> dict[str, Summary]:
    logged = [x for name in keys for x in wanted.of(run, name)] if keys else columns_of(run)
    return {column.name: summary_of(column) for column in logged}


def _labels(runs: Sequence[Run], short: Mapping[str, str]) -> list[str]:
    names = [run.name for run in runs]
    return [
        short[run.id] if name == run.id or names.count(name) > 1 else safe(name, 24)
        for run, name in zip(runs, names, strict=True)
    ]


def _row_of(configs: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [config.get(name) for config in configs]


def _differing(configs: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Return the names whose values differ, and the number of names whose values do not."""
    names = dict.fromkeys(name for config in configs for name in config)
    texts = {
        name: {json.dumps(as_json(config[name])) if name in config else None for config in configs}
        for name in names
    }
    differing = [name for name in names if len(texts[name]) > 1]
    return differing, len(names) - len(differing)


def _facts(
    runs: Sequence[Run],
    found: Sequence[Mapping[str, Summary]],
    keys: Sequence[str],
    configs: Mapping[str, Any],
) -> dict[str, Any]:
    def of(key: str) -> list[Any]:
        own = [each.get(key) for each in found]
        return [None if one is None else one.as_json() for one in own]

    return {
        "runs": [facts_of(run) for run in runs],
        "keys": {key: of(key) for key in keys},
        "config": configs,
    }

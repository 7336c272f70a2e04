"""`logax compare`: runs side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from logax._command.choice import all_of, opened, short_ids
from logax._command.columns import Column, columns_of
from logax._command.errors import CommandError
from logax._command.ls import facts_of
from logax._command.options import RUNS_HELP, add_command, add_path
from logax._command.page import flat, safe, write, write_json
from logax._command.sides import write_tables
from logax._command.summary import Summary, summary_of
from logax._command.wanted import Wanted
from logax._runs.run import Run
from logax.loggers._text.cells import as_json

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

"""What many runs come to: how many records and keys each has, and how far it is.

Of every file the portions are gone through once for all runs in it, and of each portion one key is
read with its steps: a thousand runs take no longer than their bytes do.

`logax ls`: a table of runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from logax._cli.options import STORE_HELP, add_command, add_path, opened, short_ids, whole
from logax._cli.terminal import number, safe, table, write_json
from logax._runs.format import CRASHED, FINISHED, RUNNING
from logax._runs.pieces import Cell, Piece, pieces_of
from logax._runs.run import Run
from logax._runs.runs import Runs
from logax._runs.source import Member, Part
from logax._runs.tables import moment, span
from logax._support.arrays import is_missing


@dataclasses.dataclass(eq=False)
class Count:
    """What one run comes to.

    Attributes:
      records: How many records it has, of all lanes and all `log` calls together.
      keys: What was logged, in order.
      steps: By name the last step, of lanes the greatest.
    """

    records: int = 0
    keys: dict[str, None] = dataclasses.field(default_factory=dict)
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)


def counts_of(runs: Runs, chosen: Sequence[Run]) -> dict[str, Count]:
    """By id what each of these runs comes to."""
    found = {run.id: Count() for run in chosen}
    files: dict[str, list[Part]] = {}
    for run in chosen:
        for part in runs.parts_of(run.id):
            files.setdefault(part.path, []).append(part)
    for parts in files.values():
        _count(runs, parts, [found[part.id] for part in parts])
    return found


def _count(runs: Runs, parts: Sequence[Part], counts: Sequence[Count]) -> None:
    """Add what one file has of some runs."""
    which = {part.number: at for at, part in enumerate(parts)}
    records = np.zeros(len(parts), np.int64)

    def cell(member: Member) -> Cell:
        return (which[member.run],)

    with runs.source(parts[0]).look() as look:
        members = look.members(which)
        layouts = look.layouts_of(members)
        first = {layout.keys[0].name for layout in layouts if layout.keys}
        seen: set[Any] = set()  # a key may be the first in one layout and not in another
        for piece in pieces_of(look, members, cell, lambda name: name in first):
            if piece.origin not in seen:
                seen.add(piece.origin)
                _add(piece, counts, records)
    for count, added in zip(counts, records.tolist(), strict=True):
        count.records += added


def _add(piece: Piece, counts: Sequence[Count], records: Any) -> None:
    owners = np.asarray(piece.cells)[:, 0]
    own = np.full(len(owners), piece.records) if piece.counts is None else piece.counts
    np.add.at(records, owners, own)
    some = own > 0
    last = {
        name: leaf.numbers(data, (1 if alike else len(owners), piece.records))
        for name, (leaf, data, alike) in piece.steps.items()
        if not leaf.shape
    }
    keys = dict.fromkeys(key.name for key in piece.layout.keys)
    for at in np.flatnonzero(some).tolist():
        count = counts[owners[at]]
        count.keys |= keys
        for name, steps in last.items():
            told = steps[at if len(steps) > 1 else 0, : own[at]]
            known = told[~is_missing(told)]
            if len(known):
                _reach(count.steps, name, known[-1].item())


def _reach(steps: dict[str, Any], name: str, step: Any) -> None:
    steps[name] = step if name not in steps else max(steps[name], step)


_EXAMPLE = """\
  logax ls
  logax ls runs --status running
  logax ls runs --name 'lr-*' --limit 5 --json"""
_HEADS = ("id", "name", "status", "began", "lasted", "records", "keys", "step", "group")


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "ls", "list the runs of a folder, the newest last", _EXAMPLE)
    parser.add_argument(
        "path", nargs="?", default=argparse.SUPPRESS, metavar="PATH", help=STORE_HELP
    )
    add_path(parser)  # as all other commands have it
    parser.add_argument(
        "--status", choices=(RUNNING, FINISHED, CRASHED), help="only those of this status"
    )
    parser.add_argument("--name", metavar="GLOB", help="only those whose name matches: 'lr-*'")
    parser.add_argument("--limit", type=whole, metavar="N", help="only the newest N")
    parser.add_argument("--json", action="store_true", help="print a list in JSON")
    return parser


def run(options: Any) -> int:
    """Write the table."""
    runs = opened(options.path)
    every = list(runs.values())
    chosen = [each for each in every if _is_wanted(each, options)]
    if options.limit is not None:
        chosen = chosen[len(chosen) - min(options.limit, len(chosen)) :]
    counts = counts_of(runs, chosen)
    if options.json:
        write_json([_facts(each, counts[each.id]) for each in chosen])
    if not every:
        runs.check_readable()
    if not chosen:
        sys.stderr.write(f"logax ls: {_nothing(len(every), options)}\n")
        return 1
    if not options.json:
        short = short_ids(runs)
        table(
            _HEADS,
            [_row(each, short[each.id], counts[each.id]) for each in chosen],
            ("records", "keys", "step", "lasted"),
        )
    return 0


def _is_wanted(run: Run, options: Any) -> bool:
    if options.name is not None and not fnmatchcase(run.name, options.name):
        return False
    return options.status is None or run.status == options.status


def _nothing(number_of_runs: int, options: Any) -> str:
    where = safe(options.path, 200)
    if not number_of_runs:
        return f"there are no runs in {where} yet. `SaveLogger({where!r})` writes them."
    return f"none of the {number_of_runs} runs in {where} is as --status, --name and --limit say."


def _row(run: Run, short: str, count: Count) -> list[str]:
    name = run.name
    return [
        short,
        "" if name == run.id else safe(name),
        run.status,
        moment(run.began),
        _lasted(run),
        str(count.records),
        str(len(count.keys)),
        _step(count),
        "" if run.group is None else safe(run.group),
    ]


def _lasted(run: Run) -> str:
    ended = run.ended
    if ended is None and run.status == RUNNING:
        ended = time.time()
    ended = run.updated if ended is None else ended
    return "" if ended is None else span(ended - run.began)


def _step(count: Count) -> str:
    """The last step, of the one that is the x-axis."""
    name = "step" if "step" in count.steps else next(iter(count.steps), None)
    if name is None:
        return ""
    text = number(count.steps[name])
    return text if name == "step" else f"{safe(name, 20)} {text}"


def _facts(run: Run, count: Count) -> dict[str, Any]:
    return {
        **facts_of(run),
        "records": count.records,
        "keys": list(count.keys),
        "steps": count.steps,
    }


def facts_of(run: Run) -> dict[str, Any]:
    """What `--json` says of a run, whatever was logged."""
    began, ended = run.began, run.ended
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "began": began,
        "ended": ended,
        "duration": None if ended is None else ended - began,
        "group": run.group,
        "lane": run.lane,
        "lanes": run.lanes,
    }

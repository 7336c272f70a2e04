"""`logax ls`: list runs with their numbers of records and keys and their last steps.

Each file is read once for all of its runs, and of each record batch only one key with its steps, so
that the time depends on the bytes and not on the number of runs.
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

from logax._cli.options import (
    STORE_HELP,
    add_json_option,
    add_path_option,
    open_runs,
    parse_count,
    short_ids,
)
from logax._cli.terminal import escape, write_json, write_table
from logax._runs.file_reader import RunPart, StoredStream
from logax._runs.format import CRASHED, FINISHED, RUNNING
from logax._runs.key_slices import Cell, KeySlice, read_key_slices
from logax._runs.run import Run
from logax._runs.runs import Runs
from logax._support.arrays import is_missing
from logax._support.formatting import format_duration, format_number, format_time


@dataclasses.dataclass(eq=False)
class RunTotals:
    """Totals of one run.

    Attributes:
      records: Number of records of all lanes and `log` calls.
      keys: Logged keys, in order.
      steps: Last step by name; with lanes the maximum.
    """

    records: int = 0
    keys: dict[str, None] = dataclasses.field(default_factory=dict)
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)


def count_records(runs: Runs, chosen: Sequence[Run]) -> dict[str, RunTotals]:
    """Return the totals of the chosen runs by id."""
    found = {run.id: RunTotals() for run in chosen}
    files: dict[str, list[RunPart]] = {}
    for run in chosen:
        for part in runs.parts_of(run.id):
            files.setdefault(part.path, []).append(part)
    for parts in files.values():
        _count(runs, parts, [found[part.id] for part in parts])
    return found


def _count(runs: Runs, parts: Sequence[RunPart], counts: Sequence[RunTotals]) -> None:
    """Add the records of some runs in one file to their totals."""
    which = {part.number: at for at, part in enumerate(parts)}
    records = np.zeros(len(parts), np.int64)

    def cell(member: StoredStream) -> Cell:
        return (which[member.run],)

    with runs.reader_of(parts[0]).snapshot() as snapshot:
        members = snapshot.streams_of(which)
        layouts = snapshot.layouts_of(members)
        first = {layout.keys[0].name for layout in layouts if layout.keys}
        seen: set[Any] = set()  # a key may be the first in one layout and not in another
        for key_slice in read_key_slices(snapshot, members, cell, lambda name: name in first):
            if key_slice.origin not in seen:
                seen.add(key_slice.origin)
                _add(key_slice, counts, records)
    for count, added in zip(counts, records.tolist(), strict=True):
        count.records += added


def _add(key_slice: KeySlice, counts: Sequence[RunTotals], records: Any) -> None:
    owners = np.asarray(key_slice.cells)[:, 0]
    own = np.full(len(owners), key_slice.records) if key_slice.counts is None else key_slice.counts
    np.add.at(records, owners, own)
    some = own > 0
    last = {
        name: leaf.from_bytes(data, (1 if alike else len(owners), key_slice.records))
        for name, (leaf, data, alike) in key_slice.steps.items()
        if not leaf.shape
    }
    keys = dict.fromkeys(key.name for key in key_slice.layout.keys)
    for at in np.flatnonzero(some).tolist():
        count = counts[owners[at]]
        count.keys |= keys
        for name, steps in last.items():
            reached = steps[at if len(steps) > 1 else 0, : own[at]]
            known = reached[~is_missing(reached)]
            if len(known):
                _raise_step(count.steps, name, known[-1].item())


def _raise_step(steps: dict[str, Any], name: str, step: Any) -> None:
    steps[name] = step if name not in steps else max(steps[name], step)


EXAMPLE = """\
  logax ls
  logax ls runs --status running
  logax ls runs --name 'lr-*' --limit 5 --json"""
_HEADER = ("id", "name", "status", "began", "lasted", "records", "keys", "step", "group")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "path", nargs="?", default=argparse.SUPPRESS, metavar="PATH", help=STORE_HELP
    )
    add_path_option(parser)  # as for all other commands
    parser.add_argument(
        "--status", choices=(RUNNING, FINISHED, CRASHED), help="only runs with this status"
    )
    parser.add_argument("--name", metavar="GLOB", help="only runs whose name matches: 'lr-*'")
    parser.add_argument("--limit", type=parse_count, metavar="N", help="only the newest N runs")
    add_json_option(parser)


def run(options: Any) -> int:
    """Write the table."""
    runs = open_runs(options.path)
    every = list(runs.values())
    chosen = [each for each in every if _is_selected(each, options)]
    if options.limit is not None:
        chosen = chosen[len(chosen) - min(options.limit, len(chosen)) :]
    counts = count_records(runs, chosen)
    if options.json:
        write_json([_facts(each, counts[each.id]) for each in chosen])
    if not every:
        runs.check_readable()
    if not chosen:
        sys.stderr.write(f"logax ls: {_empty_message(len(every), options)}\n")
        return 1
    if not options.json:
        short = short_ids(runs)
        write_table(
            _HEADER,
            [_row(each, short[each.id], counts[each.id]) for each in chosen],
            ("records", "keys", "step", "lasted"),
        )
    return 0


def _is_selected(run: Run, options: Any) -> bool:
    if options.name is not None and not fnmatchcase(run.name, options.name):
        return False
    return options.status is None or run.status == options.status


def _empty_message(number_of_runs: int, options: Any) -> str:
    where = escape(options.path, 200)
    if not number_of_runs:
        return f"there are no runs in {where} yet. `SaveLogger({where!r})` writes them."
    return f"none of the {number_of_runs} runs in {where} is as --status, --name and --limit say."


def _row(run: Run, short: str, count: RunTotals) -> list[str]:
    name = run.name
    return [
        short,
        "" if name == run.id else escape(name),
        run.status,
        format_time(run.began),
        _duration(run),
        str(count.records),
        str(len(count.keys)),
        _step(count),
        "" if run.group is None else escape(run.group),
    ]


def _duration(run: Run) -> str:
    ended = run.ended
    if ended is None and run.status == RUNNING:
        ended = time.time()
    ended = run.updated if ended is None else ended
    return "" if ended is None else format_duration(ended - run.began)


def _step(count: RunTotals) -> str:
    """Format the last step: the one called `step`, otherwise the first."""
    name = "step" if "step" in count.steps else next(iter(count.steps), None)
    if name is None:
        return ""
    text = format_number(count.steps[name])
    return text if name == "step" else f"{escape(name, 20)} {text}"


def _facts(run: Run, count: RunTotals) -> dict[str, Any]:
    return {
        **run_facts(run),
        "records": count.records,
        "keys": list(count.keys),
        "steps": count.steps,
    }


def run_facts(run: Run) -> dict[str, Any]:
    """Return the facts about a run that `--json` prints for every command."""
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

"""`logax tail`: print the records of a run as they arrive."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from logax._cli.columns import match_keys
from logax._cli.options import (
    RUN_HELP,
    add_json_option,
    add_keys_argument,
    add_path_option,
    find_run,
    open_runs,
    parse_count,
)
from logax._cli.records import RecordReader, json_lines, text_lines
from logax._cli.terminal import escape, write
from logax._runs.format import RUNNING
from logax._runs.run import Run
from logax._runs.runs import Runs

EXAMPLE = """\
  logax tail last
  logax tail baseline loss -n 3
  logax tail last --json | jq .loss"""
_POLL_INTERVAL_SECONDS = 0.5
_MAX_READING_SHARE = 0.1  # of the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="RUN", help=RUN_HELP)
    add_keys_argument(parser)
    add_path_option(parser)
    parser.add_argument(
        "-n",
        type=parse_count,
        default=10,
        metavar="N",
        dest="last",
        help="begin with the last N existing records (default: 10)",
    )
    add_json_option(parser)


def run(options: Any) -> int:
    """Write records until the run has ended."""
    runs = open_runs(options.path)
    found = find_run(runs, options.name)
    if len(found):  # otherwise the keys may be logged later
        match_keys(found, options.keys)
    status = _follow(runs, found, options)
    sys.stderr.write(f"logax tail: run {escape(found.name, 80)} has {status}.\n")
    return 0


def _follow(runs: Runs, run: Run, options: Any) -> str:
    form = json_lines if options.json else text_lines
    pause = threading.Event()  # never set: an interrupt ends the wait
    reader, is_first, updated = RecordReader(run, options.keys), True, None
    while True:
        begin = time.monotonic()
        runs.refresh()
        status = run.status  # before reading, so that no record before the end is missed
        now = run.updated
        if is_first or now != updated or status != RUNNING:
            lines = reader.read().lines(form)
            _write(lines[len(lines) - min(options.last, len(lines)) :] if is_first else lines)
        if status != RUNNING:
            return status
        updated, is_first = now, False
        pause.wait(
            max(_POLL_INTERVAL_SECONDS, (time.monotonic() - begin) * (1 / _MAX_READING_SHARE - 1))
        )


def _write(lines: Sequence[str]) -> None:
    if lines:
        write(*lines)
        sys.stdout.flush()

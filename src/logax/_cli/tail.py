"""`logax tail`: the records of a run as they come."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from logax._cli.columns import keys_of
from logax._cli.options import RUN_HELP, add_command, add_path, one, opened, whole
from logax._cli.records import Reader, json_lines, text_lines
from logax._cli.terminal import safe, write
from logax._runs.format import RUNNING
from logax._runs.run import Run
from logax._runs.runs import Runs

_EXAMPLE = """\
  logax tail last
  logax tail baseline loss -n 3
  logax tail last --json | jq .loss"""
_SECONDS = 0.5  # between looks
_SHARE = 0.1  # of the time that may be spent reading


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "tail", "print records as they come, until a run ends", _EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "keys", nargs="*", default=[], metavar="KEY", help="only these: names or globs"
    )
    add_path(parser)
    parser.add_argument(
        "-n",
        type=whole,
        default=10,
        metavar="N",
        dest="last",
        help="begin with the last N records that there are (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="print an object in JSON a line")
    return parser


def run(options: Any) -> int:
    """Write records until the run has ended."""
    runs = opened(options.path)
    found = one(runs, options.name)
    if len(found):  # else whatever is wanted may come yet
        keys_of(found, options.keys)
    status = _follow(runs, found, options)
    sys.stderr.write(f"logax tail: run {safe(found.name, 80)} has {status}.\n")
    return 0


def _follow(runs: Runs, run: Run, options: Any) -> str:
    form = json_lines if options.json else text_lines
    pause = threading.Event()  # which nobody sets: an interrupt ends the wait
    reader, is_first, updated = Reader(run, options.keys), True, None
    while True:
        begin = time.monotonic()
        runs.refresh()
        status = run.status  # first: what was written before the end is read after that
        now = run.updated
        if is_first or now != updated or status != RUNNING:
            lines = reader.read().lines(form)
            _write(lines[len(lines) - min(options.last, len(lines)) :] if is_first else lines)
        if status != RUNNING:
            return status
        updated, is_first = now, False
        pause.wait(max(_SECONDS, (time.monotonic() - begin) * (1 / _SHARE - 1)))


def _write(lines: Sequence[str]) -> None:
    if lines:
        write(*lines)
        sys.stdout.flush()

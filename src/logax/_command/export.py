"""`logax export`: runs as a file that other programs read."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any

from logax._columns.rows import encoded
from logax._command.arrays import npz_of, parquet_of
from logax._command.choice import opened, several
from logax._command.columns import keys_of
from logax._command.errors import CommandError
from logax._command.options import RUNS_HELP, add_command, add_path
from logax._command.page import safe, safe_lines
from logax._command.records import Reader, json_lines
from logax._command.wanted import Wanted
from logax._command.wide import csv_of
from logax._files import replacing
from logax._runs.run import Run

_EXAMPLE = """\
  logax export last --to csv > loss.csv
  logax export sweep --to parquet -o sweep.parquet
  logax export baseline --to jsonl -o baseline.jsonl
  logax export baseline --to npz -o baseline.npz loss 'val/*'"""
_TEXT = ("csv", "jsonl")


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(
        commands, "export", "write runs as a file that other programs read", _EXAMPLE
    )
    parser.add_argument("name", metavar="RUN", help=RUNS_HELP)
    parser.add_argument(
        "keys", nargs="*", default=[], metavar="KEY", help="only these: names or globs"
    )
    parser.add_argument(
        "--to", choices=tuple(_FORMS), required=True, help="what kind of file to write"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file; csv and jsonl are printed without it"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    add_path(parser)
    return parser


def run(options: Any) -> int:
    """Write the file."""
    target = options.output
    if target is None and options.to not in _TEXT:
        raise CommandError(f"{options.to} is not text: give a file with `-o FILE.{options.to}`.")
    if target is not None:
        check_free(target, options.force)
    found = several(opened(options.path), options.name)
    wanted = Wanted(keys_of)
    for name in options.keys:
        for each in found:
            wanted.of(each, name)
    wanted.check()
    data = _FORMS[options.to](found, options.keys)
    if target is None:
        _print(data)
    else:
        write_whole("logax export", target, data)
    return 0


def check_free(path: str, force: bool) -> None:
    """Raise where a file would be lost."""
    if force or not os.path.lexists(path):
        return
    if stat.S_ISREG(os.lstat(path).st_mode):
        raise CommandError(f"{safe(path, 200)} is there already: `--force` replaces it.")


def write_whole(what: str, path: str, data: bytes) -> None:
    """Write a file that is whole whenever it is looked at."""
    with replacing(what, path) as file:
        file.write(data)


def _print(data: bytes) -> None:
    if sys.stdout.isatty():  # where the name of a key must do nothing
        sys.stdout.write(safe_lines(data.decode("utf-8"), sys.stdout))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _jsonl(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    lines = [line for run in runs for line in Reader(run, keys).read().lines(json_lines)]
    return encoded("".join(f"{line}\n" for line in lines))


def _csv(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    return encoded(csv_of([Reader(run, keys).read() for run in runs]))


def _npz(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    if len(runs) > 1:
        raise CommandError(
            f"npz takes one run at a time, and {len(runs)} are meant: name one of them, such as "
            f"{safe(runs[-1].name)} ({runs[-1].id}), or write `--to csv`, jsonl or parquet."
        )
    return npz_of(runs[0], keys)


_FORMS: dict[str, Callable[[Sequence[Run], Sequence[str]], bytes]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "npz": _npz,
    "parquet": parquet_of,
}

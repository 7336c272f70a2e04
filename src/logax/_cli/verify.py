"""`logax verify`: find damage in files of runs and trajectories."""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from logax._cli.options import DEFAULT_STORE, CommandError, add_json_option
from logax._cli.terminal import escape_lines, write, write_json
from logax._runs.database import is_runs_file_name
from logax._runs.errors import AllDamagedError, Damage, RunsError
from logax._runs.run import summarize_batches
from logax._runs.runs import Runs

EXAMPLE = """\
  logax verify
  logax verify runs trajectory.h5
  logax verify runs --json"""
_TRAJECTORY_EXTENSIONS = (".h5", ".hdf5")


class Problem(NamedTuple):
    """A damaged part of a file.

    Attributes:
      file: Path of the file.
      message: Sentence that describes the damage.
      runs: Ids of the runs that miss records, if that is known.
      key: KeyLayout of these records, if that is known.
      first: Number of the first of them.
      last: Number of the last of them.
    """

    file: str
    message: str
    runs: tuple[str, ...] = ()
    key: str | None = None
    first: int | None = None
    last: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "paths",
        nargs="*",
        default=[DEFAULT_STORE],
        metavar="PATH",
        help=f"folder, file of runs, or HDF5 file of a trajectory (default: {DEFAULT_STORE})",
    )
    add_json_option(parser)


def run(options: Any) -> int:
    """Read all files and report damage; return 1 if there is any."""
    files = _unique_files(file for path in options.paths for file in _files_in(path))
    problems = [problem for file in files for problem in problems_of(file)]
    if options.json:
        found = [problem._asdict() for problem in problems]
        write_json({"ok": not problems, "files": files, "problems": found})
        return 1 if problems else 0
    for problem in problems:
        write(escape_lines(problem.message, sys.stdout).replace("\n", " "))
    damaged = len({problem.file for problem in problems})
    number = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    write(f"{damaged} of {number} damaged." if damaged else f"{number} checked, none is damaged.")
    return 1 if problems else 0


def problems_of(file: str) -> list[Problem]:
    """Read all of a file and return its damaged parts."""
    if file.endswith(_TRAJECTORY_EXTENSIONS):
        return _problems_of_trajectory(file)
    problems: list[Problem] = []

    def report(damage: Damage) -> None:
        _, _, runs, key, first, last = damage
        message = str(damage._replace(path=file))
        problems.append(Problem(file, message, runs, key, first, last))

    try:
        runs = Runs(file, follow=False, report=report)
    except RunsError as error:
        return [Problem(file, str(error))]
    for each in runs.values():
        problems += _problems_of_run(file, each)
    return problems


def _problems_of_run(file: str, each: Any) -> Iterator[Problem]:
    """Read all of a run and yield its unreadable parts. `Runs` reports other damage."""
    for read in (lambda: each.config, lambda: each.machine, lambda: list(summarize_batches(each))):
        try:
            read()
        except RunsError as error:
            yield Problem(file, str(error), (each.id,))
    try:
        keys = list(each)
    except RunsError as error:
        yield Problem(file, str(error), (each.id,))
        return
    for key in keys:
        try:
            each.parts(key)
        except AllDamagedError:  # already reported
            continue
        except RunsError as error:
            yield Problem(file, str(error), (each.id,), key)


def _problems_of_trajectory(file: str) -> list[Problem]:
    from logax.storage import (  # noqa: PLC0415 - needs h5py
        HDF5StorageReader,
        StorageError,
    )

    problems = []
    try:
        with HDF5StorageReader(file) as reader:
            for name in reader.list_groups():
                group = reader.focus_group(name)
                try:
                    if group.is_once:
                        group[...]
                    else:
                        collections.deque(group, maxlen=0)  # all rows, a few at a time
                except LookupError:  # an empty group
                    continue
                except StorageError as error:
                    problems.append(Problem(file, f"{file} is damaged: {error}", key=name))
    except (StorageError, OSError) as error:
        problems.append(Problem(file, f"{file} is damaged: {error}"))
    return problems


def _unique_files(files: Iterable[str]) -> list[str]:
    """Return the files, each once even if it has several paths."""
    found: dict[str, str] = {}
    for file in files:
        found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def _files_in(path: str) -> Sequence[str]:
    """Return the files to check: the path itself, or those in the folder."""
    if not os.path.lexists(path):
        raise CommandError(
            f"there is nothing at {path}. Give a folder or a file: `logax verify PATH`."
        )
    if not os.path.isdir(path):
        return [path]
    names = sorted(os.listdir(path))
    wanted = [name for name in names if is_runs_file_name(name) or _is_trajectory(name)]
    return [os.path.join(path, name) for name in wanted]


def _is_trajectory(name: str) -> bool:
    return name.endswith(_TRAJECTORY_EXTENSIONS) and not name.startswith(".")

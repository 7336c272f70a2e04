"""Options that several commands share, and the runs and keys that they select.

One run is given by its id, the beginning of its id, or its name; `last` is the newest. Several runs
are given by a common property: a glob of names or ids (`lr-*`), the beginning of ids, a name
without the number of the seed (`sweep` for `sweep-0`, `sweep-1`), or a group; `last` selects the
newest run with all seeds that began with it, and `all` selects every run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from logax._runs.run import Run
from logax._runs.runs import Runs

DEFAULT_STORE = "runs"
STORE_HELP = f"folder of `SaveLogger`, or a file in it (default: {DEFAULT_STORE})"
RUN_HELP = "id, beginning of an id, or name of a run; `last` for the newest"
RUNS_HELP = (
    "one run by id or name, or several: a glob of names ('lr-*'), the beginning of ids, a name "
    "without the number of the seed, or a group; `last` with all its seeds, or `all`"
)
_MIN_ID_CHARS = 10  # more than the date


class CommandError(Exception):
    """A mistake of the user. `main` prints the message and returns 1."""


def add_path_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--path`."""
    parser.add_argument("--path", default=DEFAULT_STORE, help=STORE_HELP)


def add_keys_argument(parser: argparse.ArgumentParser) -> None:
    """Add the optional keys that restrict the output."""
    parser.add_argument(
        "keys", nargs="*", default=[], metavar="KEY", help="only these keys: names or globs"
    )


def add_json_option(parser: argparse.ArgumentParser, help_text: str = "print JSON") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help=help_text)


def parse_count(text: str) -> int:
    """Parse an option that is an integer of 0 or more."""
    number = int(text) if text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return number


def open_runs(path: str) -> Runs:
    """Open the runs of a folder or file. Their status is read once, and again by `refresh`."""
    if not os.path.lexists(path):
        raise CommandError(
            f"there is no folder {path}. Give the folder of `SaveLogger`: `logax ls PATH`, and "
            "`--path PATH` for every command."
        )
    return Runs(path, follow=False)


def find_run(runs: Runs, text: str) -> Run:
    """Return the run that a text of the user selects."""
    try:
        return runs.find(text)
    except ValueError as error:
        raise CommandError(str(error)) from None


def find_runs(runs: Runs, text: str) -> list[Run]:
    """Return the runs that a text of the user selects, at least one."""
    names = {each: run.name for each, run in runs.items()}
    found = [each for each in names if text in (each, names[each])]
    if not found and text == "all":
        found = list(names)
    if not found and text == "last":
        newest = find_run(runs, text)
        stem = _remove_seed(newest.id, newest.lane)
        found = [run.id for run in runs.values() if _remove_seed(run.id, run.lane) == stem]
    if not found and text:
        found = [run.id for run in runs.values() if _is_match(run, text)]
    return [runs[each] for each in found] or [find_run(runs, text)]


def find_all_runs(runs: Runs, texts: Sequence[str]) -> list[Run]:
    """Return the runs that any of the texts selects, each once."""
    return list({run.id: run for text in texts for run in find_runs(runs, text)}.values())


def short_ids(runs: Runs) -> dict[str, str]:
    """Return a unique beginning of each id, in whole parts: 20250102-030405."""
    ids = sorted(runs)
    short = {}
    for at, own in enumerate(ids):
        others = [ids[i] for i in (at - 1, at + 1) if 0 <= i < len(ids)]
        same = max((_common_length(own, other) for other in others), default=0)
        cut = own.find("-", max(same + 1, _MIN_ID_CHARS))
        short[own] = own if cut < 0 else own[:cut]
    return short


def _common_length(one: str, other: str) -> int:
    """Return the length of the common beginning of two ids."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _remove_seed(text: str, lane: tuple[int, ...]) -> str:
    """Remove the number of the seed from the end of an id or a name."""
    return text.removesuffix("".join(f"-{index}" for index in lane))


def _is_match(run: Run, text: str) -> bool:
    is_glob = fnmatchcase(run.name, text) or fnmatchcase(run.id, text)
    stems = (_remove_seed(run.name, run.lane), _remove_seed(run.id, run.lane))
    is_seed = bool(run.lane) and text in stems
    return is_glob or is_seed or run.group == text or run.id.startswith(text)


T = TypeVar("T")


class KeySelection(Generic[T]):
    """Select keys in several runs. Some runs may lack a key, but not all of them.

    Args:
      choose: Returns the selection of names in a run, or raises a `CommandError`.
    """

    def __init__(self, choose: Callable[[Run, Sequence[str]], list[T]]) -> None:
        self._choose = choose
        self._missing: dict[str, CommandError] = {}
        self._found: set[str] = set()

    def select(self, run: Run, name: str) -> list[T]:
        """Return the selection of a name in a run, which may be empty."""
        try:
            found = self._choose(run, [name])
        except CommandError as error:
            self._missing.setdefault(name, error)
            return []
        self._found.add(name)
        return found

    def check_found(self) -> None:
        """Raise a `CommandError` if a name selected nothing in any run."""
        for name, error in self._missing.items():
            if name not in self._found:
                raise error

"""What a user did wrong, or what is not there.

The options that several commands have.

Which runs are meant.

One run is given by its id, the beginning of its id, or its name; `last` is the newest. Several are
given by what they have in common: a glob that their names or ids match (`lr-*`), the beginning of
their ids, their name without the number of the seed (`sweep` for `sweep-0`, `sweep-1`), their
group; `last` are the newest and all seeds that began with it, and `all` are all.

Keys that were asked for: each must be in some run, and some runs may lack one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from logax._runs.run import Run
from logax._runs.runs import Runs


class CommandError(Exception):
    """Told to the user as it is; the command ends with 1."""


STORE = "runs"
STORE_HELP = f"the folder that was given to `SaveLogger`, or a file in it (default: {STORE})"
RUN_HELP = "id, beginning of an id, or name of a run; `last` for the newest"
RUNS_HELP = (
    "as for one run, or what several have in common: a glob of names ('lr-*'), the beginning of "
    "ids, a name without the number of the seed, a group; `last` with all its seeds, or `all`"
)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    example: str,
) -> argparse.ArgumentParser:
    """A command, with an example in its help."""
    return commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_path(parser: argparse.ArgumentParser) -> None:
    """The option that says where the runs are."""
    parser.add_argument("--path", default=STORE, help=STORE_HELP)


def whole(text: str) -> int:
    """A number of 0 or more, as an option."""
    number = int(text) if text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return number


def opened(path: str) -> Runs:
    """Load the runs of a folder or file. Their ends are not looked up again before a `refresh`."""
    if not os.path.lexists(path):
        raise CommandError(
            f"there is no folder {path}. Give the one that was given to `SaveLogger`: "
            "`logax ls PATH`, and `--path PATH` for every command."
        )
    return Runs(path, follow=False)


def one(runs: Runs, text: str) -> Run:
    """The run that is meant."""
    try:
        return runs.find(text)
    except ValueError as error:
        raise CommandError(str(error)) from None


def several(runs: Runs, text: str) -> list[Run]:
    """The runs that are meant, of which there is at least one."""
    names = _names(runs)
    found = [each for each in names if text in (each, names[each])]
    if not found and text == "all":
        found = list(names)
    if not found and text == "last":
        newest = one(runs, text)
        stem = _stem(newest.id, newest.lane)
        found = [run.id for run in runs.values() if _stem(run.id, run.lane) == stem]
    if not found and text:
        found = [run.id for run in runs.values() if _fits(run, text)]
    return [runs[each] for each in found] or [one(runs, text)]


def all_of(runs: Runs, texts: Sequence[str]) -> list[Run]:
    """The runs that are meant by any of these, each once."""
    return list({run.id: run for text in texts for run in several(runs, text)}.values())


def short_ids(runs: Runs) -> dict[str, str]:
    """Of each id the beginning that no other has, in whole parts: 20250102-030405."""
    ids = sorted(runs)
    short = {}
    for at, own in enumerate(ids):
        others = [ids[i] for i in (at - 1, at + 1) if 0 <= i < len(ids)]
        same = max((_alike(own, other) for other in others), default=0)
        cut = own.find("-", max(same + 1, _LEAST))
        short[own] = own if cut < 0 else own[:cut]
    return short


def _alike(one: str, other: str) -> int:
    """How many letters two ids have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


_LEAST = 10  # letters that are shown of an id: not the day alone


def _names(runs: Runs) -> dict[str, str]:
    return {each: run.name for each, run in runs.items()}


def _stem(text: str, lane: tuple[int, ...]) -> str:
    """An id or a name without what stands for the seed."""
    return text.removesuffix("".join(f"-{index}" for index in lane))


def _fits(run: Run, text: str) -> bool:
    named = fnmatchcase(run.name, text) or fnmatchcase(run.id, text)
    seed = bool(run.lane) and text in (_stem(run.name, run.lane), _stem(run.id, run.lane))
    return named or seed or run.group == text or run.id.startswith(text)


T = TypeVar("T")


class Wanted(Generic[T]):
    """What names and globs choose in several runs.

    Args:
      choose: Gives what names choose in a run, or raises a `CommandError`.
    """

    def __init__(self, choose: Callable[[Run, Sequence[str]], list[T]]) -> None:
        self._choose = choose
        self._missing: dict[str, CommandError] = {}
        self._there: set[str] = set()

    def of(self, run: Run, name: str) -> list[T]:
        """What a name chooses in a run, which may be nothing."""
        try:
            found = self._choose(run, [name])
        except CommandError as error:
            self._missing.setdefault(name, error)
            return []
        self._there.add(name)
        return found

    def check(self) -> None:
        """Raise if there is a name that chose nothing in any run."""
        for name, error in self._missing.items():
            if name not in self._there:
                raise error

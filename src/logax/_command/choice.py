"""Which runs are meant.

One run is given by its id, the beginning of its id, or its name; `last` is the newest. Several are
given by what they have in common: a glob that their names or ids match (`lr-*`), the beginning of
their ids, their name without the number of the seed (`sweep` for `sweep-0`, `sweep-1`), their
group; `last` are the newest and all seeds that began with it, and `all` are all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from logax._command.errors import CommandError
from logax._runs.run import Run
from logax._runs.runs import Runs


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

"""Which run is meant: one rule for `runs.find`, for the command, and for `resume=` everywhere.

A sweep is all runs of one `init` under `vmap`. Their ids, and their names unless one was renamed,
are those of the sweep with the lane appended: lane 2 of `sweep` is `sweep-2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from logax._runs.tables import short

_MAX_LISTED_RUNS = 20
_ID = re.compile(r"(\d{8}-\d{6}-[0-9a-f]{8}-\d+)((?:-\d+)*)")


class Sweep(NamedTuple):
    """The runs of one `init` under `vmap`.

    Attributes:
      name: Name that they share; the id that they share if they have none.
      runs: Id of the run of each lane.
    """

    name: str
    runs: dict[tuple[int, ...], str]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of lanes at each level of `vmap`."""
        return tuple(max(axis) + 1 for axis in zip(*self.runs, strict=False))


def one_run(
    text: str, names: Mapping[str, str], where: str, resuming: str = "", noun: str = "run"
) -> str:
    """The id of the run that has this id, or this name, or whose id begins so.

    `"last"` is the newest, unless a run is called so.

    Args:
      text: What a user gave.
      names: By id the name of each run, the newest last; the id for those that have none.
      where: Where these runs are, for errors.
      resuming: Method that is to resume it, for errors; "" if none is.
      noun: "run", or "sweep" for all runs of one `init`, for errors.

    Raises:
      ValueError: There is none, or more than one. The message lists what there is.
    """
    why = f"`{resuming}` cannot resume a {noun}: " if resuming else ""
    found = matching(text, names)
    if not found and text == "last":
        if not names:
            raise ValueError(f"{why}there are no {noun}s in {where} yet, so none is the last.")
        found = list(names)[-1:]
    if len(found) == 1:
        return found[0]
    if noun == "run":
        _check_no_sweep(text, found, names, f"{why}{short(text)!r} means", where, bool(resuming))
    what = f"{len(found)} {noun}s" if found else f"no {noun}"
    if names and all(name == own for own, name in names.items()):
        give = f"Give an id, or the beginning of one, since no {noun} there has a name"
    else:
        give = "Give an id, the beginning of one, or a name that only one has"
    raise ValueError(
        f"{why}{short(text)!r} means {what} in {where}. {give}, or `last` for the newest, of:\n"
        f"{_listed(found or names, names)}"
    )


def matching(text: str, names: Mapping[str, str]) -> list[str]:
    """Return the ids of the runs with this id, or else this name, or else whose id begins so."""
    found = [text] if text in names else [each for each in names if names[each] == text]
    return found or [each for each in names if text and each.startswith(text)]


def sweeps_of(names: Mapping[str, str]) -> dict[str, Sweep]:
    """Return the sweeps by the id that their runs share, from the name of each run by its id."""
    shared: dict[str, str] = {}
    runs: dict[str, dict[tuple[int, ...], str]] = {}
    for own, name in names.items():
        sweep, lane = id_parts(own)
        if lane:
            runs.setdefault(sweep, {})[lane] = own
            end = lane_suffix(lane)
            if name != own and name.endswith(end):  # a lane may be renamed later
                shared.setdefault(sweep, name.removesuffix(end))
    return {sweep: Sweep(shared.get(sweep, sweep), lanes) for sweep, lanes in runs.items()}


def lane_suffix(lane: Sequence[int]) -> str:
    """Return the suffix of the id and the name of a lane's run."""
    return "".join(f"-{i}" for i in lane)


def id_parts(identity: str) -> tuple[str, tuple[int, ...]]:
    """Split the id of a run into the id that all lanes of its `init` share, and its lane."""
    match = _ID.fullmatch(identity)
    if match is None:
        return identity, ()
    return match[1], tuple(int(part) for part in match[2].split("-")[1:])


def _check_no_sweep(
    text: str,
    found: Sequence[str],
    names: Mapping[str, str],
    begin: str,
    where: str,
    resuming: bool,
) -> None:
    """Raise if `text`, which means the runs in `found` and not one, means sweeps."""
    sweeps = sweeps_of(names)
    meant = matching(text, {own: sweep.name for own, sweep in sweeps.items()})
    runs = [run for own in meant for run in sweeps[own].runs.values()]
    if not meant or (text not in sweeps and not set(found) <= set(runs)):
        return
    what = "a sweep" if len(meant) == 1 else f"{len(meant)} sweeps"
    instead = "Name one of them"
    if resuming:
        shape = sweeps[meant[-1]].shape
        init = f"lambda key: logger.init(key, resume={text if len(meant) == 1 else meant[-1]!r})"
        instead += (
            f", or resume a sweep with `{'jax.vmap(' * len(shape)}{init}{')' * len(shape)}(keys)`, "
            f"keys of the shape {shape}, which gives each lane a key of its own"
        )
    raise ValueError(
        f"{begin} {what} of {len(runs)} runs in {where}, and not one run. {instead}:\n"
        f"{_listed(runs, names)}"
    )


def _listed(runs: Iterable[str], names: Mapping[str, str]) -> str:
    rows = [f"  {_row(each, names[each])}" for each in runs]
    older = len(rows) - _MAX_LISTED_RUNS
    if older > 0:
        rows = [f"  ... {older} older", *rows[older:]]
    return "\n".join(rows) or "  (there are none)"


def _row(identity: str, name: str) -> str:
    return short(identity) if name == identity else f"{short(identity)}  {short(name)}"

"""Find the run that a user means: one rule for `runs.find`, the command line and `resume=`.

A sweep is all runs of one `init` under `vmap`. Their ids, and their names unless a run was renamed,
are those of the sweep with the lane appended: lane 2 of `sweep` is `sweep-2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from logax._runs.identity import lane_suffix, split_run_id
from logax._runs.tables import shorten

_MAX_LISTED_RUNS = 20


class Sweep(NamedTuple):
    """The runs of one `init` under `vmap`.

    Attributes:
      name: Name that the runs share; if they have none, the id that they share.
      runs: Id of the run of each lane.
    """

    name: str
    runs: dict[tuple[int, ...], str]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of lanes at each level of `vmap`."""
        return tuple(max(axis) + 1 for axis in zip(*self.runs, strict=False))


def find_one_run(
    text: str, names: Mapping[str, str], where: str, resuming: str = "", noun: str = "run"
) -> str:
    """Return the id of the run with this id or name, or whose id begins with this text.

    `"last"` means the newest run, unless a run has that name.

    Args:
      text: Text from the user.
      names: Name of each run by its id, the newest last; the id of a run without a name.
      where: Place of the runs, for errors.
      resuming: Method that resumes the run, for errors; "" if the run is only read.
      noun: "run", or "sweep" for all runs of one `init`, for errors.

    Raises:
      ValueError: No run matches, or several do. The message lists them.
    """
    why = f"`{resuming}` cannot resume a {noun}: " if resuming else ""
    found = matching_ids(text, names)
    if not found and text == "last":
        if not names:
            raise ValueError(f"{why}there are no {noun}s in {where} yet, so none is the last.")
        found = list(names)[-1:]
    if len(found) == 1:
        return found[0]
    if noun == "run":
        _check_no_sweep(text, found, names, f"{why}{shorten(text)!r} means", where, bool(resuming))
    what = f"{len(found)} {noun}s" if found else f"no {noun}"
    if names and all(name == own for own, name in names.items()):
        give = f"Give an id, or the beginning of one, since no {noun} there has a name"
    else:
        give = "Give an id, the beginning of one, or a name that only one has"
    raise ValueError(
        f"{why}{shorten(text)!r} means {what} in {where}. {give}, or `last` for the newest, of:\n"
        f"{_format_runs(found or names, names)}"
    )


def matching_ids(text: str, names: Mapping[str, str]) -> list[str]:
    """Return the ids of the runs with this id; if none, with this name; if none, this prefix."""
    found = [text] if text in names else [each for each in names if names[each] == text]
    return found or [each for each in names if text and each.startswith(text)]


def sweeps_of(names: Mapping[str, str]) -> dict[str, Sweep]:
    """Return the sweeps by the id that their runs share, from the name of each run by its id."""
    shared: dict[str, str] = {}
    runs: dict[str, dict[tuple[int, ...], str]] = {}
    for own, name in names.items():
        sweep, lane = split_run_id(own)
        if lane:
            runs.setdefault(sweep, {})[lane] = own
            end = lane_suffix(lane)
            if name != own and name.endswith(end):  # a lane may have been renamed since
                shared.setdefault(sweep, name.removesuffix(end))
    return {sweep: Sweep(shared.get(sweep, sweep), lanes) for sweep, lanes in runs.items()}


def _check_no_sweep(
    text: str,
    found: Sequence[str],
    names: Mapping[str, str],
    begin: str,
    where: str,
    resuming: bool,
) -> None:
    """Raise ValueError if `text`, which does not mean one run, means sweeps."""
    sweeps = sweeps_of(names)
    meant = matching_ids(text, {own: sweep.name for own, sweep in sweeps.items()})
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
        f"{_format_runs(runs, names)}"
    )


def _format_runs(runs: Iterable[str], names: Mapping[str, str]) -> str:
    rows = [f"  {_format_run(each, names[each])}" for each in runs]
    older = len(rows) - _MAX_LISTED_RUNS
    if older > 0:
        rows = [f"  ... {older} older", *rows[older:]]
    return "\n".join(rows) or "  (there are none)"


def _format_run(identity: str, name: str) -> str:
    return shorten(identity) if name == identity else f"{shorten(identity)}  {shorten(name)}"

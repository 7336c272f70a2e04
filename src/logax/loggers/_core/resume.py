"""Find the runs that `resume` names in the destinations of a logger, one for each lane.

Outside of `vmap` an id, the beginning of one, a name or "last" selects one run. Under `vmap` each
lane resumes a run. A sequence names them one by one. A single string selects a whole sweep, that is
all runs of one `init`, by the id that they have in common, the beginning of it, their name, or
"last" for the newest sweep; lane 3 then resumes lane 3 of the sweep.

The lookup uses a destination that lists its runs; all other destinations that list runs must have
the same ones. A destination that cannot list its runs gets the ids. A destination that keeps no
runs takes no part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns
from logax._runs.search import lane_suffix, matching, one_run, sweeps_of
from logax._support.messages import received
from logax.loggers._core.registry import ResumedRuns
from logax.loggers._core.sink_worker import Branch


def validate_resume(what: str, resume: Any) -> str | tuple[str, ...] | None:
    """Return `resume` as a string, or as a tuple with one for each lane.

    Raises:
      TypeError: It is neither.
    """
    if resume is None or (isinstance(resume, str) and resume):
        return resume
    if isinstance(resume, (list, tuple, np.ndarray)):
        several = resume.ravel().tolist() if isinstance(resume, np.ndarray) else resume
        if several and all(isinstance(each, str) and each for each in several):
            return tuple(several)
    raise TypeError(
        f"`{what}` takes as `resume` the id or the name of a run, or under `vmap` a sequence of "
        f"them, and got {received(resume)}. `logax.load(path)` lists runs."
    )


def find_runs(
    what: str,
    wanted: str | Sequence[str],
    lanes: tuple[int, ...],
    branches: Sequence[Branch],
    still_open: Callable[[ResumedRuns], Sequence[str]],
) -> ResumedRuns:
    """Find the runs to resume, one for each lane.

    Args:
      what: Method that was called, for errors.
      wanted: A string, or one for each lane.
      lanes: Number of lanes at each level of `vmap`.
      branches: The destinations of the logger.
      still_open: Returns the ids of those runs that are open in the logger.

    Raises:
      ValueError: There are no such runs, or not as many as lanes; a destination lacks them; or they
        are still being written.
    """
    known = [(each, runs) for each in branches if (runs := each.sink.known_runs()) is not None]
    if not known:
        names = ", ".join(f"`{branch.name}`" for branch in branches) or "a callback"
        raise ValueError(
            f"`{what}` cannot resume a run: {names} keeps none that could go on. `SaveLogger`, "
            "`JSONLLogger`, `CSVLogger`, `TensorBoardLogger`, `WandbLogger`, `MLflowLogger` and "
            "`TrackioLogger` do; `MultiLogger(SaveLogger(path), logger)` has both."
        )
    if not isinstance(wanted, str) and len(wanted) != int(np.prod(lanes)):
        raise ValueError(
            f"`{what}` takes as `resume` a name for each lane, and got {len(wanted)} names for "
            f"{int(np.prod(lanes))} lanes. Write "
            "`jax.vmap(lambda key: logger.init(key, resume=names))(keys)` with as many keys. In a "
            "loop, such as `lax.map`, each call sees only its own lanes: call it before the loop."
        )
    if 0 in lanes:
        return ResumedRuns((), None)
    branch, runs = min(known, key=_preference)
    search = _Search(what, branch, runs, lanes)
    found = search.lanes(wanted) if lanes else search.single(wanted)
    _check_distinct(what, found.ids)
    for run in still_open(found):
        raise ValueError(
            f"`{what}` cannot resume the run {run}, which is still open here. Finish it first, or "
            "log to the state that it has."
        )
    for branch, runs in known:
        _check_there(what, branch, runs, found)
    _claim(what, [branch for branch, _ in known], found)
    return found


def _claim(what: str, branches: Sequence[Branch], found: ResumedRuns) -> None:
    """Claim the runs in all destinations, or in none if another process has one of them."""
    with contextlib.ExitStack() as claimed:
        for branch in branches:
            ids = found.in_branch(branch.lanes)
            try:
                branch.sink.claim(ids)
            except ValueError as error:
                raise ValueError(f"`{what}` cannot resume a run: {error}") from None
            claimed.callback(branch.sink.release, ids)
        claimed.pop_all()


def _preference(known: tuple[Branch, KnownRuns]) -> tuple[bool, bool]:
    """Sort key: destinations that list runs first, of these the ones with a run for each lane."""
    branch, runs = known
    return runs.names is None, branch.lanes == "aggregate"


class _Search:
    """Look up runs in one destination."""

    def __init__(self, what: str, branch: Branch, runs: KnownRuns, lanes: tuple[int, ...]) -> None:
        self._what, self._branch, self._runs, self._lanes = what, branch, runs, lanes
        self._ends = [lane_suffix(lane) for lane in np.ndindex(*lanes)]

    def single(self, wanted: str | Sequence[str]) -> ResumedRuns:
        """Find a run without lanes."""
        own = self._one(wanted if isinstance(wanted, str) else wanted[0], self._runs.names)
        return ResumedRuns((own,), own)

    def lanes(self, wanted: str | Sequence[str]) -> ResumedRuns:
        """Find a run for each lane."""
        if isinstance(wanted, str):
            sweep = self._sweep(wanted)
            return ResumedRuns(tuple(f"{sweep}{end}" for end in self._ends), sweep)
        if self._branch.lanes == "aggregate":
            ids = tuple(wanted)  # this destination has no runs for lanes, so no names of them
        else:
            ids = tuple(self._one(each, self._runs.names) for each in wanted)
        sweep = ids[0].removesuffix(self._ends[0])
        whole = ids == tuple(f"{sweep}{end}" for end in self._ends)
        return ResumedRuns(ids, sweep if whole else None)

    def _sweep(self, wanted: str) -> str:
        names = self._runs.names
        if names is None or self._branch.lanes == "aggregate":
            return self._one(wanted, names, "sweep")
        sweeps = sweeps_of(names)
        shared = {each: own.name for each, own in sweeps.items()}
        if not matching(wanted, shared) and len(matching(wanted, names)) == 1:
            raise ValueError(
                f"`{self._what}` cannot resume a sweep: {wanted!r} means one run in "
                f"{self._runs.where}, and here `vmap` has lanes of the shape {self._lanes}. Name "
                "the sweep, without a lane, or the run of each lane, `resume=[...]`, or resume the "
                "run outside of `vmap`."
            )
        sweep = self._one(wanted, shared, "sweep")
        own = sweeps[sweep]
        why = f"`{self._what}` cannot resume the sweep {own.name} in {self._runs.where}: "
        if own.shape != self._lanes:
            raise ValueError(
                f"{why}its lanes have the shape {own.shape}, and here `vmap` has lanes of the "
                f"shape {self._lanes}. Map over keys of the shape {own.shape}, with a `vmap` "
                "for each axis, or name the run of each lane: `resume=[...]`."
            )
        for lane in np.ndindex(*self._lanes):
            if lane not in own.runs:
                raise ValueError(
                    f"{why}it has {len(own.runs)} runs, and none of the lane {lane}. Name the run "
                    "of each lane, of those there are: `resume=[...]`."
                )
        return sweep

    def _one(self, text: str, names: Mapping[str, str] | None, noun: str = "run") -> str:
        if names is not None:
            return one_run(text, names, self._runs.where, self._what, noun)
        if text == "last":
            raise ValueError(
                f"`{self._what}` cannot resume a {noun}: `{self._branch.name}` cannot list "
                f"the runs of {self._runs.where}, so it does not know which is the last. "
                "Give an id, as `state.id` has it."
            )
        return text


def _check_distinct(what: str, ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(own for own in ids if ids.count(own) > 1)
        raise ValueError(
            f"`{what}` got names for `resume` of which two mean the run {twice}. Each lane goes on "
            "with a run of its own."
        )


def _check_there(what: str, branch: Branch, runs: KnownRuns, found: ResumedRuns) -> None:
    """Raise if a destination lacks one of the runs, or if one is still being written."""
    if branch.lanes == "aggregate" and found.sweep is None:
        raise ValueError(
            f"`{what}` cannot resume single lanes: `{branch.name}` has one run for all lanes of a "
            'sweep. Resume the whole sweep, `resume="name"`, or make the logger with '
            '`lanes="split"`.'
        )
    for own in found.in_branch(branch.lanes):
        if runs.names is not None and own not in runs.names:
            raise ValueError(
                f"`{what}` cannot resume the run {own}, which is not in {runs.where}. All "
                "destinations of a logger that keep runs must have it."
            )
        if own in runs.running:
            raise ValueError(
                f"`{what}` cannot resume the run {own}, which a process still writes. Let it "
                "finish first; records of two writers have no order."
            )

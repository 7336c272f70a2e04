"""Find the runs that `resume` names in the destinations of a logger, one for each lane.

Outside of `vmap` an id, the beginning of an id, a name or "last" selects one run. Under `vmap` each
lane resumes a run. A sequence names the runs one by one. A single string selects a whole sweep
(all runs of one `init`) by the id that they share, the beginning of that id, their name, or "last"
for the newest sweep; lane 3 then resumes lane 3 of the sweep.

The lookup uses a destination that lists its runs; all other destinations that list runs must have
the same runs. A destination that cannot list its runs gets the ids. A destination that keeps no
runs takes no part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns
from logax._runs.identity import lane_suffix
from logax._runs.search import find_one_run, matching_ids, sweeps_of
from logax._support.messages import describe_value
from logax.loggers._core.registry import ResumedRuns
from logax.loggers._core.sink_worker import SinkWorker


def validate_resume(what: str, resume: Any) -> str | tuple[str, ...] | None:
    """Return `resume` as a string, or as a tuple with a string for each lane.

    Raises:
      TypeError: `resume` is neither.
    """
    if resume is None or (isinstance(resume, str) and resume):
        return resume
    if isinstance(resume, (list, tuple, np.ndarray)):
        several = resume.ravel().tolist() if isinstance(resume, np.ndarray) else resume
        if several and all(isinstance(each, str) and each for each in several):
            return tuple(several)
    raise TypeError(
        f"`{what}` takes as `resume` the id or the name of a run, or under `vmap` a sequence of "
        f"them, and got {describe_value(resume)}. `logax.load(path)` lists runs."
    )


def find_runs(
    what: str,
    resume: str | Sequence[str],
    lanes: tuple[int, ...],
    sink_workers: Sequence[SinkWorker],
    find_open: Callable[[ResumedRuns], Sequence[str]],
) -> ResumedRuns:
    """Find the runs to resume, one for each lane.

    Args:
      what: Method that the user called, for messages.
      resume: A string, or one for each lane.
      lanes: Number of lanes at each level of `vmap`.
      sink_workers: The destinations of the logger.
      find_open: Function that returns the ids of those runs that are open in the logger.

    Raises:
      ValueError: There are no such runs, or not one for each lane; a destination lacks one; or a
        process still writes one.
    """
    known = [(each, runs) for each in sink_workers if (runs := each.sink.known_runs()) is not None]
    if not known:
        names = ", ".join(f"`{sink_worker.name}`" for sink_worker in sink_workers) or "a callback"
        raise ValueError(
            f"`{what}` cannot resume a run: {names} keeps no runs. `SaveLogger`, "
            "`JSONLLogger`, `CSVLogger`, `TensorBoardLogger`, `WandbLogger`, `MLflowLogger` and "
            "`TrackioLogger` do; `MultiLogger(SaveLogger(path), logger)` has both."
        )
    if not isinstance(resume, str) and len(resume) != int(np.prod(lanes)):
        raise ValueError(
            f"`{what}` takes as `resume` a name for each lane, and got {len(resume)} names for "
            f"{int(np.prod(lanes))} lanes. Write "
            "`jax.vmap(lambda key: logger.init(key, resume=names))(keys)` with as many keys. In a "
            "loop, such as `lax.map`, each call sees only its own lanes: call it before the loop."
        )
    if 0 in lanes:
        return ResumedRuns((), None)
    sink_worker, runs = min(known, key=_preference)
    search = _Search(what, sink_worker, runs, lanes)
    found = search.lanes(resume) if lanes else search.single(resume)
    _check_distinct(what, found.ids)
    for run in find_open(found):
        raise ValueError(
            f"`{what}` cannot resume the run {run}, which is still open here. Finish it first, or "
            "log to the state that it has."
        )
    for sink_worker, runs in known:
        _check_destination(what, sink_worker, runs, found)
    _claim(what, [sink_worker for sink_worker, _ in known], found)
    return found


def _claim(what: str, sink_workers: Sequence[SinkWorker], found: ResumedRuns) -> None:
    """Claim the runs in all destinations; release all claims if another process has one."""
    with contextlib.ExitStack() as claimed:
        for sink_worker in sink_workers:
            ids = found.ids_for(sink_worker.lanes)
            try:
                sink_worker.sink.claim(ids)
            except ValueError as error:
                raise ValueError(f"`{what}` cannot resume a run: {error}") from None
            claimed.callback(sink_worker.sink.release, ids)
        claimed.pop_all()


def _preference(known: tuple[SinkWorker, KnownRuns]) -> tuple[bool, bool]:
    """Return a sort key: destinations that list runs first, and those with a run per lane."""
    sink_worker, runs = known
    return runs.names is None, sink_worker.lanes == "aggregate"


class _Search:
    """Look up runs in one destination."""

    def __init__(
        self, what: str, sink_worker: SinkWorker, runs: KnownRuns, lanes: tuple[int, ...]
    ) -> None:
        self._what, self._sink_worker, self._runs, self._lanes = what, sink_worker, runs, lanes
        self._ends = [lane_suffix(lane) for lane in np.ndindex(*lanes)]

    def single(self, resume: str | Sequence[str]) -> ResumedRuns:
        """Find a run without lanes."""
        own = self._one(resume if isinstance(resume, str) else resume[0], self._runs.names)
        return ResumedRuns((own,), own)

    def lanes(self, resume: str | Sequence[str]) -> ResumedRuns:
        """Find a run for each lane."""
        if isinstance(resume, str):
            sweep = self._sweep(resume)
            return ResumedRuns(tuple(f"{sweep}{end}" for end in self._ends), sweep)
        if self._sink_worker.lanes == "aggregate":
            ids = tuple(resume)  # one run for all lanes: there are no names of lanes to look up
        else:
            ids = tuple(self._one(each, self._runs.names) for each in resume)
        sweep = ids[0].removesuffix(self._ends[0])
        whole = ids == tuple(f"{sweep}{end}" for end in self._ends)
        return ResumedRuns(ids, sweep if whole else None)

    def _sweep(self, resume: str) -> str:
        names = self._runs.names
        if names is None or self._sink_worker.lanes == "aggregate":
            return self._one(resume, names, "sweep")
        sweeps = sweeps_of(names)
        shared = {each: own.name for each, own in sweeps.items()}
        if not matching_ids(resume, shared) and len(matching_ids(resume, names)) == 1:
            raise ValueError(
                f"`{self._what}` cannot resume a sweep: {resume!r} means one run in "
                f"{self._runs.where}, and here `vmap` has lanes of the shape {self._lanes}. Name "
                "the sweep, without a lane, or the run of each lane, `resume=[...]`, or resume the "
                "run outside of `vmap`."
            )
        sweep = self._one(resume, shared, "sweep")
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
            return find_one_run(text, names, self._runs.where, self._what, noun)
        if text == "last":
            raise ValueError(
                f"`{self._what}` cannot resume a {noun}: `{self._sink_worker.name}` cannot list "
                f"the runs of {self._runs.where}, so it does not know which is the last. "
                "Give an id, as `state.id` has it."
            )
        return text


def _check_distinct(what: str, ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(own for own in ids if ids.count(own) > 1)
        raise ValueError(
            f"`{what}` got names for `resume` of which two mean the run {twice}. Each lane resumes "
            "a different run."
        )


def _check_destination(
    what: str, sink_worker: SinkWorker, runs: KnownRuns, found: ResumedRuns
) -> None:
    """Raise if a destination lacks one of the runs, or if a process still writes one."""
    if sink_worker.lanes == "aggregate" and found.sweep is None:
        raise ValueError(
            f"`{what}` cannot resume single lanes: `{sink_worker.name}` has one run for all lanes "
            'of a sweep. Resume the whole sweep, `resume="name"`, or make the logger with '
            '`lanes="split"`.'
        )
    for own in found.ids_for(sink_worker.lanes):
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

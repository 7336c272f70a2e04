"""Which of the runs of a destination is to go on, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping

from logax._runs import search
from logax.loggers.sink import RunInfo


def one_run(logger: str, where: str, wanted: str, known: Mapping[str, str]) -> str:
    """The id of the run that is meant by what was given as `resume`: see `logax._runs.search`."""
    return search.one_run(wanted, known, where, f"`{logger}.run` cannot resume a run: ")


def given_name(run: RunInfo) -> str | None:
    """What a run is called; None for one that goes on and was given no name: it keeps its own."""
    return None if run.resumed and run.name == run.id else run.name

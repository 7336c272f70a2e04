"""Which of the runs of a file is meant, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping

from logax.loggers.sink import RunInfo


def one_run(what: str, path: str, wanted: str, known: Mapping[str, str]) -> str:
    """The id of the run that has this id, or name, or whose id alone begins so.

    Of runs of the same name it is the last.

    Raises:
      ValueError: There is none, or there are several.
    """
    if wanted in known:
        return wanted
    named = [run for run, name in known.items() if name == wanted]
    if named:
        return named[-1]
    found = [run for run in known if run.startswith(wanted)] if wanted else []
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"`{what}` has {len(found)} runs in {path} whose ids begin with {wanted!r}: "
            f"{', '.join(found[:5])}. Write more of it."
        )
    some = ", ".join(list(known)[-5:]) or "none"
    raise ValueError(f"`{what}` has no run {wanted!r} in {path}. The last ones are: {some}.")


def given_name(run: RunInfo) -> str | None:
    """What a run is called; None for one that goes on and was given no name: it keeps its own."""
    return None if run.resumed and run.name == run.id else run.name

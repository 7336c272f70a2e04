"""Which run is meant: one rule for `runs.find`, for the command, and for `resume=` everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from logax._runs.tables import short

_MOST = 20  # runs that are listed


def one_run(
    text: str, names: Mapping[str, str], where: str, why: str = "", noun: str = "run"
) -> str:
    """The id of the run that has this id, or this name, or whose id begins so.

    `"last"` is the newest, unless a run is called so.

    Args:
      text: What a user gave.
      names: By id the name of each run, the newest last; the id for those that have none.
      where: Where these runs are, for errors.
      why: What an error begins with.
      noun: "run", or "sweep" for all runs of one `init`, for errors.

    Raises:
      ValueError: There is none, or more than one. The message lists what there is.
    """
    found = [text] if text in names else [each for each in names if names[each] == text]
    found = found or [each for each in names if text and each.startswith(text)]
    if not found and text == "last":
        if not names:
            raise ValueError(f"{why}there are no {noun}s in {where} yet, so none is the last.")
        found = list(names)[-1:]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} {noun}s" if found else f"no {noun}"
    rows = [f"  {_row(each, names[each])}" for each in found or names]
    there = "\n".join(rows[:_MOST] + ["  ..."] * (len(rows) > _MOST))
    raise ValueError(
        f"{why}{short(text)!r} means {what} in {where}. Give an id, the beginning of one, or a "
        "name that only one has, or `last` for the newest, of:\n"
        f"{there or '  (there are none)'}"
    )


def _row(identity: str, name: str) -> str:
    return short(identity) if name == identity else f"{short(identity)}  {short(name)}"

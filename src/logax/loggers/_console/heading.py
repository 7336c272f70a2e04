"""Whose numbers these are, and how they are doing, in words."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from logax.loggers._console.board import Board
from logax.loggers._console.words import Glyphs, plain
from logax.loggers.sink import RunInfo


def who(board: Board, runs: Sequence[RunInfo], glyphs: Glyphs) -> str:
    """The run by its name, or how many there are."""
    names = {run.name for run in runs}
    name = plain(names.pop(), glyphs) if len(names) == 1 else ""
    if len(runs) > 1:
        return f"{len(runs)} runs of {name}" if name else f"{len(runs)} runs"
    lanes = runs[0].lanes if runs and runs[0].lanes else len(board.rows(runs))
    return f"run {name} ({lanes} lanes)" if lanes > 1 else f"run {name}"


def status(each: Iterable[str]) -> str:
    """How the runs are doing: one word if all are alike."""
    counts = collections.Counter(each)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{number} {word}" for word, number in counts.items())

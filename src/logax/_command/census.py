"""What many runs come to: how many records and keys each has, and how far it is.

Of every file the portions are gone through once for all runs in it, and of each portion one key is
read with its steps: a thousand runs take no longer than their bytes do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax._columns.rows import is_missing
from logax._runs.pieces import Cell, Piece, pieces_of
from logax._runs.run import Run
from logax._runs.runs import Runs
from logax._runs.source import Member, Part


@dataclasses.dataclass(eq=False)
class Count:
    """What one run comes to.

    Attributes:
      records: How many records it has, of all lanes and all `log` calls together.
      keys: What was logged, in order.
      steps: By name the last step, of lanes the greatest.
    """

    records: int = 0
    keys: dict[str, None] = dataclasses.field(default_factory=dict)
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)


def counts_of(runs: Runs, chosen: Sequence[Run]) -> dict[str, Count]:
    """By id what each of these runs comes to."""
    found = {run.id: Count() for run in chosen}
    files: dict[str, list[Part]] = {}
    for run in chosen:
        for part in runs.parts_of(run.id):
            files.setdefault(part.path, []).append(part)
    for parts in files.values():
        _count(runs, parts, [found[part.id] for part in parts])
    return found


def _count(runs: Runs, parts: Sequence[Part], counts: Sequence[Count]) -> None:
    """Add what one file has of some runs."""
    which = {part.number: at for at, part in enumerate(parts)}
    records = np.zeros(len(parts), np.int64)

    def cell(member: Member) -> Cell:
        return (which[member.run],)

    with runs.source(parts[0]).look() as look:
        members = look.members(which)
        layouts = look.layouts_of(members)
        first = {layout.keys[0].name for layout in layouts if layout.keys}
        seen: set[Any] = set()  # a key may be the first in one layout and not in another
        for piece in pieces_of(look, members, cell, lambda name: name in first):
            if piece.origin not in seen:
                seen.add(piece.origin)
                _add(piece, counts, records)
    for count, number in zip(counts, records.tolist(), strict=True):
        count.records += number


def _add(piece: Piece, counts: Sequence[Count], records: Any) -> None:
    owners = np.asarray(piece.cells)[:, 0]
    own = np.full(len(owners), piece.records) if piece.counts is None else piece.counts
    np.add.at(records, owners, own)
    some = own > 0
    last = {
        name: leaf.numbers(data, (1 if alike else len(owners), piece.records))
        for name, (leaf, data, alike) in piece.steps.items()
        if not leaf.shape
    }
    keys = dict.fromkeys(key.name for key in piece.layout.keys)
    for at in np.flatnonzero(some).tolist():
        count = counts[owners[at]]
        count.keys |= keys
        for name, steps in last.items():
            told = steps[at if len(steps) > 1 else 0, : own[at]]
            known = told[~is_missing(told)]
            if len(known):
                _reach(count.steps, name, known[-1].item())


def _reach(steps: dict[str, Any], name: str, step: Any) -> None:
    steps[name] = step if name not in steps else max(steps[name], step)

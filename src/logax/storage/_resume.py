"""From where a file that is there goes on.

Rows at and after the step that a run begins with are dropped. Where these are the last ones of a
group, the group ends before them; where rows that stay stand among them, a cut says which are void
(see `_commits`). Blocks that are whole stay in the datasets, and what is left of the one after them
goes back into the commit until it is whole.
"""

from __future__ import annotations

import numpy as np

from logax._resting.errors import StorageError
from logax.storage._commits import Commit, Numbers, Stand
from logax.storage._layout import Group, Layout
from logax.storage._order import valid
from logax.storage._source import Source


def resumed(
    path: str, layout: Layout, start: int | None, total: int | None
) -> tuple[Layout, Commit]:
    """The layout of a file, and the commit with which it goes on: with the rows before `start`.

    Raises:
      StorageError: It cannot be read, or rows of `layout` do not fit into it.
    """
    with Source(path, "HDF5StorageWriter") as source:
        difference = source.layout.difference(layout)
        if difference is not None:
            raise StorageError(
                f"`HDF5StorageWriter` cannot continue {path} with other groups or arrays: "
                f"{difference}. Write to another file."
            )
        before = source.commit
        groups = [_kept(source, number, start) for number in range(len(before.groups))]
        steps = before.actual_steps if start is None else min(before.actual_steps, start)
        total = before.total_steps if total is None else total
        runs = before.runs + 1
        kept = before.kept_by(runs, groups)
        return source.layout, Commit(before.sequence + 1, runs, steps, total, False, groups, kept)


def _kept(source: Source, number: int, start: int | None) -> Stand:
    group, stand = source.layout.groups[number], source.commit.groups[number]
    if group.is_once:
        return Stand.at_start(group) if start == 0 else stand
    steps = source.steps(number)
    end, cuts = len(steps), stand.cuts
    if start is not None:
        late = np.flatnonzero(steps >= start)
        first = int(late[0]) if len(late) else end
        if (valid(steps, cuts) & (steps < start))[first:].any():
            cuts = [*cuts, (end, start)]  # rows that stay stand among those that go
        else:
            end = first
    return _at(source, number, group, end, steps, _merged(cuts, end))


def _merged(cuts: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Those that say something about the first rows, and nothing that a later one says too."""
    merged: list[tuple[int, int]] = []
    for last, step in cuts:  # each ends where the ones before it end, or later
        merged = [own for own in merged if own[1] < step]
        merged.append((min(last, end), step))
    return merged if end else []


def _at(
    source: Source,
    number: int,
    group: Group,
    end: int,
    steps: Numbers,
    cuts: list[tuple[int, int]],
) -> Stand:
    """The first rows, of which whole blocks that are in the datasets stay where they are."""
    written = min(end, source.commit.groups[number].rows) // group.block * group.block
    places = np.arange(written, end)
    columns = [source.rows(number, leaf, places) for leaf in range(len(group.leaves))]
    void = int(np.count_nonzero(~valid(steps[:end], cuts)))
    return Stand(written, steps[written:end], columns, cuts, None, void)

"""Records as one table in CSV.

Columns are the id of the run, where there are several, the lane, where a run has lanes, the steps,
and the leaves by name. Records of different `log` calls share a row where all their steps are
equal; the second time that a call has logged the same steps is another row. Cells are as
`CSVLogger` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from logax._command.records import Records
from logax.loggers._text.rows import Rows
from logax.loggers._text.table import field, heading


def csv_of(runs: Sequence[Records]) -> str:
    """The table of one run, or of several, as text."""
    header = _header([rows for records in runs for rows in records.blocks], len(runs) > 1)
    lines = [",".join(field(heading(name)) for name in header)]
    for records in runs:
        lines += [",".join(field(row.get(name, "")) for name in header) for row in _table(records)]
    return "\n".join(lines) + "\n"


def _table(records: Records) -> Iterable[dict[str, str]]:
    """By column the cells of each row."""
    found: dict[Any, dict[str, str]] = {}
    times: dict[Any, int] = {}
    for block, row in records.places:
        rows = records.blocks[block]
        run, lane = rows.streams[int(rows.owner[row])][:2]
        steps = tuple((name, rows.columns[name][row]) for name in sorted(rows.steps))
        own = (block, lane, steps)
        times[own] = times.get(own, -1) + 1
        cells = found.setdefault((lane, steps, times[own]), {"run": run.id})
        if lane:
            cells["lane"] = str(lane[0]) if len(lane) == 1 else str(list(lane))
        for name, column in rows.columns.items():
            text = column[row]
            if text is not None:
                cells[name] = text
    return found.values()


def _header(blocks: list[Rows], has_run: bool) -> list[str]:
    run = {"run": None} if has_run else {}
    lane = {"lane": None} if any(stream.lane for x in blocks for stream in x.streams) else {}
    steps = {name: None for rows in blocks for name in rows.steps}
    leaves = {name: None for rows in blocks for name in rows.columns}
    return list(run | lane | steps | leaves)

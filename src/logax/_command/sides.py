"""How runs that are compared stand: side by side, or one below the other.

Side by side, each run has its columns, and a table below shows where the configs differ. In a
narrower terminal each run has a row: the differences first, then the last value and the minimum of
each key. Where that does not fit either, the minima are left out, then columns at the end, and a
line says how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from logax._command.page import brief, columns, number, safe, table, width, write
from logax._command.summary import Summary

Summaries = Sequence[Mapping[str, Summary]]
Configs = Sequence[Mapping[str, Any]]
_GAP = 2  # columns of the terminal between two of a table


class _Column(NamedTuple):
    head: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        return max(map(width, (self.head, *self.cells)))


def write_tables(
    labels: Sequence[str], found: Summaries, keys: Sequence[str], configs: Configs
) -> None:
    """Write what runs have logged, and where their configs differ."""
    if not keys:
        write("Nothing is logged in any of them.")
    numbers = [_Column("key", [safe(key) for key in keys])]
    for label, each in zip(labels, found, strict=True):
        numbers.append(_Column(f"{label} last", [_last(each.get(key)) for key in keys], True))
        numbers.append(_Column(f"{label} min", [_least(each.get(key)) for key in keys], True))
    names = list(dict.fromkeys(name for config in configs for name in config))
    given = [_Column("config", [safe(name) for name in names])]
    for label, config in zip(labels, configs, strict=True):
        given.append(_Column(label, [_given(config, name) for name in names]))
    tables = [wanted for wanted, is_there in ((numbers, keys), (given, names)) if is_there]
    if all(_wide(wanted) <= columns() for wanted in tables):
        for at, wanted in enumerate(tables):
            write(*[""] * (at > 0 or not keys))
            _write(wanted)
    else:
        _write_rows(labels, found, keys, configs, names)


def _write_rows(
    labels: Sequence[str],
    found: Summaries,
    keys: Sequence[str],
    configs: Configs,
    names: Sequence[str],
) -> None:
    rows = [_Column("run", labels)]
    rows += [
        _Column(safe(name, 24), [_given(config, name) for config in configs]) for name in names
    ]
    least = set()
    for key in keys:
        own = [each.get(key) for each in found]
        rows.append(_Column(f"{safe(key, 24)} last", [*map(_last, own)], True))
        least.add(len(rows))
        rows.append(_Column(f"{safe(key, 24)} min", [*map(_least, own)], True))
    if _wide(rows) > columns():
        rows = [column for at, column in enumerate(rows) if at not in least]
    rows = [column for column in rows if any(column.cells)]
    shown = len(rows)
    while shown > 2 and _wide(rows[:shown]) > columns():
        shown -= 1
    _write(rows[:shown])
    hidden = len(rows) - shown
    if hidden:
        are = f"{hidden} more column{'s are' if hidden > 1 else ' is'}"
        write("", f"{are} not shown: choose keys with `--keys`, or take `--json`.")


def _wide(given: Sequence[_Column]) -> int:
    used = [column.width for column in given if any(column.cells)]
    return sum(used) + _GAP * (len(used) - 1)


def _write(given: Sequence[_Column]) -> None:
    heads = [column.head for column in given]
    cells = zip(*(column.cells for column in given), strict=True)
    table(heads, list(cells), [column.head for column in given if column.is_number])


def _last(summary: Summary | None) -> str:
    return "" if summary is None else summary.last_text


def _least(summary: Summary | None) -> str:
    return "" if summary is None or summary.low is None else number(summary.low)


def _given(config: Mapping[str, Any], name: str) -> str:
    return brief(config[name]) if name in config else ""

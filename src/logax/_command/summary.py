"""What a table says of one column: how many records, the last value, the least and the greatest."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import numpy as np

from logax._command.columns import Column
from logax._command.page import glyphs, number, safe
from logax.loggers._console.summary import Spread
from logax.loggers._console.words import spread
from logax.loggers._text.cells import cells

_ELEMENTS = 6  # that are shown of an array


@dataclasses.dataclass(frozen=True)
class Summary:
    """One column in a few numbers.

    Attributes:
      name: The flat name.
      kind: What one record is.
      records: How many there are, of all lanes together.
      lanes: The shape of the lanes.
      last: The last value, as JSON has it; with lanes a list with that of each.
      last_text: The same in a few letters; with lanes the mean, and how far they are apart.
      low: The least finite number; None if there is none.
      high: The greatest.
      nonfinite: How many numbers are not finite.
      steps: By name the last step, of lanes the greatest.
    """

    name: str
    kind: str
    records: int
    lanes: tuple[int, ...]
    last: Any
    last_text: str
    low: float | None
    high: float | None
    nonfinite: int
    steps: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """What `--json` says of it."""
        found = dataclasses.asdict(self)
        del found["name"], found["last_text"]
        return found


def summary_of(column: Column) -> Summary:
    """The few numbers of a column."""
    found = column.elements()
    elements = np.zeros(0) if found is None else found
    finite = elements[np.isfinite(elements)]
    last = _last(column)
    return Summary(
        column.name,
        column.kind,
        int(column.real.sum()),
        column.lanes,
        last,
        _last_text(column, last),
        float(finite.min()) if finite.size else None,
        float(finite.max()) if finite.size else None,
        elements.size - finite.size,
        _last_steps(column),
    )


def _rows_of_last(column: Column) -> tuple[Any, ...]:
    """The index of the last record of each lane that has one."""
    count = column.real.sum(axis=-1)
    if not column.lanes:
        return (np.array([count - 1] if count else [], np.intp),)
    lanes = np.nonzero(count)
    return (*lanes, count[lanes] - 1)


def _last(column: Column) -> Any:
    index = _rows_of_last(column)
    if not index[-1].size:
        return None
    texts = cells(jax.tree.map(lambda x: x[index], column.value))
    found = [json.loads(text) for text in texts]
    return found if column.lanes else found[0]


def _last_text(column: Column, last: Any) -> str:
    if last is None:
        return ""
    numbers = column.numbers()
    if column.lanes:
        found = None if numbers is None else Spread.of(numbers[_rows_of_last(column)])
        return spread(found, glyphs())
    if isinstance(last, (bool, int, float)):
        return number(last)
    if isinstance(last, list) and len(column.shape) == 1:
        shown = [number(x) if isinstance(x, (bool, int, float)) else "?" for x in last[:_ELEMENTS]]
        return f"[{', '.join(shown)}{', ...' * (len(last) > _ELEMENTS)}]"
    if isinstance(last, dict) and last.keys() == {"real", "imag"} and not column.shape:
        return number(complex(last["real"], last["imag"]))
    return safe(column.kind)


def _last_steps(column: Column) -> dict[str, Any]:
    index = _rows_of_last(column)
    found = {}
    for name, step in column.steps.items():
        _, x = column.axis(name)
        if step.ndim == column.real.ndim and np.isfinite(x[index]).any():
            reached = step[index][np.isfinite(x[index])]
            found[name] = reached.max().item()
    return found

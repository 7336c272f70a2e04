"""Which curves are not finite somewhere: what a picture leaves out is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from logax._command.columns import Numbers
from logax._command.page import number, safe


class Line(NamedTuple):
    """One run, or one lane of it. Where there is no record, x is NaN."""

    label: str
    x: Numbers
    y: Numbers


def number_lost(lines: Sequence[Line]) -> int:
    """How many lines have numbers that are not finite."""
    return sum(bool(_lost(line).size) for line in lines)


def is_lost_at_end(line: Line) -> bool:
    """Whether the last record of a line is not finite."""
    own = line.y[np.isfinite(line.x)]
    return bool(own.size) and not np.isfinite(own[-1])


def said_of_lost(
    key: str, label: str, lines: Sequence[Line], axis: str, is_band: bool
) -> str | None:
    """The sentence that tells of them; None where all is finite."""
    lost = [_lost(line) for line in lines]
    some = [x for x in lost if x.size]
    if not some:
        return None
    first = number(min(float(x.min()) for x in some))
    many = f" in {len(some)} of {len(lines)}" if len(lines) > 1 else ""
    out = ": the mean and the bands are without them there" if is_band else ""
    where = f"first at {safe(axis)} {first}"
    return f"{safe(key)!r} of {safe(label)} is not finite{many}, {where}{out}."


def _lost(line: Line) -> Numbers:
    """The x of the records that are not finite."""
    found: Numbers = line.x[np.isfinite(line.x) & ~np.isfinite(line.y)]
    return found

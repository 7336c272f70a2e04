"""A curve in a terminal, in dots of braille, or in stars where there are no such signs."""

from __future__ import annotations

import numpy as np

from logax._command.columns import Numbers
from logax._command.page import number, safe, width
from logax.loggers._console.words import Glyphs
from logax.loop._drawing import LARGEST, thinned

_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a sign of braille
_BRAILLE = 0x2800


def curve(
    title: str, x: Numbers, y: Numbers, axis: str, columns: int, rows: int, signs: Glyphs
) -> list[str]:
    """A curve with its axes, in so many columns and rows, and a few rows more.

    What is not finite is a gap. An empty list where there is nothing to draw.
    """
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any():
        return []
    y = np.where(there, np.clip(y, -LARGEST, LARGEST), np.nan)
    bottom, top = float(y[there].min()), float(y[there].max())
    labels = [number(top), number(bottom)]
    margin = max(map(len, labels)) + 1
    field = max(columns - margin - 2, 10)
    grid = _dots(x, y, there, field * (1 if signs.is_ascii else 2), rows * _dot_rows(signs))
    lines = [safe(title, columns)]
    tick, bar = ("|", "|") if signs.is_ascii else ("┤", "│")
    for at, text in enumerate(_texts(grid, signs)):
        label = labels[0] if at == 0 else labels[1] if at == rows - 1 else ""
        lines.append(f"{label:>{margin}} {tick if label else bar}{text}".rstrip())
    corner, dash = ("+", "-") if signs.is_ascii else ("└", "─")
    lines.append(" " * (margin + 1) + corner + dash * field)
    ends = number(float(x[there].min())), number(float(x[there].max()))
    lines.append(" " * (margin + 2) + _under(ends, safe(axis, 20), field))
    return lines


def _dot_rows(signs: Glyphs) -> int:
    return 1 if signs.is_ascii else 4


def _under(ends: tuple[str, str], axis: str, field: int) -> str:
    left, right = ends
    if left == right:
        return f"{left} ({axis})"
    free = max(field - len(left) - len(right) - width(axis), 2)
    return left + " " * (free // 2) + axis + " " * (free - free // 2) + right


def _dots(x: Numbers, y: Numbers, there: Numbers, wide: int, high: int) -> Numbers:
    """Which dots of a grid a line through the points touches."""
    x, y = thinned(x, np.where(there, y, np.nan), 8 * wide)
    there = np.isfinite(x) & np.isfinite(y)
    across = _placed(x, there, wide)
    down = high - 1 - _placed(y, there, high)
    grid = np.zeros((high, wide), bool)
    grid[down[there], across[there]] = True
    for at in np.flatnonzero(there[:-1] & there[1:]):
        reach = abs(across[at + 1] - across[at]), abs(down[at + 1] - down[at])
        number_of_dots = int(max(reach)) + 1
        rows = np.rint(np.linspace(down[at], down[at + 1], number_of_dots)).astype(int)
        columns = np.rint(np.linspace(across[at], across[at + 1], number_of_dots)).astype(int)
        grid[rows, columns] = True
    return grid


def _placed(values: Numbers, there: Numbers, most: int) -> Numbers:
    """For each value its place among so many, from the least to the greatest."""
    low, high = float(values[there].min()), float(values[there].max())
    half = high / 2 - low / 2
    share = (values / 2 - low / 2) / half if half > 0 else np.full(len(values), 0.5)
    placed: Numbers = np.rint(np.where(there, share, 0) * (most - 1)).astype(int)
    return placed


def _texts(grid: Numbers, signs: Glyphs) -> list[str]:
    if signs.is_ascii:
        return ["".join("*" if dot else " " for dot in row) for row in grid]
    high, wide = grid.shape
    blocks = grid.reshape(high // 4, 4, wide // 2, 2)
    codes = np.einsum("rycx,yx->rc", blocks.astype(np.int64), _BITS)
    return ["".join(chr(_BRAILLE + code) if code else " " for code in row) for row in codes]

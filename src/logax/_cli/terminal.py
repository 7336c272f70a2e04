"""Text for a terminal: tables, numbers and names, in signs that the terminal has.

Whatever a user has called something is escaped before it is shown.
"""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logax._support import formatting as words
from logax._support.formatting import Glyphs, plain
from logax.loggers._text.cells import as_json

_ALL = 10**9
_NARROWEST = 40


def write(*lines: str) -> None:
    """Write lines to the standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_json(value: Any) -> None:
    """Write a value as JSON, in ASCII. What is not finite is `NaN`, `Infinity` or `-Infinity`."""
    write(json.dumps(as_json(value), indent=2))


def glyphs() -> Glyphs:
    """The signs that the standard output takes."""
    return Glyphs.of(sys.stdout)


def columns() -> int:
    """How wide the terminal is."""
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def safe(text: str, longest: int = 40) -> str:
    """Text of a user on one line, which does nothing to the terminal."""
    return plain(text, glyphs(), longest)


def safe_lines(text: str, file: Any) -> str:
    """The same for a text of several lines, in full."""
    signs = Glyphs.of(file)
    return "\n".join(plain(line, signs, _ALL) for line in text.split("\n"))


def number(x: Any) -> str:
    """A number in a few digits; whole ones in full."""
    if isinstance(x, (bool, np.bool_)):
        return "true" if x else "false"
    if isinstance(x, (int, np.integer)):
        return str(x)
    if isinstance(x, (complex, np.complexfloating)):
        return f"{x:.4g}"
    return words.number(float(x))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Write a table. Columns that are empty are left out; those in `right` end alike."""
    used = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    cells = [[row[at] for at in used] for row in (heads, *rows)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    sides = [heads[at] in right for at in used]
    for row in cells:
        padded = map(_padded, row, widths, sides)
        write("  ".join(padded).rstrip())


def _padded(text: str, wide: int, is_right: bool) -> str:
    gap = " " * (wide - width(text))
    return gap + text if is_right else text + gap


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_width(letter) for letter in text)


def _width(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The config of a run, without nesting: `model/layers`."""
    if isinstance(value, Mapping) and (value or not name):
        found = {}
        for key, each in value.items():
            found.update(flat(each, f"{name}/{key}" if name else str(key)))
        return found
    return {name: value}


def brief(value: Any, longest: int = 40) -> str:
    """A value of a config, on one line."""
    if isinstance(value, str):
        return safe(value, longest)
    if isinstance(value, (bool, int, float, np.generic)):
        return number(value)
    return safe(json.dumps(as_json(value)), longest)


def exact(value: Any, longest: int = 40) -> str:
    """The same, with all digits of a number: what it takes to read it back."""
    return repr(value) if isinstance(value, float) else brief(value, longest)

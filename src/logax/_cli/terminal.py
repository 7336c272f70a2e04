"""Write escaped text, tables and JSON to the standard output."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from logax._serialization.record_text import to_json_value
from logax._support.formatting import Glyphs, align_table, format_number, format_text

_UNLIMITED_CHARS = 10**9
_MIN_COLUMNS = 40


def write(*lines: str) -> None:
    """Write lines to the standard output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def write_json(value: Any) -> None:
    """Write a value as ASCII JSON, with `NaN`, `Infinity` and `-Infinity` for such floats."""
    write(json.dumps(to_json_value(value), indent=2))


def write_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> None:
    """Write an aligned table without its empty columns; see `align_table`."""
    write(*align_table(header, rows, right))


def stdout_glyphs() -> Glyphs:
    """Return the glyphs that the standard output can encode."""
    return Glyphs.of(sys.stdout)


def terminal_columns() -> int:
    """Return the width of the terminal, or a minimum for narrow ones."""
    return max(shutil.get_terminal_size().columns, _MIN_COLUMNS)


def escape(text: str, max_chars: int = 40) -> str:
    """Return text of the user on one line, escaped and shortened for the standard output."""
    return format_text(text, stdout_glyphs(), max_chars)


def escape_lines(text: str, file: Any) -> str:
    """Return text of several lines, escaped for a file and not shortened."""
    glyphs = Glyphs.of(file)
    return "\n".join(format_text(line, glyphs, _UNLIMITED_CHARS) for line in text.split("\n"))


def flatten_config(value: Any, name: str = "") -> dict[str, Any]:
    """Return the config of a run with nested names joined by slashes: `model/layers`."""
    if isinstance(value, Mapping) and (value or not name):
        flat = {}
        for key, each in value.items():
            flat.update(flatten_config(each, f"{name}/{key}" if name else str(key)))
        return flat
    return {name: value}


def format_value(value: Any, max_chars: int = 40) -> str:
    """Format a value of a config on one line."""
    if isinstance(value, str):
        return escape(value, max_chars)
    if isinstance(value, (bool, int, float, np.generic)):
        return format_number(value)
    return escape(json.dumps(to_json_value(value)), max_chars)


def format_exact_value(value: Any, max_chars: int = 40) -> str:
    """Format a value of a config on one line, with all digits of a float."""
    return repr(value) if isinstance(value, float) else format_value(value, max_chars)

"""Split and write records of comma-separated values.

`csv.reader` of Python rejects fields of more than 128 KiB unless a process-wide limit is raised.
Names of keys and arrays may be longer than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_FIELD = re.compile(r'(?:\A|,)(?:"([^"]*(?:""[^"]*)*)"(?=,|\Z)|([^,]*))')
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_SPECIAL = re.compile(r'[,"\r\n]|\A\s|\s\Z')


def records(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines to records: a quoted field may contain newlines. The last may lack its newline."""
    parts: list[bytes] = []
    quotes = 0
    for line in lines:
        quotes += line.count(b'"')
        if not parts and quotes % 2 == 0:
            yield line
            continue
        parts.append(line)
        if quotes % 2 == 0:
            yield b"".join(parts)
            parts = []
    if parts:
        yield b"".join(parts)


def split_fields(record: bytes) -> list[str]:
    """Split a record into its fields."""
    text = record.decode("utf-8-sig", "replace")
    text = text.removesuffix("\n").removesuffix("\r")
    return [quoted.replace('""', '"') or plain for quoted, plain in _FIELD.findall(text)]


def append_empty_fields(record: bytes, more: int) -> bytes:
    """Append `more` empty fields and a newline to a record."""
    bare = record.removesuffix(b"\n").removesuffix(b"\r")
    return bare + b"," * more + b"\n" if bare else record


def escape_heading(name: str) -> str:
    """Return the heading of a column in a form that no spreadsheet takes for a formula.

    Spreadsheets evaluate a cell that begins with `=`, `+`, `-` or `@`, and show one that begins
    with an apostrophe as text. Names that already begin with apostrophes get one more, so that
    headings stay distinct.
    """
    return f"'{name}" if _FORMULA.match(name) else name


def quote_field(text: str) -> str:
    """Quote a field if it contains separators, quotes or outer spaces."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text

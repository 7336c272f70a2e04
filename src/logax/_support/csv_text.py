"""A table of comma-separated values, read as far as it takes to add to it.

Python's own reader refuses fields of more than 128 KiB unless a limit is raised for the whole
process; names of keys and arrays may be longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_FIELD = re.compile(r'(?:\A|,)(?:"([^"]*(?:""[^"]*)*)"(?=,|\Z)|([^,]*))')
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_SPECIAL = re.compile(r'[,"\r\n]|\A\s|\s\Z')


def records(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Whole records: a line that ends within quotes goes on. The last may lack its newline."""
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


def fields(record: bytes) -> list[str]:
    """The fields of a record."""
    text = record.decode("utf-8-sig", "replace")
    text = text.removesuffix("\n").removesuffix("\r")
    return [quoted.replace('""', '"') or plain for quoted, plain in _FIELD.findall(text)]


def widened(record: bytes, more: int) -> bytes:
    """A record with so many empty fields more, and a newline."""
    bare = record.removesuffix(b"\n").removesuffix(b"\r")
    return bare + b"," * more + b"\n" if bare else record


def heading(name: str) -> str:
    """Return the name of a column, in a form that no spreadsheet takes for a formula.

    Spreadsheets run a cell that begins with `=`, `+`, `-` or `@`, and show one that begins with an
    apostrophe as text. A name that begins so already gets another one, so that no two are the same.
    """
    return f"'{name}" if _FORMULA.match(name) else name


def field(text: str) -> str:
    """A text as a field: in quotes, where it needs them."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text

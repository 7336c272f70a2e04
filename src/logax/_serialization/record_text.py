"""Text of logged records: JSON of arrays, lines of JSON, and comma-separated values.

`JSONLLogger`, `CSVLogger` and the command `logax` share these functions.

| value | JSON |
| --- | --- |
| boolean, integer | `true`, `12` |
| float | as few digits as its dtype needs; `NaN`, `Infinity`, `-Infinity` |
| complex number | `{"real": 1.0, "imag": -2.0}` |
| array | nested lists, `[[1, 2], [3, 4]]`; for complex numbers one for each part |
| typed PRNG key | list of its bits |
| histogram | `{"counts": [...], "edges": [...], "nonfinite": 0}` |
| image | `{"pixels": [...]}` |

`NaN` and `Infinity` are not standard JSON, but Python, pandas and JSON5 read them, and `null` would
hide the failure.

A column has the name of its leaf (`grad/w`) or step. The names `run`, `lane`, `shard` and `event`
are reserved for columns that every row has: a leaf or step with such a name gets an underscore
(`run_`, and `run_` becomes `run__`). If a step and a leaf of one record have the same name, the
leaf gets the underscore; of two leaves, the later one.

This module splits CSV because `csv.reader` of Python rejects fields of more than 128 KiB unless a
process-wide limit is raised. Names of keys and arrays may be longer than that.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._delivery.record_batch import RecordBatch, Stream
from logax._logdict.export import free_name
from logax._media import is_media
from logax._support.arrays import is_key_array, is_missing, leaf_name, replace_surrogates

_NONFINITE_TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_cells(value: Any) -> list[str]:
    """Return the JSON of each record of a leaf. Records are along the first axis of its arrays."""
    if is_media(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _object_texts(names, [json_cells(getattr(value, name)) for name in names])
    if is_key_array(value):
        value = jax.random.key_data(value)
    x = np.asarray(value)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _object_texts(["real", "imag"], [json_cells(x.real), json_cells(x.imag)])
    return _nest_texts(_element_texts(x.reshape(-1)), x.shape)


def to_json_value(value: Any) -> Any:
    """Convert a value of a config to types that `json` accepts, and unknown types to strings."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and _is_numbers(value):
        return json.loads(json_cells(np.asarray(value)[None])[0])
    return str(value)


def _is_numbers(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.number) or array.dtype == np.bool_)


def _element_texts(x: np.ndarray[Any, Any]) -> list[str]:
    """Return the JSON of each element."""
    if x.dtype == np.bool_:
        return ["true" if one else "false" for one in x.tolist()]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return list(map(str, x.tolist()))
    # NumPy scalars print as few digits as their dtype needs.
    texts = list(map(repr, x.tolist()) if x.dtype == np.float64 else map(str, x))
    with np.errstate(invalid="ignore"):  # raised by a signalling NaN
        finite = np.isfinite(x).all()
    if not finite:
        texts = [_NONFINITE_TEXTS.get(text, text) for text in texts]
    return texts


def _nest_texts(texts: list[str], shape: Sequence[int]) -> list[str]:
    """Join the texts of elements to nested lists, one for each index of the first axis."""
    for axis in range(len(shape) - 1, 0, -1):
        size, number = shape[axis], math.prod(shape[:axis])
        rows = (texts[row * size : (row + 1) * size] for row in range(number))
        texts = [f"[{', '.join(row)}]" for row in rows]
    return texts


def _object_texts(names: Sequence[str], columns: Sequence[list[str]]) -> list[str]:
    form = "{" + ", ".join(f'"{name}": %s' for name in names) + "}"
    return [form % row for row in zip(*columns, strict=True)]


Array = np.ndarray[Any, Any]

_RESERVED_NAME = re.compile(r"(run|lane|shard|event)_*\Z")


class TextRows(NamedTuple):
    """Records as columns of text, one row per record.

    Attributes:
      streams: Streams of the batch.
      owner: Index of the stream of each row.
      order: Position of each row in the program.
      steps: Names of the columns that are steps.
      columns: Texts of the rows by column; None for a record without this step.
    """

    streams: Sequence[Stream]
    owner: Array
    order: Array
    steps: Sequence[str]
    columns: Mapping[str, Sequence[str | None]]


def text_rows(batch: RecordBatch) -> TextRows:
    """Convert the records of a batch to rows, one stream after the other, without padding."""
    shape = np.shape(batch.order)
    number = math.prod(shape)
    real = None if batch.real is None else np.asarray(batch.real)

    def flat(x: Any) -> Any:
        return x.reshape(number, *x.shape[2:]) if real is None else x[real]

    steps: dict[str, Sequence[str | None]] = {}
    for name, step in batch.steps.items():
        steps[free_name(_own_name(name), steps)] = _step_cells(flat(np.asarray(step)))
    leaves: dict[str, list[str]] = {}
    for key, value in batch.values.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_media):
            name = free_name(_own_name(leaf_name(key, path)), {*steps, *leaves})
            leaves[name] = json_cells(jax.tree.map(flat, leaf))
    owner = flat(np.broadcast_to(np.arange(shape[0])[:, None], shape))
    order = flat(np.asarray(batch.order))
    return TextRows(batch.streams, owner, order, tuple(steps), {**steps, **leaves})


def _own_name(name: str) -> str:
    name = replace_surrogates(name)  # the name that readers will see
    return f"{name}_" if _RESERVED_NAME.match(name) else name


def _step_cells(steps: Array) -> Sequence[str | None]:
    texts = json_cells(steps)
    lacks = is_missing(steps)
    if not lacks.any():
        return texts
    gone = np.asarray(lacks.reshape(len(texts), -1).all(1)).tolist()
    return [None if none else text for text, none in zip(texts, gone, strict=True)]


def format_json_lines(rows: TextRows, only_ascii: bool = False) -> list[str]:
    """Return each record as one line of JSON; with `only_ascii`, names are escaped."""
    heads = [_line_head(stream) for stream in rows.streams]
    own = [heads[number] for number in rows.owner.tolist()]
    names = [f", {json.dumps(name, ensure_ascii=only_ascii)}: " for name in rows.columns]
    columns = list(rows.columns.values())
    if any(None in column for column in columns):
        return [
            head
            + "".join(name + x for name, x in zip(names, row, strict=True) if x is not None)
            + "}"
            for head, *row in zip(own, *columns, strict=True)
        ]
    form = "%s" + "".join(name.replace("%", "%%") + "%s" for name in names) + "}"
    return [form % row for row in zip(own, *columns, strict=True)]


def _line_head(stream: Stream) -> str:
    where = {"lane": list(stream.lane) or None, "shard": stream.shard}
    given = {name: value for name, value in where.items() if value is not None}
    return json.dumps({"run": stream.run.id, **given})[:-1]


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

"""`logax export`: write runs to a file in CSV, JSON lines, npz or parquet.

**npz.** `loss` holds the values: lane axes first, if there are any, then the record axis.
`loss@step` holds the steps of the records, and so on for every step. If lanes have different
numbers of records, `loss#count` holds these numbers. A key that changed shape midway is `loss`,
`loss#2`, `loss#3`. Characters of names other than letters, digits and `_-.~/ ` are percent-encoded
(`%40` for `@`; `urllib.parse.unquote` decodes them), and so are the dots of a path component that
consists of dots: no name leads out of the folder into which the file is unpacked.

**CSV.** The columns are the id of the run if there are several, the lane if a run has lanes, the
steps, and the leaves by name. Records of different `log` calls share a row if all their steps are
equal; if a call logs the same steps twice, the second record has another row. Cells have the format
of `CSVLogger`.
"""

from __future__ import annotations

import argparse
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import jax
import numpy as np

from logax._cli.columns import Array, key_steps, match_keys, read_logs, record_mask
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    KeySelection,
    add_keys_argument,
    add_path_option,
    find_runs,
    open_runs,
)
from logax._cli.records import OrderedRecords, RecordReader, json_lines
from logax._cli.terminal import escape, escape_lines
from logax._logdict.export import to_numpy_array
from logax._logdict.logdict import logdict, matches
from logax._runs.run import Run
from logax._runs.tables import concat_run_tables
from logax._serialization.record_text import TextRows, escape_heading, quote_field
from logax._support.arrays import encode_utf8, leaf_name
from logax._support.files import open_atomic
from logax._support.imports import import_optional

_MAX_MEMBER_CHARS = 60_000  # a zip file stores the length of a name in 16 bits


def npz_bytes(run: Run, wanted: Sequence[str]) -> bytes:
    """Return an npz file of the arrays of a run and their steps."""
    arrays: dict[str, Array] = {}
    for key, parts in read_logs(run, match_keys(run, wanted)).items():
        for number, logs in enumerate(parts, start=1):
            arrays |= _npz_members(key, logs, f"#{number}" if number > 1 else "")
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _npz_members(key: str, logs: logdict, part: str) -> dict[str, Array]:
    real = record_mask(logs, key)
    count = real.sum(axis=-1)
    found: dict[str, Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(logs[key]):
        name = member_name(leaf_name(key, path)) + part
        found[name] = to_numpy_array(leaf)
        for step, x in key_steps(logs, key).items():
            found[f"{name}@{member_name(step)}"] = to_numpy_array(x)
        if (count != real.shape[-1]).any():
            found[f"{name}#count"] = count
    return found


def member_name(name: str) -> str:
    """Return the name of an array in an npz file."""
    if len(name) > _MAX_MEMBER_CHARS:
        raise CommandError(
            f"the name {escape(name)} is too long for npz: `--to jsonl` takes all names."
        )
    text = quote(name.encode("utf-8", "surrogatepass"), safe="/ ")
    return "/".join(_encode_dots(part) for part in text.split("/"))


def _encode_dots(part: str) -> str:
    return part if part.strip(".") else part.replace(".", "%2E") or "%"


def parquet_bytes(runs: Sequence[Run], wanted: Sequence[str]) -> bytes:
    """Return a parquet file of `run.to_pandas()`, or of `runs.to_pandas()` for several runs."""
    pandas = import_optional("pandas", "logax export --to parquet", "parquet")
    arrow = import_optional("pyarrow", "logax export --to parquet", "parquet")
    parquet = import_optional("pyarrow.parquet", "logax export --to parquet", "parquet")
    frames = {run: _pandas_frame(run, wanted) for run in runs}
    frame = frames[runs[0]] if len(runs) == 1 else concat_run_tables(frames)
    columns = {name: _arrow_column(name, frame[name], arrow, pandas.NA) for name in frame}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def _pandas_frame(run: Run, wanted: Sequence[str]) -> Any:
    keys = [key for key in run if not wanted or matches(key, wanted)]
    read = read_logs(run, keys)
    changed = [key for key, parts in read.items() if len(parts) > 1]
    if changed:
        raise CommandError(
            f"the records of {escape(changed[0])!r} changed their shape midway, and a column of "
            "parquet has one: choose other keys, or `--to jsonl`."
        )
    return run.logdict(*read).to_pandas() if read else logdict().to_pandas()


def _arrow_column(name: str, column: Any, arrow: Any, missing: Any) -> Any:
    """Convert a column for Arrow: arrays to lists, complex numbers to pairs.

    A column of several types, such as a config value that differs between runs, becomes text.
    """
    if column.dtype.kind != "c" and column.dtype != object:
        return column.array if hasattr(column.array, "_mask") else column.to_numpy()
    cells = [None if x is missing else _plain_number(x) for x in column]
    try:
        return arrow.array(cells)
    except (arrow.ArrowException, OverflowError):
        if any(isinstance(x, (list, dict)) for x in cells):
            raise CommandError(
                f"{escape(name)!r} is not of one shape and type in all records, and a column of "
                "parquet is: choose other keys, or `--to jsonl`."
            ) from None
        return arrow.array([None if x is None else str(x) for x in cells])


def _plain_number(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return (
            [_plain_number(each) for each in x] if x.dtype.kind == "c" or x.ndim > 1 else x.tolist()
        )
    if isinstance(x, (complex, np.complexfloating)):
        return {"real": float(x.real), "imag": float(x.imag)}
    return x.item() if isinstance(x, np.generic) else x


def csv_text(runs: Sequence[OrderedRecords]) -> str:
    """Return a CSV table of the records of one or several runs."""
    header = _csv_header([rows for records in runs for rows in records.blocks], len(runs) > 1)
    lines = [",".join(quote_field(escape_heading(name)) for name in header)]
    for records in runs:
        lines += [
            ",".join(quote_field(row.get(name, "")) for name in header)
            for row in _csv_rows(records)
        ]
    return "\n".join(lines) + "\n"


def _csv_rows(records: OrderedRecords) -> Iterable[dict[str, str]]:
    """Return the cells of each row by column."""
    found: dict[Any, dict[str, str]] = {}
    times: dict[Any, int] = {}
    for block, row in records.positions:
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


def _csv_header(blocks: list[TextRows], has_run: bool) -> list[str]:
    run = {"run": None} if has_run else {}
    lane = {"lane": None} if any(stream.lane for x in blocks for stream in x.streams) else {}
    steps = {name: None for rows in blocks for name in rows.steps}
    leaves = {name: None for rows in blocks for name in rows.columns}
    return list(run | lane | steps | leaves)


EXAMPLE = """\
  logax export last --to csv > loss.csv
  logax export sweep --to parquet -o sweep.parquet
  logax export baseline --to jsonl -o baseline.jsonl
  logax export baseline --to npz -o baseline.npz loss 'val/*'"""
_TEXT_FORMATS = ("csv", "jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", metavar="RUN", help=RUNS_HELP)
    add_keys_argument(parser)
    parser.add_argument("--to", choices=tuple(_FORMATS), required=True, help="format of the file")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="file to write; csv and jsonl are printed by default"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_path_option(parser)


def run(options: Any) -> int:
    """Write or print the file."""
    target = options.output
    if target is None and options.to not in _TEXT_FORMATS:
        raise CommandError(f"{options.to} is not text: give a file with `-o FILE.{options.to}`.")
    if target is not None:
        check_target(target, options.force)
    found = find_runs(open_runs(options.path), options.name)
    selection = KeySelection(match_keys)
    for name in options.keys:
        for each in found:
            selection.select(each, name)
    selection.check_found()
    data = _FORMATS[options.to](found, options.keys)
    if target is None:
        _print_file(data)
    else:
        write_file("logax export", target, data)
    return 0


def check_target(path: str, force: bool) -> None:
    """Raise a `CommandError` if a file would be overwritten without `--force`."""
    if force or not os.path.lexists(path):
        return
    if stat.S_ISREG(os.lstat(path).st_mode):
        raise CommandError(f"{escape(path, 200)} already exists: `--force` replaces it.")


def write_file(what: str, path: str, data: bytes) -> None:
    """Write a file atomically."""
    with open_atomic(what, path) as file:
        file.write(data)


def _print_file(data: bytes) -> None:
    if sys.stdout.isatty():  # which must not interpret names of keys
        sys.stdout.write(escape_lines(data.decode("utf-8"), sys.stdout))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _export_jsonl(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    lines = [line for run in runs for line in RecordReader(run, keys).read().lines(json_lines)]
    return encode_utf8("".join(f"{line}\n" for line in lines))


def _export_csv(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    return encode_utf8(csv_text([RecordReader(run, keys).read() for run in runs]))


def _export_npz(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    if len(runs) > 1:
        raise CommandError(
            f"npz takes one run at a time, and {len(runs)} are selected: name one of them, such as "
            f"{escape(runs[-1].name)} ({runs[-1].id}), or write `--to csv`, jsonl or parquet."
        )
    return npz_bytes(runs[0], keys)


_FORMATS: dict[str, Callable[[Sequence[Run], Sequence[str]], bytes]] = {
    "csv": _export_csv,
    "jsonl": _export_jsonl,
    "npz": _export_npz,
    "parquet": parquet_bytes,
}

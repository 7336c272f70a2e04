"""A run as arrays in a file: npz of NumPy, and parquet.

**The names in an npz file.** `loss` holds the values, with the lanes first if there are any, then
the records. `loss@step` holds the step of each, and so for every step. Where lanes differ in their
number of records, `loss#count` holds it. A key that changed its shape midway is `loss`, `loss#2`,
`loss#3`. In the names of keys and steps all but letters, digits and `_-.~/ ` is written as in a
URL (`%40` for `@`; `urllib.parse.unquote` turns it back), and so are the dots of a part that is
nothing else: no name leads out of the folder in which somebody unpacks the file.

Records as one table in CSV.

Columns are the id of the run, where there are several, the lane, where a run has lanes, the steps,
and the leaves by name. Records of different `log` calls share a row where all their steps are
equal; the second time that a call has logged the same steps is another row. Cells are as
`CSVLogger` writes them.

`logax export`: runs as a file that other programs read.
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

from logax._cli.columns import Numbers, keys_of, logs_of, real_rows, steps_of
from logax._cli.options import (
    RUNS_HELP,
    CommandError,
    Wanted,
    add_command,
    add_path,
    opened,
    several,
)
from logax._cli.records import Reader, Records, json_lines
from logax._cli.terminal import safe, safe_lines
from logax._logdict.export import on_host
from logax._logdict.logdict import logdict, matches
from logax._runs.run import Run
from logax._runs.tables import table_of
from logax._support.arrays import encoded, leaf_name
from logax._support.csv_text import field, heading
from logax._support.files import replacing
from logax._support.imports import imported
from logax.loggers._text.cells import Rows

_LONGEST = 60_000  # bytes in the name of a member of a zip file


def npz_of(run: Run, wanted: Sequence[str]) -> bytes:
    """All arrays and their steps."""
    arrays: dict[str, Numbers] = {}
    for key, parts in logs_of(run, keys_of(run, wanted)).items():
        for number, logs in enumerate(parts, start=1):
            arrays |= _members(key, logs, f"#{number}" if number > 1 else "")
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _members(key: str, logs: logdict, part: str) -> dict[str, Numbers]:
    real = real_rows(logs, key)
    count = real.sum(axis=-1)
    found: dict[str, Numbers] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(logs[key]):
        name = member_name(leaf_name(key, path)) + part
        found[name] = on_host(leaf)
        for step, x in steps_of(logs, key).items():
            found[f"{name}@{member_name(step)}"] = on_host(x)
        if (count != real.shape[-1]).any():
            found[f"{name}#count"] = count
    return found


def member_name(name: str) -> str:
    """The name of an array in an npz file."""
    if len(name) > _LONGEST:
        raise CommandError(
            f"the name {safe(name)} is too long for npz: `--to jsonl` takes all names."
        )
    text = quote(name.encode("utf-8", "surrogatepass"), safe="/ ")
    return "/".join(_part(part) for part in text.split("/"))


def _part(part: str) -> str:
    return part if part.strip(".") else part.replace(".", "%2E") or "%"


def parquet_of(runs: Sequence[Run], wanted: Sequence[str]) -> bytes:
    """The table of `run.to_pandas()`, or of several runs that of `runs.to_pandas()`."""
    pandas = imported("pandas", "logax export --to parquet", "parquet")
    arrow = imported("pyarrow", "logax export --to parquet", "parquet")
    parquet = imported("pyarrow.parquet", "logax export --to parquet", "parquet")
    frames = {run: _frame(run, wanted) for run in runs}
    frame = frames[runs[0]] if len(runs) == 1 else table_of(frames)
    columns = {name: _typed(name, frame[name], arrow, pandas.NA) for name in frame}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def _frame(run: Run, wanted: Sequence[str]) -> Any:
    keys = [key for key in run if not wanted or matches(key, wanted)]
    read = logs_of(run, keys)
    changed = [key for key, parts in read.items() if len(parts) > 1]
    if changed:
        raise CommandError(
            f"the records of {safe(changed[0])!r} changed their shape midway, and a column of "
            "parquet has one: choose other keys, or `--to jsonl`."
        )
    return run.logdict(*read).to_pandas() if read else logdict().to_pandas()


def _typed(name: str, column: Any, arrow: Any, missing: Any) -> Any:
    """A column as Arrow takes it: arrays as lists, complex numbers as pairs.

    What runs were given under one name may be of several types, and is text then.
    """
    if column.dtype.kind != "c" and column.dtype != object:
        return column.array if hasattr(column.array, "_mask") else column.to_numpy()
    cells = [None if x is missing else _number(x) for x in column]
    try:
        return arrow.array(cells)
    except (arrow.ArrowException, OverflowError):
        if any(isinstance(x, (list, dict)) for x in cells):
            raise CommandError(
                f"{safe(name)!r} is not of one shape and type in all records, and a column of "
                "parquet is: choose other keys, or `--to jsonl`."
            ) from None
        return arrow.array([None if x is None else str(x) for x in cells])


def _number(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return [_number(each) for each in x] if x.dtype.kind == "c" or x.ndim > 1 else x.tolist()
    if isinstance(x, (complex, np.complexfloating)):
        return {"real": float(x.real), "imag": float(x.imag)}
    return x.item() if isinstance(x, np.generic) else x


def csv_of(runs: Sequence[Records]) -> str:
    """The table of one run, or of several, as text."""
    header = _header([rows for records in runs for rows in records.blocks], len(runs) > 1)
    lines = [",".join(field(heading(name)) for name in header)]
    for records in runs:
        lines += [",".join(field(row.get(name, "")) for name in header) for row in _table(records)]
    return "\n".join(lines) + "\n"


def _table(records: Records) -> Iterable[dict[str, str]]:
    """By column the cells of each row."""
    found: dict[Any, dict[str, str]] = {}
    times: dict[Any, int] = {}
    for block, row in records.places:
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


def _header(blocks: list[Rows], has_run: bool) -> list[str]:
    run = {"run": None} if has_run else {}
    lane = {"lane": None} if any(stream.lane for x in blocks for stream in x.streams) else {}
    steps = {name: None for rows in blocks for name in rows.steps}
    leaves = {name: None for rows in blocks for name in rows.columns}
    return list(run | lane | steps | leaves)


_EXAMPLE = """\
  logax export last --to csv > loss.csv
  logax export sweep --to parquet -o sweep.parquet
  logax export baseline --to jsonl -o baseline.jsonl
  logax export baseline --to npz -o baseline.npz loss 'val/*'"""
_TEXT = ("csv", "jsonl")


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(
        commands, "export", "write runs as a file that other programs read", _EXAMPLE
    )
    parser.add_argument("name", metavar="RUN", help=RUNS_HELP)
    parser.add_argument(
        "keys", nargs="*", default=[], metavar="KEY", help="only these: names or globs"
    )
    parser.add_argument(
        "--to", choices=tuple(_FORMS), required=True, help="what kind of file to write"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file; csv and jsonl are printed without it"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    add_path(parser)
    return parser


def run(options: Any) -> int:
    """Write the file."""
    target = options.output
    if target is None and options.to not in _TEXT:
        raise CommandError(f"{options.to} is not text: give a file with `-o FILE.{options.to}`.")
    if target is not None:
        check_free(target, options.force)
    found = several(opened(options.path), options.name)
    wanted = Wanted(keys_of)
    for name in options.keys:
        for each in found:
            wanted.of(each, name)
    wanted.check()
    data = _FORMS[options.to](found, options.keys)
    if target is None:
        _print(data)
    else:
        write_whole("logax export", target, data)
    return 0


def check_free(path: str, force: bool) -> None:
    """Raise where a file would be lost."""
    if force or not os.path.lexists(path):
        return
    if stat.S_ISREG(os.lstat(path).st_mode):
        raise CommandError(f"{safe(path, 200)} is there already: `--force` replaces it.")


def write_whole(what: str, path: str, data: bytes) -> None:
    """Write a file that is whole whenever it is looked at."""
    with replacing(what, path) as file:
        file.write(data)


def _print(data: bytes) -> None:
    if sys.stdout.isatty():  # where the name of a key must do nothing
        sys.stdout.write(safe_lines(data.decode("utf-8"), sys.stdout))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _jsonl(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    lines = [line for run in runs for line in Reader(run, keys).read().lines(json_lines)]
    return encoded("".join(f"{line}\n" for line in lines))


def _csv(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    return encoded(csv_of([Reader(run, keys).read() for run in runs]))


def _npz(runs: Sequence[Run], keys: Sequence[str]) -> bytes:
    if len(runs) > 1:
        raise CommandError(
            f"npz takes one run at a time, and {len(runs)} are meant: name one of them, such as "
            f"{safe(runs[-1].name)} ({runs[-1].id}), or write `--to csv`, jsonl or parquet."
        )
    return npz_of(runs[0], keys)


_FORMS: dict[str, Callable[[Sequence[Run], Sequence[str]], bytes]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "npz": _npz,
    "parquet": parquet_of,
}

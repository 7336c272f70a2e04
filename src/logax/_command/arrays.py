"""A run as arrays in a file: npz of NumPy, and parquet.

**The names in an npz file.** `loss` holds the values, with the lanes first if there are any, then
the records. `loss@step` holds the step of each, and so for every step. Where lanes differ in their
number of records, `loss#count` holds it. A key that changed its shape midway is `loss`, `loss#2`,
`loss#3`. In the names of keys and steps all but letters, digits and `_-.~/ ` is written as in a
URL (`%40` for `@`; `urllib.parse.unquote` turns it back), and so are the dots of a part that is
nothing else: no name leads out of the folder in which somebody unpacks the file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import jax
import numpy as np

from logax._columns.groups import on_host
from logax._columns.rows import leaf_name
from logax._command.columns import Numbers, keys_of, logs_of, real_rows, steps_of
from logax._command.errors import CommandError
from logax._command.page import safe
from logax._extras import imported
from logax._logdict import logdict, matches
from logax._runs.frames import table_of
from logax._runs.run import Run

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

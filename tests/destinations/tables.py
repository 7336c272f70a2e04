"""Tables read with pandas: what `JSONLLogger` and `CSVLogger` write."""

import json
import re

import pandas as pd

from logax.testing import Seen

STEPS = ("step", "episode", "update")
"""The steps of the cases: a table does not say which of its columns are steps."""

_QUOTED_FORMULA = re.compile(r"\A'(?='*[=+\-@\t\r])")  # spreadsheets run none
_TAKEN = re.compile(r"(run|lane|shard|event)_+\Z")


def read_jsonl(path):
    """The runs of a file of JSON lines."""
    opened, records, status = {}, {}, {}
    lines = path.read_text("utf-8").split("\n")[:-1]
    table = pd.read_json(path, lines=True, precise_float=True).to_dict("records")
    for line, row in zip(lines, table, strict=True):
        # In a table what a record lacks could not be told from what is NaN.
        record = {name: row[name] for name in json.loads(line)}
        run, event = record.pop("run"), record.get("event")
        if event == "open":
            opened[run] = opened.get(run, {}) | record
        elif event == "close":
            status[run] = record["status"]
        else:
            records.setdefault(run, []).append(record)
    return {
        own["name"]: Seen(
            columns_of(records.get(run, [])), status.get(run), own["config"], own.get("group")
        )
        for run, own in opened.items()
    }


def read_csv(path, names=None):
    """The runs of a table, given the names of runs by their ids, else by their ids.

    A table holds records only: no name, no status, and no run that has none.
    """
    if not path.exists():
        return {}
    # As text: what is empty and what is NaN are not the same.
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    runs = {}
    for row in table.to_dict("records"):
        run = row.pop("run") if names is None else names[row.pop("run")]
        record = {
            _QUOTED_FORMULA.sub("", name): json.loads(cell) for name, cell in row.items() if cell
        }
        runs.setdefault(run, []).append(record)
    return {run: Seen(columns_of(records)) for run, records in runs.items()}


def columns_of(records):
    """By name the x and the value of each record."""
    columns = {}
    for record in records:
        steps = [name for name in record if name in STEPS]
        axis = "step" if "step" in steps else next(iter(steps), None)
        for name, value in record.items():
            if name != axis:
                column = columns.setdefault(_original(name), [])
                column.append((len(column) if axis is None else record[axis], value))
    return columns


def _original(name):
    """Without the underscore of names that are taken."""
    return name[:-1] if _TAKEN.match(name) else name

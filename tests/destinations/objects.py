"""Records that loggers keep in memory, or in a folder that `logax.load` reads."""

import logax
from logax._delivery.record_batch import flat
from logax.testing import Seen
from logax.testing._memory import x_of


def read_memory(logger):
    """The runs of a `MemoryLogger`."""
    return {
        run.name: Seen(_columns(run.records), run.status, run.config, run.info.group)
        for run in logger.runs
    }


def read_calls(records):
    """The runs of the records that a `CallbackLogger` called a function with."""
    runs = {}
    for record in records:
        runs.setdefault(record.stream.run, []).append(record)
    return {run.name: Seen(_columns(own), None, run.config, run.group) for run, own in runs.items()}


def _columns(records):
    columns = {}
    for record in records:
        _add(columns, flat(record.values), record.steps)
    return columns


def read_saved(folder):
    """The runs of a `SaveLogger`."""
    return {run.name: _saved(run) for run in logax.load(folder).values()}


def _saved(run):
    columns = {}
    logs = run.logs
    for key in logs:
        steps = {name: by_key[key] for name, by_key in logs.steps.items() if key in by_key}
        leaves = flat({key: logs[key]})
        for row in range(int(logs.count[key])):
            own = {name: step[row] for name, step in steps.items()}
            _add(columns, [(name, leaf[row]) for name, leaf in leaves], own)
    return Seen(columns, run.status, run.config, run.group)


def _add(columns, values, steps):
    """One record: its values, and the steps beside the one that is the x."""
    axis = "step" if "step" in steps else next(iter(steps), None)
    beside = [(name, step) for name, step in steps.items() if name != axis]
    for name, value in [*values, *beside]:
        column = columns.setdefault(name, [])
        column.append((x_of(steps, len(column)), value))

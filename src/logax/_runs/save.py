"""`logax.save`: write a logdict to disk as finished runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import logdict
from logax._logdict.records import KeyRecords
from logax._runs.database import is_runs_file_name, open_database
from logax._runs.errors import RunsError
from logax._runs.format import FINISHED
from logax._runs.identity import lane_suffix, machine_facts, new_run_id
from logax._runs.lock_files import is_being_written, lock_path
from logax._runs.runs_writer import RunsWriter
from logax._serialization.plain_config import plain_config, validate_run_name
from logax._support.arrays import is_key_array
from logax._support.files import make_writable_folder
from logax._support.messages import describe_value
from logax._support.validation import validate_choice

_LANES = ("split", "group", "batch")
_MODES = ("a", "w", "x")


def save(
    logs: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    config: Any = None,
    lanes: str = "split",
    mode: str = "a",
) -> str | list[str]:
    """Write a logdict to disk as a finished run, which `logax.load` reads.

        _, logs = logax.spool(train)(key)
        logax.save(logs, "runs", name="baseline", config={"rate": 0.1})

        logax.load("runs").find("baseline")["loss"]

    Any number of processes may write to the same folder at the same time. To write records while a
    program runs, use `logax.loggers.SaveLogger`.

    Args:
      logs: A logdict, or a mapping that `logdict` accepts.
      path: Folder to write to. It is created, with its parents, if it does not exist.
      name: Name of the run. If there are several, each appends its lane: lane 2 of `sweep` is
        `sweep-2`. By default the id is the name.
      config: Mapping or dataclass of strings, numbers and arrays, nested in any way.
      lanes: Treatment of a logdict with lanes. "split" writes a run for each lane, "group" does the
        same and gives these runs a common group, "batch" writes one run that has lanes.
      mode: "a" adds to the runs in the folder. "w" replaces them: as soon as the new file is
        complete, all other files of runs in the folder are deleted. "x" raises an error if the
        folder has runs.

    Returns:
      The id of the run, or a list of ids if each lane is a run.

    Raises:
      TypeError: `logs` is not a mapping, or `save` was called inside a compiled function, where its
        values are not known.
      ValueError: The keys have different lanes; or `mode` is "w" and a process still writes to the
        folder.
      FileExistsError: `mode` is "x" and the folder has runs.
      OSError: The folder cannot be written to.
    """
    validate_choice("logax.save", "lanes", lanes, _LANES)
    validate_choice("logax.save", "mode", mode, _MODES)
    name, given = validate_run_name("logax.save", name), plain_config("logax.save", config)
    if not isinstance(logs, Mapping):
        raise TypeError(f"`logax.save` takes a logdict, and got {describe_value(logs)}.")
    found = logs if isinstance(logs, logdict) else logdict(logs)
    found._require_concrete("logax.save(logs, path)")
    columns = found._records()
    shape = _common_lanes(columns)
    folder = make_writable_folder("logax.save", "path", path)
    earlier = [] if mode == "a" else _list_runs_files(folder)
    if earlier and mode == "x":
        raise FileExistsError(
            f"`logax.save` got the folder {folder}, which has runs in it, and mode 'x' wants none. "
            'Give another folder, or write `mode="a"` to add to them.'
        )
    for file in earlier:
        if is_being_written(file):
            raise ValueError(
                f"`logax.save` cannot replace the runs in {folder}: a process still writes {file}. "
                'Close its logger first, or write `mode="a"`.'
            )
    several = shape if lanes != "batch" else ()
    runs = _new_runs(name, given, several, is_grouped=lanes == "group")
    if lanes == "batch":
        streams = tuple(Stream(runs[0], lane) for lane in np.ndindex(shape))
    else:
        streams = tuple(Stream(run) for run in runs)
    writer = RunsWriter("logax.save", folder)
    try:
        writer.open(runs)
        for batch in _batches(columns, streams, shape):
            writer.write(batch)
        writer.close(runs, FINISHED)
    finally:
        writer.end()
    for file in earlier:
        _remove_runs_file(file)
    return [run.id for run in runs] if several else runs[0].id


def _new_runs(
    name: str | None, config: Mapping[str, Any], lanes: tuple[int, ...], *, is_grouped: bool
) -> list[RunInfo]:
    """Return a new run for each lane, or one run if there are no lanes."""
    began = time.time()
    shared = new_run_id(began)
    runs = []
    for lane in np.ndindex(lanes):
        own = f"{shared}{lane_suffix(lane)}"
        runs.append(
            RunInfo(
                own,
                own if name is None else f"{name}{lane_suffix(lane)}",
                dict(config),
                began,
                machine_facts(),
                group=(name or shared) if is_grouped else None,
                lane=lane,
            )
        )
    return runs


def _list_runs_files(folder: str) -> list[str]:
    """Return the files of runs in a folder; files of other programs are skipped."""
    found = []
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if is_runs_file_name(entry):
            with contextlib.suppress(RunsError), open_database(path):
                found.append(path)
    return found


def _remove_runs_file(file: str) -> None:
    os.unlink(file)
    # A killed process leaves these behind.
    for beside in (f"{file}-wal", f"{file}-shm", lock_path(file)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _common_lanes(columns: Mapping[str, KeyRecords]) -> tuple[int, ...]:
    """Return the lanes that all keys with lanes share; keys without lanes are allowed too."""
    shapes = {records.lanes: key for key, records in columns.items() if records.lanes}
    if len(shapes) > 1:
        (one, a), (two, b) = list(shapes.items())[:2]
        raise ValueError(
            f"`logax.save` takes keys with the same lanes: {a!r} has {one}, and {b!r} has {two}. "
            "Save them one after the other, with `logs.filter(...)`."
        )
    return next(iter(shapes), ())


def _batches(
    columns: Mapping[str, KeyRecords], streams: Sequence[Stream], lanes: tuple[int, ...]
) -> Iterator[RecordBatch]:
    """Yield a batch for each group of keys that share their steps, counts and sites."""
    groups: dict[Any, dict[str, KeyRecords]] = {}
    for key, x in columns.items():
        groups.setdefault((x.shared_identity, x.lanes), {})[key] = x
    for group in groups.values():
        yield _batch(group, streams, lanes)


def _batch(
    group: Mapping[str, KeyRecords], streams: Sequence[Stream], lanes: tuple[int, ...]
) -> RecordBatch:
    first = next(iter(group.values()))
    count = np.broadcast_to(np.asarray(first.num_real_rows()), lanes).reshape(-1)
    length = int(count.max(initial=0)) if first.length is None else first.length

    def flat(x: Any) -> Any:
        own = x if is_key_array(x) else np.asarray(x)
        rest = own.shape[first.axis :]
        if first.lanes != lanes:  # a key without lanes has the same records in every lane
            own = (np if isinstance(own, np.ndarray) else jax.numpy).broadcast_to(
                own, (len(streams), *rest)
            )
        return own.reshape(len(streams), *rest)

    real = np.arange(length) < count[:, None]
    return RecordBatch(
        tuple(streams),
        {key: jax.tree.map(flat, x.value) for key, x in group.items()},
        {name: flat(step) for name, step in first.steps.items()},
        np.broadcast_to(np.arange(length), (len(streams), length)),
        None if real.all() else real,
        "\n".join(first.site),
    )

"""A logdict at hand, kept as runs: `logax.save`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from logax._logdict.logdict import logdict
from logax._logdict.records import Records
from logax._runs.database import is_candidate, opened
from logax._runs.errors import RunsError
from logax._runs.format import FINISHED
from logax._runs.locks import is_alive, lock_of
from logax._runs.writer import Writer
from logax._support.arrays import is_key_array
from logax._support.config import plain_config, validate_name
from logax._support.files import writable_folder
from logax._support.messages import received
from logax._support.validation import one_of

if TYPE_CHECKING:
    from logax._delivery.record_batch import RecordBatch, Stream

_LANES = ("split", "group", "together")
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
    """Keep a logdict on disk, as a finished run that `logax.load` reads.

    Args:
      logs: A logdict, or what one is made of.
      path: The folder, which is made if it is not there; others may write to it.
      name: What to call the run; of several each has its lane behind that.
      config: A mapping or a dataclass of strings, numbers and arrays, in any nesting.
      lanes: What becomes of a logdict with lanes: "split" makes a run of each, "group" the same
        with a group in common, and "together" one run that has lanes.
      mode: "a" adds to the runs of the folder. "w" replaces them: once the new file is written, the
        files of other runs are deleted. "x" raises if the folder has runs.

    Returns:
      The id of the run; where each lane is a run, a list of their ids.

    Raises:
      TypeError: `logs` is no mapping, or there are no numbers to see, inside a compiled function.
      ValueError: Its keys differ in their lanes; or with "w", a process still writes to the folder.
      FileExistsError: There are runs in the folder, and `mode` is "x".
      OSError: The folder cannot be written to.
    """
    from logax._delivery.record_batch import Stream  # noqa: PLC0415
    from logax.loggers._core.registry import Seeds  # noqa: PLC0415 - made of this package

    one_of("logax.save", "lanes", lanes, _LANES)
    one_of("logax.save", "mode", mode, _MODES)
    name, given = validate_name("logax.save", name), plain_config("logax.save", config)
    if not isinstance(logs, Mapping):
        raise TypeError(f"`logax.save` takes a logdict, and got {received(logs)}.")
    found = logs if isinstance(logs, logdict) else logdict(logs)
    found._require("logax.save(logs, path)")
    columns = found._records()
    shape = _lanes_of(columns)
    folder = writable_folder("logax.save", "path", path)
    earlier = [] if mode == "a" else _files_of_runs(folder)
    if earlier and mode == "x":
        raise FileExistsError(
            f"`logax.save` got the folder {folder}, which has runs in it, and mode 'x' wants none. "
            'Give another folder, or write `mode="a"` to add to them.'
        )
    for file in earlier:
        if is_alive(file):
            raise ValueError(
                f"`logax.save` cannot replace the runs in {folder}: a process still writes {file}. "
                'Close its logger first, or write `mode="a"`.'
            )
    several = shape if lanes != "together" else ()
    seeds = Seeds(name, lambda index: given, several)
    runs = [seeds.run(index, lanes == "group") for index in range(seeds.number)]
    if lanes == "together":
        streams = tuple(Stream(runs[0], lane) for lane in np.ndindex(shape))
    else:
        streams = tuple(Stream(run) for run in runs)
    writer = Writer("logax.save", folder)
    try:
        writer.open(runs)
        for portion in _portions(columns, streams, shape):
            writer.write(portion)
        writer.close(runs, FINISHED)
    finally:
        writer.end()
    for file in earlier:
        _remove(file)
    return [run.id for run in runs] if several else runs[0].id


def _files_of_runs(folder: str) -> list[str]:
    """List the files of runs in a folder, without files of other programs."""
    found = []
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if is_candidate(entry):
            with contextlib.suppress(RunsError), opened(path):
                found.append(path)
    return found


def _remove(file: str) -> None:
    os.unlink(file)
    # A process that was killed leaves these.
    for beside in (f"{file}-wal", f"{file}-shm", lock_of(file)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _lanes_of(columns: Mapping[str, Records]) -> tuple[int, ...]:
    """The lanes that keys have in common; some keys may have none."""
    shapes = {records.lanes: key for key, records in columns.items() if records.lanes}
    if len(shapes) > 1:
        (one, a), (two, b) = list(shapes.items())[:2]
        raise ValueError(
            f"`logax.save` takes keys with the same lanes: {a!r} has {one}, and {b!r} has {two}. "
            "Save them one after the other, with `logs.filter(...)`."
        )
    return next(iter(shapes), ())


def _portions(
    columns: Mapping[str, Records], streams: Sequence[Stream], lanes: tuple[int, ...]
) -> Iterator[RecordBatch]:
    """The records of keys that have their steps, count and sites in common, together."""
    groups: dict[Any, dict[str, Records]] = {}
    for key, x in columns.items():
        groups.setdefault((x.common, x.lanes), {})[key] = x
    for group in groups.values():
        yield _portion(group, streams, lanes)


def _portion(
    group: Mapping[str, Records], streams: Sequence[Stream], lanes: tuple[int, ...]
) -> RecordBatch:
    from logax._delivery.record_batch import RecordBatch  # noqa: PLC0415 - made of this package

    first = next(iter(group.values()))
    count = np.broadcast_to(np.asarray(first.real()), lanes).reshape(-1)
    length = int(count.max(initial=0)) if first.length is None else first.length

    def flat(x: Any) -> Any:
        own = x if is_key_array(x) else np.asarray(x)
        rest = own.shape[first.axis :]
        if first.lanes != lanes:  # the same for every lane
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

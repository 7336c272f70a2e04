"""`JSONLLogger`: one file of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from logax._delivery.record_batch import RunInfo
from logax._serialization.record_text import format_json_lines, to_json_value
from logax._support.arrays import encode_utf8
from logax.loggers._core.logger import Logger
from logax.loggers._text.shared_files import append_or_undo, end_of_complete_lines
from logax.loggers._text.text_sink import TextSink

_MAX_FIRST_LINE_BYTES = 2**20
_HEAD_BYTES = 2**12  # beginning of the file that identifies it


class JSONLLogger(Logger):
    """Write all runs to one file of JSON lines, with one object per record.

        logger = JSONLLogger("runs.jsonl")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

        table = pandas.read_json("runs.jsonl", lines=True, precise_float=True)
        records = table[table["event"].isna()]

    **Records** are flat: `{"run": id, "step": 3, "loss": 0.25, "grad/w": [0.5, 1.0]}`. `run` is the
    id of the run; `lane` (a list of indices) and `shard` exist only if a run has lanes or shards.
    The steps follow, then the leaves by their flat names; an object contains only what its record
    has. Floats have the fewest digits from which their own dtype reads back the same number.
    Nonfinite numbers are `NaN`, `Infinity` and `-Infinity`, which Python and pandas read. Arrays
    are nested lists, a complex number is `{"real": 1.0, "imag": 2.0}`, a PRNG key the list of its
    bits, a `Histogram` an object with `counts`, `edges` and `nonfinite`, and an `Image` an object
    with `pixels`.

    **Names.** A key or step called `run`, `lane`, `shard` or `event` gets a trailing underscore. So
    does a key that has the name of a step of the same record: `step` is the step, `step_` the key.

    **Events.** A line with `"event": "open"` opens a run. It holds `name`, `config`, `began`
    (seconds since the epoch) and `machine`, and `group`, `lane`, `lanes` and `resumed` if they
    apply. A line with `"event": "close"` closes the run, and holds its `status`. A resumed run has
    another opening line, without `name` unless one was given.

    **Order.** The records of a run appear in program order.

    **Sharing.** Any number of processes may write to one file: lines are appended under a lock. A
    line that a killed process left incomplete stays, on its own line. Lines reach the operating
    system about twice per second, and then survive the end of the process. If another program
    deletes, empties or truncates the file, the next call reports it, and lines go to a new file or
    to what is left. If another program replaces the file, nothing is added to it: the records are
    lost, and the next call reports that.

    Args:
      path: The file. It is created if it does not exist, with its parent folders; a file that a
        `JSONLLogger` wrote is extended.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      IsADirectoryError: `path` is a folder.
      NotADirectoryError: A parent of `path` is a file.
      PermissionError: The file or its folder is not writable.
      ValueError: The file does not consist of lines of runs.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(JSONLSink(path), lanes=lanes)


class JSONLSink(TextSink):
    """The sink of `JSONLLogger`."""

    logger_name = "JSONLLogger"

    def _reset(self) -> None:
        super()._reset()
        self._head = b""
        self._openings: dict[RunInfo, str] = {}  # opening lines of the open runs
        self._lines: list[str] = []
        self._records = 0  # number of records among the lines

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Buffer the opening lines of the runs."""
        self._order_rows()
        openings = {run: json.dumps(_opening_event(run), ensure_ascii=False) for run in runs}
        self._openings |= openings
        self._lines += openings.values()

    def flush(self) -> None:
        """Append all lines to the file."""
        self._order_rows()
        lines, records = self._lines, self._records
        self._lines, self._records = [], 0
        if lines:
            self._append_records(records, lambda fd: self._append(fd, lines))

    def _append(self, fd: int, lines: list[str]) -> int:
        size = os.fstat(fd).st_size
        if not size and self._head:  # a new file, which lacks the opening lines
            present = set(lines)
            lines = [*(x for x in self._openings.values() if x not in present), *lines]
        begin = b"" if end_of_complete_lines(fd) == size else b"\n"
        append_or_undo(fd, begin + encode_utf8("\n".join(lines)) + b"\n")
        self._head = os.pread(fd, _HEAD_BYTES, 0)
        return os.fstat(fd).st_size

    def _is_same_file(self, fd: int) -> bool:
        found = os.pread(fd, len(self._head), 0)
        return self._head.startswith(found)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write the closing lines of the runs."""
        self._order_rows()
        ends = ({"run": run.id, "event": "close", "status": status} for run in runs)
        self._lines += map(json.dumps, ends)
        try:
            self.flush()
        finally:
            for run in runs:
                self._openings.pop(run, None)

    def _order_rows(self) -> None:
        """Convert buffered rows to ordered lines: no later row belongs before them."""
        self._records += self._buffer.number
        self._lines += self._buffer.take(format_json_lines)

    def _check(self, file: BinaryIO) -> None:
        line = file.readline(_MAX_FIRST_LINE_BYTES)
        if line and not line.startswith(b'{"run": ') and not _has_run(line):
            raise ValueError(
                f"`{self.logger_name}` adds to files that it wrote, whose lines are JSON objects "
                f"with `run`, and {self.path} begins with {line[:40].decode('utf-8', 'replace')!r}."
                " Give the path of another file."
            )

    def _read_runs(self, file: BinaryIO) -> dict[str, str]:
        known: dict[str, str] = {}
        for line in file:
            if b'"event": "open"' in line:
                _add_opened_run(line, known)
        return known


def _has_run(line: bytes) -> bool:
    """Return whether a line is a JSON object with `run`, however it is formatted."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "run" in found


def _opening_event(run: RunInfo) -> dict[str, Any]:
    name = run.given_name
    some = {
        "group": run.group,
        "lane": list(run.lane) or None,
        "lanes": run.lanes,
        "resumed": run.resumed or None,
    }
    return {
        "run": run.id,
        "event": "open",
        **({} if name is None else {"name": name}),
        "config": to_json_value(run.config),
        "began": run.began,
        "machine": to_json_value(run.machine),
        **{name: value for name, value in some.items() if value is not None},
    }


def _add_opened_run(line: bytes, known: dict[str, str]) -> None:
    try:
        event = json.loads(line)
    except ValueError:  # incomplete line of a killed process
        return
    if isinstance(event, dict) and event.get("event") == "open":
        run = str(event.get("run"))
        name = str(event.get("name", run))
        known[run] = known.get(run, run) if name == run else name

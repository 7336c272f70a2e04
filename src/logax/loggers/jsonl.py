"""Records as lines of JSON in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, BinaryIO

from logax._delivery.record_batch import RunInfo, Stream
from logax._support.arrays import encoded
from logax.loggers._core.logger import Logger
from logax.loggers._text.cells import Rows, as_json
from logax.loggers._text.files import append, whole_lines
from logax.loggers._text.sink import TextSink

_LONGEST_FOREIGN = 2**20  # bytes of a first line that some other program wrote
_HEAD_BYTES = 2**12  # bytes by which a file is known again


class JSONLLogger(Logger):
    """Writes one JSON object a line to one file, a line for each record.

        logger = JSONLLogger("runs.jsonl")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

        table = pandas.read_json("runs.jsonl", lines=True, precise_float=True)
        records = table[table["event"].isna()]

    **A record** is flat: `{"run": id, "step": 3, "loss": 0.25, "grad/w": [0.5, 1.0]}`. `run` is the
    id; `lane` (a list of indices) and `shard` are there only where a run has lanes or shards. Then
    come the steps, and the leaves by their flat names, and only what this record has. Floats have
    as few digits as their own type needs: read as that type they are the same numbers. Not finite
    ones are `NaN`, `Infinity` and `-Infinity`, which Python and pandas read. Arrays are nested
    lists, a complex number is `{"real": 1.0, "imag": 2.0}`, a PRNG key the list of its bits, a
    `Histogram` an object of `counts`, `edges` and `nonfinite`, an `Image` one of `pixels`.

    **Names.** A key or step called `run`, `lane`, `shard` or `event` has an underscore behind it;
    so has a key where a step of the same record has its name: `step` is the step, `step_` the key.

    **Events.** The line that opens a run has `"event": "open"` and what is known of it: `name`,
    `config`, `began` (seconds since the epoch), `machine`, and where there are any, `group`,
    `lane`, `lanes` and `resumed`. The one that closes it has `"event": "close"` and its `status`. A
    run that goes on has another opening line, without `name` if it was given none.

    **Order.** The records of a run stand in the order of the program.

    **Sharing.** Any number of processes may write to one file: lines are added to its end, under a
    lock. A line that a killed process left unfinished stays as it is, on a line of its own. Lines
    are in the hands of the system about twice a second, and survive the end of the process. Where
    another program deletes, empties or truncates the file, the next call reports it, and lines are
    added to a new file or to what is left. Nothing is added to a file that took the place of this
    one: its records are lost, which is reported too.

    Args:
      path: The file. It is made, with the folders above it, if there is none; one that a
        `JSONLLogger` wrote is added to.
      lanes: What becomes of seeds; see `Logger`.

    Raises:
      IsADirectoryError: `path` is a folder.
      NotADirectoryError: `path` lies in a file.
      PermissionError: The file, or its folder, may not be written to.
      ValueError: The file holds something else than lines of runs.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(JSONLSink(path), lanes=lanes)


class JSONLSink(TextSink):
    """The file of a `JSONLLogger`."""

    logger_name = "JSONLLogger"

    def _reset(self) -> None:
        super()._reset()
        self._head = b""
        self._openings: dict[RunInfo, str] = {}  # the opening lines of runs that are open
        self._lines: list[str] = []
        self._records = 0  # among the lines

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Write what is known of the runs."""
        self._settle()
        openings = {run: json.dumps(_opening(run), ensure_ascii=False) for run in runs}
        self._openings |= openings
        self._lines += openings.values()

    def flush(self) -> None:
        """Add all lines to the file."""
        self._settle()
        lines, records = self._lines, self._records
        self._lines, self._records = [], 0
        if lines:
            self._add(records, lambda fd: self._append(fd, lines))

    def _append(self, fd: int, lines: list[str]) -> int:
        size = os.fstat(fd).st_size
        if not size and self._head:  # the file was begun again, and lacks what opened the runs
            present = set(lines)
            lines = [*(x for x in self._openings.values() if x not in present), *lines]
        begin = b"" if whole_lines(fd) == size else b"\n"
        append(fd, begin + encoded("\n".join(lines)) + b"\n")
        self._head = os.pread(fd, _HEAD_BYTES, 0)
        return os.fstat(fd).st_size

    def _is_same_file(self, fd: int) -> bool:
        found = os.pread(fd, len(self._head), 0)
        return self._head.startswith(found)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write how the runs ended."""
        self._settle()
        ends = ({"run": run.id, "event": "close", "status": status} for run in runs)
        self._lines += map(json.dumps, ends)
        try:
            self.flush()
        finally:
            for run in runs:
                self._openings.pop(run, None)

    def _settle(self) -> None:
        """Put what was gathered in order: nothing that comes later belongs before it."""
        self._records += self._gathered.number
        self._lines += self._gathered.take(lines_of)

    def _check(self, file: BinaryIO) -> None:
        line = file.readline(_LONGEST_FOREIGN)
        if line and not line.startswith(b'{"run": ') and not _is_of_run(line):
            raise ValueError(
                f"`{self.logger_name}` adds to files that it wrote, whose lines are JSON objects "
                f"with `run`, and {self.path} begins with {line[:40].decode('utf-8', 'replace')!r}."
                " Give the path of another file."
            )

    def _runs_of(self, file: BinaryIO) -> dict[str, str]:
        known: dict[str, str] = {}
        for line in file:
            if b'"event": "open"' in line:
                _remember(line, known)
        return known


def _is_of_run(line: bytes) -> bool:
    """Whether it is a JSON object with `run`, of whatever form."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "run" in found


def _opening(run: RunInfo) -> dict[str, Any]:
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
        "config": as_json(run.config),
        "began": run.began,
        "machine": as_json(run.machine),
        **{name: value for name, value in some.items() if value is not None},
    }


def lines_of(rows: Rows, only_ascii: bool = False) -> list[str]:
    """Each record as a JSON object on a line, in UTF-8 or in ASCII."""
    heads = [_head(stream) for stream in rows.streams]
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


def _head(stream: Stream) -> str:
    where = {"lane": list(stream.lane) or None, "shard": stream.shard}
    given = {name: value for name, value in where.items() if value is not None}
    return json.dumps({"run": stream.run.id, **given})[:-1]


def _remember(line: bytes, known: dict[str, str]) -> None:
    try:
        event = json.loads(line)
    except ValueError:  # of a process that was killed
        return
    if isinstance(event, dict) and event.get("event") == "open":
        run = str(event.get("run"))
        name = str(event.get("name", run))
        known[run] = known.get(run, run) if name == run else name

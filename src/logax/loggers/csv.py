"""`CSVLogger`: one table of comma-separated values."""

from __future__ import annotations

import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from logax._delivery.record_batch import RunInfo, Stream
from logax._serialization.record_text import (
    TextRows,
    append_empty_fields,
    escape_heading,
    quote_field,
    records,
    split_fields,
)
from logax._support.arrays import encode_utf8
from logax._support.files import open_atomic
from logax.loggers._core.logger import Logger
from logax.loggers._text.shared_files import append_or_undo, end_of_complete_lines
from logax.loggers._text.text_sink import ReorderBuffer, TextSink


class CSVLogger(Logger):
    """Write all runs to one CSV file, with one row per record.

        logger = CSVLogger("runs.csv")
        with logger.run() as state:
            weights = logger.tap(train, state)(key)

        table = pandas.read_csv("runs.csv")
        table[table["run"] == "..."].plot("step", "loss")

    **Columns.** `run` is the id of the run; `lane` (an index, or a list of indices) and `shard`
    exist only if a run has lanes or shards. The steps follow, then the leaves by their flat names
    (`grad/w`). Cells that a record lacks are empty. A key or step that appears later adds a column
    at the end: the file is rewritten, and replaces the old one when it is complete.

    **Cells.** Floats have the fewest digits from which their own dtype reads back the same number.
    Nonfinite numbers are `NaN`, `Infinity` and `-Infinity`; booleans are `true` and `false`. Arrays
    are nested JSON lists, and other values are JSON as in `JSONLLogger`. The table holds records
    only: the config and the status of a run are not in it.

    **Names.** A key or step called `run`, `lane`, `shard` or `event` gets a trailing underscore. So
    does a key that has the name of a step of the same record: `step` is the step, `step_` the key.
    A name that starts with `=`, `+`, `-` or `@` gets a leading apostrophe, so that spreadsheets do
    not run it as a formula: `=loss` becomes `'=loss`. Cells are numbers and JSON, and need none.

    **Order.** The records of a run appear in program order.

    **Sharing.** Any number of processes may write to one file: each appends rows and adds columns
    under a lock. A row that a killed process left incomplete is removed. Rows reach the operating
    system about twice per second, and then survive the end of the process. If another program
    deletes, empties or truncates the file, the next call reports it, and rows go to a new file or
    to what is left. If another program replaces the file, nothing is added to it: the records are
    lost, and the next call reports that.

    Args:
      path: The file. It is created if it does not exist, with its parent folders; a file that a
        `CSVLogger` wrote is extended.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      IsADirectoryError: `path` is a folder.
      NotADirectoryError: A parent of `path` is a file.
      PermissionError: The file or its folder is not writable.
      ValueError: The file is not a table with a column `run`.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(CSVSink(path), lanes=lanes)


class CSVSink(TextSink):
    """The sink of `CSVLogger`."""

    logger_name = "CSVLogger"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._header, self._columns = b"", [""]  # as last read
        self._first_row = b""  # identifies the table
        super().__init__(path)

    def flush(self) -> None:
        """Append all rows to the file, after adding columns that it lacks."""
        buffer, self._buffer = self._buffer, ReorderBuffer()
        if buffer.number:
            self._append_records(buffer.number, lambda fd: self._append(fd, buffer))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write the remaining records."""
        self.flush()

    def _check(self, file: BinaryIO) -> None:
        self._read_header(file.fileno())

    def _read_runs(self, file: BinaryIO) -> dict[str, str]:
        rows = records(file)
        place = self._run_column(next(rows, b""))
        known: dict[str, str] = {}
        for row in rows:
            if not row.endswith(b"\n"):  # incomplete row of a killed process
                break
            begin = row.split(b",", 1)[0].decode("utf-8", "replace")
            own = [begin] if place == 0 else split_fields(row)[place : place + 1]
            known.update(zip(own, own, strict=True))
        return known

    def _append(self, fd: int, buffer: ReorderBuffer) -> int:
        columns = self._read_header(fd)
        wanted = ["run", *_location_columns(buffer.streams), *map(escape_heading, buffer.columns)]
        more = [name for name in wanted if name not in set(columns)]
        text = "\n".join(buffer.take(_row_formatter([*columns, *more])))
        data = encode_utf8(text) + b"\n"
        if more or not self._header.endswith(b"\n"):
            return self._rewrite(fd, [*columns, *more], len(more), data)
        end = end_of_complete_lines(fd)
        if end < os.fstat(fd).st_size:  # incomplete row of a killed process or a full disk
            os.ftruncate(fd, end)
        append_or_undo(fd, data)
        self._remember_first_row(fd)
        return os.fstat(fd).st_size

    def _remember_first_row(self, fd: int) -> None:
        if not self._first_row:
            self._first_row = _first_records(fd)[1]

    def _is_same_file(self, fd: int) -> bool:
        """Return whether the file is the same table, perhaps with columns of another process."""
        header, row = _first_records(fd)
        columns = split_fields(header) if header else []
        return columns[: len(self._columns)] == self._columns and row.startswith(self._first_row)

    def _read_header(self, fd: int) -> list[str]:
        """Return the current columns of the file: another process may have added some."""
        if self._header and os.pread(fd, len(self._header), 0) == self._header:
            return self._columns
        header = _first_records(fd)[0]
        self._run_column(header)
        self._header, self._columns = header, split_fields(header) if header else []
        return self._columns

    def _run_column(self, header: bytes) -> int:
        columns = split_fields(header)
        if header and "run" not in columns:
            names = ", ".join(name[:40] for name in columns[:5])
            raise ValueError(
                f"`{self.logger_name}` adds to tables that it wrote, which have a column `run`, "
                f"and {self.path} begins with {names!r}. Give the path of another file."
            )
        return columns.index("run") if header else 0

    def _rewrite(self, fd: int, columns: list[str], more: int, data: bytes) -> int:
        """Replace the table by one with more columns."""
        with open(os.dup(fd), "rb") as old, open_atomic(self.logger_name, self.path) as new:
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(fd).st_mode))
            old.seek(0)
            rows = records(old)
            next(rows, None)
            header = encode_utf8(",".join(map(quote_field, columns))) + b"\n"
            kept = (append_empty_fields(row, more) for row in rows if row.endswith(b"\n"))
            first_row = next(kept, b"")
            new.write(header + first_row)
            new.writelines(kept)
            new.write(data)
            size = new.tell()
        self._header, self._columns = header, split_fields(header)
        self._first_row = (first_row or next(records(io.BytesIO(data)))).removesuffix(b"\n")
        return size


def _first_records(fd: int) -> tuple[bytes, bytes]:
    """Return the header and the first row of a table; b"" for each that is missing."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        found = list(itertools.islice(records(file), 2))
    header, row = [*found, b"", b""][:2]
    return header, row.removesuffix(b"\n")


def _location_columns(streams: Iterable[Stream]) -> list[str]:
    """Return the columns that locate a record within its run, if any."""
    lane = any(stream.lane for stream in streams)
    shard = any(stream.shard is not None for stream in streams)
    return ["lane"] * lane + ["shard"] * shard


def _row_formatter(header: Sequence[str]) -> Callable[[TextRows], list[str]]:
    """Return a function that formats rows as lines of a table with these columns."""

    def lines(rows: TextRows) -> list[str]:
        owner = rows.owner.tolist()
        columns = {escape_heading(name): _fields(texts) for name, texts in rows.columns.items()}
        for name, of_stream in _OF_STREAM.items():
            texts = [of_stream(stream) for stream in rows.streams]
            columns[name] = [texts[number] for number in owner]
        form = ",".join("%s" if name in columns else "" for name in header)
        present = (columns[name] for name in header if name in columns)
        return [form % row for row in zip(*present, strict=True)]

    return lines


_OF_STREAM: dict[str, Callable[[Stream], str]] = {
    "run": lambda stream: quote_field(stream.run.id),
    "lane": lambda stream: _lane(stream.lane),
    "shard": lambda stream: "" if stream.shard is None else str(stream.shard),
}


def _lane(lane: tuple[int, ...]) -> str:
    return quote_field(str(list(lane))) if len(lane) > 1 else "".join(map(str, lane))


def _fields(texts: Sequence[str | None]) -> list[str]:
    if any(text is not None and text[0] in "[{" for text in texts[:1]) or None in texts:
        return ["" if text is None else quote_field(text) for text in texts]
    return list(texts)  # type: ignore[arg-type]

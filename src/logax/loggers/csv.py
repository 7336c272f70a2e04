"""Records as rows of one table of comma-separated values."""

from __future__ import annotations

import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from logax._delivery.record_batch import RunInfo, Stream
from logax._support.arrays import encoded
from logax._support.csv_text import field, fields, heading, records, widened
from logax._support.files import replacing
from logax.loggers._core.logger import Logger
from logax.loggers._text.cells import Rows
from logax.loggers._text.files import append, whole_lines
from logax.loggers._text.sink import Gathered, TextSink


class CSVLogger(Logger):
    """Writes one table to one file, a row for each record.

        logger = CSVLogger("runs.csv")
        with logger.run() as state:
            weights = logger.tap(train, state)(key)

        table = pandas.read_csv("runs.csv")
        table[table["run"] == "..."].plot("step", "loss")

    **Columns.** `run` is the id; `lane` (an index, or a list of them) and `shard` are there only
    where a run has lanes or shards; then come the steps, and the leaves by their flat names
    (`grad/w`). What a record has not is empty. A key or step that comes late gets a column at the
    end: the file is written anew, and takes the place of the old one when it is whole.

    **Cells.** Floats have as few digits as their own type needs: read as that type they are the
    same numbers. Not finite ones are `NaN`, `Infinity` and `-Infinity`, booleans `true` and
    `false`. Arrays are nested lists in JSON, and other values JSON as `JSONLLogger` writes it. Of a
    run there are its records only: its config and how it ended are not in the table.

    **Names.** A key or step called `run`, `lane`, `shard` or `event` has an underscore behind it;
    so has a key where a step of the same record has its name: `step` is the step, `step_` the key.
    A name that begins with `=`, `+`, `-` or `@` has an apostrophe before it, so that a spreadsheet
    does not run it as a formula: `=loss` is `'=loss`. Cells are numbers and JSON, and stay.

    **Order.** The records of a run stand in the order of the program.

    **Sharing.** Any number of processes may write to one file: each adds rows, and columns, under a
    lock. A row that a killed process left unfinished is removed. Rows are in the hands of the
    system about twice a second, and survive the end of the process. Where another program deletes,
    empties or truncates the file, the next call reports it, and rows are added to a new file or to
    what is left. Nothing is added to a file that took the place of this one: its records are lost,
    which is reported too.

    Args:
      path: The file. It is made, with the folders above it, if there is none; one that a
        `CSVLogger` wrote is added to.
      lanes: What becomes of seeds; see `Logger`.

    Raises:
      IsADirectoryError: `path` is a folder.
      NotADirectoryError: `path` lies in a file.
      PermissionError: The file, or its folder, may not be written to.
      ValueError: The file is no table with a column `run`.
    """

    def __init__(self, path: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(CSVSink(path), lanes=lanes)


class CSVSink(TextSink):
    """The file of a `CSVLogger`."""

    logger_name = "CSVLogger"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._header, self._columns = b"", [""]  # as they were when last read
        self._first_row = b""  # by which the table is known again
        super().__init__(path)

    def flush(self) -> None:
        """Add all rows to the file, and columns that it lacks."""
        gathered, self._gathered = self._gathered, Gathered()
        if gathered.number:
            self._add(gathered.number, lambda fd: self._append(fd, gathered))

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write what is left of the runs."""
        self.flush()

    def _check(self, file: BinaryIO) -> None:
        self._read_header(file.fileno())

    def _runs_of(self, file: BinaryIO) -> dict[str, str]:
        rows = records(file)
        place = self._place_of_run(next(rows, b""))
        known: dict[str, str] = {}
        for row in rows:
            if not row.endswith(b"\n"):  # what a killed process left
                break
            begin = row.split(b",", 1)[0].decode("utf-8", "replace")
            own = [begin] if place == 0 else fields(row)[place : place + 1]
            known.update(zip(own, own, strict=True))
        return known

    def _append(self, fd: int, gathered: Gathered) -> int:
        columns = self._read_header(fd)
        wanted = ["run", *_places(gathered.streams), *map(heading, gathered.columns)]
        more = [name for name in wanted if name not in set(columns)]
        text = "\n".join(gathered.take(_former([*columns, *more])))
        data = encoded(text) + b"\n"
        if more or not self._header.endswith(b"\n"):
            return self._rewrite(fd, [*columns, *more], len(more), data)
        end = whole_lines(fd)
        if end < os.fstat(fd).st_size:  # what a killed process left, or a full disk
            os.ftruncate(fd, end)
        append(fd, data)
        self._remember_first_row(fd)
        return os.fstat(fd).st_size

    def _remember_first_row(self, fd: int) -> None:
        if not self._first_row:
            self._first_row = _first_records(fd)[1]

    def _is_same_file(self, fd: int) -> bool:
        """Whether it is the table, perhaps with columns that another process has added."""
        header, row = _first_records(fd)
        columns = fields(header) if header else []
        return columns[: len(self._columns)] == self._columns and row.startswith(self._first_row)

    def _read_header(self, fd: int) -> list[str]:
        """The columns of the file as it is now: another process may have added some."""
        if self._header and os.pread(fd, len(self._header), 0) == self._header:
            return self._columns
        header = _first_records(fd)[0]
        self._place_of_run(header)
        self._header, self._columns = header, fields(header) if header else []
        return self._columns

    def _place_of_run(self, header: bytes) -> int:
        columns = fields(header)
        if header and "run" not in columns:
            names = ", ".join(name[:40] for name in columns[:5])
            raise ValueError(
                f"`{self.logger_name}` adds to tables that it wrote, which have a column `run`, "
                f"and {self.path} begins with {names!r}. Give the path of another file."
            )
        return columns.index("run") if header else 0

    def _rewrite(self, fd: int, columns: list[str], more: int, data: bytes) -> int:
        """Put a wider table in the place of this one."""
        with open(os.dup(fd), "rb") as old, replacing(self.logger_name, self.path) as new:
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(fd).st_mode))
            old.seek(0)
            rows = records(old)
            next(rows, None)
            header = encoded(",".join(map(field, columns))) + b"\n"
            kept = (widened(row, more) for row in rows if row.endswith(b"\n"))
            first_row = next(kept, b"")
            new.write(header + first_row)
            new.writelines(kept)
            new.write(data)
            size = new.tell()
        self._header, self._columns = header, fields(header)
        self._first_row = (first_row or next(records(io.BytesIO(data)))).removesuffix(b"\n")
        return size


def _first_records(fd: int) -> tuple[bytes, bytes]:
    """Return the header and the first row of a table; empty where there is none."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        found = list(itertools.islice(records(file), 2))
    header, row = [*found, b"", b""][:2]
    return header, row.removesuffix(b"\n")


def _places(streams: Iterable[Stream]) -> list[str]:
    """The columns that say where in a run a record comes from, if any."""
    lane = any(stream.lane for stream in streams)
    shard = any(stream.shard is not None for stream in streams)
    return ["lane"] * lane + ["shard"] * shard


def _former(header: Sequence[str]) -> Callable[[Rows], list[str]]:
    """How rows become lines of a table with these columns."""

    def lines(rows: Rows) -> list[str]:
        owner = rows.owner.tolist()
        columns = {heading(name): _fields(texts) for name, texts in rows.columns.items()}
        for name, of_stream in _OF_STREAM.items():
            texts = [of_stream(stream) for stream in rows.streams]
            columns[name] = [texts[number] for number in owner]
        form = ",".join("%s" if name in columns else "" for name in header)
        present = (columns[name] for name in header if name in columns)
        return [form % row for row in zip(*present, strict=True)]

    return lines


_OF_STREAM: dict[str, Callable[[Stream], str]] = {
    "run": lambda stream: field(stream.run.id),
    "lane": lambda stream: _lane(stream.lane),
    "shard": lambda stream: "" if stream.shard is None else str(stream.shard),
}


def _lane(lane: tuple[int, ...]) -> str:
    return field(str(list(lane))) if len(lane) > 1 else "".join(map(str, lane))


def _fields(texts: Sequence[str | None]) -> list[str]:
    if any(text is not None and text[0] in "[{" for text in texts[:1]) or None in texts:
        return ["" if text is None else field(text) for text in texts]
    return list(texts)  # type: ignore[arg-type]

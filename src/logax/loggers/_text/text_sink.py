"""Base class of the sinks that write one text file, and the buffer that orders their rows.

A record batch holds the records of one `log` call, so the batches of a program with two such calls
interleave. `ReorderBuffer` collects rows and returns them stream by stream in program order. If the
order of a key goes back, a new program started, and its rows follow all earlier ones.

`TextSink` buffers records and appends them to the file on `flush`. It refuses a file that another
program wrote. A subclass defines the name of its logger (`logger_name`), the check of an existing
file (`_check`), the conversion of records to lines (`flush`), the runs in a file (`_read_runs`),
and a comparison that recognizes the file (`_is_same_file`).

Another program may change the file between two appends. Each append compares the size and the
beginning of the file with those after the previous one. (An inode proves less: the system reuses
that of a deleted file.)

| file | new records | error |
| --- | --- | --- |
| missing or empty | written to a new file | reports that the earlier records are gone |
| shorter | written | reports that some earlier records may be gone |
| begins differently | lost; nothing is written | reports the loss |
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, ClassVar

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, Stream
from logax._serialization.record_text import TextRows, text_rows
from logax._support.processes import reset_after_fork
from logax.loggers._text.shared_files import (
    FileChangedError,
    open_locked,
    report_loss,
    writable_path,
)
from logax.loggers.sink import Sink

Array = np.ndarray[Any, Any]

_LIMITS = np.iinfo(np.int64)


class ReorderBuffer:
    """Rows that wait for the next flush.

    Attributes:
      number: Number of rows.
      streams: Number of each stream.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.number = 0
        self._steps: dict[str, None] = {}  # ordered sets
        self._columns: dict[str, None] = {}
        self.streams: dict[Stream, int] = {}
        self._rows: list[tuple[int, Array, TextRows]] = []  # program number, stream numbers
        self._program = 0
        self._last_orders: dict[str, Array] = {}  # by key, for each stream

    def add(self, batch: RecordBatch) -> None:
        """Add the records of a batch."""
        rows = text_rows(batch)
        if not len(rows.order):
            return
        numbers = [self.streams.setdefault(own, len(self.streams)) for own in rows.streams]
        streams = np.array(numbers, np.intp)
        self._detect_new_program(batch, streams)
        self._rows.append((self._program, streams, rows))
        self.number += len(rows.order)
        self._steps.update(dict.fromkeys(rows.steps))
        self._columns.update(dict.fromkeys(rows.columns))

    @property
    def columns(self) -> list[str]:
        """Names of all columns: steps first, then leaves."""
        return list(self._steps | self._columns)

    def take(self, lines: Callable[[TextRows], list[str]]) -> list[str]:
        """Remove all rows, and return them as ordered lines."""
        texts = [text for _, _, rows in self._rows for text in lines(rows)]
        if texts:
            order = np.concatenate([rows.order for _, _, rows in self._rows])
            programs = [np.full(len(rows.order), which) for which, _, rows in self._rows]
            streams = [numbers[rows.owner] for _, numbers, rows in self._rows]
            places = np.lexsort((order, np.concatenate(programs), np.concatenate(streams)))
            texts = [texts[place] for place in places.tolist()]
        self._clear()
        return texts

    def _detect_new_program(self, batch: RecordBatch, streams: Array) -> None:
        order = np.asarray(batch.order, np.int64)
        real = True if batch.real is None else batch.real
        first = order.min(1, initial=_LIMITS.max, where=real)
        last = order.max(1, initial=_LIMITS.min, where=real)
        known = {key: self._last_orders_of(key) for key in batch.values}
        if any((first <= place[streams]).any() for place in known.values()):
            self._program += 1
            self._last_orders.clear()
            known = {key: self._last_orders_of(key) for key in batch.values}
        for key, place in known.items():
            np.maximum.at(place, streams, last)
            self._last_orders[key] = place

    def _last_orders_of(self, key: str) -> Array:
        place = self._last_orders.get(key, np.zeros(0, np.int64))
        return np.append(place, np.full(len(self.streams) - len(place), _LIMITS.min))


class TextSink(Sink):
    """Sink of one text file.

    Attributes:
      logger_name: Name of the public logger class.
      path: Absolute path of the file.
    """

    logger_name: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = writable_path(self.logger_name, path)
        self._size = 0  # bytes of the file after the last append
        self._added = 0  # records appended to the current file
        self._reset()
        reset_after_fork(self)
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            self._check(file)

    def _reset(self) -> None:
        """Clear the buffer: in a forked process the buffered records belong to the parent."""
        self._buffer = ReorderBuffer()

    def write(self, batch: RecordBatch) -> None:
        """Buffer records until `flush`."""
        self._buffer.add(batch)

    def end(self) -> None:
        """Write the remaining records."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """Return the runs in the file by id, with their names."""
        known: Mapping[str, str] = {}
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            known = self._read_runs(file)
        return KnownRuns(self.path, known)

    def _append_records(self, records: int, write: Callable[[int], int]) -> None:
        """Append records to the file, unless another program replaced it.

        Args:
          records: Number of records.
          write: Function that appends them to a file descriptor, and returns the new file size.

        Raises:
          FileChangedError: The records were written, and earlier ones are gone.
          OSError: The records are lost.
        """
        with report_loss(self.logger_name, self.path, records), open_locked(self.path) as fd:
            change = self._detect_change(fd)
            before, self._added = self._added, self._added * (not change)
            self._size = write(fd)
            self._added += records
        if change:
            raise FileChangedError(
                f"`{self.logger_name}` found that {self.path} was {change.format(before)} "
                f"The {records} records since then were written."
            )

    def _detect_change(self, fd: int) -> str:
        """Return a description of another program's change since the last append, or "".

        Raises:
          OSError: Another file took the place of this one.
        """
        size = os.fstat(fd).st_size
        if not self._added:
            if size:  # another process may have written it since the sink was created
                with open(os.dup(fd), "rb") as file:
                    file.seek(0)
                    self._check(file)
            return ""
        if not size:
            return (
                "deleted, moved or emptied by another program: the {} records that it had written "
                "are gone, and a new file was started."
            )
        if not self._is_same_file(fd):
            raise OSError(
                "another program replaced the file, and nothing was added to the replacement. "
                "Move it away to start a new file."
            )
        if size < self._size:
            return (
                "truncated by another program: some of the {} records that it had written may be "
                "gone."
            )
        return ""

    def _is_same_file(self, fd: int) -> bool:
        """Return whether a file begins as it did after the last append."""
        raise NotImplementedError

    def _check(self, file: BinaryIO) -> None:
        """Raise if the sink cannot append to the file.

        Raises:
          ValueError: The file holds something else.
        """
        raise NotImplementedError

    def _read_runs(self, file: BinaryIO) -> Mapping[str, str]:
        """Return the name of each run in the file by id; the id itself if the file has no names."""
        raise NotImplementedError

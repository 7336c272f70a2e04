"""Rows of many portions, put in the order of the program.

A portion holds the records of one `log` call, so that the portions of a program with two of them
interleave. Rows are gathered until they are wanted, and come out one stream after the other, each
in its order. Where the order of a key goes back, a new program began, and all that comes then is
after what there was.

A sink of one text file: what is done alike whatever its lines look like.

Records are gathered, and added to the end of the file when they are flushed. A file that some other
program wrote is refused when the sink is made. Whoever derives from it says of which logger it is
(`logger_name`), what a file of its own begins with (`_check`), how its records become lines
(`flush`), which runs are in a file (`_runs_of`), and how to recognise the file (`_is_same_file`).

Another program may change the file between two additions. Each addition compares the size and the
beginning of the file with those after the one before. (An inode says less: the system gives that of
a deleted file to the next one.)

| file | records of this addition | error |
| --- | --- | --- |
| gone, or empty | added, to a new file | says that the earlier ones are not there any more |
| shorter | added | says that earlier ones may be gone |
| begins with something else | lost, and nothing is added | says so |
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, ClassVar

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, Stream
from logax._support.forks import renew_after_fork
from logax.loggers._text.cells import Rows, rows_of
from logax.loggers._text.files import FileChangedError, locked, telling_loss, writable
from logax.loggers.sink import Sink

Numbers = np.ndarray[Any, Any]

_LIMITS = np.iinfo(np.int64)


class Gathered:
    """Rows that wait.

    Attributes:
      number: How many rows there are.
      streams: Whose rows they are, numbered.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.number = 0
        self._steps: dict[str, None] = {}  # sets, in the order in which they came
        self._columns: dict[str, None] = {}
        self.streams: dict[Stream, int] = {}
        self._rows: list[tuple[int, Numbers, Rows]] = []  # the program, numbers of the streams
        self._program = 0
        self._last: dict[str, Numbers] = {}  # by key the place in the program of each stream

    def add(self, portion: RecordBatch) -> None:
        """Take the records of a portion."""
        rows = rows_of(portion)
        if not len(rows.order):
            return
        numbers = [self.streams.setdefault(own, len(self.streams)) for own in rows.streams]
        streams = np.array(numbers, np.intp)
        self._notice_new_program(portion, streams)
        self._rows.append((self._program, streams, rows))
        self.number += len(rows.order)
        self._steps.update(dict.fromkeys(rows.steps))
        self._columns.update(dict.fromkeys(rows.columns))

    @property
    def columns(self) -> list[str]:
        """The names of all columns: those of steps, then those of leaves."""
        return list(self._steps | self._columns)

    def take(self, lines: Callable[[Rows], list[str]]) -> list[str]:
        """All rows as lines, in order. There are none after that."""
        texts = [text for _, _, rows in self._rows for text in lines(rows)]
        if texts:
            order = np.concatenate([rows.order for _, _, rows in self._rows])
            programs = [np.full(len(rows.order), which) for which, _, rows in self._rows]
            streams = [numbers[rows.owner] for _, numbers, rows in self._rows]
            places = np.lexsort((order, np.concatenate(programs), np.concatenate(streams)))
            texts = [texts[place] for place in places.tolist()]
        self._clear()
        return texts

    def _notice_new_program(self, portion: RecordBatch, streams: Numbers) -> None:
        order = np.asarray(portion.order, np.int64)
        real = True if portion.real is None else portion.real
        first = order.min(1, initial=_LIMITS.max, where=real)
        last = order.max(1, initial=_LIMITS.min, where=real)
        known = {key: self._known(key) for key in portion.values}
        if any((first <= place[streams]).any() for place in known.values()):
            self._program += 1
            self._last.clear()
            known = {key: self._known(key) for key in portion.values}
        for key, place in known.items():
            np.maximum.at(place, streams, last)
            self._last[key] = place

    def _known(self, key: str) -> Numbers:
        place = self._last.get(key, np.zeros(0, np.int64))
        return np.append(place, np.full(len(self.streams) - len(place), _LIMITS.min))


class TextSink(Sink):
    """One text file.

    Attributes:
      logger_name: The logger that it belongs to, as users know it.
      path: The file, as an absolute path.
    """

    logger_name: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = writable(self.logger_name, path)
        self._size = 0  # bytes of the file, after the last addition
        self._added = 0  # records, to the file that is there
        self._reset()
        renew_after_fork(self)
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            self._check(file)

    def _reset(self) -> None:
        """Have nothing to write; in a process that was forked, what waits is the other's."""
        self._gathered = Gathered()

    def write(self, portion: RecordBatch) -> None:
        """Turn records into text, which waits for `flush`."""
        self._gathered.add(portion)

    def end(self) -> None:
        """Write what is left."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """The runs of the file, with the names that they have there."""
        known: Mapping[str, str] = {}
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            known = self._runs_of(file)
        return KnownRuns(self.path, known)

    def _add(self, records: int, write: Callable[[int], int]) -> None:
        """Add so many records to the file, unless it is another program's.

        Args:
          records: Number of records.
          write: Adds them to the file of a descriptor, and returns the size that it then has.

        Raises:
          FileChangedError: The records are there, and earlier ones are gone.
          OSError: The records are lost.
        """
        with telling_loss(self.logger_name, self.path, records), locked(self.path) as fd:
            change = self._change(fd)
            before, self._added = self._added, self._added * (not change)
            self._size = write(fd)
            self._added += records
        if change:
            raise FileChangedError(
                f"`{self.logger_name}` found that {self.path} was {change.format(before)} "
                f"The {records} records since then are there."
            )

    def _change(self, fd: int) -> str:
        """Say what another program did to the file since the last addition, if anything.

        Raises:
          OSError: It is not the file of this sink any more.
        """
        size = os.fstat(fd).st_size
        if not self._added:
            if size:  # perhaps written by others since the sink was made
                with open(os.dup(fd), "rb") as file:
                    file.seek(0)
                    self._check(file)
            return ""
        if not size:
            return (
                "deleted, moved or emptied by another program: the {} records that it had written "
                "are not there any more, and the file was begun again."
            )
        if not self._is_same_file(fd):
            raise OSError(
                "another program put something else in its place, and nothing is added to that. "
                "Move it away, and a new file is begun."
            )
        if size < self._size:
            return (
                "truncated by another program: of the {} records that it had written some may be "
                "gone."
            )
        return ""

    def _is_same_file(self, fd: int) -> bool:
        """Whether a file begins as it did after the last addition."""
        raise NotImplementedError

    def _check(self, file: BinaryIO) -> None:
        """Raise where the file is not one to add to.

        Raises:
          ValueError: It holds something else.
        """
        raise NotImplementedError

    def _runs_of(self, file: BinaryIO) -> Mapping[str, str]:
        """The runs of a file: by id the name, or the id where the file has no names."""
        raise NotImplementedError

"""A sink of one text file: what is done alike whatever its lines look like.

Records are gathered, and added to the end of the file when they are flushed. A file that some other
program wrote is refused when the sink is made. Whoever derives from it says of which logger it is
(`logger_name`), what a file of its own begins with (`_check`), how its records become lines
(`flush`), and which runs are in a file (`_runs_of`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from logax._delivery.forks import renew_after_fork
from logax.loggers._text.files import locked, telling_loss, writable
from logax.loggers._text.gathered import Gathered
from logax.loggers.sink import KnownRuns, Portion, Sink


class TextSink(Sink):
    """One text file.

    Attributes:
      logger_name: The logger that it belongs to, as users know it.
      path: The file, as an absolute path.
    """

    logger_name: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = writable(self.logger_name, path)
        self._reset()
        renew_after_fork(self)
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            self._check(file)

    def _reset(self) -> None:
        """Have nothing to write; in a process that was forked, what waits is the other's."""
        self._gathered = Gathered()

    def write(self, portion: Portion) -> None:
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

    @contextlib.contextmanager
    def _adding(self, records: int) -> Iterator[int]:
        """The descriptor of the file, for adding so many records; what fails says they are lost."""
        with telling_loss(self.logger_name, self.path, records), locked(self.path) as fd:
            yield fd

    def _check(self, file: BinaryIO) -> None:
        """Raise where the file is not one to add to.

        Raises:
          ValueError: It holds something else.
        """
        raise NotImplementedError

    def _runs_of(self, file: BinaryIO) -> Mapping[str, str]:
        """The runs of a file: by id the name, or the id where the file has no names."""
        raise NotImplementedError

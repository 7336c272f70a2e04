"""Which records of a portion there are, found once for all of its keys."""

from __future__ import annotations

from typing import Any

import numpy as np


class Picked:
    """The records of a portion that are real, and the last ones of each stream.

    Args:
      rows: Where each stream stands in a table of streams.
      shape: Streams and records.
      real: Which records there are, or None for all.
      window: How many of the last ones of a stream are wanted at most.

    Attributes:
      rows: As given.
      real: As given, but None if all records are real.
      count: Of each stream, how many there are.
      last: Of each stream, the index of its last one; any index where it has none.
      stream, record, rank: Of each record that is wanted its indices in the portion, and how many
        real ones of its stream were before it in the portion. They broadcast.
    """

    def __init__(self, rows: Any, shape: tuple[int, int], real: Any, window: int) -> None:
        self.rows = rows
        self.real = None if real is None or bool(np.all(real)) else np.asarray(real)
        streams, records = shape
        if self.real is None:
            self.count = np.full(streams, records)
            self.last = self.count - 1
            self.stream = np.arange(streams)[:, None]
            self.record = self.rank = np.arange(max(records - window, 0), records)[None]
            return
        self.count = self.real.sum(axis=1)
        self.last = records - 1 - np.argmax(self.real[:, ::-1], axis=1)
        rank = np.cumsum(self.real, axis=1) - 1
        wanted = self.real & (rank >= (self.count - window)[:, None])
        self.stream, self.record = np.nonzero(wanted)
        self.rank = rank[self.stream, self.record]

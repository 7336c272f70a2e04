"""How many records each key of each stream had, for all streams of a portion at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from logax.loggers.sink import RunInfo, Stream

Column = np.ndarray[Any, Any]


class Counts:
    """Counts by stream and key. A stream has a place in the arrays, from its first record on."""

    def __init__(self) -> None:
        self._places: dict[RunInfo, dict[Stream, int]] = {}
        self._free: list[int] = []
        self._size = 0
        self._counts: dict[str, Column] = {}
        self._last: tuple[tuple[Stream, ...], Column] = ((), np.zeros(0, np.intp))

    def next(self, streams: tuple[Stream, ...], key: str, real: Column) -> Column:
        """Number the records of a key, each after those that came before: (streams, records)."""
        places = self._places_of(streams)
        counts = self._counts.get(key, np.zeros(0, np.int64))
        if len(counts) < self._size:
            counts = np.append(counts, np.zeros(self._size - len(counts), np.int64))
            self._counts[key] = counts
        numbers = counts[places][:, None] + np.cumsum(real, 1, dtype=np.int64) - real
        counts[places] += real.sum(1)
        return np.asarray(numbers)

    def forget(self, runs: Iterable[RunInfo]) -> None:
        """Let go of what is known of runs: their places are free for others."""
        gone = [place for run in runs for place in self._places.pop(run, {}).values()]
        if not gone:
            return
        self._free += gone
        self._last = ((), np.zeros(0, np.intp))
        for counts in self._counts.values():
            counts[[place for place in gone if place < len(counts)]] = 0
        if not self._places:  # nobody knows these keys any more
            self._counts.clear()

    def _places_of(self, streams: tuple[Stream, ...]) -> Column:
        if self._last[0] is not streams:
            places = np.fromiter(map(self._place, streams), np.intp, len(streams))
            self._last = (streams, places)
        return self._last[1]

    def _place(self, stream: Stream) -> int:
        places = self._places.setdefault(stream.run, {})
        place = places.get(stream)
        if place is None:
            if not self._free:
                self._free.append(self._size)
                self._size += 1
            place = places[stream] = self._free.pop()
        return place

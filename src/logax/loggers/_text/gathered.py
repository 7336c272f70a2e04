"""Rows of many portions, put in the order of the program.

A portion holds the records of one `log` call, so that the portions of a program with two of them
interleave. Rows are gathered until they are wanted, and come out one stream after the other, each
in its order. Where the order of a key goes back, a new program began, and all that comes then is
after what there was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from logax.loggers._text.rows import Rows, rows_of
from logax.loggers.sink import Portion, Stream

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

    def add(self, portion: Portion) -> None:
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

    def _notice_new_program(self, portion: Portion, streams: Numbers) -> None:
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

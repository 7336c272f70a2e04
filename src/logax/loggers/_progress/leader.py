"""Which of a program's keys says how far it is.

A program may log a setting at its start, a loss at each of a thousand iterations, a score at each
of ten epochs, and a result at its end. The key with the most records leads. A key of which there
is one record says nothing, and neither does what is logged after the leading key is through,
unless it is the beginning of something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logax._delivery.records import record
from logax.loggers._progress.lanes import Lanes


class Leader:
    """Takes records, and knows the lanes of the key that leads.

    Args:
      total: The last position, if the user knows it.
      step: The name of the step that counts.

    Attributes:
      key: The one that leads, if there is one yet.
      lanes: Its lanes.
      is_through: Whether all of them are at the total.
    """

    def __init__(self, total: int | None, step: str) -> None:
        self._total, self._step = total, step
        self._keys: dict[str, Lanes] = {}
        self._spent: set[tuple[str, int]] = set()
        self.key: str | None = None
        self.lanes: Lanes | None = None
        self.is_through = False

    def take(self, one: record) -> tuple[Lanes | None, bool]:
        """The lanes of this record if they lead, and whether all of them begin a new round."""
        key = next(iter(one), None)
        if key is None:
            return None, False
        total, step = self._counted(one)
        lanes = self._keys.get(key)
        if lanes is None or lanes.total != total:
            self._keys[key] = lanes = Lanes(total, step is not None)
        begins = lanes.hear((one.lane, one.shard), step, one.real)
        if lanes is self.lanes:
            if begins:
                self._lead(key, lanes)
            return lanes, begins
        if self._takes_over(key, lanes):
            self._lead(key, lanes)
            return lanes, False
        return None, False

    def end_round(self, lanes: Lanes) -> None:
        """The lanes that lead are through: what was logged beside them does not lead after them."""
        self.is_through = True
        lanes.end_round()
        others = self._keys.items()
        self._spent = {(key, each.round) for key, each in others if each is not lanes}

    def _lead(self, key: str, lanes: Lanes) -> None:
        self.key, self.lanes, self._keys = key, lanes, {key: lanes}
        self.is_through, self._spent = False, set()

    def _takes_over(self, key: str, lanes: Lanes) -> bool:
        says_something = lanes.clock > 0 or (self._total is None and lanes.total is not None)
        if not says_something or (key, lanes.round) in self._spent:
            return False
        return (
            self.lanes is None
            or self.is_through
            or self.lanes not in self._keys.values()  # its key has another total now
            or self._rank(lanes) > self._rank(self.lanes)
        )

    def _rank(self, lanes: Lanes) -> tuple[int, int, int]:
        total = 0 if self._total is not None else lanes.total or 0
        return total, lanes.by_step, lanes.clock

    def _counted(self, one: record) -> tuple[int | None, Any]:
        """The total that holds for a record, and its step if positions are steps.

        The program knows how many records there will be, wherever the steps begin and however
        often they go back; so where its total is used, records are counted.
        """
        if self._total is None and one.total is not None and one.total > 1:
            return one.total, None
        step = one.steps.get(self._step)
        if step is not None and step.dtype.kind not in "iub":
            step = np.floor(step).astype(np.int64) if np.isfinite(step).all() else None
        return self._total, step

"""How many records with values to show there were, and how many are still to come.

Records are counted by their first key, of which the program says how many there will be in a call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from logax._delivery.records import record


class Expected:
    """Counts records by key and lane.

    Args:
      counts: Whether the numbers that the program gives hold; where several calls are one bar's,
        they do not, and more may always come.
    """

    def __init__(self, counts: bool) -> None:
        self._counts = counts
        self._totals: dict[str, int | None] = {}
        self._had: dict[str, dict[Any, Any]] = {}

    def clear(self) -> None:
        """Begin anew."""
        self._totals.clear()
        self._had.clear()

    def count(self, one: record) -> None:
        """Take in a record."""
        key, name = next(iter(one)), (one.lane, one.shard)
        self._totals[key] = one.total if self._counts else None
        had = self._had.setdefault(key, {})
        had[name] = _of_these(had.get(name, 0), one) + (1 if one.real is None else one.real)

    def more_than(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Whether there may be more in some of these lanes, of any key but the leading one."""
        return any(
            total is None or not self._is_through(key, total, lanes)
            for key, total in self._totals.items()
            if key != leading
        )

    def _is_through(self, key: str, total: int, lanes: Collection[Any]) -> bool:
        had = self._had[key]
        # Lanes come in order: the last is the one to ask first.
        return all(np.all(had.get(name, 0) >= total) for name in reversed(list(lanes)))

    def had_all(self, one: record) -> bool:
        """Whether there were all of them before this one, in one of its lanes."""
        key = next(iter(one), None)
        total = None if key is None else self._totals.get(key)
        if key is None or total is None:
            return False
        before = _of_these(self._had[key].get((one.lane, one.shard), 0), one)
        return bool(np.any((before >= total) & (True if one.real is None else one.real)))


def _of_these(had: Any, one: record) -> Any:
    """How many there were in the lanes of a record: none, if those were others."""
    return 0 if one.real is not None and np.shape(had) not in ((), one.real.shape) else had

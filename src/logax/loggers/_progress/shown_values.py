"""The last values of some keys as one line of text, and the number of records still expected.

A value is the mean over all lanes. The values of one bar are the last that arrived before it
closed; they stay until newer ones arrive, from any lane. Records are counted by their first key,
whose number of records per call the program states.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from logax._delivery.routes import record
from logax._logdict.logdict import leaf_name, matches


class PendingRecords:
    """Count records by key and lane.

    Args:
      has_totals: True if the totals that the program states apply. If one bar covers several calls
        they do not, and more records may always follow.
    """

    def __init__(self, has_totals: bool) -> None:
        self._has_totals = has_totals
        self._totals: dict[str, int | None] = {}
        self._received: dict[str, dict[Any, Any]] = {}

    def clear(self) -> None:
        """Reset all counts."""
        self._totals.clear()
        self._received.clear()

    def count(self, one: record) -> None:
        """Count a record."""
        key, name = next(iter(one)), (one.lane, one.shard)
        self._totals[key] = one.total if self._has_totals else None
        counts = self._received.setdefault(key, {})
        counts[name] = _count_before(counts.get(name, 0), one) + (
            1 if one.real is None else one.real
        )

    def has_more(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Return whether more records may follow in these lanes, of any key but the leading one."""
        return any(
            total is None or not self._has_all(key, total, lanes)
            for key, total in self._totals.items()
            if key != leading
        )

    def _has_all(self, key: str, total: int, lanes: Collection[Any]) -> bool:
        counts = self._received[key]
        # Lanes report in order, so the last one is checked first.
        return all(np.all(counts.get(name, 0) >= total) for name in reversed(list(lanes)))

    def has_all_before(self, one: record) -> bool:
        """Return whether one of the record's lanes had all its records before this one."""
        key = next(iter(one), None)
        total = None if key is None else self._totals.get(key)
        if key is None or total is None:
            return False
        before = _count_before(self._received[key].get((one.lane, one.shard), 0), one)
        return bool(np.any((before >= total) & (True if one.real is None else one.real)))


def _count_before(count: Any, one: record) -> Any:
    """Return the number of earlier records in the record's lanes: 0 if the lanes changed."""
    has_changed = one.real is not None and np.shape(count) not in ((), one.real.shape)
    return 0 if has_changed else count


class ShownValues:
    """The last value of each lane for the keys and leaves that the patterns select.

    Args:
      patterns: Names and globs of keys and leaves.
      has_totals: True if a bar covers one call, whose number of records the program states.
    """

    def __init__(self, patterns: tuple[str, ...], has_totals: bool = True) -> None:
        self._patterns = patterns
        self._is_shown_by_key: dict[str, bool] = {}
        self._last: dict[str, dict[Any, tuple[Any, Any]]] = {}
        self._old: set[str] = set()
        self._unseen = set(patterns)
        self._pending = PendingRecords(has_totals)

    def update(self, one: record) -> None:
        """Store the selected values of a record."""
        is_wanted = False
        for key, value in one.items():
            wanted = self._is_shown_by_key.get(key)
            if wanted is None:
                wanted = self._is_shown_by_key[key] = self._is_selected(key, value)
            if wanted:
                is_wanted = True
                if key in self._old:
                    self._old.remove(key)
                    self._last[key] = {}  # some lanes may not log again
                lanes = self._last.setdefault(key, {})
                name = one.lane, one.shard
                lanes[name] = (
                    (value, None) if one.real is None else _merge_lanes(lanes, name, one, key)
                )
        if is_wanted:
            self._pending.count(one)

    def _is_selected(self, key: str, value: Any) -> bool:
        """Return whether a pattern selects anything of a key, which occurs for the first time."""
        names = [name for name, _ in self._leaves(key, value)]
        if not names:
            return False
        self._unseen -= {pattern for pattern in self._unseen if pattern in (key, *names)}
        return True

    def end(self) -> None:
        """Assign all later values to another bar."""
        self._old = set(self._last)
        self._pending.clear()

    def may_change(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Return whether values may still arrive once the leading key is complete in these lanes.

        A glob may always match another key.
        """
        return bool(self._unseen) or self._pending.has_more(leading, lanes)

    def starts_new_call(self, one: record) -> bool:
        """Return whether a record belongs to a new call: the last one had all its records."""
        return self._pending.has_all_before(one)

    def format_line(self) -> str:
        """Return all values as one line of text."""
        return ", ".join(f"{name}={_mean(parts):.4g}" for name, parts in self._numbers().items())

    def _numbers(self) -> dict[str, list[Any]]:
        numbers: dict[str, list[Any]] = {}
        for key, lanes in self._last.items():
            for value, known in lanes.values():
                for name, leaf in self._leaves(key, value):
                    part = np.asarray(leaf) if known is None else leaf[known]
                    numbers.setdefault(name, []).append(part)
        return numbers

    def _leaves(self, key: str, value: Any) -> Any:
        whole = matches(key, self._patterns)
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            name = leaf_name(key, path)
            is_number = not isinstance(leaf, jax.Array)  # JAX arrays here are PRNG keys
            if is_number and (whole or matches(name, self._patterns)):
                yield name, leaf


def _merge_lanes(lanes: dict[Any, tuple[Any, Any]], name: Any, one: record, key: str) -> Any:
    """Return the last values of all lanes, and the mask of the lanes that have any."""
    real, value = one.real, one[key]
    before, known = lanes.get(name, (None, None))
    if before is None or not _have_same_shapes(before, value):
        return value, real

    def newer(new: Any, old: Any) -> Any:
        if isinstance(new, jax.Array):
            return new
        return np.where(real.reshape(real.shape + (1,) * (new.ndim - real.ndim)), new, old)

    return jax.tree.map(newer, value, before), known if known is None else known | real


def _have_same_shapes(a: Any, b: Any) -> bool:
    return [np.shape(x) for x in jax.tree.leaves(a)] == [np.shape(x) for x in jax.tree.leaves(b)]


def _mean(parts: list[Any]) -> Any:
    numbers = np.concatenate([np.ravel(part) for part in parts])
    wide = numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)
    return wide.mean() if wide.size else np.nan

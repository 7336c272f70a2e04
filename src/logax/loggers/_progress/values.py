"""How many records with values to show there were, and how many are still to come.

Records are counted by their first key, of which the program says how many there will be in a call.

The last values of some keys, as one line: of all lanes, the mean.

Of one bar they are the last that came until it ended. They stay until there are others, of
whichever lanes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from logax._delivery.routes import record
from logax._logdict.logdict import leaf_name, matches


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


class Values:
    """Remembers the last value of each lane for the keys and leaves that patterns name.

    Args:
      patterns: Names of keys and leaves, and globs.
      counts: Whether a bar is of one call, so that the program says how many records come for it.
    """

    def __init__(self, patterns: tuple[str, ...], counts: bool = True) -> None:
        self._patterns = patterns
        self._wanted: dict[str, bool] = {}
        self._last: dict[str, dict[Any, tuple[Any, Any]]] = {}
        self._old: set[str] = set()
        self._unseen = set(patterns)
        self._expected = Expected(counts)

    def take(self, one: record) -> None:
        """Remember what is wanted of a record."""
        is_wanted = False
        for key, value in one.items():
            wanted = self._wanted.get(key)
            if wanted is None:
                wanted = self._wanted[key] = self._see(key, value)
            if wanted:
                is_wanted = True
                if key in self._old:
                    self._old.remove(key)
                    self._last[key] = {}  # of all lanes: some may not come again
                lanes = self._last.setdefault(key, {})
                name = one.lane, one.shard
                lanes[name] = (value, None) if one.real is None else _merged(lanes, name, one, key)
        if is_wanted:
            self._expected.count(one)

    def _see(self, key: str, value: Any) -> bool:
        """Whether something of a key is wanted, which comes for the first time."""
        names = [name for name, _ in self._leaves(key, value)]
        if not names:
            return False
        self._unseen -= {pattern for pattern in self._unseen if pattern in (key, *names)}
        return True

    def end(self) -> None:
        """The bar has ended: what comes now is of another one."""
        self._old = set(self._last)
        self._expected.clear()

    def may_come(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Whether values may still come once the leading key is through in these lanes.

        A glob may always name another key.
        """
        return bool(self._unseen) or self._expected.more_than(leading, lanes)

    def comes_again(self, one: record) -> bool:
        """Whether there were as many of these as a call has, so that this is of another call."""
        return self._expected.had_all(one)

    def line(self) -> str:
        """All of them."""
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
            is_number = not isinstance(leaf, jax.Array)  # those are PRNG keys
            if is_number and (whole or matches(name, self._patterns)):
                yield name, leaf


def _merged(lanes: dict[Any, tuple[Any, Any]], name: Any, one: record, key: str) -> Any:
    """The last values of all lanes, and of which lanes there are any."""
    real, value = one.real, one[key]
    before, known = lanes.get(name, (None, None))
    if before is None or not _alike(before, value):
        return value, real

    def newer(new: Any, old: Any) -> Any:
        if isinstance(new, jax.Array):
            return new
        return np.where(real.reshape(real.shape + (1,) * (new.ndim - real.ndim)), new, old)

    return jax.tree.map(newer, value, before), known if known is None else known | real


def _alike(a: Any, b: Any) -> bool:
    return [np.shape(x) for x in jax.tree.leaves(a)] == [np.shape(x) for x in jax.tree.leaves(b)]


def _mean(parts: list[Any]) -> Any:
    numbers = np.concatenate([np.ravel(part) for part in parts])
    wide = numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)
    return wide.mean() if wide.size else np.nan

"""The last values of some keys, as one line: of all lanes, the mean."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from logax._delivery.records import record
from logax._logdict import leaf_name, matches


class Values:
    """Remembers the last value of each lane for the keys and leaves that patterns name."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._wanted: dict[str, bool] = {}
        self._last: dict[str, dict[Any, tuple[Any, Any]]] = {}

    def take(self, one: record) -> None:
        """Remember what is wanted of a record."""
        for key, value in one.items():
            wanted = self._wanted.get(key)
            if wanted is None:
                wanted = self._wanted[key] = any(True for _ in self._leaves(key, value))
            if wanted:
                lanes = self._last.setdefault(key, {})
                name = one.lane, one.shard
                lanes[name] = (value, None) if one.real is None else _merged(lanes, name, one, key)

    def forget(self, one: record) -> None:
        """Forget the keys of a record, of all lanes: some may not come again."""
        for key in one:
            self._last.pop(key, None)

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

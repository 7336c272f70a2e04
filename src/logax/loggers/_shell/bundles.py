"""Columns that wait until there are enough of them, then given as portions.

Columns of the same keys and streams become one portion, so that a sink is called for all that came
meanwhile and not for each record. Of `log` calls that log the same keys in the same shapes the
records are merged in the order of the program. Where calls share a key but differ in others, a
portion ends when the other call logs the key: every key is in order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from logax._delivery.packets import Site
from logax.loggers._shell.portions import Columns, signature
from logax.loggers.sink import Portion


class Bundles:
    """What waits for the sinks of one logger.

    Attributes:
      size: Of all that waits, in bytes.
    """

    def __init__(self) -> None:
        self._sites: dict[int, tuple[Site, int]] = {}
        self._signatures: dict[Any, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[list[Columns]] = []
        self._open: dict[Any, list[Columns]] = {}
        self._last: dict[str, list[Columns]] = {}
        self.size = 0

    def add(self, columns: Columns) -> None:
        """Have some more wait."""
        self.size += columns.size
        # Streams that are the same are one object, which its columns keep alive.
        name = (self._signature(columns), id(columns.streams), columns.single)
        bundle = self._open.get(name)
        keys = columns.site.keys
        if bundle is None or any(self._last.get(key) is not bundle for key in keys):
            bundle = self._open[name] = []
            self._waiting.append(bundle)
            self._last.update(dict.fromkeys(keys, bundle))
        bundle.append(columns)

    def _signature(self, columns: Columns) -> int:
        """A number for what the columns of one portion have in common."""
        site = columns.site
        known = self._sites.get(id(site))
        if known is None or known[0] is not site:
            if len(self._sites) > _MANY:
                self._sites.clear()
            own = signature(site, columns.arrays, 1 if columns.single else 2)
            number = self._signatures.setdefault(own, len(self._signatures))
            known = self._sites[id(site)] = (site, number)
        return known[1]

    def taken(self) -> list[Portion]:
        """All that waits, in order; then nothing does."""
        waiting = self._waiting
        self._clear()
        return [_joined(bundle) for bundle in waiting]


_MANY = 4096  # sites


def _joined(bundle: list[Columns]) -> Portion:
    sites = list(dict.fromkeys(columns.site.spec.site for columns in bundle))
    first = bundle[0]
    if len(bundle) == 1:
        return first.portion(sites)
    axis = 0 if first.single else 1
    arrays = [
        np.concatenate(parts, axis)
        for parts in zip(*(columns.arrays for columns in bundle), strict=True)
    ]
    order = np.concatenate([columns.order for columns in bundle], axis)
    # Columns with a mask have streams of their own, and are alone in their bundle.
    whole = dataclasses.replace(first, arrays=arrays, order=order)
    return (whole if _is_sorted(bundle) else _sorted(whole)).portion(sites)


def _is_sorted(bundle: list[Columns]) -> bool:
    """Whether columns follow each other in the order of the program, as those of one call do."""
    last = [int(columns.order.max()) for columns in bundle]
    first = [int(columns.order.min()) for columns in bundle]
    return all(end < begin for end, begin in zip(last[:-1], first[1:], strict=True))


def _sorted(columns: Columns) -> Columns:
    """With the records of each stream in the order of the program."""
    axis = 0 if columns.single else 1
    index = np.argsort(columns.order, axis=axis, kind="stable")

    def moved(x: Any) -> Any:
        shape = index.shape + (1,) * (x.ndim - index.ndim)
        return np.take_along_axis(x, index.reshape(shape), axis)

    arrays = [moved(x) for x in columns.arrays]
    return dataclasses.replace(columns, arrays=arrays, order=moved(columns.order))

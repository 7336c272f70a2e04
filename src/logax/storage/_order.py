"""Rows by their places in the file: which of them count, in which order, and how to read them.

The place of a row is its number in the order in which rows came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


def valid(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """Which rows no cut has made void."""
    result = np.ones(len(steps), bool)
    for end, step in cuts:
        result[:end] &= steps[:end] < step
    return result


def in_order(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """The places of the rows that count, by step; of several of one step the last one counts."""
    places = np.flatnonzero(valid(steps, cuts))
    own = steps[places]
    if len(own) < 2 or bool(np.all(own[1:] > own[:-1])):
        return places
    order = np.argsort(own, kind="stable")
    is_last = np.append(own[order][1:] != own[order][:-1], True)
    return np.asarray(places[order[is_last]])


def is_run(numbers: Numbers) -> bool:
    """Whether each is one more than the one before."""
    return bool(np.all(np.diff(numbers) == 1))


def stretches(places: Numbers, chosen: Numbers, block: int) -> Iterator[tuple[Any, int, int]]:
    """What to read for rows that are wanted: all at once, or from each block what it has.

    Gives which of the rows, and the first and the last place to read.
    """
    if not len(chosen):
        return
    wanted = places[chosen]
    if is_run(wanted):
        yield chosen, int(wanted[0]), int(wanted[-1])
        return
    order = np.argsort(wanted, kind="stable")
    ends = np.flatnonzero(np.diff(wanted[order] // block)) + 1
    for part in np.split(order, ends):
        own = wanted[part]
        yield chosen[part], int(own.min()), int(own.max())

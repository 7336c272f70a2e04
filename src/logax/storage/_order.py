"""Rows in the order of their steps, whatever order they came in."""

from __future__ import annotations

from collections.abc import Sequence
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

"""Whose records those of each lane are."""

from __future__ import annotations

from typing import Any

import numpy as np

from logax.loggers.sink import Stream


def streams_of(
    runs: list[Any], lanes: tuple[int, ...], over: tuple[bool, ...], shard: int | None
) -> tuple[Stream, ...]:
    """The stream of each lane: its run, and its indices at the levels that the run spans.

    A run that began on a shard is all on that shard.
    """
    number = int(np.prod(lanes))
    indices = np.stack(np.unravel_index(np.arange(number), lanes), 1) if lanes else np.zeros((1, 0))
    within = [level for level in range(len(lanes)) if not (level < len(over) and over[level])]
    own = indices[:, within].astype(int).tolist()
    each = runs if len(runs) == number else runs * number
    return tuple(
        Stream(run, tuple(lane), None if run is None or run.seeds.shard is not None else shard)
        for run, lane in zip(each, own, strict=True)
    )

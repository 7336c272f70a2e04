"""Batches of a run: statistics and origin of its records, without their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from logax._runs.layouts import Layout, number_of_arrays
from logax._runs.statistics import (
    ScalarStatistics,
    StepRange,
    statistics_from,
)
from logax._serialization.trees import parts_of

if TYPE_CHECKING:
    from logax._runs.run import Run
    from logax._runs.source import Look, Row


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of records of one `log` call, of all streams that log side by side.

    Attributes:
      arrived: Wall time of arrival, in seconds since the epoch.
      process: Index of the process that wrote it, as JAX counts processes.
      shards: Shards of the run that have records in it; None for records of no shard.
      site: File and line of the `log` call.
      keys: Keys of its records.
      records: Number of records of the stream that has most.
      steps: First and last step by name. Files of version 1 have none.
      scalars: Statistics by leaf, `key` or `key/path/to/leaf`. Files of version 1 have none.
    """

    arrived: float
    process: int
    shards: tuple[int | None, ...]
    site: str
    keys: tuple[str, ...]
    records: int
    steps: dict[str, StepRange]
    scalars: dict[str, ScalarStatistics]


def batches_of(run: Run) -> Iterator[Batch]:
    """Yield the batches that have records of a run, in order; damaged ones are reported."""
    for part in run._parts:
        with run._runs.source(part).look() as look:
            families = look.members([part.number])
            for row in look.heads(families):
                layout = look.intact_layout(row.layout)
                if layout is None:
                    continue
                shards = tuple(dict.fromkeys(member.shard for member in families[row.family]))
                yield _batch(look, row, layout, shards)


def _batch(look: Look, row: Row, layout: Layout, shards: tuple[int | None, ...]) -> Batch:
    steps: dict[str, StepRange] = {}
    scalars: dict[str, ScalarStatistics] = {}
    if look.has_checksums:
        names = [name for name, _ in layout.steps]
        steps, scalars = statistics_from(row.statistics, names, _leaf_names(layout))
    return Batch(
        row.arrived,
        row.process,
        shards,
        layout.site,
        tuple(layout.places),
        row.records,
        steps,
        scalars,
    )


def _leaf_names(layout: Layout) -> list[str]:
    """Return the name of each array; those of a histogram or an image have that of the leaf."""
    found = []
    for key in layout.keys:
        for parts, show in zip(parts_of(key.outline), key.shows, strict=True):
            found += ["/".join((key.name, *parts))] * number_of_arrays(show)
    return found

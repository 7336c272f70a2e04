"""Summaries of the batches of a run: statistics and origin of records, without their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from logax._runs.batch_statistics import (
    ScalarStatistics,
    StepRange,
    statistics_from,
)
from logax._runs.layouts import LogLayout, number_of_arrays
from logax._serialization.trees import leaf_paths

if TYPE_CHECKING:
    from logax._runs.file_reader import BatchRow, RunsSnapshot
    from logax._runs.run import Run


@dataclasses.dataclass(frozen=True)
class BatchSummary:
    """Summary of a batch of records of one `log` call, of all streams that log side by side.

    Attributes:
      arrived: Wall time of arrival, in seconds since the epoch.
      process: Index of the process that wrote the batch, `jax.process_index()`.
      shards: Shards of the run in the batch; None stands for records without a shard.
      site: File and line of the `log` call.
      keys: Keys of its records.
      records: Maximum number of records of a stream.
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


def summarize_batches(run: Run) -> Iterator[BatchSummary]:
    """Yield a summary of each batch of a run, in order; report batches with a damaged layout."""
    for part in run._parts:
        with run._runs.reader_of(part).snapshot() as snapshot:
            families = snapshot.streams_of([part.number])
            for row in snapshot.batches(families):
                layout = snapshot.intact_layout(row.layout)
                if layout is None:
                    continue
                shards = tuple(dict.fromkeys(stream.shard for stream in families[row.family]))
                yield _batch(snapshot, row, layout, shards)


def _batch(
    snapshot: RunsSnapshot, row: BatchRow, layout: LogLayout, shards: tuple[int | None, ...]
) -> BatchSummary:
    steps: dict[str, StepRange] = {}
    scalars: dict[str, ScalarStatistics] = {}
    if snapshot.has_checksums:
        names = [name for name, _ in layout.steps]
        steps, scalars = statistics_from(row.statistics, names, _leaf_names(layout))
    return BatchSummary(
        row.arrived,
        row.process,
        shards,
        layout.site,
        tuple(layout.keys_by_name),
        row.records,
        steps,
        scalars,
    )


def _leaf_names(layout: LogLayout) -> list[str]:
    """Return the name of each array; all arrays of a histogram have the name of their leaf."""
    found = []
    for key in layout.keys:
        for parts, media_kind in zip(leaf_paths(key.outline), key.media_kinds, strict=True):
            found += ["/".join((key.name, *parts))] * number_of_arrays(media_kind)
    return found

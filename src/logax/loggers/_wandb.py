"""One run of W&B's: rows of numbers, sent as few as they can be.

W&B counts calls of `log` and bounds their rate: all that has the same x and arrives between two
flushes is one call. The x is a metric like any other, and each key is told which one is its own;
W&B's own step only counts calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from logax._columns.rows import as_utf8
from logax._errors import add_note
from logax._extras import imported
from logax.loggers._numbers import Part, as_bytes

_COUNT = "records"  # the x-axis of keys without a step
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb")
_MOST_BINS = 512  # that W&B takes
_MOST_ROWS = 1000  # that wait

_Row = dict[str, Any]


class WandbRun:
    """Writes to a run that W&B has opened."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._rows: list[_Row] = []
        self._latest: dict[tuple[str, float], _Row] = {}
        self._axes: dict[str, str] = {}  # by metric, its x-axis
        self._default: str | None = None

    def add(self, part: Part, stream: int) -> None:
        """Take all that one stream of a part says."""
        x_name = _COUNT if part.step_name is None else _own_name(part.step_name)
        for table in part.tables:
            names = [_own_name(name) for name in table.names]
            self._define(names, x_name)
            for x, row in table.rows(stream):
                self._put(x_name, x, dict(zip(names, row, strict=True)))
        for name, x, value in _pictures(part, stream):
            self._define([name], x_name)
            self._put(x_name, x, {name: value})
        if len(self._rows) > _MOST_ROWS:
            self.send()

    def send(self) -> None:
        """Hand all rows to W&B. Where that fails, those that are left are lost."""
        rows, self._rows = self._rows, []
        self._latest.clear()
        for number, row in enumerate(rows):
            try:
                self.run.log(row)
            except Exception as error:
                lost = f"{len(rows) - number} rows of the W&B run {self.run.name!r} were lost."
                add_note(error, lost)
                raise

    def _put(self, x_name: str, x: float, values: _Row) -> None:
        row = self._latest.get((x_name, x))
        if row is None or not row.keys().isdisjoint(values):
            row = self._latest[x_name, x] = {x_name: x}
            self._rows.append(row)
        row.update(values)

    def _define(self, names: list[str], x_name: str) -> None:
        """Tell W&B over which metric to show these, once."""
        for name in names:
            if self._axes.get(name) == x_name:
                continue
            if x_name not in self._axes:
                self._axes[x_name] = x_name
                self.run.define_metric(x_name)
            if self._default is None:
                self._default = x_name
                self.run.define_metric("*", step_metric=x_name, step_sync=False)
            if x_name != self._axes.get(name, self._default) and "*" not in name:
                self.run.define_metric(name, step_metric=x_name, step_sync=False)
            self._axes[name] = x_name


def _own_name(name: str) -> str:
    """The name, unless it is W&B's, or is no text that can be sent."""
    name = as_utf8(name)
    return f"key/{name}" if name in _RESERVED else name


def _pictures(part: Part, stream: int) -> Iterator[tuple[str, float, Any]]:
    if not (part.histograms or part.images):
        return
    wandb = imported("wandb", "WandbLogger")
    for number in part.rows_of(stream):
        for picture in part.histograms:
            name, x = _own_name(picture.name), picture.x[stream, number].item()
            counts, edges = _bins(picture.value, stream, number)
            yield name, x, wandb.Histogram(np_histogram=(counts, edges))
            if (nonfinite := int(picture.value.nonfinite[stream, number])) > 0:
                yield f"{name}/nonfinite", x, nonfinite
        for picture in part.images:
            pixels = as_bytes(picture.value.pixels[stream, number])
            flat = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
            image = imported("PIL.Image", "WandbLogger", "wandb").fromarray(flat)
            yield _own_name(picture.name), picture.x[stream, number].item(), wandb.Image(image)


def _bins(value: Any, stream: int, number: int) -> tuple[Any, Any]:
    """Counts and edges, neighbours taken together where W&B does not take as many."""
    counts, edges = value.counts[stream, number], value.edges[stream, number]
    together = -(-len(counts) // _MOST_BINS)
    starts = np.arange(0, len(counts), together)
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])

"""Read the records of a run one by one, in order, for `logax tail` and `logax export`.

Keys of one `log` call form one record. The records of a key are in program order. Records of
different calls are merged by their x-axis: the step called `step`, otherwise the first step,
otherwise the number of the record. If steps decrease, records keep their order. The position of
calls with another x-axis than most records is unknown; they are spread evenly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._cli.columns import Array, flatten_lanes, key_steps, read_logs, record_mask
from logax._cli.terminal import escape
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import logdict, matches
from logax._runs.run import Run
from logax._serialization.record_text import TextRows, format_json_lines, text_rows
from logax._support.arrays import is_missing
from logax._support.formatting import format_number

Lane = tuple[int, ...]
SeenCounts = dict[str, dict[Lane, int]]  # number of records read before, by key and lane


class RecordPosition(NamedTuple):
    """Position of a record: number of its block, and row in it."""

    block: int
    row: int


class OrderedRecords:
    """New records of a run.

    Attributes:
      blocks: Records of each `log` call as columns of text.
      positions: Positions of all records, in order.
    """

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        self.blocks = [text_rows(batch) for batch in batches]
        self.positions = _order_records(batches)

    def lines(self, form: Callable[[TextRows], list[str]]) -> list[str]:
        """Return all records as lines, in order."""
        texts = [form(rows) for rows in self.blocks]
        return [texts[position.block][position.row] for position in self.positions]


class RecordReader:
    """Reads a run repeatedly and returns each record once."""

    def __init__(self, run: Run, wanted: Sequence[str] = ()) -> None:
        self._run, self._wanted = run, wanted
        self._info = RunInfo(run.id, run.name)
        self._seen: SeenCounts = {}

    def read(self) -> OrderedRecords:
        """Return the records that were added since the last call."""
        wanted = self._wanted
        chosen = [key for key in self._run if not wanted or matches(key, wanted)]
        groups: dict[Any, _KeyGroup] = {}
        for key, parts in read_logs(self._run, chosen).items():
            taken = dict(self._seen.get(key, {}))
            for logs in parts:
                self._take(key, logs, taken, groups)
        return OrderedRecords([group.to_batch(self._info) for group in groups.values()])

    def _take(
        self, key: str, logs: logdict, taken: dict[Lane, int], groups: dict[Any, _KeyGroup]
    ) -> None:
        """Add the new records of a key to the group of its `log` call."""
        real, steps = record_mask(logs, key), key_steps(logs, key)
        if not jax.tree.leaves(logs[key]):
            return
        begin = np.zeros(real.shape[:-1], np.int64)
        for lane in np.ndindex(*begin.shape):
            begin[lane] = min(taken.get(lane, 0), int(real[lane].sum()))
            taken[lane] = taken.get(lane, 0) - int(begin[lane])
            own = self._seen.setdefault(key, {})
            own[lane] = own.get(lane, 0) + int(real[lane].sum()) - int(begin[lane])
        new = real & (np.arange(real.shape[-1]) >= begin[..., None])
        if new.any():
            same = tuple((name, x.dtype.str, x.shape, x.tobytes()) for name, x in steps.items())
            identity = (logs.site[key], new.shape, new.tobytes(), same)
            groups.setdefault(identity, _KeyGroup(new, steps)).values[key] = logs[key]


class _KeyGroup:
    """Keys of one `log` call."""

    def __init__(self, real: Array, steps: Mapping[str, Array]) -> None:
        self.real, self.steps, self.values = real, steps, dict[str, Any]()

    def to_batch(self, info: RunInfo) -> RecordBatch:
        """Return the records as a batch, with all lanes along one axis."""
        lanes = self.real.shape[:-1]

        def flat(x: Any) -> Any:
            return flatten_lanes(x, len(lanes))

        real = flat(self.real)
        return RecordBatch(
            tuple(Stream(info, lane) for lane in np.ndindex(*lanes)),
            {key: jax.tree.map(flat, value) for key, value in self.values.items()},
            {name: flat(step) for name, step in self.steps.items()},
            np.broadcast_to(np.arange(real.shape[1]), real.shape),
            real,
        )


def _order_records(batches: Sequence[RecordBatch]) -> list[RecordPosition]:
    if not batches:
        return []
    numbers = [int(batch.real.sum()) for batch in batches]
    axes = [_axis(batch) for batch in batches]
    longest = axes[int(np.argmax(numbers))]
    reached = [
        _running_maximum(batch, axis)[batch.real] if axis == longest else None
        for batch, axis in zip(batches, axes, strict=True)
    ]
    known = np.sort(np.concatenate([x for x in reached if x is not None]))
    x = np.concatenate(
        [_spread_over_known_x(batch, known) if own is None else own
         for batch, own in zip(batches, reached, strict=True)]
    )  # fmt: skip
    lane = np.concatenate([np.nonzero(batch.real)[0] for batch in batches])
    block = np.repeat(np.arange(len(batches)), numbers)
    is_spread = np.repeat([own is None for own in reached], numbers)
    row = np.concatenate([np.arange(each) for each in numbers])
    order = np.lexsort((row, block, lane, is_spread, x))
    return [
        RecordPosition(*pair)
        for pair in zip(block[order].tolist(), row[order].tolist(), strict=True)
    ]


def _axis(batch: RecordBatch) -> str | None:
    """Return the name of the step that is the x-axis; None without steps."""
    names = [name for name, step in batch.steps.items() if step.ndim == 2]
    return "step" if "step" in names else next(iter(names), None)


def _running_maximum(batch: RecordBatch, axis: str | None) -> Array:
    """Return the running maximum of x, which keeps the order within a stream."""
    x = np.asarray(batch.order, np.float64)
    if axis is not None:
        step = batch.steps[axis]
        known = ~is_missing(step) & batch.real
        x = np.where(known, step.astype(np.float64), -np.inf)
    found: Array = np.maximum.accumulate(x, axis=1)
    return found


def _spread_over_known_x(batch: RecordBatch, known: Array) -> Array:
    """Spread records evenly over known values of another x-axis, and end at the last one."""
    count = batch.real.sum(axis=1, keepdims=True)
    share = np.cumsum(batch.real, axis=1) / np.maximum(count, 1)
    place = np.clip(np.ceil(share * len(known)).astype(np.intp) - 1, 0, len(known) - 1)
    found: Array = known[place][batch.real]
    return found


def json_lines(rows: TextRows) -> list[str]:
    """Return each record as ASCII JSON, in the format of `JSONLLogger`."""
    return format_json_lines(rows, only_ascii=True)


def text_lines(rows: TextRows) -> list[str]:
    """Return each record as a line for a person: `step 3  loss 0.25`."""
    names = [escape(name) for name in rows.columns]
    found = []
    for owner, *texts in zip(rows.owner.tolist(), *rows.columns.values(), strict=True):
        stream = rows.streams[owner]
        lane = [f"lane {'-'.join(map(str, stream.lane))}"] if stream.lane else []
        pairs = zip(names, texts, strict=True)
        own = [f"{name} {_short_cell(text)}" for name, text in pairs if text is not None]
        found.append("  ".join(lane + own))
    return found


def _short_cell(text: str) -> str:
    value = json.loads(text) if len(text) < 30 else text
    return format_number(value) if isinstance(value, (bool, int, float)) else escape(text)

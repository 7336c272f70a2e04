"""What a run has logged, record by record: the lines of `tail` and of exported text.

Keys that were logged together, by one `log` call, are one record. The records of a key stand in the
order of the program. Those of different calls are put together by their x, which is the step called
`step`, else the first, else the number of the record; where steps go back, records do not. Of calls
with another x than most records it is not known where they stood: they are spread evenly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._cli.columns import Numbers, in_one_row, logs_of, real_rows, steps_of
from logax._cli.terminal import number, safe
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import logdict, matches
from logax._runs.run import Run
from logax._support.arrays import is_missing
from logax.loggers._text.cells import Rows, rows_of
from logax.loggers.jsonl import lines_of

Lane = tuple[int, ...]
Seen = dict[str, dict[Lane, int]]  # by key and lane, how many records were taken before


class Place(NamedTuple):
    """Where a record stands: in which block, and in which row of it."""

    block: int
    row: int


class Records:
    """The records of a run that were not taken before.

    Attributes:
      blocks: What was logged together, by column.
      places: All records in order.
    """

    def __init__(self, portions: Sequence[RecordBatch]) -> None:
        self.blocks = [rows_of(portion) for portion in portions]
        self.places = _in_order(portions)

    def lines(self, form: Callable[[Rows], list[str]]) -> list[str]:
        """All records as lines, in order."""
        texts = [form(rows) for rows in self.blocks]
        return [texts[place.block][place.row] for place in self.places]


class Reader:
    """Reads a run again and again, each record once."""

    def __init__(self, run: Run, wanted: Sequence[str] = ()) -> None:
        self._run, self._wanted = run, wanted
        self._info = RunInfo(run.id, run.name)
        self._seen: Seen = {}

    def read(self) -> Records:
        """What there is now and was not before."""
        wanted = self._wanted
        chosen = [key for key in self._run if not wanted or matches(key, wanted)]
        bundles: dict[Any, _Bundle] = {}
        for key, parts in logs_of(self._run, chosen).items():
            taken = dict(self._seen.get(key, {}))
            for logs in parts:
                self._take(key, logs, taken, bundles)
        return Records([bundle.portion(self._info) for bundle in bundles.values()])

    def _take(
        self, key: str, logs: logdict, taken: dict[Lane, int], bundles: dict[Any, _Bundle]
    ) -> None:
        """Put what is new of a key with what was logged with it."""
        real, steps = real_rows(logs, key), steps_of(logs, key)
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
            bundles.setdefault(identity, _Bundle(new, steps)).values[key] = logs[key]


class _Bundle:
    """Keys that were logged together."""

    def __init__(self, real: Numbers, steps: Mapping[str, Numbers]) -> None:
        self.real, self.steps, self.values = real, steps, dict[str, Any]()

    def portion(self, info: RunInfo) -> RecordBatch:
        """The same, with all lanes along one axis."""
        lanes = self.real.shape[:-1]

        def flat(x: Any) -> Any:
            return in_one_row(x, len(lanes))

        real = flat(self.real)
        return RecordBatch(
            tuple(Stream(info, lane) for lane in np.ndindex(*lanes)),
            {key: jax.tree.map(flat, value) for key, value in self.values.items()},
            {name: flat(step) for name, step in self.steps.items()},
            np.broadcast_to(np.arange(real.shape[1]), real.shape),
            real,
        )


def _in_order(portions: Sequence[RecordBatch]) -> list[Place]:
    if not portions:
        return []
    numbers = [int(portion.real.sum()) for portion in portions]
    axes = [_axis(portion) for portion in portions]
    longest = axes[int(np.argmax(numbers))]
    reached = [
        _reached(portion, axis)[portion.real] if axis == longest else None
        for portion, axis in zip(portions, axes, strict=True)
    ]
    known = np.sort(np.concatenate([x for x in reached if x is not None]))
    x = np.concatenate(
        [_spread(portion, known) if own is None else own
         for portion, own in zip(portions, reached, strict=True)]
    )  # fmt: skip
    lane = np.concatenate([np.nonzero(portion.real)[0] for portion in portions])
    block = np.repeat(np.arange(len(portions)), numbers)
    is_guest = np.repeat([own is None for own in reached], numbers)
    row = np.concatenate([np.arange(each) for each in numbers])
    order = np.lexsort((row, block, lane, is_guest, x))
    return [Place(*pair) for pair in zip(block[order].tolist(), row[order].tolist(), strict=True)]


def _axis(portion: RecordBatch) -> str | None:
    """The name of the step that is the x; None where there is none."""
    names = [name for name, step in portion.steps.items() if step.ndim == 2]
    return "step" if "step" in names else next(iter(names), None)


def _reached(portion: RecordBatch, axis: str | None) -> Numbers:
    """Of each record the greatest x up to there, so that no order changes within a stream."""
    x = np.asarray(portion.order, np.float64)
    if axis is not None:
        step = portion.steps[axis]
        known = ~is_missing(step) & portion.real
        x = np.where(known, step.astype(np.float64), -np.inf)
    found: Numbers = np.maximum.accumulate(x, axis=1)
    return found


def _spread(portion: RecordBatch, known: Numbers) -> Numbers:
    """Records evenly among x of another kind, the last one at the last."""
    count = portion.real.sum(axis=1, keepdims=True)
    share = np.cumsum(portion.real, axis=1) / np.maximum(count, 1)
    place = np.clip(np.ceil(share * len(known)).astype(np.intp) - 1, 0, len(known) - 1)
    found: Numbers = known[place][portion.real]
    return found


def json_lines(rows: Rows) -> list[str]:
    """Each record as an object, as `JSONLLogger` writes it, in ASCII."""
    return lines_of(rows, only_ascii=True)


def text_lines(rows: Rows) -> list[str]:
    """Each record as a line for a person: `step 3  loss 0.25`."""
    names = [safe(name) for name in rows.columns]
    found = []
    for owner, *texts in zip(rows.owner.tolist(), *rows.columns.values(), strict=True):
        stream = rows.streams[owner]
        lane = [f"lane {'-'.join(map(str, stream.lane))}"] if stream.lane else []
        pairs = zip(names, texts, strict=True)
        own = [f"{name} {_brief(text)}" for name, text in pairs if text is not None]
        found.append("  ".join(lane + own))
    return found


def _brief(text: str) -> str:
    value = json.loads(text) if len(text) < 30 else text
    return number(value) if isinstance(value, (bool, int, float)) else safe(text)

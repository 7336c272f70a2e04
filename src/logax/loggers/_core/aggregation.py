"""Lanes as one: of each number the mean, the least and the greatest over lanes.

Records of different lanes belong together if all their steps are equal, or, without steps, if they
stand at the same place. `loss` becomes `loss/mean`, `loss/min` and `loss/max`; complex numbers have
a mean only; of histograms and images the first lane's stays, under its own name; PRNG keys are
left out. A NaN in one lane shows: the mean, the least and the greatest are NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import leaf_name
from logax._media import is_shown
from logax._support.arrays import is_key_array

Fold = Callable[[Any], Any]


def folded(portion: RecordBatch, targets: Sequence[RunInfo]) -> Iterator[RecordBatch]:
    """The streams of a portion that have one target as one stream.

    A stream that is all of its target keeps its names. One that is a lane or shard of it does not,
    even where it is alone in the portion: the others may have ended.
    """
    of_target: dict[RunInfo, list[int]] = {}
    for number, target in enumerate(targets):
        of_target.setdefault(target, []).append(number)
    pairs = zip(portion.streams, targets, strict=True)
    is_whole = [not lane and shard is None and run.lanes is None for (_, lane, shard), run in pairs]
    if len(of_target) == len(targets) and all(is_whole):
        streams = tuple(Stream(target) for target in targets)
        yield dataclasses.replace(portion, streams=streams)
        return
    for target, numbers in of_target.items():
        alone = len(numbers) == 1 and is_whole[numbers[0]]
        part = portion.only(numbers)
        yield dataclasses.replace(part if alone else _as_one(part), streams=(Stream(target),))


def _as_one(portion: RecordBatch) -> RecordBatch:
    first, how = _aligned() if _is_aligned(portion) else _matched(portion)
    values: dict[str, Any] = {}
    for key, value in portion.values.items():
        parts = jax.tree_util.tree_leaves_with_path(value, is_leaf=is_shown)
        for path, leaf in parts:
            name = leaf_name(key, path)
            if is_shown(leaf):
                values[name] = jax.tree.map(first, leaf)
            elif not is_key_array(leaf):
                values |= {f"{name}/{which}": fold(leaf) for which, fold in how(leaf).items()}
    return dataclasses.replace(
        portion,
        values=values,
        steps={name: first(step) for name, step in portion.steps.items()},
        order=first(portion.order),
        real=None,
    )


def _is_aligned(portion: RecordBatch) -> bool:
    """Whether records that belong together stand at the same place."""
    return portion.real is None and all((x == x[:1]).all() for x in portion.steps.values())


def _aligned() -> tuple[Fold, Callable[[Any], dict[str, Fold]]]:
    """The first of those that belong together, and how they are folded."""

    def how(leaf: Any) -> dict[str, Fold]:
        return _folds(
            leaf.dtype,
            lambda x: x.mean(axis=0, dtype=_wide(x.dtype))[None],
            lambda x: x.min(axis=0)[None],
            lambda x: x.max(axis=0)[None],
        )

    return (lambda x: x[:1]), how


def _matched(portion: RecordBatch) -> tuple[Fold, Callable[[Any], dict[str, Fold]]]:
    """The same for records that are found by their steps."""
    shape = portion.order.shape
    real = np.ones(shape, bool) if portion.real is None else portion.real
    place = np.broadcast_to(np.arange(shape[1]), shape)
    columns = [x[real].reshape(int(real.sum()), -1) for x in portion.steps.values()]
    columns = columns or [place[real][:, None]]
    found = np.concatenate([column.astype(np.float64) for column in columns], 1)
    _, group = np.unique(found, axis=0, return_inverse=True)
    group = group.reshape(-1)
    # Groups in the order of their first records.
    order = portion.order[real]
    first_of = np.full(group.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_of, group, order)
    rank = np.argsort(np.argsort(first_of, kind="stable"), kind="stable")
    group = rank[group]
    index = np.lexsort((order, group))
    starts = np.searchsorted(group[index], np.arange(len(first_of)))

    def sorted_rows(x: Any) -> Any:
        return x[real][index]

    def first(x: Any) -> Any:
        return sorted_rows(x)[starts][None]

    def folding(operation: Any) -> Fold:
        return lambda x: operation.reduceat(sorted_rows(x), starts, axis=0)[None]

    def mean(x: Any) -> Any:
        rows = sorted_rows(x).astype(_wide(x.dtype))
        counts = np.diff([*starts, len(rows)]).reshape(-1, *(1,) * (rows.ndim - 1))
        return (np.add.reduceat(rows, starts, axis=0) / counts)[None]

    def how(leaf: Any) -> dict[str, Fold]:
        return _folds(leaf.dtype, mean, folding(np.minimum), folding(np.maximum))

    return first, how


def _folds(dtype: Any, mean: Fold, least: Fold, greatest: Fold) -> dict[str, Fold]:
    if np.dtype(dtype).kind == "c":
        return {"mean": mean}
    return {"mean": mean, "min": least, "max": greatest}


def _wide(dtype: Any) -> Any:
    return np.complex128 if np.dtype(dtype).kind == "c" else np.float64

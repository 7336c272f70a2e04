"""Aggregate lanes: replace each value by its mean, minimum and maximum over lanes.

Records of different lanes match if all their steps are equal or, without steps, if they have the
same index in the batch. `loss` becomes `loss/mean`, `loss/min` and `loss/max`. Complex numbers have
only a mean. Histograms and images of the first lane stay, under their own name. PRNG keys are left
out. If one lane is NaN, so are the mean, the minimum and the maximum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._logdict.logdict import leaf_name
from logax._media import is_media
from logax._support.arrays import is_key_array

Reduction = Callable[[Any], Any]


def aggregate_lanes(batch: RecordBatch, targets: Sequence[RunInfo]) -> Iterator[RecordBatch]:
    """Yield batches in which the streams of each target are aggregated to one stream.

    A stream that is a whole run keeps its keys. A lane or shard of a run does not, even if it is
    alone in the batch: the others may have ended.

    Args:
      batch: The batch.
      targets: The run of each stream of the batch.
    """
    by_target: dict[RunInfo, list[int]] = {}
    for number, target in enumerate(targets):
        by_target.setdefault(target, []).append(number)
    pairs = zip(batch.streams, targets, strict=True)
    is_whole = [not lane and shard is None and run.lanes is None for (_, lane, shard), run in pairs]
    if len(by_target) == len(targets) and all(is_whole):
        streams = tuple(Stream(target) for target in targets)
        yield dataclasses.replace(batch, streams=streams)
        return
    for target, numbers in by_target.items():
        alone = len(numbers) == 1 and is_whole[numbers[0]]
        part = batch.only(numbers)
        yield dataclasses.replace(
            part if alone else _merge_streams(part), streams=(Stream(target),)
        )


def _merge_streams(batch: RecordBatch) -> RecordBatch:
    first, choose = _reduce_aligned() if _is_aligned(batch) else _reduce_matched(batch)
    values: dict[str, Any] = {}
    for key, value in batch.values.items():
        parts = jax.tree_util.tree_leaves_with_path(value, is_leaf=is_media)
        for path, leaf in parts:
            name = leaf_name(key, path)
            if is_media(leaf):
                values[name] = jax.tree.map(first, leaf)
            elif not is_key_array(leaf):
                reductions = choose(leaf).items()
                values |= {f"{name}/{which}": reduce(leaf) for which, reduce in reductions}
    return dataclasses.replace(
        batch,
        values=values,
        steps={name: first(step) for name, step in batch.steps.items()},
        order=first(batch.order),
        real=None,
    )


def _is_aligned(batch: RecordBatch) -> bool:
    """Return whether matching records have the same index in all streams."""
    return batch.real is None and all((x == x[:1]).all() for x in batch.steps.values())


def _reduce_aligned() -> tuple[Reduction, Callable[[Any], dict[str, Reduction]]]:
    """Return a function that selects the first lane, and one from a leaf to its reductions."""

    def choose(leaf: Any) -> dict[str, Reduction]:
        return _name_reductions(
            leaf.dtype,
            lambda x: x.mean(axis=0, dtype=_wide_dtype(x.dtype))[None],
            lambda x: x.min(axis=0)[None],
            lambda x: x.max(axis=0)[None],
        )

    return (lambda x: x[:1]), choose


def _reduce_matched(
    batch: RecordBatch,
) -> tuple[Reduction, Callable[[Any], dict[str, Reduction]]]:
    """Return the same functions for records that are matched by their steps."""
    shape = batch.order.shape
    real = np.ones(shape, bool) if batch.real is None else batch.real
    place = np.broadcast_to(np.arange(shape[1]), shape)
    columns = [x[real].reshape(int(real.sum()), -1) for x in batch.steps.values()]
    columns = columns or [place[real][:, None]]
    found = np.concatenate([column.astype(np.float64) for column in columns], 1)
    _, group = np.unique(found, axis=0, return_inverse=True)
    group = group.reshape(-1)
    # Sort the groups by their first records.
    order = batch.order[real]
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

    def reduce_by(operation: Any) -> Reduction:
        return lambda x: operation.reduceat(sorted_rows(x), starts, axis=0)[None]

    def mean(x: Any) -> Any:
        rows = sorted_rows(x).astype(_wide_dtype(x.dtype))
        counts = np.diff([*starts, len(rows)]).reshape(-1, *(1,) * (rows.ndim - 1))
        return (np.add.reduceat(rows, starts, axis=0) / counts)[None]

    def choose(leaf: Any) -> dict[str, Reduction]:
        return _name_reductions(leaf.dtype, mean, reduce_by(np.minimum), reduce_by(np.maximum))

    return first, choose


def _name_reductions(
    dtype: Any, mean: Reduction, minimum: Reduction, maximum: Reduction
) -> dict[str, Reduction]:
    if np.dtype(dtype).kind == "c":
        return {"mean": mean}
    return {"mean": mean, "min": minimum, "max": maximum}


def _wide_dtype(dtype: Any) -> Any:
    return np.complex128 if np.dtype(dtype).kind == "c" else np.float64

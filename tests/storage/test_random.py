"""Random schemas, schedules, orders of steps and resumptions, against a reference in memory."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st

from logax.storage import (
    Between,
    EveryNStep,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    OnSteps,
    WriterGroupConfig,
    _layout,
)
from trajectories import assert_same

DTYPES = ["f4", "f8", "i2", "u1", "?", "c8", "i8"]
leaves = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3).map(tuple))
names = st.sampled_from(["a", "b", "step", "x/y", "value"])
trees = st.recursive(
    leaves.map(lambda leaf: ("leaf", leaf)) | st.just(("none", None)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda x: ("list", x)),
        st.lists(inner, max_size=2).map(lambda x: ("tuple", x)),
        st.dictionaries(names, inner, max_size=3).map(lambda x: ("dict", x)),
    ),
    max_leaves=5,
)
schedules = st.one_of(
    st.just(Once()),
    st.integers(1, 5).map(EveryNStep),
    st.sets(st.integers(0, 30), max_size=8).map(OnSteps),
    st.tuples(st.integers(0, 10), st.integers(0, 20)).map(lambda x: Between(x[0], x[0] + x[1])),
)


def tree_of(spec: Any, seed: int) -> Any:
    """Return a tree with values that identify their step."""
    kind, inner = spec
    if kind == "none":
        return None
    if kind == "leaf":
        dtype, shape = inner
        count = int(np.prod(shape, dtype=int))
        numbers = np.random.default_rng(seed).integers(0, 100, count) + seed
        return numbers.astype(dtype).reshape(shape)
    if kind == "dict":
        return {name: tree_of(each, seed + i) for i, (name, each) in enumerate(inner.items())}
    values = [tree_of(each, seed + i) for i, each in enumerate(inner)]
    return values if kind == "list" else tuple(values)


@st.composite
def parts_of_a_run(draw: Any) -> Any:
    """Return the steps of several runs, of which all but the first resume the file."""
    parts = []
    for number in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.integers(0, 40), max_size=40) | st.integers(0, 40).map(range))
        start = draw(st.none() | st.integers(0, 40)) if number else None
        parts.append((start, list(steps)))
    return parts


@hypothesis.given(
    specs=st.lists(st.tuples(trees, schedules), min_size=1, max_size=3),
    total=st.none() | st.integers(0, 50),
    parts=parts_of_a_run(),
    compression=st.sampled_from([None, None, 1]),
    block=st.sampled_from([1, 40, 300, 64 * 2**10]),
    fails=st.booleans(),
)
def test_what_is_read_is_what_was_logged(
    specs: Any, total: int | None, parts: Any, compression: Any, block: int, fails: bool
) -> None:
    config = {
        f"group{i}": WriterGroupConfig(lambda state, i=i: state[i], schedule)
        for i, (_, schedule) in enumerate(specs)
    }
    reference = Reference(specs)
    with tempfile.TemporaryDirectory() as folder, small_blocks(block):
        path = Path(folder) / "run.h5"
        for number, (start, steps) in enumerate(parts):
            reference.resume(start)
            first = [tree_of(spec, 0) for spec, _ in specs]
            writer = HDF5StorageWriter(
                path, config, first, total, mode="a", start_step=start, compression=compression
            )
            with contextlib.suppress(KeyboardInterrupt), unless_step_0_is_missing(), writer:
                for at, step in enumerate(steps):
                    state = [tree_of(spec, 1000 * number + 50 * at) for spec, _ in specs]
                    writer.log(state, step)
                    reference.log(state, step)
                if fails:
                    raise KeyboardInterrupt
            check(path, specs, reference)


@contextlib.contextmanager
def unless_step_0_is_missing() -> Iterator[None]:
    """Ignore warnings about groups that are never written, which other tests cover."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* was never written")
        yield


class Reference:
    """Reference: the rows that the file must hold."""

    def __init__(self, specs: Any) -> None:
        self.schedules = [schedule for _, schedule in specs]
        self.groups: list[dict[int, Any]] = [{} for _ in specs]
        self.steps = 0

    def resume(self, start: int | None) -> None:
        if start is not None:
            self.steps = min(self.steps, start)
            for i, schedule in enumerate(self.schedules):
                if start == 0 or not isinstance(schedule, Once):
                    rows = self.groups[i]
                    self.groups[i] = {step: row for step, row in rows.items() if step < start}

    def log(self, state: Any, step: int) -> None:
        self.steps = max(self.steps, step + 1)
        for schedule, rows, own in zip(self.schedules, self.groups, state, strict=True):
            if schedule.should_log(step) and not (isinstance(schedule, Once) and rows):
                rows[step] = own


def check(path: Path, specs: Any, reference: Reference) -> None:
    with HDF5StorageReader(path) as reader:
        assert reader.complete
        assert reader.actual_steps == reference.steps
        for i, ((_, schedule), rows) in enumerate(zip(specs, reference.groups, strict=True)):
            group = reader.focus_group(f"group{i}")
            assert group.steps.tolist() == sorted(rows)
            expected = [own_scalars(rows[step]) for step in sorted(rows)]
            if isinstance(schedule, Once):
                if expected:
                    assert_same(group[...], expected[0])
                continue
            assert len(group) == len(rows)
            for row, value in zip(group, expected, strict=True):
                assert_same(row, value)
            for at in {0, len(rows) // 2, len(rows) - 1} if rows else ():
                assert_same(group[at], expected[at])
            chosen = list(range(len(rows)))[::-3]
            for at, place in enumerate(chosen):
                assert_same(jax.tree.map(lambda x, at=at: x[at], group[::-3]), expected[place])


def own_scalars(tree: Any) -> Any:
    """Return a row as it is read: arrays without axes are scalars."""
    return jax.tree.map(lambda x: x[()], tree)


@contextlib.contextmanager
def small_blocks(size: int) -> Iterator[None]:
    """Set the size of blocks, so that small tests have whole ones."""
    usual, _layout._TARGET_BLOCK_BYTES = _layout._TARGET_BLOCK_BYTES, size
    try:
        yield
    finally:
        _layout._TARGET_BLOCK_BYTES = usual

"""What is demanded of `tap`, as functions of a program and of states to start it from.

Each check compares with the oracle: every record once, in the order of the program, with its
values, steps and lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import logax
from logax.testing import MemoryLogger, MemoryRun
from oracle import Program, Record, against, assert_same_bits, lane, oracle
from oracle_checks import assert_same_trees, real_part, scalar_of, stacked
from programs import State


def tapped(function: Callable[..., Any], buffer: int, **options: Any) -> tuple[Any, list[Any]]:
    """The function under a `tap` that appends to the list."""
    got: list[Any] = []
    return logax.tap(function, got.append, buffer=buffer, **options), got


def assert_delivered(got: Sequence[Any], records: Sequence[Record]) -> None:
    """Raise unless exactly these records came, in this order."""
    found = [(key, value, one.steps) for one in got for key, value in one.items()]
    assert [key for key, _, _ in found] == [record.key for record in records]
    for (key, value, steps), record in zip(found, records, strict=True):
        assert jax.tree.structure(value) == jax.tree.structure(record.value)
        for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(record.value), strict=True):
            assert_same_bits(_host(x), y, f"a value of {key!r}")
        assert list(steps) == list(record.steps)
        for name, step in steps.items():
            assert_same_bits(step, record.steps[name], f"the step {name!r} of {key!r}")


def _host(x: Any) -> Any:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def check_tapped(program: Program, buffer: int, *states: State) -> None:
    """Alone: the records of the oracle, and the output of the plain program bit for bit."""
    function, got = tapped(against(program, logax.log), buffer)
    for state in states:
        got.clear()
        wanted, recording = oracle(program, state)
        assert_same_trees(function(state), wanted)
        logax.flush()
        assert_delivered(got, recording.chosen().records)
        assert {one.lane for one in got} <= {()}


def check_tapped_lanes(
    program: Program, buffer: int, lanes: Sequence[State], whole: bool = False
) -> None:
    """`vmap(tap(f))`: each lane has its own output and records; `whole`: with `lanes="batch"`."""
    function, got = tapped(against(program, logax.log), buffer, lanes="batch" if whole else "split")
    out = jax.jit(jax.vmap(function))(stacked(lanes))
    logax.flush()
    if whole:
        got = [_Lane(one, index) for one in got for index in _real(one, len(lanes))]
    assert {one.lane for one in got} <= {(index,) for index in range(len(lanes))}
    for index, state in enumerate(lanes):
        wanted, recording = oracle(program, state)
        assert_same_trees(lane(out, index), wanted)
        own = [one for one in got if one.lane == (index,)]
        assert_delivered(own, recording.chosen().records)


def _real(one: Any, lanes: int) -> Any:
    """The lanes that a record is of."""
    return range(lanes) if one.real is None else np.flatnonzero(one.real)


class _Lane(dict[str, Any]):
    """One lane of a record of all of them."""

    def __init__(self, one: Any, index: int) -> None:
        super().__init__({key: jax.tree.map(lambda x: x[index], one[key]) for key in one})
        self.steps = {name: step[index] for name, step in one.steps.items()}
        self.lane = (index,)


def check_tapped_jitted(program: Program, buffer: int, state: State) -> None:
    """`jit(tap(f))` and `tap(jit(f))` are `tap(f)`."""
    wanted, recording = oracle(program, state)
    plain = against(program, logax.log)
    inside, got_inside = tapped(plain, buffer)
    around, got_around = tapped(jax.jit(plain), buffer)
    for function, got in ((jax.jit(inside), got_inside), (around, got_around)):
        assert_same_trees(function(state), wanted)
        logax.flush()
        assert_delivered(got, recording.chosen().records)


def check_tapped_interval(program: Program, buffer: int, state: State, interval: int) -> None:
    """`interval` takes records 0, k, 2k, ... of each key."""
    _, recording = oracle(program, state)
    function, got = tapped(against(program, logax.log), buffer, interval=interval)
    function(state)
    logax.flush()
    thinned = recording.chosen().thinned(interval).records
    for key in recording.known():
        own = [_only(one, key) for one in got if key in one]
        assert_delivered(own, [record for record in thinned if record.key == key])


class _only(dict[str, Any]):  # noqa: N801
    def __init__(self, one: Any, key: str) -> None:
        super().__init__({key: one[key]})
        self.steps = one.steps


def check_tapped_gradient(program: Program, buffer: int, state: State) -> None:
    """Differentiating through `tap` gives the plain gradient, bit for bit, and all records."""
    plain = against(program, logax.log)
    function, got = tapped(plain, buffer)

    def gradient(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda real: scalar_of(f(state | real))))(real_part(state))

    assert_same_trees(gradient(function), gradient(plain))
    logax.flush()
    assert_delivered(got, oracle(program, state)[1].chosen().records)


def check_logged(program: Program, buffer: int, *states: State) -> None:
    """Through a logger: of each key every record once, in order."""
    logger = MemoryLogger()
    function = against(program, logax.log)
    for state in states:
        with logger.run() as run:
            wanted, recording = oracle(program, state)
            assert_same_trees(logger.tap(function, run, buffer=buffer)(state), wanted)
        assert_logged(logger.runs[-1], recording.chosen().records)


def check_logged_lanes(program: Program, buffer: int, lanes: Sequence[State]) -> None:
    """Through a logger under `vmap`: a run for each lane, with its own output and records."""
    logger = MemoryLogger()
    function = against(program, logax.log)

    def seed(key: Any, state: State) -> Any:
        return logger.tap(function, logger.init(key), buffer=buffer)(state)

    keys = jax.random.split(jax.random.key(0), len(lanes))
    out = jax.jit(jax.vmap(seed))(keys, stacked(lanes))
    logax.flush()
    assert len(logger.runs) == len(lanes)
    for index, state in enumerate(lanes):
        wanted, recording = oracle(program, state)
        assert_same_trees(lane(out, index), wanted)
        assert_logged(logger.runs[index], recording.chosen().records)


def assert_logged(run: MemoryRun, records: Sequence[Record]) -> None:
    """Raise unless exactly these records came, those of each key in this order."""
    found = [(key, value, one.steps) for one in run.records for key, value in one.values.items()]
    keys = list(dict.fromkeys(record.key for record in records))
    assert {key for key, _, _ in found} == set(keys)
    for key in keys:
        own = [_Logged({key: value}, steps) for name, value, steps in found if name == key]
        assert_delivered(own, [record for record in records if record.key == key])


class _Logged(dict[str, Any]):
    """One key of a record, as `assert_delivered` takes it."""

    def __init__(self, values: dict[str, Any], steps: dict[str, Any]) -> None:
        super().__init__(values)
        self.steps = steps

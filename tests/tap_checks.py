"""What is demanded of `tap`, as functions of a program and of states to start it from.

Each check compares with the oracle: every record once, in the order of the program, with its
values, steps and lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import logax
from oracle import (
    Program,
    against,
    assert_same_bits,
    host,
    lane,
    oracle,
    with_all_lanes,
)
from oracle_checks import assert_same_trees, on_device, real_part, scalar_of, stacked
from programs import State
from recorder import Record


def tapped(
    function: Callable[..., Any], buffer: int | None, **options: Any
) -> tuple[Any, list[Any]]:
    """The function under a `tap` that appends to the list."""
    got: list[Any] = []
    return logax.tap(function, got.append, buffer=buffer, **options), got


def assert_delivered(got: Sequence[Any], records: Sequence[Record]) -> None:
    """Raise unless exactly these records came, in this order.

    In a `shard_map` each shard has its records, which are in order by themselves: devices do not
    wait for each other to log.
    """
    shards = max((_shards(record) for record in records), default=0)
    assert {one.shard for one in got} <= {None, *range(shards)}
    assert_in_order(
        [one for one in got if one.shard is None], [r for r in records if not _shards(r)]
    )
    for shard in range(shards):
        wanted = [_of_shard(record, shard) for record in records if shard < _shards(record)]
        assert_in_order([one for one in got if one.shard == shard], wanted)


def _shards(record: Record) -> int:
    """How many shards the record is of: they are around all lanes, and 0 elsewhere."""
    return record.sizes[0] if record.axes and record.axes[0].shards else 0


def _of_shard(record: Record, shard: int) -> Record:
    value = jax.tree.map(lambda x: x[shard], record.value)
    steps = {name: step[shard] for name, step in record.steps.items()}
    return replace(record, value=value, steps=steps, axes=record.axes[1:])


def assert_in_order(got: Sequence[Any], records: Sequence[Record]) -> None:
    """Raise unless these came in this order, with all shards in each."""
    came = [(key, value, one.steps) for one in got for key, value in one.items()]
    assert [key for key, _, _ in came] == [record.key for record in records]
    for (key, value, steps), record in zip(came, records, strict=True):
        assert str(jax.tree.structure(value)) == str(jax.tree.structure(record.value))
        for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(record.value), strict=True):
            found = with_all_lanes(host(x), y, record.sizes, 0)
            assert_same_bits(*found, f"a value of {key!r}")
        assert list(steps) == list(record.steps)
        for name, step in steps.items():
            found = with_all_lanes(step, record.steps[name], record.sizes, 0)
            assert_same_bits(*found, f"the step {name!r} of {key!r}")


def check_tapped(program: Program, buffer: int | None, *states: State) -> None:
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
    program: Program, buffer: int | None, lanes: Sequence[State], whole: bool = False
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
        self.lane, self.shard = (index,), one.shard


def check_tapped_jitted(program: Program, buffer: int | None, state: State) -> None:
    """`jit(tap(f))` and `tap(jit(f))` are `tap(f)`."""
    wanted, recording = oracle(program, state)
    plain = against(program, logax.log)
    inside, got_inside = tapped(plain, buffer)
    around, got_around = tapped(jax.jit(plain), buffer)
    for function, got in ((jax.jit(inside), got_inside), (around, got_around)):
        assert_same_trees(function(state), wanted)
        logax.flush()
        assert_delivered(got, recording.chosen().records)


def check_tapped_interval(
    program: Program, buffer: int | None, state: State, interval: int
) -> None:
    """`interval` takes records 0, k, 2k, ... of each key."""
    _, recording = oracle(program, state)
    function, got = tapped(against(program, logax.log), buffer, interval=interval)
    function(state)
    logax.flush()
    thinned = recording.chosen().thinned(interval).records
    for key in recording.known():
        own = [_Only(one, key) for one in got if key in one]
        assert_delivered(own, [record for record in thinned if record.key == key])


class _Only(dict[str, Any]):
    """One key of a record."""

    def __init__(self, one: Any, key: str) -> None:
        super().__init__({key: one[key]})
        self.steps, self.shard = one.steps, one.shard


def check_tapped_gradient(program: Program, buffer: int | None, state: State) -> None:
    """Differentiating through `tap` gives the plain gradient, bit for bit, and all records."""
    plain = against(program, logax.log)
    function, got = tapped(plain, buffer)

    def gradient(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda real: scalar_of(f(state | real))))(real_part(state))

    assert_same_trees(gradient(function), gradient(plain))
    logax.flush()
    assert_delivered(got, oracle(program, state)[1].chosen().records)


def check_tapped_donated(program: Program, buffer: int | None, state: State) -> None:
    """Buffers that are donated, and used again while records are under way, change nothing."""
    wanted, recording = oracle(program, state)
    plain = against(program, logax.log)
    inside, got_inside = tapped(plain, buffer)
    around, got_around = tapped(jax.jit(plain, donate_argnums=0), buffer)
    for function, got in (
        (jax.jit(inside, donate_argnums=0), got_inside),
        (around, got_around),
    ):
        assert_same_trees(function(on_device(state)), wanted)
        logax.flush()
        assert_delivered(got, recording.chosen().records)

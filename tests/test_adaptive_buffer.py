"""The default buffer of `tap`, whose size the host adapts while the program runs."""

from __future__ import annotations

import functools
import itertools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from logax._delivery import calls
from logax._delivery.calls import MAX_BLOCK_RECORDS, TARGET_SECONDS, BlockSize
from logax._delivery.worker import worker
from logax._harvest.selection import Selection
from logax._harvest.stream_plan import MAX_ADAPTIVE_BUFFER_BYTES
from logax._harvest.streaming import TapHarvest, TapOptions
from logax._log import enable_logs
from slow_cases import slow_but

LENGTH = 37  # no multiple of any step


def records_of(function: Any, x: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Return the result of a tapped function, and the keys, values and steps of its records."""
    got: list[Any] = []
    tapped = logax.tap(function, got.append, **options)
    result = tapped(x)
    logax.flush()
    return result, [
        ({k: np.asarray(v).tolist() for k, v in one.items()}, dict(one.steps)) for one in got
    ]


# The size.


def test_a_block_doubles_while_it_takes_less_than_half_of_the_target() -> None:
    size = BlockSize()
    sizes = []
    for _ in range(14):
        sizes.append(size.records)
        size.adapt(size.records, TARGET_SECONDS / 3)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096]
    assert max(sizes) == MAX_BLOCK_RECORDS


@pytest.mark.parametrize(
    ("records", "seconds", "wanted"),
    [
        (64, TARGET_SECONDS, 64),
        (64, 2 * TARGET_SECONDS, 64),
        (64, 4 * TARGET_SECONDS, 16),
        (64, 1000 * TARGET_SECONDS, 1),
        (10, TARGET_SECONDS / 100, 64),  # a loop ended: the block was not whole
        (10, 5 * TARGET_SECONDS, 2),
        (100, 2.5 * TARGET_SECONDS, 40),
        (1000, 2.5 * TARGET_SECONDS, 64),
    ],
)
def test_a_slow_block_shrinks_in_proportion(records: int, seconds: float, wanted: int) -> None:
    size = BlockSize()
    size.records = 64
    size.adapt(records, seconds)
    assert size.records == wanted


@pytest.mark.parametrize(("records", "wanted"), [(1, 2), (16, 32), (31, 62), (32, 32), (64, 64)])
def test_a_small_block_grows_until_it_takes_nearly_the_target(records: int, wanted: int) -> None:
    size = BlockSize()
    size.records = records
    size.adapt(records, 0.8 * TARGET_SECONDS)
    assert size.records == wanted


# What the program is told.


@pytest.mark.parametrize(
    ("seconds", "job_records", "first", "second"),
    [
        (TARGET_SECONDS / 10, 5000.0, [1, 1, 2, 4, 8, 16, 32, 36], [64, 36]),
        (TARGET_SECONDS, 5000.0, [1] * 100, [1] * 100),
        (TARGET_SECONDS * 10, 5000.0, [1] * 100, [1] * 100),
        # A slow callback: more would be delivered too late.
        (TARGET_SECONDS / 10, 25.5, [1, 1, 2, 4, 8, 16, 25, 25, 18], [25] * 4),
        (TARGET_SECONDS / 10, 0.25, [1] * 100, [1] * 100),
    ],
)
def test_as_many_records_leave_together_as_the_clock_of_the_host_allows(
    seconds: float,
    job_records: float,
    first: list[int],
    second: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: next(ticks) * seconds)
    sizes: list[int] = []
    add = worker.add

    def watched(size: int, run: Any, item: Any, records: int = 1, kind: Any = None) -> bool:
        sizes.append(records)
        return add(size, run, item, records, kind)

    monkeypatch.setattr(calls, "time", clock)
    monkeypatch.setattr(worker, "_measure", lambda *_: None)
    monkeypatch.setattr(worker, "job_records", job_records)
    monkeypatch.setattr(worker, "add", watched)
    got: list[int] = []
    tapped = logax.tap(functools.partial(count_to_100), lambda one: got.append(int(one["i"])))
    for wanted in (first, second):  # a call begins with the size that the last one found
        sizes.clear()
        jax.block_until_ready(tapped(jnp.float32(0)))
        assert sizes == wanted
    monkeypatch.undo()
    logax.flush()
    assert got == 2 * list(range(100))


def count_to_100(x: Any) -> Any:
    def step(carry: Any, i: Any) -> Any:
        logax.log({"i": i})
        return carry + 1, None

    return jax.lax.scan(step, x, jnp.arange(100))[0]


# The programs.


def scan(unroll: int, reverse: bool) -> Any:
    def step(carry: Any, x: Any) -> Any:
        i, key = x
        carry = jnp.sin(carry) + i
        logax.log({"carry": carry}, step=i)
        return carry, (carry * 2, jax.random.fold_in(key, i), jnp.ones((2, 3)) * i)

    def function(x: Any) -> Any:
        xs = jnp.arange(LENGTH), jax.random.split(jax.random.key(0), LENGTH)
        carry, (doubled, keys, rows) = jax.lax.scan(step, x, xs, unroll=unroll, reverse=reverse)
        return carry, doubled, jax.random.key_data(keys), rows

    return function


def loop_in_a_loop(inner: int) -> Any:
    def outer(carry: Any, j: Any) -> Any:
        logax.log({"outer": carry}, step=j)

        def step(carry: Any, i: Any) -> Any:
            jax.lax.cond(i % 3 == 0, lambda: logax.log({"third": i}, step=j, i=i), lambda: None)
            return carry + i, None

        carry, _ = jax.lax.scan(step, carry, jnp.arange(inner))
        logax.log({"end": carry}, step=j)
        return carry, carry

    return lambda x: jax.lax.scan(outer, x, jnp.arange(12))


def collatz_of_many(x: Any) -> Any:
    def body(n: Any) -> Any:
        logax.log({"n": n})
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1)

    def each(total: Any, n: Any) -> Any:
        logax.log({"start": n})
        return total + jax.lax.while_loop(lambda n: n > 1, body, n), None

    logax.log({"before": x})
    total, _ = jax.lax.scan(each, x, jnp.arange(1, 12))
    logax.log({"after": total})
    return total


def branches_with_loops(x: Any) -> Any:
    def count(carry: Any, times: int) -> Any:
        def step(carry: Any, i: Any) -> Any:
            logax.log({"i": i, "carry": carry})
            return carry + 1, None

        return jax.lax.scan(step, carry, jnp.arange(times))[0]

    def outer(carry: Any, j: Any) -> Any:
        even, odd = (lambda c: count(c, 20)), (jax.jit(lambda c: count(c, 11)))
        carry = jax.lax.cond(j % 2 == 0, even, odd, carry)
        return jax.checkpoint(lambda c: count(c, 9))(carry), None

    return jax.lax.scan(outer, x, jnp.arange(6))[0]


PROGRAMS = {
    "a scan": scan(1, False),
    "a scan in reverse": scan(1, True),
    "an unrolled scan": scan(4, False),
    "an unrolled scan in reverse": scan(5, True),
    "an unrolled scan that is one step": scan(LENGTH, False),
    "a short loop in a loop": loop_in_a_loop(3),
    "a loop in a loop": loop_in_a_loop(20),
    "while loops in a scan": collatz_of_many,
    "branches with loops": branches_with_loops,
}


@pytest.mark.parametrize(
    "name",
    slow_but(["an unrolled scan in reverse", "a loop in a loop", "branches with loops"], PROGRAMS),
)
def test_every_record_comes_once_and_in_order(name: str, optimized: None) -> None:
    program = PROGRAMS[name]
    start = jnp.float32(0.5) if "scan" in name and "while" not in name else jnp.int32(0)
    result, records = records_of(program, start, buffer=1)
    for _ in range(3):  # later calls begin with the size that the earlier ones found
        adapted, got = records_of(program, start)
        jax.tree.map(np.testing.assert_array_equal, adapted, result)
        assert got == records


def test_records_of_shards_and_of_a_loop_beside_them_arrive() -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))

    def shard(x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            logax.log({"shard": carry.sum()}, step=i)
            return carry + 1, None

        return jax.lax.scan(step, x, jnp.arange(20))[0]

    spec = jax.sharding.PartitionSpec("x")

    def function(x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            logax.log({"whole": carry.sum()}, step=i)
            return carry * 2, None

        x, _ = jax.lax.scan(step, x, jnp.arange(10))
        return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    got: list[Any] = []
    result = logax.tap(function, got.append)(jnp.arange(4.0))
    logax.flush()
    np.testing.assert_array_equal(result, jnp.arange(4.0) * 1024 + 20)
    whole = [float(one["whole"]) for one in got if "whole" in one]
    assert whole == [6.0 * 2**i for i in range(10)]
    for number, start in enumerate([1024.0, 5 * 1024.0]):
        of_shard = [float(one["shard"]) for one in got if one.shard == number]
        assert of_shard == [start + 2 * i for i in range(20)]


def test_arrays_on_several_devices_are_logged_as_without_adapting() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("d",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    constant = jax.device_put(jnp.arange(8.0), spread)

    def step(carry: Any, i: Any) -> Any:
        logax.log({"carry": carry, "sum": carry.sum()}, step=i)
        return carry + 1, carry * 2

    def scanned(x: Any) -> Any:
        return jax.lax.scan(step, x, jnp.arange(20))

    def constrained(x: Any) -> Any:
        return scanned(jax.lax.with_sharding_constraint(x, spread))

    one = jnp.arange(8.0)
    ways = [
        (scanned, one),
        (scanned, constant),
        (constrained, one),
        (lambda x: scanned(x + constant), one * 0),
    ]
    for function, x in ways:
        _, records = records_of(function, x)
        assert [values["carry"] for values, _ in records] == [
            (np.arange(8.0) + i).tolist() for i in range(20)
        ]


def test_a_large_array_beside_scalars_takes_no_more_room_than_is_documented() -> None:
    def function(x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            logax.log({"carry": carry}, step=i)
            logax.log({"large": jnp.full(2**14, i)}, step=i, every=5)
            return carry + 1, None

        logax.log({"once": jnp.zeros(2**20)})
        return jax.lax.scan(step, x, jnp.arange(20))[0]

    options = TapOptions(Selection.of(None, None, ""), False, 1, None)
    harvest = TapHarvest(options, False, adapts=True)
    with enable_logs():
        jaxpr = jax.make_jaxpr(function)(0.0)
    harvest.plan(jaxpr)
    waiting = jax.tree.leaves(harvest.start_states(jnp.int32(1)))
    assert 0 < sum(x.nbytes for x in waiting) <= 2.5 * MAX_ADAPTIVE_BUFFER_BYTES
    _, records = records_of(function, 0.0)
    assert [list(values) for values, _ in records[:3]] == [["once"], ["carry"], ["large"]]
    assert len(records) == 25


def test_results_keep_their_weak_types() -> None:
    def function(x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            logax.log({"carry": carry})
            return carry * 2, (carry * 3, jnp.float32(i))

        return jax.lax.scan(step, x, jnp.arange(12))

    plain = jax.eval_shape(function, 0.5)
    tapped = logax.tap(function, lambda one: None)(0.5)
    weak = [x.weak_type for x in jax.tree.leaves(plain)]
    assert [x.weak_type for x in jax.tree.leaves(tapped)] == weak == [True, True, False]

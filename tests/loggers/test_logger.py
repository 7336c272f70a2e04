"""The shell of every logger: runs, lanes, errors, and what a failing sink costs."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import gc
import os
import queue
import subprocess
import sys
import textwrap
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import logax
from gates import pending
from interrupts import interrupts
from logax._delivery.worker import worker
from logax.loggers import (
    CallbackLogger,
    Logger,
    MultiLogger,
    ProgressLogger,
    RecordBatch,
    SaveLogger,
    Sink,
)
from logax.loggers._core.registry import OpenRun, RunSet
from logax.testing import MemoryLogger


def grow(x):
    def body(x, i):
        x = x * 2
        logax.log({"loss": x}, step=i)
        return x, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


def keys(number):
    return jax.random.split(jax.random.key(0), number)


def values(run, key="loss"):
    return [np.asarray(value).tolist() for _, value in run.columns[key]]


class Failing(Sink):
    """Raises in one of its methods as long as it is told to."""

    def __init__(self, method):
        self.method, self.fails, self.got = method, True, []

    def _maybe(self, method):
        if self.fails and method == self.method:
            raise OSError("no room")

    def open(self, runs):
        self._maybe("open")

    def write(self, batch):
        self._maybe("write")
        self.got.append(batch.number)

    def flush(self):
        self._maybe("flush")

    def close(self, runs, status):
        self._maybe("close")
        self.got.append(status)


# Runs and lanes.


def test_every_lane_has_a_run_with_what_it_was_given():
    logger = MemoryLogger()

    def train(key, rate):
        state = logger.init(
            key, name="seed", config={"rate": rate, "net": {"width": 8, "kind": "mlp"}}
        )
        return logger.tap(grow, state)(rate)

    out = jax.jit(jax.vmap(train))(keys(3), jnp.array([1.0, 2.0, 4.0]))
    logax.flush()
    assert out.tolist() == [8.0, 16.0, 32.0]
    assert [run.name for run in logger.runs] == ["seed-0", "seed-1", "seed-2"]
    assert [run.info.lane for run in logger.runs] == [(0,), (1,), (2,)]
    assert [run.config for run in logger.runs] == [
        {"rate": rate, "net": {"width": 8, "kind": "mlp"}} for rate in (1.0, 2.0, 4.0)
    ]
    assert [run.info.machine["key"] for run in logger.runs] == jax.random.key_data(keys(3)).tolist()
    assert values(logger.runs[1]) == [4.0, 8.0, 16.0]


def test_a_state_knows_its_runs():
    logger = MemoryLogger()
    states = jax.jit(jax.vmap(lambda key: logger.init(key, name="n")))(keys(2))
    assert states.name == ["n-0", "n-1"]
    assert repr(states) == "<2 runs of MemoryLogger>"
    with logger.run(name="a") as state:
        assert (state.name, repr(state)) == ("a", "<run a of MemoryLogger>")
        assert "RunState[<MemoryLogger>]" in str(jax.tree.structure(state))
    logger.finish(states)
    assert [*states.id, state.id] == [run.info.id for run in logger.runs]
    with pytest.raises(AttributeError, match="known when the program runs"):
        jax.jit(lambda state: state.id)(states)


def test_no_keys_begin_no_runs():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(0))
    logger.finish(states)
    assert (states.name, logger.runs) == ([], [])


def test_many_runs_that_log_by_themselves_have_their_own_records():
    logger = MemoryLogger()
    states = jax.tree.map(np.asarray, jax.vmap(logger.init)(keys(300)))
    for step in range(2):
        for index in range(300):
            own = jax.tree.map(lambda x, index=index: x[index], states)
            logger.log(own, {"x": index}, step=step)
    logger.finish(states)
    assert [run.columns["x"] for run in logger.runs] == [[(0, i), (1, i)] for i in range(300)]


@pytest.mark.slow
def test_more_keys_than_anybody_has_are_all_there():
    logger = MemoryLogger()
    with logger.run() as state:
        for index in range(4200):
            logger.log(state, {f"key {index}": index})
    (run,) = logger.runs
    assert [record.values for record in run.records] == [{f"key {i}": i} for i in range(4200)]


def test_a_program_that_runs_again_begins_new_runs():
    logger = MemoryLogger()
    program = jax.jit(lambda key: logger.tap(grow, logger.init(key))(1.0))
    program(jax.random.key(0))
    program(jax.random.key(0))
    logax.flush()
    one, two = logger.runs
    assert one.info.id != two.info.id
    assert values(one) == values(two) == [2.0, 4.0, 8.0]


def test_init_asks_the_host_once_for_all_lanes(monkeypatch):
    logger = MemoryLogger()
    asked = []
    begin = logger._registry.begin
    monkeypatch.setattr(
        logger._registry, "begin", lambda seeds: asked.append(seeds.lanes) or begin(seeds)
    )
    states = jax.jit(jax.vmap(logger.init))(keys(256))
    assert np.unique(states.number).size == 256
    assert asked == [(256,)]


def test_runs_of_a_scan_are_apart():
    logger = MemoryLogger()

    def body(_, key):
        return None, logger.tap(grow, logger.init(key))(1.0)

    jax.jit(lambda keys: jax.lax.scan(body, None, keys))(keys(3))
    logax.flush()
    assert [values(run) for run in logger.runs] == [[2.0, 4.0, 8.0]] * 3


def test_one_state_under_vmap_means_lanes_of_one_run():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    jax.vmap(logger.tap(grow, state))(jnp.array([1.0, 3.0]))
    logax.flush()
    (run,) = logger.runs
    lanes = {(0,): [], (1,): []}
    for record in run.records:
        lanes[record.stream.lane].append(float(record.values["loss"]))
    assert lanes == {(0,): [2.0, 4.0, 8.0], (1,): [6.0, 12.0, 24.0]}


def test_of_nested_lanes_those_within_a_run_are_its_own():
    logger = MemoryLogger()

    def seed(key, xs):
        state = logger.init(key, name="seed")
        return jax.vmap(logger.tap(grow, state))(xs)

    jax.jit(jax.vmap(seed))(keys(2), jnp.arange(6.0).reshape(2, 3))
    logax.flush()
    for index, run in enumerate(logger.runs):
        found = {(r.stream.lane, int(r.steps["step"])): r.values["loss"] for r in run.records}
        assert found == {
            ((lane,), step): (3 * index + lane) * 2.0 ** (step + 1)
            for lane in range(3)
            for step in range(3)
        }


@pytest.mark.parametrize("buffer", [1, 64])
def test_lanes_of_a_run_are_told_in_branches_that_they_take_apart(buffer):
    logger = MemoryLogger()

    def branches(x):
        def body(x, i):
            def large(x):
                logax.log({"large": x}, step=i)
                return x / 2

            def small(x):
                logax.log({"small": x}, step=i)
                return x * 3

            return jax.lax.cond(x > 4, large, small, x), None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    def lanes(state, xs):
        return jax.vmap(logger.tap(branches, state, buffer=buffer))(xs)

    starts = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    jax.vmap(lanes)(jax.vmap(logger.init)(keys(2)), starts)
    logax.flush()
    for run, own in zip(logger.runs, starts, strict=True):
        for lane, x in enumerate(own):
            wanted = []
            for step in range(4):
                wanted.append(({"large" if x > 4 else "small": x}, step))
                x = x / 2 if x > 4 else x * 3
            found = [
                (r.values, int(r.steps["step"])) for r in run.records if r.stream.lane == (lane,)
            ]
            assert sorted(found, key=lambda pair: pair[1]) == wanted
        assert {r.stream.lane for r in run.records} == {(0,), (1,), (2,)}


def test_shards_are_streams_of_a_run():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = PartitionSpec("d")

    def shard(x):
        logax.log({"x": x.sum()}, step=0)
        return x * 2

    sharded = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)
    out = logger.tap(sharded, state)(jnp.arange(4.0))
    logax.flush()
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
    (run,) = logger.runs
    assert {(r.stream.shard, float(r.values["x"])) for r in run.records} == {(0, 1.0), (1, 5.0)}


@pytest.mark.slow
def test_a_run_that_begins_on_a_shard_has_no_others():
    logger = MemoryLogger()
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = PartitionSpec("d")

    def shard(keys, x):
        return logger.tap(grow, logger.init(keys[0], name="s"))(x[0])[None]

    out = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(
        keys(2), jnp.array([1.0, 3.0])
    )
    logax.flush()
    assert out.tolist() == [8.0, 24.0]
    found = {run.name: (values(run), {r.stream[1:] for r in run.records}) for run in logger.runs}
    assert found == {
        "s-0": ([2.0, 4.0, 8.0], {((), None)}),
        "s-1": ([6.0, 12.0, 24.0], {((), None)}),
    }


def test_an_aggregate_is_one_run_with_mean_least_and_greatest():
    logger = MemoryLogger(lanes="aggregate")

    def train(key, x):
        return logger.tap(grow, logger.init(key, name="all", config={"x": x}), buffer=2)(x)

    jax.vmap(train)(keys(3), jnp.array([1.0, 2.0, 6.0]))
    logax.flush()
    (run,) = logger.runs
    assert (run.name, run.info.lanes) == ("all", 3)
    assert run.config["x"].tolist() == [1.0, 2.0, 6.0]
    assert values(run, "loss/mean") == [6.0, 12.0, 24.0]
    assert values(run, "loss/min") == [2.0, 4.0, 8.0]
    assert values(run, "loss/max") == [12.0, 24.0, 48.0]


def test_an_aggregate_matches_lanes_by_their_steps():
    logger = MemoryLogger(lanes="aggregate")

    def count(start):
        def body(i):
            logax.log({"i": i * 10}, step=i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < 4, body, start)

    jax.vmap(lambda key, x: logger.tap(count, logger.init(key), buffer=8)(x))(
        keys(2), jnp.array([0, 2])
    )
    logax.flush()
    (run,) = logger.runs
    columns = {name: [(x, float(v)) for x, v in own] for name, own in run.columns.items()}
    assert sorted(columns["i/mean"]) == [(0, 0.0), (1, 10.0), (2, 20.0), (3, 30.0)]
    assert sorted(columns["i/max"]) == [(0, 0.0), (1, 10.0), (2, 20.0), (3, 30.0)]


def twice(x):
    """Logs x, -x, 2x, -2x, 4x and -4x under one key, by two calls."""

    def body(x, i):
        logax.log({"loss": x}, step=i)
        logax.log({"loss": -x}, step=i)
        return x * 2, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


def test_records_that_are_made_now_and_then_come_together():
    def sometimes(x):
        def body(x, i):
            jax.lax.cond(i % 2 == 0, lambda: logax.log({"loss": x}, step=i), lambda: None)
            return x * 2, None

        return jax.lax.scan(body, x, jnp.arange(5))[0]

    logger = MemoryLogger()
    with logger.run() as state:
        logger.tap(sometimes, state, buffer=8)(1.0)
    assert logger.runs[0].columns["loss"] == [(0, 1.0), (2, 4.0), (4, 16.0)]


def test_calls_that_log_the_same_are_merged_in_the_order_of_the_program():
    logger = MemoryLogger()
    with logger.run(name="one") as state:
        logger.tap(twice, state, buffer=8)(1.0)
    with logger.run(name="lanes") as state:
        jax.vmap(logger.tap(twice, state, buffer=8))(jnp.array([1.0, 3.0]))
    one, lanes = logger.runs
    assert values(one) == [1, -1, 2, -2, 4, -4]
    for at, first in enumerate((1, 3)):
        own = [float(r.values["loss"]) for r in lanes.records if r.stream.lane == (at,)]
        assert own == [first * x for x in (1, -1, 2, -2, 4, -4)]


@pytest.mark.parametrize("buffer", [1, 64])
def test_calls_that_log_the_same_stay_in_order_where_lanes_differ(buffer):
    def count(n):
        def body(i):
            logax.log({"loss": i / 1}, step=2 * i)
            logax.log({"loss": i + 0.5}, step=2 * i + 1)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(2))
    jax.vmap(lambda state, n: logger.tap(count, state, buffer=buffer)(n))(states, jnp.array([3, 5]))
    logax.flush()
    for run, number in zip(logger.runs, (3, 5), strict=True):
        assert run.columns["loss"] == [(step, step / 2) for step in range(2 * number)]


def test_calls_that_log_the_same_stay_in_order_where_a_lane_has_ended():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(3))
    logger.finish(jax.tree.map(lambda x: x[1], states))
    program = jax.jit(jax.vmap(lambda state, x: logger.tap(twice, state, buffer=8)(x)))
    program(states, jnp.array([1.0, 2.0, 3.0]))
    with pytest.raises(logax.DeliveryError, match="6 records were lost"):
        logax.flush()
    assert [values(logger.runs[at]) for at in (0, 2)] == [
        [first * x for x in (1, -1, 2, -2, 4, -4)] for first in (1, 3)
    ]


def test_a_run_is_one_object_for_all_threads_that_ask_for_it():
    both_make_it = threading.Barrier(2)

    def config(index):
        both_make_it.wait(60)
        return {}

    run = OpenRun(1, RunSet("r", config, ()), 0)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        one, two = threads.map(run.info, ["split", "split"])
    assert one is two is run.info("split")
    assert one.name == "r"


class Folded(Sink):
    """Takes no lanes, and keeps the names and steps of what it is given."""

    takes_lanes = False

    def __init__(self):
        self.got = {}

    def write(self, batch):
        for record in batch.records():
            for name, value in record.values.items():
                step = int(record.steps["step"])
                self.got.setdefault(name, []).append((step, float(value)))


def test_lanes_of_a_run_keep_their_names_when_one_of_them_is_left():
    def count(n):
        def body(i):
            logax.log({"loss": i * n}, step=i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    sink = Folded()
    logger = Logger(sink)
    with logger.run() as state:
        jax.vmap(logger.tap(count, state))(jnp.array([2, 4]))
        logger.log(state, {"alone": 1.0}, step=9)
    assert sink.got == {
        "loss/mean": [(0, 0.0), (1, 3.0), (2, 8.0), (3, 12.0)],
        "loss/min": [(0, 0.0), (1, 2.0), (2, 8.0), (3, 12.0)],
        "loss/max": [(0, 0.0), (1, 4.0), (2, 8.0), (3, 12.0)],
        "alone": [(9, 1.0)],
    }


def test_complex_numbers_of_an_aggregate_have_a_mean_alone():
    logger = MemoryLogger(lanes="aggregate")

    def say(key, x):
        state = logger.init(key)
        logger.log(state, {"z": x + 1j * x}, step=0)
        logger.finish(state)

    jax.vmap(say)(keys(2), jnp.array([1.0, 3.0]))
    logax.flush()
    (run,) = logger.runs
    assert {name: values(run, name) for name in run.columns} == {"z/mean": [2 + 2j]}


def test_a_key_of_plain_numbers_begins_a_run():
    logger = MemoryLogger()
    logger.finish(logger.init(jax.random.PRNGKey(0), name="plain"))
    logax.flush()
    assert [(run.name, run.status) for run in logger.runs] == [("plain", "finished")]


def test_a_state_inside_a_program_says_so():
    logger, said = MemoryLogger(), []
    with logger.run(name="a") as state:
        jax.jit(lambda state: said.append(repr(state)))(state)
        assert [*said, repr(state)] == [
            "<a run of MemoryLogger, inside a program>",
            "<run a of MemoryLogger>",
        ]


def test_the_keys_of_a_logdict_have_the_same_lanes():
    logger = MemoryLogger()
    logs = logax.logdict({"x": np.ones((2, 3)), "y": np.ones(3)}, rank={"x": 0, "y": 0})
    with logger.run() as state:
        with pytest.raises(ValueError, match="a `logdict` whose keys differ in their lanes"):
            logger.log(state, logs)
        logger.log(state, logs.filter("y"))
    assert values(logger.runs[0], "y") == [1, 1, 1]


def test_a_group_is_a_run_for_each_seed_with_something_in_common():
    logger = MemoryLogger(lanes="group")
    jax.vmap(lambda key: logger.tap(grow, logger.init(key, name="sweep"))(1.0))(keys(2))
    logax.flush()
    assert [run.info.group for run in logger.runs] == ["sweep", "sweep"]
    assert [run.name for run in logger.runs] == ["sweep-0", "sweep-1"]


def test_an_aggregate_without_lanes_keeps_its_names():
    logger = MemoryLogger(lanes="aggregate")
    with logger.run() as state:
        logger.tap(grow, state)(1.0)
    (run,) = logger.runs
    assert list(run.columns) == ["loss"]


@pytest.mark.slow
def test_keys_with_histograms_and_prng_keys_survive_an_aggregate():
    logger = MemoryLogger(lanes="aggregate")

    def say(x):
        logax.log({"h": logax.Histogram(x, bins=2), "key": jax.random.key(1), "m": x}, step=0)

    jax.vmap(lambda key, x: logger.tap(say, logger.init(key))(x))(
        keys(2), jnp.arange(8.0).reshape(2, 4)
    )
    logax.flush()
    (run,) = logger.runs
    (record,) = run.records
    assert sorted(record.values) == ["h", "m/max", "m/mean", "m/min"]
    assert record.values["h"].counts.tolist() == [2, 2]
    assert record.values["m/mean"].tolist() == [2.0, 3.0, 4.0, 5.0]


# Calls.


def test_a_python_loop_compiles_once():
    logger = MemoryLogger()
    traced = []

    def step(x):
        traced.append(None)
        logax.log({"x": x})
        return x + 1

    x = jnp.float32(0)
    for number in range(3):
        with logger.run(name=str(number)) as state:
            for _ in range(3):
                x = logger.tap(step, state)(x)
                x = logger.spool(step, state)(x)
    assert len(traced) == 2
    assert [values(run, "x") for run in logger.runs] == [
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        [6.0, 7.0, 8.0, 9.0, 10.0, 11.0],
        [12.0, 13.0, 14.0, 15.0, 16.0, 17.0],
    ]


def test_two_loggers_share_a_compiled_function_and_not_their_records():
    one, two = MemoryLogger(), MemoryLogger()
    for logger, x in ((one, 1.0), (two, 2.0)):
        with logger.run() as state:
            logger.tap(grow, state)(x)
            logger.spool(grow, state)(x)
    assert values(one.runs[0]) == [2.0, 4.0, 8.0] * 2
    assert values(two.runs[0]) == [4.0, 8.0, 16.0] * 2


def test_a_gradient_through_a_logged_function_is_that_of_the_function():
    logger = MemoryLogger()
    with logger.run() as state:
        slope = jax.grad(logger.tap(grow, state))(1.0)
        other = jax.grad(logger.spool(grow, state))(1.0)
    assert (float(slope), float(other)) == (8.0, 8.0)
    assert values(logger.runs[0]) == [2.0, 4.0, 8.0] * 2


def test_a_gradient_through_the_beginning_of_a_run_is_that_of_the_function():
    logger = MemoryLogger()

    def train(x):
        state = logger.init(jax.random.key(0), name="a", config={"rate": x})
        out = logger.tap(grow, state)(x)
        logger.finish(state)
        return out

    assert float(jax.grad(train)(1.0)) == 8.0
    logax.flush()
    (run,) = logger.runs
    assert (run.status, run.config["rate"], values(run)) == ("finished", 1.0, [2.0, 4.0, 8.0])


def test_what_logs_nothing_leaves_nothing():
    logger = MemoryLogger()
    with logger.run() as state:
        assert logger.spool(lambda x: x + 1, state)(1.0) == 2.0
        logger.log(state, logax.logdict({"x": np.zeros(0)}))
    (run,) = logger.runs
    assert (run.status, run.records) == ("finished", [])
    assert repr(run) == f"<run {run.name}, finished, 0 records>"


def test_a_prefix_stands_in_front_of_the_names_of_plain_values_and_logdicts():
    logger = MemoryLogger()
    with logger.run() as state:
        logger.log(state, {"x": 1.0, "y": jnp.ones(())}, prefix="val/", step=0)
        logger.log(state, {"z": {"a": np.ones(2)}}, prefix="val/")
        logger.log(state, logax.logdict({"x": np.arange(2)}), prefix="logs/")
        jax.jit(lambda state, x: logger.log(state, {"x": x}, prefix="in/"))(state, 2.0)
        logger.log(state, {"x": 3.0})
        for wrong in (3, None):
            with pytest.raises(
                TypeError, match=r"`MemoryLogger.log` at .*takes as `prefix` a stri"
            ):
                logger.log(state, {"x": 1.0}, prefix=wrong)
    (run,) = logger.runs
    assert sorted(run.columns) == ["in/x", "logs/x", "val/x", "val/y", "val/z/a", "x"]
    assert [values(run, key) for key in ("val/x", "in/x", "x")] == [[1.0], [2.0], [3.0]]


def test_options_that_only_the_log_of_programs_has_are_no_steps():
    logger = MemoryLogger()
    with logger.run() as state:
        for option, value in {"every": 10, "tags": "a", "explicit": True}.items():
            with pytest.raises(
                TypeError, match=rf"`MemoryLogger.log` at .* has no option `{option}`"
            ):
                logger.log(state, {"x": 1.0}, step=1, **{option: value})
        with pytest.warns(
            UserWarning, match=r"`MemoryLogger.log` at .*, got `prefx`, .*`prefix` me"
        ):
            logger.log(state, {"x": 1.0}, prefx=1)
    with pytest.warns(UserWarning, match=r"`RecordBatch.of`, among its steps, got `reel`"):
        RecordBatch.of([], {"x": np.zeros((0, 0))}, reel=np.zeros((0, 0)))


def test_threads_keep_their_runs_apart():
    logger = MemoryLogger()

    def train(number):
        with logger.run(name=str(number)) as state:
            for _ in range(5):
                logger.tap(grow, state)(float(number))

    threads = [threading.Thread(target=train, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {run.name: values(run) for run in logger.runs}
    assert found == {str(n): [n * 2.0, n * 4.0, n * 8.0] * 5 for n in range(4)}


def test_a_spooled_function_may_be_reduced_and_bounded():
    logger = MemoryLogger()

    def count(n):
        def body(i):
            logax.log({"i": i}, step=i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    with logger.run() as state:
        logger.spool(count, state, capacity=2)(5)
        logger.spool(count, state, reduce="sum", prefix="sum/")(5)
    (run,) = logger.runs
    assert run.columns["i"] == [(3, 3), (4, 4)]
    assert run.columns["sum/i"] == [(4, 10)]


def test_log_takes_numbers_as_they_are():
    logger = MemoryLogger()
    with logger.run() as state:
        logger.log(state, {"wide": np.float64(0.1), "big": 2**40, "flag": True}, step=2**40)
    (run,) = logger.runs
    (record,) = run.records
    assert record.values["wide"].dtype == np.float64
    assert (record.values["wide"], record.values["big"]) == (0.1, 2**40)
    assert record.steps["step"] == 2**40


@pytest.mark.parametrize(("data", "steps"), [({"x": 2**70}, {}), ({"x": 1.0}, {"step": 2**70})])
def test_log_refuses_an_integer_that_no_type_holds(data, steps):
    logger = MemoryLogger()
    with logger.run() as state:
        with pytest.raises(
            TypeError, match=r"`log` at .* got 1180591620717411303424 of type `int`"
        ):
            logger.log(state, data, **steps)
        logger.log(state, {"x": 2**64 - 1})
    assert values(logger.runs[0], "x") == [2**64 - 1]


def test_log_refuses_a_mask_that_would_be_lost():
    logger = MemoryLogger()
    with logger.run() as state:
        for value in (np.ma.masked_equal([1, 2], 1), np.ma.masked):
            with pytest.raises(TypeError, match=r"Masked.* for `x`"):
                logger.log(state, {"x": value})
    assert logger.runs[0].records == []


def test_log_survives_the_donation_of_what_it_was_given():
    logger = MemoryLogger()
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with logger.run() as state:
        x = jnp.zeros(1000)
        for i in range(5):
            logger.log(state, {"x": x}, step=i)
            x = step(x)
    assert [value[0] for _, value in logger.runs[0].columns["x"]] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_record_that_is_there_does_not_wait_for_the_next():
    gate, seen = threading.Event(), queue.SimpleQueue()
    logger = CallbackLogger(lambda one: seen.put(float(one.values["x"])))
    with logger.run() as state:
        x = pending(gate)
        for value in (1.0, 2.0, x, 4.0, x):
            logger.log(state, {"x": value})
        assert [seen.get(timeout=60) for _ in range(2)] == [1, 2]
        assert seen.empty()
        gate.set()
        assert [seen.get(timeout=60) for _ in range(3)] == [8, 4, 8]


@pytest.mark.parametrize("given", [(1.0, None, 3.0, None, 5.0), (None,)])
def test_a_value_that_cannot_be_computed_costs_no_other(given):
    def fail(x):
        raise OSError("no such value")

    gate, logger = threading.Event(), MemoryLogger()
    with logger.run() as state:
        x = pending(gate, fail)
        for step, value in enumerate(given):
            logger.log(state, {"x": x if value is None else jnp.float32(value)}, step=step)
        gate.set()
        told = r"`x` \(logged at .*test_logger.py.*\) could not be computed[\s\S]*no such value"
        with pytest.raises(logax.DeliveryError, match=told):
            logax.flush()
    found = [float(record.values["x"]) for record in logger.runs[0].records]
    assert found == [value for value in given if value is not None]


def test_log_inside_a_program_and_under_vmap():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(2))

    @jax.jit
    def program(states, x):
        jax.vmap(lambda s, x: logger.log(s, {"x": x}, step=7))(states, x)
        return x

    program(states, jnp.array([1.0, 2.0]))
    logax.flush()
    assert [run.columns["x"] for run in logger.runs] == [[(7, 1.0)], [(7, 2.0)]]


def test_the_lanes_of_a_logdict_are_lanes_of_the_run():
    logger = MemoryLogger()
    _, logs = jax.vmap(logax.spool(grow))(jnp.array([1.0, 3.0]))
    with logger.run() as state:
        logger.log(state, logs)
    found = {(r.stream.lane, float(r.values["loss"])) for r in logger.runs[0].records}
    assert found == {((0,), 2.0), ((0,), 4.0), ((0,), 8.0), ((1,), 6.0), ((1,), 12.0), ((1,), 24.0)}


# Several destinations.


def test_a_multi_logger_sends_to_all_under_one_id():
    split, whole, seen = MemoryLogger(), MemoryLogger(lanes="aggregate"), []
    logger = MultiLogger(split, whole, seen.append)

    def train(key, x):
        return logger.tap(grow, logger.init(key, name="s"))(x)

    jax.vmap(train)(keys(2), jnp.array([1.0, 2.0]))
    logger.close()
    assert [values(run) for run in split.runs] == [[2.0, 4.0, 8.0], [4.0, 8.0, 16.0]]
    assert values(whole.runs[0], "loss/mean") == [3.0, 6.0, 12.0]
    assert {(one.lane, float(one["loss"])) for one in seen} >= {((0,), 2.0), ((1,), 16.0)}
    assert len(seen) == 6
    assert {run.info.id.rpartition("-")[0] for run in split.runs} == {whole.runs[0].info.id}
    assert {run.status for run in [*split.runs, *whole.runs]} == {"finished"}


def test_a_progress_bar_may_be_among_several(tmp_path):
    memory = MemoryLogger()
    with open(tmp_path / "bar", "w+") as file, ProgressLogger(file=file) as bar:
        logger = MultiLogger(memory, bar)
        with logger.run() as state:
            logger.tap(grow, state)(1.0)
        assert bar.position == 3
    assert values(memory.runs[0]) == [2.0, 4.0, 8.0]


def test_a_callback_gets_records_with_their_runs():
    seen = []
    logger = CallbackLogger(seen.append)
    with logger.run(name="a") as state:
        logger.tap(grow, state)(1.0)
    assert [(r.stream.run.name, int(r.steps["step"]), float(r.values["loss"])) for r in seen] == [
        ("a", 0, 2.0),
        ("a", 1, 4.0),
        ("a", 2, 8.0),
    ]


def test_a_callback_that_raises_gets_the_other_records_all_the_same():
    seen = []

    def picky(record):
        seen.append(float(record.values["loss"]))
        if seen[-1] < 5:
            raise ValueError("too small")

    logger = CallbackLogger(picky)
    state = logger.init(jax.random.key(0))
    logger.spool(grow, state)(1.0)
    with pytest.raises(logax.DeliveryError, match=r"too small\nIt raised for 2 of 3 records") as e:
        logger.finish(state)
    assert isinstance(e.value.__cause__, ValueError)
    assert seen == [2.0, 4.0, 8.0]


# What goes wrong.


@jax.tree_util.register_pytree_node_class
class Fragile:
    """Cannot be made again of what was logged."""

    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        if isinstance(children[0], np.ndarray):
            raise ValueError("too fragile")
        return cls(*children)


def test_records_that_cannot_be_made_keep_no_others_back():
    came = threading.Semaphore(0)
    bad, good = MemoryLogger(), CallbackLogger(lambda record: came.release())
    with bad.run() as fragile, good.run() as state:
        for _ in range(2):  # after the first failure there is a next time
            bad.log(fragile, {"x": Fragile(1.0)})
            good.log(state, {"x": 1.0})
            assert came.acquire(timeout=60)  # soon, and nobody asks
        with pytest.raises(logax.DeliveryError, match="too fragile"):
            logax.flush()
        bad.log(fragile, {"x": Fragile(1.0)})
        good.log(state, {"x": 1.0})
        with pytest.raises(logax.DeliveryError, match="too fragile"):
            logax.flush()
        assert came.acquire(blocking=False)


def test_a_sink_that_opens_runs_later_is_given_their_records():
    sink = Failing("open")
    sink.opens_later = True
    logger = Logger(sink)
    state = logger.init(jax.random.key(0))
    with pytest.raises(logax.DeliveryError, match="could not open its runs: OSError: no room"):
        logax.flush()
    logger.tap(grow, state)(1.0)
    logger.finish(state)
    assert (sum(sink.got[:-1]), sink.got[-1]) == (3, "finished")


def test_runs_that_could_not_begin_are_saved_when_they_can(tmp_path):
    folder = tmp_path / "runs"
    logger = SaveLogger(folder)
    folder.rmdir()
    folder.write_text("in the way")
    states = jax.vmap(lambda key: logger.init(key, name="n"))(keys(2))
    with pytest.raises(logax.DeliveryError, match="`SaveLogger` could not open its runs"):
        logax.flush()
    folder.unlink()
    jax.vmap(lambda state, x: logger.tap(grow, state)(x))(states, jnp.array([1.0, 3.0]))
    logger.finish(states)
    logger.close()
    runs = logax.load(folder)
    assert [(run.name, run.status, run["loss"].tolist()) for run in runs.values()] == [
        ("n-0", "finished", [2.0, 4.0, 8.0]),
        ("n-1", "finished", [6.0, 12.0, 24.0]),
    ]


def test_finish_ends_the_run_whatever_else_has_failed():
    logger, other = MemoryLogger(), Logger(Failing("write"))
    state = logger.init(jax.random.key(0))
    with other.run() as elsewhere:
        other.log(elsewhere, {"x": 1.0})
        with pytest.raises(logax.DeliveryError, match="no room"):
            logger.finish(state)
    assert logger.runs[0].status == "finished"
    with pytest.raises(ValueError, match="is finished"):
        logger.finish(state)


@pytest.mark.slow
def test_a_child_that_is_forked_while_a_run_begins_begins_its_own():
    code = """
        import os, signal, sys, threading, warnings
        from logax.testing import MemoryLogger

        warnings.simplefilter("ignore")  # that forking may hang
        logger, held, done = MemoryLogger(), threading.Event(), threading.Event()
        with logger.run():
            pass

        def begin():
            with logger._registry._lock:
                held.set()
                done.wait()

        threading.Thread(target=begin).start()
        held.wait()
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            with logger.run() as state:
                logger.log(state, {"x": 1.0})
            os._exit(10 + len(logger.runs[-1].records))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done.set()
        sys.exit(code)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False)
    assert child.returncode == 11


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_a_failing_sink_harms_no_other_and_is_told_of(method):
    failing, memory = Logger(Failing(method)), MemoryLogger()
    logger = MultiLogger(failing, memory)

    def train():
        with logger.run() as state:
            assert logger.tap(grow, state)(1.0) == 8.0

    with pytest.raises(logax.DeliveryError, match=r"`Logger` could not .*: OSError: no room"):
        train()
    with contextlib.suppress(logax.DeliveryError):  # of the end of the run, which came later
        logax.flush()
    logax.flush()
    (run,) = memory.runs
    assert (values(run), run.status) == ([2.0, 4.0, 8.0], "finished")


def test_what_was_lost_is_counted():
    logger = Logger(Failing("write"))
    state = logger.init(jax.random.key(0))
    logger.tap(grow, state)(1.0)
    with pytest.raises(logax.DeliveryError, match="3 records may be lost"):
        logax.flush()
    logger._sink_workers[0].sink.fails = False
    logger.tap(grow, state)(1.0)
    logger.finish(state)
    assert logger._sink_workers[0].sink.got == [3, "finished"]


def test_an_error_comes_out_of_the_next_call():
    logger = Logger(Failing("write"))
    state = logger.init(jax.random.key(0))
    logger.tap(grow, state)(1.0)
    with pytest.raises(logax.DeliveryError):
        logax.flush()
    logger.log(state, {"x": 1.0})
    with pytest.raises(logax.DeliveryError, match="1 records may be lost"):
        logger.finish(state)


def test_a_run_that_could_not_begin_loses_its_own_records_only():
    class Picky(Failing):
        def open(self, runs):
            if any(run.name == "bad" for run in runs):
                raise OSError("not this one")

    sink = Picky("never")
    logger = Logger(sink)

    @jax.jit
    def program():
        one, two = logger.init(jax.random.key(0), name="bad"), logger.init(jax.random.key(1))
        states = jax.tree.map(lambda *x: jnp.stack(x), one, two)
        jax.vmap(lambda state: logger.log(state, {"x": 1.0}))(states)

    program()
    with pytest.raises(logax.DeliveryError, match="not this one"):
        logax.flush()
    assert sink.got == [1]
    with logger.run(name="good") as state:
        logger.log(state, {"x": 1.0})
        logger.log(state, {"x": 2.0})
    assert sink.got == [1, 2, "finished"]


def test_records_for_a_finished_run_are_said_to_be_lost():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0), name="gone")
    program = jax.jit(lambda state: logger.tap(grow, state)(1.0))
    program(state)
    logger.finish(state)
    program(state)
    with pytest.raises(logax.DeliveryError, match=r"for a run that is finished: gone\..*3 records"):
        logax.flush()


def test_the_other_lanes_of_a_finished_run_lose_nothing():
    logger = MemoryLogger()
    states = jax.vmap(lambda key: logger.init(key, name="n"))(keys(3))
    program = jax.jit(jax.vmap(lambda state, x: logger.tap(grow, state)(x)))
    program(states, jnp.arange(3.0))
    logger.finish(jax.tree.map(lambda x: x[1], states))
    program(states, jnp.arange(3.0))
    with pytest.raises(logax.DeliveryError, match=r"finished: n-1\..*3 records were lost"):
        logax.flush()
    assert [len(run.records) for run in logger.runs] == [6, 3, 6]


def overflow(logger, state, gate):
    try:
        logax.configure(when_full="drop", queue_bytes=5000)
        for i in range(100):
            logger.log(state, {"a": np.zeros(20)}, step=i)
    finally:
        logax.configure(when_full="block", queue_bytes=256 * 2**20)
        gate.set()
    logax.flush()


def test_records_that_there_is_no_room_for_are_said():
    logger = MemoryLogger()
    entered, gate = threading.Event(), threading.Event()
    with logger.run() as state:
        worker.put(0, lambda: entered.set() or gate.wait(60))
        entered.wait(60)
        with pytest.warns(UserWarning, match="records were dropped because the queue") as caught:
            overflow(logger, state, gate)
    dropped = sum(int(str(each.message).split()[0]) for each in caught)
    assert dropped > 0
    assert dropped + len(logger.runs[0].records) == 100


def test_an_interrupt_while_a_block_ends_leaves_a_crashed_run():
    logger, gate = MemoryLogger(), threading.Event()

    def train(interrupt):
        slow = MultiLogger(logger, CallbackLogger(lambda record: (interrupt(), gate.wait(60))))
        with slow.run() as state:
            slow.log(state, {"x": 1.0})

    with interrupts() as interrupt:
        try:
            with pytest.raises(KeyboardInterrupt):
                train(interrupt)
        finally:
            gate.set()
    logax.flush()
    assert logger.runs[0].status == "crashed"


def test_a_block_that_fails_leaves_a_crashed_run_and_its_own_error():
    logger = MemoryLogger()

    def train():
        with logger.run() as state:
            logger.tap(grow, state)(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    (run,) = logger.runs
    assert (run.status, values(run)) == ("crashed", [2.0, 4.0, 8.0])


def test_an_interrupted_block_does_not_wait():
    logger = MemoryLogger()
    with pytest.raises(KeyboardInterrupt), logger.run():
        raise KeyboardInterrupt
    logax.flush()
    assert logger.runs[0].status == "crashed"


def test_a_failing_sink_is_told_beside_the_error_of_the_block():
    logger = Logger(Failing("write"))

    def train():
        with logger.run() as state:
            logger.log(state, {"x": 1.0})
            raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's") as caught:
        train()
    assert any("`Logger` had trouble" in note for note in caught.value.__notes__)


def test_finish_inside_a_program_takes_effect_with_the_next_flush():
    logger = MemoryLogger()

    @jax.jit
    def program(key):
        state = logger.init(key)
        out = logger.tap(grow, state)(1.0)
        logger.finish(state)
        return out

    jax.vmap(program)(keys(2))
    logax.flush()
    assert [run.status for run in logger.runs] == ["finished"] * 2
    assert [values(run) for run in logger.runs] == [[2.0, 4.0, 8.0]] * 2


def test_a_logger_that_is_gone_holds_nothing():
    logger = MemoryLogger()
    with logger.run() as state:
        logger.tap(grow, state)(1.0)
    found = weakref.ref(logger)
    del logger, state
    gc.collect()
    assert found() is None


def test_a_logger_may_be_gone_when_a_run_is_closed_once_more():
    logger, is_closed = MemoryLogger(), threading.Event()
    sink, gone = logger._sink, weakref.ref(logger)

    def train(logger):
        with logger.run(name="a") as state:
            jax.jit(logger.finish)(state)  # takes effect with the next flush
            jax.effects_barrier()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(logger)
    worker.put(0, is_closed.set)
    assert is_closed.wait(60)
    del logger
    gc.collect()
    assert gone() is None
    logax.flush()
    assert [(run.name, run.status) for run in sink.runs.values()] == [("a", "crashed")]


def test_a_run_that_begins_while_the_last_one_ends_keeps_its_logger(monkeypatch):
    unregister, begun = atexit.unregister, []
    logger = MemoryLogger()
    kept = weakref.ref(logger)

    def after_another_thread(job):
        if threading.current_thread() is worker._thread and not begun:
            begun.append(None)
            begun.append(kept().init(jax.random.key(0), name="late"))
        unregister(job)

    monkeypatch.setattr(atexit, "unregister", after_another_thread)
    with logger.run(name="early"):
        pass
    sink = logger._sink
    del logger
    gc.collect()
    kept().finish(begun.pop())
    assert [(run.name, run.status) for run in sink.runs.values()] == [
        ("early", "finished"),
        ("late", "finished"),
    ]
    gc.collect()
    assert kept() is None


class Ends(Sink):
    def __init__(self):
        self.ends = 0

    def end(self):
        self.ends += 1


def test_a_logger_that_is_dropped_lets_go_of_its_destination_once():
    sink = Ends()
    logger = Logger(sink)
    with logger.run():
        pass
    del logger
    gc.collect()
    logax.flush()
    assert sink.ends == 1


def test_a_destination_ends_with_the_last_logger_that_uses_it():
    sink = Ends()
    alone = Logger(sink)
    both = MultiLogger(alone, MemoryLogger())
    both.close()
    assert sink.ends == 0
    with alone.run() as state:
        alone.log(state, {"x": 1.0})
    alone.close()
    logax.flush()
    assert sink.ends == 1


def test_runs_left_open_end_with_python(tmp_path):
    def child(last):
        code = f"""
            import gc, jax, logax
            from logax.loggers import JSONLLogger

            def train():  # which keeps nothing
                logger = JSONLLogger({str(tmp_path / "log.jsonl")!r})
                state = logger.init(jax.random.key(0), name="left")
                logger.log(state, {{"x": 1.0}}, step=0)

            train()
            gc.collect()
            {last}
        """
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    child("")
    child("raise SystemError('on purpose')")
    text = (tmp_path / "log.jsonl").read_text()
    assert text.count('"x": 1.0') == 2 or text.count('"x":1.0') == 2
    assert text.count("finished") == 1
    assert text.count("crashed") == 1


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda: Logger(print), TypeError, "`Logger` takes a sink, and got <built-in function"),
        (
            lambda: MemoryLogger(lanes="all"),
            ValueError,
            "`MemoryLogger` takes `lanes` as 'split', 'aggregate' or 'group', and got 'all'",
        ),
        (
            lambda: MemoryLogger().init(0),
            TypeError,
            "`MemoryLogger.init` takes one PRNG key, and got 0 of type `int`. Write "
            "`MemoryLogger.init(jax.random.key(0))`.",
        ),
        (
            lambda: MemoryLogger().init(keys(3)),
            TypeError,
            r"an array of shape (3,) of them. Write `jax.vmap(logger.init)(keys)`.",
        ),
        (
            lambda: MemoryLogger().init(jax.random.key(0), rate=0.1),
            TypeError,
            "unexpected keyword argument 'rate'",
        ),
        (
            lambda: MemoryLogger().init(jax.random.key(0), name=3),
            TypeError,
            "`MemoryLogger.init` takes a `name` that is a string, and got 3 of type `int`.",
        ),
        (
            lambda: MemoryLogger().tap(grow, None),
            TypeError,
            "`MemoryLogger` takes the state that `logger.init(key)` gave, and got None",
        ),
        (
            lambda: MemoryLogger().log(MemoryLogger().init(jax.random.key(0)), {"x": 1.0}),
            ValueError,
            "This state is of another logger, a `MemoryLogger`.",
        ),
        (
            lambda: MemoryLogger().run(jax.random.PRNGKey(0)),
            TypeError,
            "of type `ArrayImpl`. Write `MemoryLogger.run(key=...)`.",
        ),
        (
            lambda: MemoryLogger().init("first"),
            TypeError,
            "`MemoryLogger.init` takes one PRNG key, and got 'first' of type `str`. Write "
            "`MemoryLogger.init(..., name='first')`.",
        ),
        (lambda: MultiLogger([print]), TypeError, "Write `MultiLogger(*loggers)`."),
        (lambda: MultiLogger(3), TypeError, "`MultiLogger` takes loggers and callbacks, and got 3"),
        (lambda: MultiLogger(print, print), ValueError, "twice. Give it once."),
        (
            lambda: MultiLogger(MultiLogger(print), print),
            ValueError,
            "`MultiLogger` got a logger twice, once inside another `MultiLogger`.",
        ),
        (lambda: CallbackLogger(3), TypeError, "`CallbackLogger` takes a function of a record"),
    ],
)
def test_mistakes_are_told(use, error, text):
    with pytest.raises(error) as caught:
        use()
    assert text in str(caught.value)


def test_mistakes_with_runs_are_told():
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(2))
    with pytest.raises(ValueError, match=r"a state of 2 runs outside of `vmap`"):
        logger.tap(grow, states)
    logger.finish(states)
    for use in (logger.finish, lambda s: logger.log(jax.tree.map(lambda x: x[0], s), {"x": 1.0})):
        with pytest.raises(ValueError, match=r"of this `MemoryLogger` is finished\. Make a new"):
            use(states)
    state = logger.init(jax.random.key(0))
    with pytest.raises(TypeError, match=r"which has steps of its own, and besides `step`"):
        logger.log(state, logax.spool(grow)(1.0)[1], step=1)
    with (
        logger.loop(lambda x: x) as loop,
        pytest.raises(TypeError, match=r"must give a mapping from names to values, and gave 1\.0"),
    ):
        loop.log(1.0, 0)
    logger.close()
    logger.close()
    with pytest.raises(RuntimeError, match=r"This `MemoryLogger` is closed"):
        logger.init(jax.random.key(0))

"""`tap`: what a callback is given, which logs it gets, and through which transformations.

How records get there (queue, threads, faults) is in `test_delivery`, random programs against the
oracle are in `test_tap_oracle`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import logax
from devices import LINE, doubled, on_line
from logax.testing import MemoryLogger
from models import Net

X = np.arange(8.0, dtype=np.float32)


def run(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[logax.record]]:
    """What the tapped function returns, and all records."""
    got: list[logax.record] = []
    out = logax.tap(function, got.append, **options)(*args)
    logax.flush()
    return out, got


def through(
    transformed: Callable[[Callable[..., Any]], Callable[..., Any]],
    function: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> tuple[Any, list[logax.record]]:
    """The same, with the tapped function transformed before it is called."""
    got: list[logax.record] = []
    out = transformed(logax.tap(function, got.append, **options))(*args)
    logax.flush()
    return out, got


def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap`, compiled as a whole."""
    return jax.jit(jax.vmap(function))


def values(records: list[logax.record], key: str) -> list[Any]:
    return [np.asarray(one[key]).tolist() for one in records if key in one]


def sums(x: Any, length: int = 3) -> Any:
    """Adds 0, 1, 2, ... and logs each sum."""

    def body(carry: Any, i: Any) -> Any:
        carry = carry + i
        logax.log({"sum": carry}, step=i)
        return carry, None

    return lax.scan(body, x, jnp.arange(length))[0]


def countdown(n: Any) -> Any:
    """Logs n, n-1, ..., 1 in a loop without a static bound."""

    def body(state: Any) -> Any:
        left, i = state
        logax.log({"left": left}, step=i)
        return left - 1, i + 1

    return lax.while_loop(lambda state: state[0] > 0, body, (n, 0))[1]


def three(x: Any) -> Any:
    """Logs of three kinds: plain, tagged, explicit."""
    logax.log({"a": x, "b": x + 1})
    logax.log({"c": x + 2}, tags=("slow", "extra"))
    logax.log({"d": x + 3}, explicit=True)
    return x * 2


# What a record is.


def test_the_callback_gets_each_record_in_order_without_the_record_axis() -> None:
    out, got = run(sums, 1.0)
    assert out == 4.0
    assert values(got, "sum") == [1.0, 2.0, 4.0]
    assert [type(one) for one in got] == [logax.record] * 3
    assert all(one["sum"].shape == () and one["sum"].dtype == np.float32 for one in got)
    assert not any(isinstance(one["sum"], jax.Array) for one in got)


def test_a_record_knows_its_steps() -> None:
    def function(x: Any) -> None:
        logax.log({"x": x}, step=3, episode=x + 1, values=0.5)

    _, (one,) = run(function, 4)
    assert one.steps == {"step": 3, "episode": 5, "values": 0.5}
    assert (one.step, one.episode) == (3, 5)
    assert list(one.values()) == [4]  # a step does not hide what a dictionary has
    assert (one.lane, one.shard, one.real, one.tags) == ((), None, None, ())
    known = r"no attribute 'epoch'.* its steps are \['step', 'episode'"
    with pytest.raises(AttributeError, match=known):
        _ = one.epoch


def test_a_record_knows_file_and_line_of_its_log() -> None:
    def function(x: Any) -> None:
        logax.log({"x": x})

        def body(carry: Any, _: None) -> Any:
            logax.log({"y": x})
            return carry, None

        lax.scan(body, 0, None, length=1)

    _, got = run(function, 1.0)
    file, first = function.__code__.co_filename, function.__code__.co_firstlineno
    assert [one.site for one in got] == [f"{file}:{first + 1}", f"{file}:{first + 4}"]


def test_a_record_knows_its_tags() -> None:
    _, got = run(three, 1.0)
    assert [one.tags for one in got] == [(), ("extra", "slow")]


def test_a_record_knows_how_many_there_will_be_where_the_program_says_so() -> None:
    def function(n: Any) -> Any:
        sums(0, 3)
        sums(0, 4)
        logax.log({"once": n})

        def outer(carry: Any, i: Any) -> Any:
            lax.scan(lambda c, j: (c, logax.log({"inner": j})), 0, jnp.arange(5))
            return carry, None

        lax.scan(outer, 0, jnp.arange(2))
        countdown(n)
        lax.cond(n > 1, lambda: logax.log({"maybe": n}), lambda: None)

    _, got = run(function, 2)
    totals = {key: {one.total for one in got if key in one} for one in got for key in one}
    assert totals == {"sum": {7}, "once": {1}, "inner": {10}, "left": {None}, "maybe": {None}}


def test_the_total_counts_what_an_interval_leaves() -> None:
    _, got = run(sums, 0, 5, interval=2, static_argnums=1)
    assert {one.total for one in got} == {3}
    _, got = run(countdown, 5, interval=2)
    assert {one.total for one in got} == {None}
    _, got = through(jax.vmap, sums, jnp.arange(4))
    assert {one.total for one in got} == {3}


def test_records_print_as_one_line_each() -> None:
    def function(x: Any) -> None:
        logax.log({"loss": x / 3, "n": 7}, step=2)
        grid, wide = jnp.ones((2, 3)), jnp.ones((3, 3))
        logax.log({"grid": grid, "wide": wide, "tree": {"u": x, "v": [x > 0]}})

    _, got = run(function, 1.0)
    assert [str(one) for one in got] == [
        "step=2 loss=0.333333 n=7",
        "grid=[[1. 1. 1.] [1. 1. 1.]] wide=float32[3, 3] tree/u=1 tree/v/0=True",
    ]
    _, got = through(jax.vmap, lambda x: logax.log({"x": x}), jnp.arange(2))
    assert [str(one) for one in got] == ["lane=0 x=0", "lane=1 x=1"]
    assert "x" in repr(got[0])
    assert "lane=(0,)" in repr(got[0])


def test_a_copy_of_a_record_knows_as_much() -> None:
    _, (one,) = run(lambda x: logax.log({"x": x}, step=3, tags="often"), 1.0)
    again = one.copy()
    assert again == one
    assert again is not one
    assert (again.step, again.tags, again.site, again.total) == (3, ("often",), one.site, 1)


def test_without_a_callback_records_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert logax.tap(sums)(0.5) == 3.5
    logax.flush()
    assert capsys.readouterr().out == "step=0 sum=0.5\nstep=1 sum=1.5\nstep=2 sum=3.5\n"


# Values.

KEY = jax.random.key(3)
LEAVES: dict[str, Any] = {
    "bool": np.array([True, False]),
    "bool scalar": np.array(True),
    "int8": np.array([-3, 3], np.int8),
    "uint32": np.array([2**32 - 1], np.uint32),
    "float16": np.array([1.5], np.float16),
    "bfloat16": np.array([1.5, np.nan, -np.inf], jnp.bfloat16),
    "bfloat16 scalar": np.array(3.0, jnp.bfloat16),
    "float32": np.array([np.nan, np.inf, -0.0], np.float32),
    "complex64": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 3), np.float32),
    "large": np.arange(40_000, dtype=np.float32).reshape(200, 200),
}


@pytest.mark.parametrize("buffer", [1, 3])
def test_values_of_every_kind_arrive_bit_for_bit(buffer: int) -> None:
    def function(leaves: Any) -> None:
        lax.scan(lambda c, i: (c, logax.log(leaves)), 0, None, length=4)

    _, got = run(function, LEAVES, buffer=buffer)
    assert len(got) == 4
    for one in got:
        assert set(one) == set(LEAVES)
        for name, leaf in LEAVES.items():
            value = np.asarray(one[name])
            assert (value.dtype, value.shape) == (leaf.dtype, leaf.shape), name
            assert value.tobytes() == leaf.tobytes(), name


def test_pytrees_arrive_with_their_structure() -> None:
    def function(x: Any) -> None:
        logax.log({"tree": {"list": [x, (x + 1,)], "none": None}, "nothing": {}})

    _, (one,) = run(function, 1.0)
    assert one["tree"] == {"list": [1.0, (2.0,)], "none": None}
    assert one["nothing"] == {}


def _log_empty_trees(x: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        logax.log({"x": carry}, step=i)
        logax.log({"t": {}})
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(2))[0]


@pytest.mark.parametrize("options", [{}, {"buffer": 1}, {"buffer": 3}, {"lanes": "batch"}])
def test_a_log_without_leaves_arrives_between_the_others(options: dict[str, Any]) -> None:
    out, got = run(_log_empty_trees, jnp.int32(5), **options)
    assert out == 7
    assert [dict(one) for one in got] == [{"x": 5}, {"t": {}}, {"x": 6}, {"t": {}}]


@pytest.mark.parametrize("buffer", [1, 3, 64])
def test_a_log_without_leaves_arrives_for_each_lane(buffer: int) -> None:
    got: list[logax.record] = []
    jax.vmap(logax.tap(_log_empty_trees, got.append, buffer=buffer))(jnp.array([5, 8]))
    logax.flush()
    for lane, first in enumerate([5, 8]):
        own = [dict(one) for one in got if one.lane == (lane,)]
        assert own == [{"x": first}, {"t": {}}, {"x": first + 1}, {"t": {}}]
    assert len(got) == 8


def test_a_log_without_leaves_arrives_once_for_a_whole_batch_of_lanes() -> None:
    got: list[logax.record] = []
    jax.vmap(logax.tap(_log_empty_trees, got.append, lanes="batch"))(jnp.array([5, 8]))
    logax.flush()
    assert [list(one) for one in got] == [["x"], ["t"], ["x"], ["t"]]
    assert [dict(one) for one in got[1::2]] == [{"t": {}}] * 2
    assert [one["x"].tolist() for one in got[::2]] == [[5, 8], [6, 9]]


def test_prng_keys_arrive_as_keys() -> None:
    def function(key: Any) -> None:
        logax.log({"key": key, "keys": jax.random.split(key, 2)})

    _, (one,) = run(function, KEY)
    assert one["key"] == KEY
    np.testing.assert_array_equal(
        jax.random.key_data(one["keys"]), jax.random.key_data(jax.random.split(KEY, 2))
    )
    _, got = through(mapped, function, jax.random.split(KEY, 3))
    keys = jax.random.split(KEY, 3)
    assert [bool(one["key"] == keys[i]) for i, one in enumerate(got)] == [True] * 3
    assert [one["keys"].shape for one in got] == [(2,)] * 3


def test_histograms_and_images_arrive_as_bins_and_pixels() -> None:
    def function(x: Any) -> None:
        shown = logax.Image(x.reshape(2, 4) / 8)
        logax.log({"histogram": logax.Histogram(x, bins=2), "image": shown})

    _, (one,) = run(function, X)
    assert isinstance(one["histogram"], logax.HistogramBins)
    assert one["histogram"].counts.tolist() == [4, 4]
    assert one["histogram"].edges.tolist() == [0.0, 3.5, 7.0]
    assert isinstance(one["image"], logax.ImagePixels)
    np.testing.assert_array_equal(one["image"].pixels, X.reshape(2, 4) / 8)


def test_a_record_stays_what_it_was_after_the_next_ones() -> None:
    kept: list[Any] = []

    def function(x: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            logax.log({"x": x})
            return x * 2, None

        return lax.scan(body, x, None, length=50)[0]

    small = X / 2**50
    logax.tap(function, lambda one: kept.append(one["x"]), buffer=7)(small)
    logax.flush()
    np.testing.assert_array_equal(kept, [small * 2**i for i in range(50)])


# Which logs.


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ["a", "b", "c"]),
        ({"keys": "a"}, ["a"]),
        ({"keys": ["b", "c"]}, ["b", "c"]),
        ({"keys": "[ad]"}, ["a", "d"]),
        ({"keys": "*"}, ["a", "b", "c", "d"]),
        ({"tags": "slow"}, ["c"]),
        ({"keys": "c", "prefix": "p/"}, ["p/c"]),
        ({"prefix": "p/"}, ["p/a", "p/b", "p/c"]),
    ],
    ids=str,
)
def test_names_and_tags_choose_and_a_prefix_is_put_in_front(options: Any, keys: Any) -> None:
    out, got = run(three, 1.0, **options)
    assert out == 2.0
    offset = {"a": 0, "b": 1, "c": 2, "d": 3}
    found = {key: float(value) for one in got for key, value in one.items()}
    assert found == {key: 1.0 + offset[key[-1]] for key in keys}
    assert list(found) == keys


def test_names_choose_leaves_of_a_value() -> None:
    def function(x: Any) -> None:
        logax.log({"grad": {"bias": x, "weight": x + 1}})

    _, (one,) = run(function, 1.0, keys="grad/weight")
    assert one["grad"] == {"bias": None, "weight": 2.0}


def test_an_interval_takes_every_so_many_records_of_each_key() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"both": i, "first": i})
            logax.log({"both": 10 * i})
            return carry, None

        return lax.scan(body, x, jnp.arange(5))[0]

    for buffer in (1, 4):
        _, got = run(function, 1.0, interval=3, buffer=buffer)
        assert values(got, "both") == [0, 10, 3, 40]
        assert values(got, "first") == [0, 3]


def test_an_interval_counts_in_each_lane() -> None:
    for buffer in (1, 2):
        out, got = through(mapped, countdown, jnp.array([1, 5, 4]), interval=2, buffer=buffer)
        assert out.tolist() == [1, 5, 4]
        lanes = [[int(one["left"]) for one in got if one.lane == (i,)] for i in range(3)]
        assert lanes == [[1], [5, 3, 1], [4, 2]]


def test_a_log_with_every_comes_when_due() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log(lambda: {"x": carry * i}, every=4, step=i)
            return carry, None

        return lax.scan(body, x, jnp.arange(10))[0]

    for buffer in (1, 2, 64):
        _, got = run(function, 2.0, buffer=buffer)
        assert values(got, "x") == [0.0, 8.0, 16.0]
        assert [one.step for one in got] == [0, 4, 8]


@pytest.mark.parametrize(
    ("options", "inner", "outer"),
    [
        ({}, "abc", ""),
        ({"keys": "a"}, "a", "bc"),
        ({"tags": "slow"}, "c", "ab"),
        ({"keep_logs": True, "prefix": "p/"}, "abc", "abc"),
        ({"keys": "b", "keep_logs": True}, "b", "abc"),
    ],
    ids=str,
)
def test_unchosen_and_kept_logs_reach_an_outer_harvest(
    options: Any, inner: str, outer: str
) -> None:
    prefix = options.get("prefix", "")
    got: list[logax.record] = []
    tapped = logax.tap(three, got.append, **options)
    out, logs = logax.spool(tapped)(1.0)
    logax.flush()
    assert out == 2.0
    assert [key for one in got for key in one] == [prefix + key for key in inner]
    assert list(logs) == list(outer)
    assert all(logs[key].tolist() == [1.0 + "abcd".index(key)] for key in outer)
    got.clear()
    _, around = run(tapped, 1.0)
    assert [key for one in got for key in one] == [prefix + key for key in inner]
    assert [key for one in around for key in one] == list(outer)


def test_an_inner_spool_leaves_a_tap_what_it_does_not_choose() -> None:
    def function(x: Any) -> Any:
        return logax.spool(three, keys="a")(x)

    (out, logs), got = run(function, 1.0)
    assert (out, logs["a"].tolist()) == (2.0, [1.0])
    assert [list(one) for one in got] == [["b"], ["c"]]
    assert run(logax.nolog(three), 1.0) == (2.0, [])


def test_two_taps_in_one_program_get_their_own() -> None:
    first: list[logax.record] = []
    second: list[logax.record] = []

    def function(x: Any) -> Any:
        return logax.tap(sums, first.append)(x) + logax.tap(sums, second.append, prefix="p/")(-x)

    assert jax.jit(function)(1.0) == 6.0
    logax.flush()
    assert values(first, "sum") == [1.0, 2.0, 4.0]
    assert values(second, "p/sum") == [-1.0, 0.0, 2.0]


# Lanes.


def test_each_lane_has_its_own_records_in_order() -> None:
    for buffer in (1, 4):
        out, got = through(mapped, sums, jnp.array([0.0, 10.0]), buffer=buffer)
        assert out.tolist() == [3.0, 13.0]
        for lane, wanted in enumerate(([0.0, 1.0, 3.0], [10.0, 11.0, 13.0])):
            assert values([one for one in got if one.lane == (lane,)], "sum") == wanted
        assert len(got) == 6


def test_lanes_of_nested_vmaps_are_tuples_outermost_first() -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    _, got = through(lambda f: mapped(jax.vmap(f)), sums, x, buffer=2)
    for lane in np.ndindex(2, 3):
        own = [one for one in got if one.lane == lane]
        assert values(own, "sum") == [x[lane], x[lane] + 1, x[lane] + 3]
    assert len(got) == 18


def test_a_value_that_does_not_vary_still_comes_for_each_lane() -> None:
    def function(x: Any) -> Any:
        logax.log({"same": 7, "own": x})
        logax.log({"constant": 8})
        return x

    _, got = through(mapped, function, jnp.arange(3))
    assert [(one.lane, *one.items()) for one in got if "same" in one] == [
        ((i,), ("same", 7), ("own", i)) for i in range(3)
    ]
    assert [(one.lane, *one.items()) for one in got if "constant" in one] == [
        ((i,), ("constant", 8)) for i in range(3)
    ]


def test_tap_around_vmap_sees_one_record_with_the_lanes_in_its_values() -> None:
    out, got = run(jax.vmap(sums), jnp.array([0.0, 10.0]))
    assert out.tolist() == [3.0, 13.0]
    assert values(got, "sum") == [[0.0, 10.0], [1.0, 11.0], [3.0, 13.0]]
    assert [one.lane for one in got] == [()] * 3


def test_a_batch_of_lanes_comes_whole_with_lanes_in_front() -> None:
    def function(x: Any) -> Any:
        logax.log({"tree": {"x": x, "same": jnp.ones(4)}}, step=x[0])
        return x

    x = np.arange(12.0, dtype=np.float32).reshape(2, 3, 2)
    _, got = through(lambda f: mapped(jax.vmap(f)), function, x, lanes="batch")
    (one,) = got
    np.testing.assert_array_equal(one["tree"]["x"], x)
    np.testing.assert_array_equal(one["tree"]["same"], np.ones((2, 3, 4)))
    np.testing.assert_array_equal(one.step, x[..., 0])
    assert (one.lane, one.real) == ((), None)
    (alone,) = run(function, x[0, 0], lanes="batch")[1]
    assert alone["tree"]["x"].tolist() == [0.0, 1.0]
    assert type(alone.step) is np.float32  # with no lanes in front, as of "split"


def test_a_batch_marks_the_lanes_that_a_diverging_loop_still_runs() -> None:
    for buffer in (1, 2, 8):
        _, got = through(mapped, countdown, jnp.array([1, 3, 0]), lanes="batch", buffer=buffer)
        seen: list[list[int]] = [[], [], []]
        for one in got:
            assert one["left"].shape == one.step.shape == one.real.shape == (3,)
            for lane in np.flatnonzero(one.real):
                seen[lane].append(int(one["left"][lane]))
        assert seen == [[1], [3, 2, 1], []]
        assert len(got) == 3


def test_a_batch_keeps_the_order_of_each_lane() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            lax.cond(i >= x, lambda: logax.log({"late": i}), lambda: None)
            lax.cond(i % 2 == 0, lambda: logax.log({"even": i}), lambda: None)
            return carry, None

        return lax.scan(body, x, jnp.arange(4))[0]

    _, got = through(mapped, function, jnp.array([0, 2]), lanes="batch", buffer=8)
    for lane, wanted in enumerate(
        [
            [("late", 0), ("even", 0), ("late", 1), ("late", 2), ("even", 2), ("late", 3)],
            [("even", 0), ("late", 2), ("even", 2), ("late", 3)],
        ]
    ):
        own = [one for one in got if one.real is None or one.real[lane]]
        assert [(key, int(one[key][lane])) for one in own for key in one] == wanted


def resting(x: Any) -> Any:
    """Lanes with a positive x search in each step; the others only fill their buffer."""

    def step(carry: Any, i: Any) -> Any:
        def search(left: Any) -> Any:
            def body(left: Any) -> Any:
                logax.log({"left": left})
                return left - 1

            return lax.while_loop(lambda left: left > 0, body, left)

        carry = lax.cond(x > 0, search, lambda left: left, carry)
        logax.log({"carry": carry}, step=i)
        return carry + 2, None

    return lax.scan(step, x, jnp.arange(20))[0]


def nested(n: Any) -> Any:
    """Lanes end at different times, with different numbers of records waiting."""

    def body(state: Any) -> Any:
        i, total = state
        total = lax.while_loop(
            lambda s: s % 3 != 0, lambda s: (logax.log({"inner": s}), s + 1)[1], total + 1
        )
        logax.log({"i": i})
        logax.log({"total": total})
        return i + 1, total

    return lax.while_loop(lambda state: state[0] < n, body, (0, 0))[1]


def resting_and_nested() -> Iterator[Any]:
    """Both with the smallest buffer and one with a large one; the other pairs are slow."""
    for function, lanes, fast in ((resting, [-1, 1, 0], (2,)), (nested, [1, 4, 0], (2, 16))):
        for buffer in (2, 3, 4, 16, 64):
            marks = [] if buffer in fast else [pytest.mark.slow]
            name = f"{function.__name__}-{buffer}"
            yield pytest.param(function, lanes, buffer, marks=marks, id=name)


@pytest.mark.parametrize(("function", "lanes", "buffer"), list(resting_and_nested()))
def test_lanes_that_rest_with_a_full_buffer_do_not_stop_the_others(
    function: Any, lanes: list[int], buffer: int
) -> None:
    out, got = through(mapped, function, jnp.array(lanes), buffer=buffer)
    for index, x in enumerate(lanes):
        alone, records = run(function, x)
        assert out[index] == alone
        own = [one for one in got if one.lane == (index,)]
        assert [dict(one) for one in own] == [dict(one) for one in records]


def test_branches_that_lanes_do_not_take_stay_silent() -> None:
    def function(x: Any) -> Any:
        def down() -> Any:
            logax.log({"negative": x})
            return -x

        return lax.cond(x < 0, down, lambda: x)

    out, got = through(mapped, function, jnp.array([1.0, -2.0, -3.0]))
    assert out.tolist() == [1.0, 2.0, 3.0]
    assert [(one.lane, float(one["negative"])) for one in got] == [((1,), -2.0), ((2,), -3.0)]


def test_no_lanes_make_no_records() -> None:
    out, got = through(jax.vmap, sums, jnp.zeros(0))
    assert out.shape == (0,)
    assert got == []


# Transformations.

WAYS: dict[str, Callable[[Any], tuple[Any, list[logax.record]]]] = {
    "tap(jit(f))": lambda f: run(jax.jit(f), 2.0),
    "jit(tap(f))": lambda f: through(jax.jit, f, 2.0),
    "jit(jit(tap(f)))": lambda f: through(lambda g: jax.jit(jax.jit(g)), f, 2.0),
    "grad(tap(f))": lambda f: through(jax.grad, f, 2.0),
    "jit(grad(tap(f)))": lambda f: through(lambda g: jax.jit(jax.grad(g)), f, 2.0),
    "value_and_grad(tap(f))": lambda f: through(jax.value_and_grad, f, 2.0),
    "tap(grad(f))": lambda f: run(jax.grad(f), 2.0),
    "tap(jit(grad(jit(f))))": lambda f: run(jax.jit(jax.grad(jax.jit(f))), 2.0),
    "jvp(tap(f))": lambda f: through(lambda g: lambda x: jax.jvp(g, (x,), (1.0,)), f, 2.0),
    "tap(jacfwd(f))": lambda f: run(jax.jacfwd(f), 2.0),
    "tap(checkpoint(f))": lambda f: run(jax.checkpoint(f), 2.0),
    "tap(grad(checkpoint(f)))": lambda f: run(jax.grad(jax.checkpoint(f)), 2.0),
    "grad(tap(checkpoint(f)))": lambda f: through(jax.grad, jax.checkpoint(f), 2.0),
}


def cubed(x: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        carry = carry * x
        logax.log({"power": carry}, step=i)
        return carry, None

    return lax.scan(body, jnp.ones_like(x), jnp.arange(3))[0]


@pytest.mark.parametrize("way", WAYS)
def test_each_record_comes_once_through_transformations(way: str) -> None:
    out, got = WAYS[way](cubed)
    assert values(got, "power") == [2.0, 4.0, 8.0]
    assert [one.step for one in got] == [0, 1, 2]
    if "value_and_grad" in way or "jvp" in way:
        assert tuple(map(float, out)) == (8.0, 12.0)
    else:
        assert float(out) == (12.0 if "grad" in way or "jac" in way else 8.0)


@pytest.mark.parametrize("buffer", [1, 2, 64])
def test_a_log_inside_checkpoint_comes_once_under_grad(buffer: int) -> None:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        y = jnp.sin(x * w)
        logax.log({"y": x * w})
        return y

    def loss(w: Any) -> Any:
        return lax.scan(lambda x, i: (layer(x, w) + i, None), w, jnp.arange(3.0))[0]

    plain = jax.grad(loss)(2.0)
    wanted = values(run(loss, 2.0)[1], "y")
    for way in (run(jax.grad(loss), 2.0, buffer=buffer), through(jax.grad, loss, 2.0)):
        out, got = way
        assert float(out) == pytest.approx(float(plain), rel=1e-6)
        assert values(got, "y") == pytest.approx(wanted)
        assert len(got) == 3


def test_logs_of_functions_with_their_own_derivative_rules_come_once() -> None:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        logax.log({"x": x})
        return x * x

    def forward(x: Any) -> Any:
        return function(x), x

    def backward(x: Any, cotangent: Any) -> Any:
        logax.log({"cotangent": cotangent})
        return (7 * x * cotangent,)

    function.defvjp(forward, backward)
    out, got = run(function, 3.0)
    assert (out, [dict(one) for one in got]) == (9.0, [{"x": 3.0}])
    out, got = through(jax.grad, function, 3.0)
    assert (out, values(got, "x")) == (21.0, [3.0])
    out, got = run(jax.grad(function), 3.0)
    assert (out, [dict(one) for one in got]) == (21.0, [{"x": 3.0}, {"cotangent": 1.0}])


def test_each_iteration_that_calls_a_tapped_function_is_a_call_of_its_own() -> None:
    got: list[logax.record] = []
    tapped = logax.tap(functools.partial(sums, length=2), got.append, buffer=2)

    @jax.jit
    def outer(x: Any) -> Any:
        return lax.scan(lambda c, i: (tapped(c) + 10 * i, c), x, jnp.arange(4.0))

    out, _ = outer(1.0)
    logax.flush()
    assert out == 1 + 4 + 10 + 20 + 30
    assert values(got, "sum") == [1.0, 2.0, 2.0, 3.0, 13.0, 14.0, 34.0, 35.0]
    assert {one.total for one in got} == {2}


def test_a_tapped_function_in_branches_and_loops_of_a_program_speaks_when_it_runs() -> None:
    got: list[logax.record] = []
    tapped = logax.tap(countdown, got.append)

    @jax.jit
    def program(n: Any) -> Any:
        return lax.fori_loop(
            0, n, lambda i, c: c + lax.cond(i % 2 == 0, lambda: tapped(i), lambda: 0), 0
        )

    assert program(5) == 6
    logax.flush()
    assert values(got, "left") == [2, 1, 4, 3, 2, 1]


def test_the_same_call_again_gives_the_same_records_again() -> None:
    got: list[logax.record] = []
    for tapped in (logax.tap(sums, got.append), jax.jit(logax.tap(sums, got.append, buffer=3))):
        for number in range(3):
            got.clear()
            assert tapped(float(number)) == number + 3
            logax.flush()
            assert values(got, "sum") == [number, number + 1, number + 3]


def test_a_tap_without_jit_around_python_loops_streams_all_calls_in_order() -> None:
    got: list[logax.record] = []
    tapped = logax.tap(sums, got.append)
    x = jnp.float32(0)
    for _ in range(20):
        x = tapped(x)
    logax.flush()
    assert values(got, "sum") == [3.0 * i + j for i in range(20) for j in (0, 1, 3)]


# Arguments.


NET = Net(jnp.full(2, 2.0), jax.nn.relu, "layer", 2)
PAIR = np.array([1.0, 3.0], np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: run(lambda net, x: net(x), NET, PAIR),
        lambda: run(NET, PAIR),
        lambda: run(eqx.filter_jit(NET), PAIR),
        lambda: through(eqx.filter_jit, lambda net, x: net(x), NET, PAIR),
    ],
    ids=["argument", "function", "tap(filter_jit)", "filter_jit(tap)"],
)
def test_equinox_models_are_passed_as_they_are(call: Callable[[], Any]) -> None:
    out, got = call()
    assert out == 16.0
    assert values(got, "layer") == [[2.0, 6.0], [4.0, 12.0]]
    assert [one.step for one in got] == [0, 1]


def test_methods_are_tapped() -> None:
    out, got = run(NET.halved, PAIR)
    assert out.tolist() == [1.0, 3.0]
    assert values(got, "halved") == [[1.0, 3.0]]


def test_numbers_can_be_static() -> None:
    def function(x: Any, *, n: int, name: str = "x") -> Any:
        logax.log({name: jnp.arange(n) + x})
        return x

    got: list[logax.record] = []
    tapped = logax.tap(function, got.append, static_argnames="n")
    tapped(1, n=2)
    tapped(1, n=3, name="y")
    jax.jit(logax.tap(function, got.append), static_argnames=("n", "name"))(2, n=2)
    logax.flush()
    assert [{k: v.tolist() for k, v in one.items()} for one in got] == [
        {"x": [1, 2]},
        {"y": [1, 2, 3]},
        {"x": [2, 3]},
    ]
    out, got = run(sums, 0, 2, static_argnums=1)
    assert (out, values(got, "sum")) == (1, [0, 1])


class Counter(nnx.Module):
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.count = nnx.Variable(jnp.array(0))

    def step(self, x: Any) -> Any:
        self.count[...] = self.count[...] + 1
        logax.log({"count": self.count[...]}, step=self.count[...])
        return x * self.count[...]


@pytest.mark.parametrize(
    "transformed", [lambda f: f, nnx.jit], ids=["tap(step)", "nnx.jit(tap(step))"]
)
def test_a_step_that_mutates_an_nnx_object_is_not_lost(transformed: Any) -> None:
    counter = Counter()
    got: list[logax.record] = []
    tapped = transformed(logax.tap(Counter.step, got.append))
    assert [int(tapped(counter, 2)) for _ in range(3)] == [2, 4, 6]
    logax.flush()
    assert int(counter.count[...]) == 3
    assert values(got, "count") == [1, 2, 3]


# Several devices.

SHARDED = jax.device_put(X, NamedSharding(LINE, PartitionSpec("i")))


@pytest.mark.parametrize("buffer", [1, 2, 64])
@pytest.mark.parametrize("way", [lambda f: f, jax.jit], ids=["tap(f)", "jit(tap(f))"])
def test_sharded_arrays_make_one_record_for_each_log(way: Any, buffer: int) -> None:
    out, got = through(way, doubled, SHARDED, buffer=buffer)
    assert out.sharding.is_equivalent_to(SHARDED.sharding, 1)
    np.testing.assert_array_equal(out, 8 * X)
    np.testing.assert_array_equal(values(got, "carry"), [2 * X, 4 * X, 8 * X])
    assert [(one.step, one.shard) for one in got] == [(0, None), (1, None), (2, None)]


@pytest.mark.parametrize("buffer", [1, 2, 64])
@pytest.mark.parametrize(
    "way",
    [lambda f: f, jax.jit],
    ids=["tap(shard_map(f))", "jit(tap(shard_map(f)))"],
)
def test_each_shard_of_a_shard_map_logs_with_its_index(way: Any, buffer: int) -> None:
    out, got = through(way, on_line(doubled), X, buffer=buffer)
    np.testing.assert_array_equal(out, 8 * X)
    for shard in range(8):
        own = [one for one in got if one.shard == shard]
        assert values(own, "carry") == [[2.0 * shard], [4.0 * shard], [8.0 * shard]]
        assert [one.step for one in own] == [0, 1, 2]
    assert len(got) == 24


def test_logs_before_and_after_a_shard_map_come_once() -> None:
    def function(x: Any) -> Any:
        logax.log({"before": x.sum()})
        x = on_line(doubled)(x)
        logax.log({"after": x.sum()})
        return x

    _, got = run(function, X)
    assert values(got, "before") == [28.0]
    assert values(got, "after") == [8 * 28.0]
    assert len(values(got, "carry")) == 24
    assert [one.shard for one in got if "carry" not in one] == [None, None]


def test_a_tapped_function_inside_a_shard_map_is_called_on_each_shard() -> None:
    got: list[logax.record] = []
    out = jax.jit(on_line(logax.tap(doubled, got.append)))(X)
    logax.flush()
    np.testing.assert_array_equal(out, 8 * X)
    for shard in range(8):
        own = [one for one in got if one.shard == shard]
        assert values(own, "carry") == [[2.0 * shard], [4.0 * shard], [8.0 * shard]]
    assert len(got) == 24


def test_live_knows_the_shard() -> None:
    got: list[logax.record] = []
    with logax.live(got.append):
        jax.jit(on_line(doubled))(X)
    for shard in range(8):
        own = [one for one in got if one.shard == shard]
        assert values(own, "carry") == [[2.0 * shard], [4.0 * shard], [8.0 * shard]]


EXPLICIT = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))


def counted(x: Any) -> Any:
    """Logs in a loop without a static bound."""

    def body(state: Any) -> Any:
        i, x = state
        logax.log({"x": x, "sum": x.sum()}, step=i)
        return i + 1, x + 1

    return lax.while_loop(lambda state: state[0] < 5, body, (0, x))[1]


@pytest.mark.parametrize("buffer", [1, 2, 64])
@pytest.mark.parametrize("way", [lambda f: f, jax.jit], ids=["tap(f)", "jit(tap(f))"])
def test_arrays_with_explicit_shardings_are_logged_whole(way: Any, buffer: int) -> None:
    x = jax.device_put(X, NamedSharding(EXPLICIT, PartitionSpec("i")))
    out, got = through(way, counted, x, buffer=buffer)
    np.testing.assert_array_equal(out, X + 5)
    assert jax.typeof(out).sharding.spec == PartitionSpec("i")
    np.testing.assert_array_equal(values(got, "x"), [X + i for i in range(5)])
    assert values(got, "sum") == [28.0 + 8 * i for i in range(5)]
    assert [one.shard for one in got] == [None] * 5


@pytest.mark.parametrize("buffer", [1, 2, 64])
def test_shards_of_an_explicit_mesh_log_with_their_index(buffer: int) -> None:
    x = jax.device_put(X, NamedSharding(EXPLICIT, PartitionSpec("i")))
    spec = PartitionSpec("i")

    def twice(x: Any) -> Any:
        mapped = jax.shard_map(doubled, mesh=EXPLICIT, in_specs=spec, out_specs=spec)
        return lax.fori_loop(0, 2, lambda _, x: mapped(x), x)

    out, got = run(twice, x, buffer=buffer)
    np.testing.assert_array_equal(out, 64 * X)
    for shard in range(8):
        own = [one for one in got if one.shard == shard]
        assert values(own, "carry") == [[k * float(shard)] for k in (2, 4, 8, 16, 32, 64)]
    _, logs = logax.spool(twice, capacity=4)(x)
    np.testing.assert_array_equal(logs["carry"][:, 1, 0], [8, 16, 32, 64])


def test_live_shows_arrays_with_explicit_shardings() -> None:
    x = jax.device_put(X, NamedSharding(EXPLICIT, PartitionSpec("i")))
    got: list[logax.record] = []
    with logax.live(got.append):
        jax.jit(doubled)(x)
    np.testing.assert_array_equal(values(got, "carry"), [2 * X, 4 * X, 8 * X])


def test_each_device_of_a_pmap_logs() -> None:
    wanted = sorted(k * x for x in X.tolist() for k in (2, 4, 8))
    out, got = run(jax.pmap(doubled), X)
    np.testing.assert_array_equal(out, 8 * X)
    for shard in range(8):
        own = [one for one in got if one.shard == shard]
        assert values(own, "carry") == [2.0 * shard, 4.0 * shard, 8.0 * shard]
    assert len(got) == 24
    out, got = through(jax.pmap, doubled, X)
    np.testing.assert_array_equal(out, 8 * X)
    assert sorted(values(got, "carry")) == wanted
    assert sorted({one.shard for one in got}) == list(range(8))


# Bad use.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"buffer": 0}, ValueError, "`tap` takes `buffer` of 1 or more, and got 0."),
        ({"buffer": -3}, ValueError, "`tap` takes `buffer` of 1 or more, and got -3."),
        ({"buffer": 1.5}, ValueError, "`tap` takes `buffer` of 1 or more, and got 1.5."),
        ({"buffer": True}, ValueError, "`tap` takes `buffer` of 1 or more, and got True."),
        ({"interval": 0}, ValueError, "`tap` takes `interval` of 1 or more, and got 0."),
        ({"interval": "2"}, ValueError, "`tap` takes `interval` of 1 or more, and got '2'."),
        (
            {"callback": "x"},
            TypeError,
            "`tap` takes a callback that can be called with a record, and got 'x' of type `str`.",
        ),
        (
            {"lanes": "x"},
            ValueError,
            "`tap` takes `lanes` as 'split' or 'batch', and got 'x'.",
        ),
        (
            {"on_error": "x"},
            ValueError,
            "`tap` takes `on_error` as 'raise' or 'warn', and got 'x'.",
        ),
        ({"keys": 3}, TypeError, "`keys` takes a string or strings, and got 3."),
        ({"tags": [1]}, TypeError, "`tags` takes a string or strings, and got [1]."),
        ({"prefix": 3}, TypeError, "`prefix` takes a string, and got 3."),
        ({"lanes": None}, ValueError, "`tap` takes `lanes` as 'split' or 'batch', and got None."),
        (
            {"static_argnums": "x"},
            TypeError,
            "`static_argnums` takes a number or numbers of arguments, and got 'x'.",
        ),
        (
            {"static_argnums": 1.5},
            TypeError,
            "`static_argnums` takes a number or numbers of arguments, and got 1.5.",
        ),
        (
            {"static_argnames": 3},
            TypeError,
            "`static_argnames` takes a name or names of arguments, and got 3.",
        ),
    ],
    ids=str,
)
def test_bad_options_are_refused_at_once(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        logax.tap(sums, **options)
    assert str(caught.value) == text


def test_a_logger_is_no_callback_and_it_is_said_how_to_use_it() -> None:
    with pytest.raises(TypeError, match=r"MemoryLogger.*write `logger.tap\(f, state\)`"):
        logax.tap(sums, MemoryLogger())  # type: ignore[arg-type]


def test_an_interval_beyond_all_counting_takes_the_first_record() -> None:
    _, got = run(sums, 1.0, interval=2**40)
    assert values(got, "sum") == [1.0]


def test_a_step_may_have_any_name() -> None:
    def function(x: Any) -> None:
        logax.log({"x": x}, **{"@place": 7, "count": 3})

    _, (one,) = run(function, 1.0)
    assert one.steps == {"@place": 7, "count": 3}


def test_no_tracer_leaks() -> None:
    with jax.checking_leaks():
        out, got = run(sums, 1.0)
        assert out == logax.spool(sums)(1.0)[0] == 4.0
    assert values(got, "sum") == [1.0, 2.0, 4.0]


def test_a_call_makes_no_transfer_that_a_guard_forbids() -> None:
    got: list[logax.record] = []
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    ways = [
        logax.tap(sums, got.append),
        logax.tap(sums, got.append, buffer=2),
        logax.tap(sums, got.append, lanes="batch"),
        jax.jit(logax.tap(sums, got.append)),
        logger.tap(sums, state),
    ]
    jitted = jax.jit(sums)
    x = jnp.ones(())
    with logax.live(got.append):
        for way in (*ways, jitted):
            way(x)
    got.clear()
    with jax.transfer_guard("disallow"):
        for way in ways:
            way(x)
        logax.flush()
        with logax.live(got.append):
            jitted(x)
        with logger.run() as state:  # compiled under the guard
            logger.tap(sums, state)(x)
            logger.spool(sums, state)(x)
    assert values(got, "sum") == [1.0, 2.0, 4.0] * 5
    logger.close()
    for one in logger.runs:
        assert [record.values["sum"] for record in one.records] == [1.0, 2.0, 4.0] * 2


@pytest.mark.parametrize("mesh", [LINE, EXPLICIT], ids=["auto", "explicit"])
def test_a_guarded_call_keeps_to_the_devices_of_its_arguments(mesh: Any) -> None:
    tapped = logax.tap(lambda x: sums(x.sum()), lambda record: None)
    shardings = [
        jax.sharding.SingleDeviceSharding(jax.devices()[2]),
        NamedSharding(mesh, PartitionSpec("i")),
    ]
    for x in [jnp.asarray(X), *(jax.device_put(X, sharding) for sharding in shardings)]:
        free = tapped(x)
        with jax.transfer_guard("disallow"):
            guarded = tapped(x)
        assert guarded == free == 31.0
        assert guarded.sharding == free.sharding
        assert guarded.committed == free.committed
    logax.flush()


def test_whole_numbers_of_any_kind_are_taken() -> None:
    _, got = run(sums, 0, buffer=np.int64(2), interval=np.uint8(2))
    assert values(got, "sum") == [0, 3]


def test_an_error_of_the_function_is_the_users_own() -> None:
    def function(x: Any) -> Any:
        logax.log({"x": x})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(function, 1.0)


# What is said of logs that do not come.


def test_names_and_tags_that_no_log_has_are_a_warning() -> None:
    def f(x: Any) -> Any:
        logax.log({"x": x}, tags="often")
        return x

    with pytest.warns(UserWarning, match=r"`keys` has 'y', which matches no log.*`x`"):
        logax.tap(f, keys=["x", "y"])(1.0)
    with pytest.warns(UserWarning, match=r"`tags` has 'seldom', which no log has.*`often`"):
        logax.tap(f, tags="seldom")(1.0)
    logax.flush()


def test_a_log_that_a_primitive_hides_is_a_warning() -> None:
    def f(x: Any) -> Any:
        def product(y: Any) -> Any:
            logax.log({"y": y})
            return 2 * y

        operator = lineax.FunctionLinearOperator(product, jax.typeof(x))
        return lineax.linear_solve(operator, x, lineax.GMRES(1e-5, 1e-5)).value

    with pytest.warns(UserWarning, match=r"`y`, logged at .*test_tap\.py:\d+, is lost"):
        logax.tap(f)(jnp.ones(2))
    logax.flush()

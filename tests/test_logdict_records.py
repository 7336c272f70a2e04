"""Operations of `logdict` along the record axis, compared with plain NumPy, lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import logax
from logax import logdict
from logax._logdict.logdict import missing_step
from slow_cases import slow
from test_own_reducers import Product

LENGTH = 5
COUNTS = st.one_of(st.none(), st.lists(st.integers(0, LENGTH + 3), min_size=3, max_size=3))
BOUNDS = st.one_of(st.none(), st.integers(-LENGTH - 2, LENGTH + 2))
each_place = pytest.mark.parametrize("place", ["numpy", *slow("jax", "jit")])  # these compile
small = hypothesis.settings(max_examples=25)


def columns(counts: list[int] | None, lanes: bool, offset: int = 0) -> logdict:
    """Return three lanes, or only the last of them, of distinct records."""
    size = 3 * LENGTH
    x = np.arange(size, dtype=np.float32).reshape(3, LENGTH) + 100 * offset
    step = np.arange(size, dtype=np.int32).reshape(3, LENGTH) + 1000 * offset
    values = {"x": x, "tree": {"v": np.stack([x, -x], axis=-1), "none": None}}
    count = None if counts is None else np.asarray(counts, np.int32)
    logs = logdict(
        values,
        steps={"step": {"x": step, "tree": step}},
        count={} if count is None else {"x": count, "tree": count},
        rank={"x": 0, "tree": 1},
    )
    return logs if lanes else jax.tree.map(lambda leaf: leaf[2], logs)


def rows(logs: logdict, key: str, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the real values and steps of one lane. Without lanes there is only lane 2."""
    value = logs[key]["v"] if key == "tree" else logs[key]
    count, step = logs.count[key], logs.steps["step"][key]
    if np.ndim(count):
        value, count, step = value[lane], count[lane], step[lane]
    return np.asarray(value)[: int(count)], np.asarray(step)[: int(count)]


def compare(logs: logdict, lanes: bool, expected: Callable[[str, int, int], Any]) -> None:
    for key in logs:
        for lane in range(3) if lanes else (2,):
            for part, array in enumerate(rows(logs, key, lane)):
                np.testing.assert_array_equal(array, expected(key, lane, part))


def called(place: str, function: Callable[..., logdict], *logs: logdict) -> logdict:
    """Return the result for NumPy arrays, for JAX arrays, or inside `jit`."""
    if place == "numpy":
        return function(*logs)
    on_device = jax.tree.map(jnp.asarray, logs)
    return (jax.jit(function) if place == "jit" else function)(*on_device)


@each_place
@small
@hypothesis.given(
    counts=COUNTS,
    lanes=st.booleans(),
    wanted=st.builds(slice, BOUNDS, BOUNDS, st.one_of(st.none(), st.integers(1, 3))),
)
def test_slice_is_that_of_the_real_records(
    place: str, counts: list[int] | None, lanes: bool, wanted: slice
) -> None:
    logs = columns(counts, lanes)
    cut = called(place, lambda x: x.slice[wanted], logs)
    compare(cut, lanes, lambda key, lane, part: rows(logs, key, lane)[part][wanted])


@each_place
@small
@hypothesis.given(counts=st.lists(COUNTS, max_size=4), lanes=st.booleans())
def test_concat_puts_real_records_one_after_the_other_as_addition_does(
    place: str, counts: list[list[int] | None], lanes: bool
) -> None:
    logs = [columns(each, lanes, offset=at) for at, each in enumerate(counts)]

    def expected(key: str, lane: int, part: int) -> np.ndarray:
        return np.concatenate([rows(x, key, lane)[part] for x in logs])

    joined = called(place, lambda *x: logax.concat(iter(x)), *logs)
    assert list(joined) == (["x", "tree"] if logs else [])
    compare(joined, lanes, expected)
    assert joined == sum(logs, logdict())
    if len(logs) > 1 and place != "jit":  # there the counts are not seen
        longest = max(len(expected("x", lane, 0)) for lane in (range(3) if lanes else (2,)))
        assert joined["x"].shape[-1] == longest


@small
@hypothesis.given(counts=COUNTS, lanes=st.booleans())
def test_compact_cuts_the_padding(counts: list[int] | None, lanes: bool) -> None:
    logs = columns(counts, lanes)
    compact = logs.compact()
    compare(compact, lanes, lambda key, lane, part: rows(logs, key, lane)[part])
    longest = max(len(rows(logs, "x", lane)[0]) for lane in (range(3) if lanes else (2,)))
    assert compact["x"].shape[-1] == longest
    assert np.array_equal(compact.count["x"], logs.count["x"])


@pytest.mark.parametrize(
    ("how", "counts", "lanes"),
    [
        ("mean", [0, 3, LENGTH + 3], True),
        ("last", [0, 0, 4], False),
        *slow(
            ("std", [LENGTH, 0, 2], True),
            ("first", [2, LENGTH, 0], True),
            ("max", [0, 3, LENGTH + 3], True),
            ("count", [0, 3, LENGTH + 3], True),
            ("sum", None, True),
            ("min", [0, 0, 4], False),
        ),
    ],
)
def test_reduce_is_over_the_real_records(counts: list[int] | None, lanes: bool, how: str) -> None:
    logs = columns(counts, lanes)
    reduced = {"first": lambda x, axis: x[0], "last": lambda x, axis: x[-1]}
    reduced["count"] = lambda x, axis: len(x)
    after = logs.reduce(how)
    for key in ("x", "tree"):
        for lane in range(3) if lanes else (2,):
            values, steps = rows(logs, key, lane)
            value, step = rows(after, key, lane)
            assert len(value) == len(step) == min(len(values), 1)
            if len(values):
                function = reduced.get(how, getattr(np, how, None))
                np.testing.assert_allclose(value[0], function(values, axis=0), rtol=1e-5)
                assert step[0] == steps[0 if how == "first" else -1]


@each_place
@small
@hypothesis.given(counts=COUNTS, lanes=st.booleans())
def test_last_is_the_last_real_record(place: str, counts: list[int] | None, lanes: bool) -> None:
    logs = columns(counts, lanes)
    if not any(len(rows(logs, "x", lane)[0]) for lane in (range(3) if lanes else (2,))):
        with pytest.raises(IndexError, match=r"logs.last\['x'\].*there is no record"):
            logs.last["x"]
        return
    last = called(place, lambda x: x.last["tree"]["v"], logs)
    for lane in range(3) if lanes else (2,):
        values, _ = rows(logs, "tree", lane)
        found = last[lane] if lanes else last
        np.testing.assert_array_equal(found, values[-1] if len(values) else [np.nan] * 2)


def test_jax_arrays_and_tracers_are_cut_and_joined_as_numpy_arrays_are() -> None:
    def parts(logs: logdict) -> Any:
        return logs.slice[-3:-1], logax.concat([logs, logs]), logs.last["tree"]["v"]

    logs = columns([0, 3, LENGTH], lanes=True)
    cut, joined, last = parts(logs)
    for place in ("jax", "jit"):
        assert called(place, lambda x: parts(x)[:2], logs) == (cut, joined)
        np.testing.assert_array_equal(called(place, lambda x: parts(x)[2], logs), last)


def test_last_of_a_lane_without_records_stands_for_no_value() -> None:
    count = jnp.array([0, 1])
    values = {"i": jnp.ones((2, 3), jnp.int32), "b": jnp.ones((2, 3), bool)}
    logs = logdict(values, count={"i": count, "b": count}, rank={"i": 0, "b": 0})
    assert logs.last["i"].tolist() == [missing_step(jnp.int32), 1]
    assert logs.last["b"].tolist() == [False, True]


def test_last_of_no_records_says_so() -> None:
    with pytest.raises(IndexError, match="there is no record"):
        logdict({"x": jnp.zeros(0)}).last["x"]


def test_methods_follow_the_lanes_that_vmap_puts_first() -> None:
    def run(n: jax.Array) -> logdict:
        x = jnp.arange(6.0).reshape(3, 2) * n
        return logdict({"x": x}, steps={"step": {"x": jnp.arange(3) + n}}, count={"x": n})

    logs = jax.device_get(jax.jit(jax.vmap(jax.vmap(run)))(jnp.array([[0, 1], [2, 3]])))
    assert logs.count["x"].tolist() == [[0, 1], [2, 3]]
    assert logs.last["x"][1].tolist() == [[4, 6], [12, 15]]
    assert logs.slice[-1:].count["x"].tolist() == [[0, 1], [1, 1]]
    assert logs.slice[-1:].steps["step"]["x"][1, :, 0].tolist() == [3, 5]
    assert (logs + logs).count["x"].tolist() == [[0, 2], [4, 6]]
    assert logs.reduce("sum")["x"][1, 1, 0].tolist() == [18, 27]
    one = jax.tree.map(lambda x: x[1, 0], logs)
    assert one.compact()["x"].shape == (2, 2)


def test_a_ring_keeps_its_count_and_all_its_rows_are_real() -> None:
    logs = logdict({"x": jnp.array([7.0, 8.0, 9.0])}, count={"x": jnp.int32(10)})
    assert logs.compact().count["x"] == 10
    assert logs.last["x"] == 9
    assert logs.reduce("count")["x"].tolist() == [3]
    assert logs.slice[-2:]["x"].tolist() == [8, 9]
    assert logs.slice[-2:].compact().count["x"] == 2
    both = logs + logdict({"x": jnp.array([1.0])})
    assert both["x"].tolist() == [7, 8, 9, 1]
    assert both.count["x"] == 4


def test_sum_joins_logdicts() -> None:
    logs = [logdict({"x": np.full(at, at)}) for at in range(4)]
    assert sum(logs)["x"].tolist() == [1, 2, 2, 3, 3, 3]
    assert sum(logs) == logax.concat(logs)
    assert 0 + logs[3] == logs[3]


def test_concat_takes_logdicts_of_different_keys_and_steps() -> None:
    steps = [{"i": {"x": np.array([4])}}, {}, {"t": {"x": np.array([0.5])}, "i": {"x": [7]}}]
    logs = [logdict({"x": np.array([at])}, steps=each) for at, each in enumerate(steps)]
    logs[1]["y"] = np.array([[1.0, 2.0]])
    joined = logax.concat(logs)
    assert {key: value.tolist() for key, value in joined.items()} == {
        "x": [0, 1, 2],
        "y": [[1, 2]],
    }
    assert joined.steps["i"]["x"].tolist() == [4, missing_step(np.int64), 7]
    np.testing.assert_array_equal(joined.steps["t"]["x"], [np.nan, np.nan, 0.5])
    assert "y" not in joined.steps["i"]


def test_concat_says_which_logdicts_do_not_fit_together() -> None:
    x = np.zeros(1)
    floats = logdict({"x": x}, steps={"i": {"x": x}})
    integers = logdict({"x": x}, steps={"i": {"x": np.zeros(1, int)}})
    message = "`concat` cannot join 'x' of logdicts 1 and 3: the step 'i' is float64 in one and int"
    with pytest.raises(ValueError, match=message):
        logax.concat([logdict({"x": x}), floats, logdict({"y": x}), integers])


def test_what_is_joined_goes_back_to_where_the_first_was() -> None:
    first, second, *_ = jax.devices()
    x = np.arange(2, dtype=np.float32)
    free = logdict({"x": jnp.asarray(x)})
    with jax.default_device(second):
        free_elsewhere = logdict({"x": jax.device_put(x)})
    one, two = (logdict({"x": jax.device_put(x, at)}) for at in (first, second))
    for logs, devices, committed in (
        ([free, free_elsewhere], {first}, False),
        ([free_elsewhere, free], {second}, False),
        ([two, one, free], {second}, True),
        ([logdict({"x": x}), two], {second}, True),
    ):
        joined = logax.concat(logs)["x"]
        assert joined.tolist() == [0, 1] * len(logs)
        assert (joined.devices(), joined.committed) == (devices, committed)


def test_shards_and_keys_and_narrow_numbers_are_joined_as_they_are() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    split = [
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in ((None, "d"), ("d", None))
    ]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for sharding in split:  # the second splits the record axis
        logs = logdict({"x": jax.device_put(x, sharding)})
        joined = (logs + logs + logs)["x"]
        np.testing.assert_array_equal(joined, np.concatenate([x, x, x]))
        assert joined.devices() == set(jax.devices()[:2])
    keys = jax.random.split(jax.random.key(3, impl="rbg"), 2)
    joined = logax.concat([logdict({"k": keys})] * 2)["k"]
    assert joined.dtype == keys.dtype
    assert np.array_equal(jax.random.key_data(joined), np.tile(jax.random.key_data(keys), (2, 1)))
    for dtype in (jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn):
        joined = logax.concat([logdict({"x": jnp.arange(3).astype(dtype)})] * 2)["x"]
        assert joined.dtype == dtype
        assert joined.astype(jnp.int32).tolist() == [0, 1, 2] * 2


def test_wide_numbers_stay_wide_where_jax_would_cut_them() -> None:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        logs = logdict({"x": jnp.arange(2) + 2**40})
    assert (logs + logs)["x"].tolist() == [2**40, 2**40 + 1] * 2


def test_logdicts_that_a_program_closes_over_are_joined_by_it() -> None:
    keys = jax.random.split(jax.random.key(3), 2)
    logs = logdict({"x": jnp.arange(3), "k": keys[:1]}, count={"x": jnp.int32(2)})
    joined = jax.jit(lambda: logax.concat([logs, logs, logs]))()
    assert joined == logs + logs + logs
    assert joined.compact()["x"].tolist() == [0, 1] * 3


def test_addition_keeps_keys_that_only_one_side_has() -> None:
    one = logdict({"a": jnp.zeros(2), "b": jnp.zeros(2)}, site={"b": ("f.py:1",)})
    two = logdict({"b": jnp.ones(1), "c": jnp.ones(3)}, site={"b": ("f.py:1", "g.py:2")})
    both = one + two
    assert {key: both.count[key].item() for key in both} == {"a": 2, "b": 3, "c": 3}
    assert both.site["b"] == ("f.py:1", "g.py:2")
    assert one + logdict() == one == logdict() + one


def test_a_step_that_one_side_lacks_is_missing_there() -> None:
    x, steps = jnp.zeros(2), jnp.array([4, 5])
    one = logdict({"x": x}, steps={"i": {"x": steps}})
    two = logdict({"x": x}, steps={"t": {"x": steps.astype(jnp.float32)}})
    both = one + two
    gap = missing_step(jnp.int32)
    assert both.steps["i"]["x"].tolist() == [4, 5, gap, gap]
    np.testing.assert_array_equal(both.steps["t"]["x"], [np.nan, np.nan, 4, 5])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (jnp.zeros((2, 3)), r"a record is float32 in one and float32\[3\] in the other"),
        (jnp.zeros(2, jnp.int32), "a record is float32 in one and int32 in the other"),
        ({"a": jnp.zeros(2)}, r"one has the structure PyTreeDef\(\*\)"),
    ],
)
def test_records_that_do_not_fit_are_not_added(other: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"cannot join 'x': {message}"):
        logdict({"x": jnp.zeros(2)}) + logdict({"x": other})


def test_lanes_and_steps_that_do_not_fit_are_not_added() -> None:
    x = jnp.zeros((2, 3))
    with pytest.raises(
        ValueError,
        match=r"cannot join 'x': one has lanes of shape \(2,\) and records of rank 0 in an array "
        r"of shape \(2, 3\), the other lanes of shape \(\) and records of rank 1 in an array of "
        r"shape \(2, 3\). Only records of the same lanes can be joined",
    ):
        logdict({"x": x}, rank={"x": 0}) + logdict({"x": x})
    steps = [{"i": {"x": jnp.zeros(3, dtype)}} for dtype in (jnp.int32, jnp.float32)]
    with pytest.raises(ValueError, match="the step 'i' is int32 in one and float32 in the other"):
        logdict({"x": x[0]}, steps=steps[0]) + logdict({"x": x[0]}, steps=steps[1])


def test_only_logdicts_are_added() -> None:
    with pytest.raises(TypeError):
        logdict() + {}
    with pytest.raises(TypeError):
        1 + logdict()
    with pytest.raises(TypeError, match=r"takes a list of logdicts, and got .*\[first, second\]"):
        logax.concat(logdict({"x": jnp.zeros(1)}))
    with pytest.raises(TypeError, match="and got 1 of type `int`"):
        logax.concat(1)
    with pytest.raises(TypeError, match=r"at index 1. Write `logdict\(data\)`"):
        logax.concat([logdict(), {"x": jnp.zeros(1)}])


@pytest.mark.parametrize("wrong", [3, "x", (slice(1), slice(1))])
def test_slice_takes_slices_only(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"logs.slice\[10:20\]"):
        columns(None, lanes=False).slice[wrong]


def test_slice_keeps_the_order_of_records() -> None:
    with pytest.raises(ValueError, match="step is 1 or more, and got -1"):
        columns(None, lanes=False).slice[::-1]


def test_numpy_arrays_stay_numpy_arrays_of_their_dtype() -> None:
    logs = logdict({"x": np.arange(3.0)}, steps={"i": {"x": np.arange(3) + 2**40}})
    for same in (
        logs + logs,
        logs.slice[-2:],
        logs.compact(),
        logdict(logs, count={"x": 2}) + logs,
    ):
        assert same["x"].dtype == np.float64
        assert same.steps["i"]["x"].dtype == np.int64
        assert isinstance(same["x"], np.ndarray)
    with pytest.raises(TypeError, match="would cut float64 to float32"):
        logs.reduce("mean")


def test_reduce_takes_one_word_for_each_key() -> None:
    logs = logdict({"a": jnp.array([1.0, 3.0]), "b": jnp.array([1.0, 3.0]), "c": jnp.zeros(2)})
    after = logs.reduce({"a": "mean", "b": "max"})
    assert {key: value.tolist() for key, value in after.items()} == {
        "a": [2],
        "b": [3],
        "c": [0, 0],
    }
    assert logs.reduce()["a"].tolist() == [2]
    with pytest.raises(ValueError, match="got 'd', and there is 'a', 'b', 'c'"):
        logs.reduce({"d": "mean"})
    with pytest.raises(TypeError, match=r"`logs\.reduce`"):
        logs.reduce({3: "mean"})
    with pytest.raises(ValueError, match=r"'count', a function from an array, .*, and got 'averag"):
        logs.reduce("average")
    some = logs.reduce({"b": "max", "[ab]": "sum"})  # patterns: the first that matches, as in spool
    assert {key: value.tolist() for key, value in some.items()} == {
        "a": [4],
        "b": [3],
        "c": [0, 0],
    }
    assert logdict().reduce() == logdict()


def test_reduce_takes_a_function_of_all_records() -> None:
    logs = logdict({"x": jnp.array([[1.0, 2.0], [5.0, 4.0], [9.0, 9.0]])})
    assert logs.reduce(lambda x: jnp.median(x, axis=0))["x"].tolist() == [[5, 4]]
    nested = logdict({"n": {"a": jnp.arange(3), "b": logs["x"]}}).reduce(lambda x: x.sum(0))
    assert jax.tree.map(lambda x: x.tolist(), dict(nested)) == {"n": {"a": [3], "b": [[15, 15]]}}
    with pytest.raises(AttributeError) as caught:
        logs.reduce(lambda x: x.summ(0))
    assert caught.value.__notes__ == ["This was in `logs.reduce`, for the key 'x'."]
    short = logdict(logs, count={"x": jnp.int32(1)})
    assert short.reduce(lambda x: jnp.median(x, axis=0))["x"].tolist() == [[1, 2]]
    with pytest.raises(TypeError, match="needs records without padding"):
        jax.jit(lambda x: x.reduce(jnp.sum))(short)


def test_reduce_takes_reducers() -> None:
    x = jnp.arange(1.0, 11.0).at[6].set(jnp.nan)
    logs = logdict({"x": x}, steps={"i": {"x": jnp.arange(10)}})
    assert logs.slice[:6].reduce(Product())["x"].tolist() == [720]
    found = logs.reduce(logax.FirstNonFinite(window=3)).compact()
    np.testing.assert_array_equal(found["x"], [5, 6, np.nan])
    assert found.steps["i"]["x"].tolist() == [4, 5, 6]
    assert logs.slice[:6].reduce(logax.FirstNonFinite()).compact()["x"].shape == (0,)


def test_reducing_no_records_leaves_none() -> None:
    logs = logdict({"x": jnp.zeros((0, 2)), "i": jnp.zeros(0, jnp.int32)}).reduce("min")
    assert logs.count["x"] == 0
    assert logs.compact()["x"].shape == (0, 2)
    assert logs.compact()["i"].dtype == jnp.int32


def test_prng_keys_are_records_too() -> None:
    keys = jax.random.split(jax.random.key(1), 4)
    logs = logdict({"k": keys}, count={"k": jnp.int32(3)})
    data = jax.random.key_data
    assert np.array_equal(data(logs.last["k"]), data(keys[2]))
    assert np.array_equal(data(logs.reduce("last")["k"]), data(keys[2:3]))
    assert np.array_equal(data(logs.slice[-2:]["k"]), data(keys[1:3]))
    assert np.array_equal(data((logs + logs)["k"]), data(keys[jnp.array([0, 1, 2] * 2)]))
    assert logs.reduce("count")["k"].tolist() == [3]
    assert logs == logs.copy()
    with pytest.raises(TypeError, match="cannot compute with PRNG keys") as error:
        logs.reduce("mean")
    assert "for the key 'k'" in error.value.__notes__[0]


def test_a_record_may_hold_prng_keys_and_numbers() -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    last = logdict({"both": {"key": keys, "x": jnp.arange(3)}}).reduce("last")["both"]
    assert np.array_equal(jax.random.key_data(last["key"]), jax.random.key_data(keys[2:]))
    assert last["x"].tolist() == [2]


def test_a_key_without_arrays_has_steps_and_a_count() -> None:
    logs = logdict({"x": {"a": None}}, steps={"i": {"x": jnp.arange(3)}}, count={"x": jnp.int32(2)})
    assert logs.count["x"] == 2
    assert logs.slice[1:].compact().steps["i"]["x"].tolist() == [1]
    assert (logs + logs).count["x"] == 4
    assert (logs + logs).steps["i"]["x"].tolist() == [0, 1, 0, 1]
    assert logs.reduce("last").steps["i"]["x"].tolist() == [1]
    assert logs.last["x"] == {"a": None}
    bare = logdict({"x": None}, count={"x": jnp.int32(2)})
    assert (bare + bare).slice[1:].count["x"] == 3
    assert bare.reduce("sum").count["x"] == 1


def test_steps_may_have_axes_after_the_record_axis() -> None:
    steps = {"i": {"x": jnp.array([[0, 0], [1, 5], [2, 7]])}}
    logs = logdict({"x": jnp.zeros((3, 2))}, steps=steps, count={"x": jnp.int32(2)})
    assert logs.slice[-1:].compact().steps["i"]["x"].tolist() == [[1, 5]]
    assert (logs + logs).steps["i"]["x"].tolist() == [[0, 0], [1, 5]] * 2


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: x.compact(), "logs.compact()"),
        (lambda x: x.first_nonfinite(), "logs.first_nonfinite()"),
        (lambda x: x.to_pandas(), "logs.to_pandas()"),
        (lambda x: x.to_xarray(), "logs.to_xarray()"),
    ],
)
def test_what_needs_numbers_says_so_inside_jit(call: Any, name: str) -> None:
    logs = jax.tree.map(jnp.asarray, columns([1, 2, 3], lanes=True))
    with pytest.raises(TypeError, match="Return the logdict from the compiled function") as error:
        jax.jit(lambda x: call(x) and None)(logs)
    assert f"`{name}` needs to see the numbers of 'x'" in str(error.value)


def test_compact_without_padding_works_inside_jit() -> None:
    assert jax.jit(lambda x: x.compact())(columns(None, lanes=True)) == columns(None, lanes=True)


def test_the_first_record_that_is_not_finite_is_found_with_its_steps_and_site() -> None:
    bad = jnp.zeros((6, 2)).at[3, 1].set(jnp.inf)
    logs = logdict(
        {
            "fine": jnp.zeros(6),
            "late": jnp.zeros(6).at[5].set(jnp.nan),
            "tree": {"a": bad, "b": bad},
        },
        steps={"step": {"tree": jnp.arange(6) * 10}, "t": {"tree": jnp.full(6, jnp.nan)}},
        site={"tree": ("train.py:7",)},
    )
    found = logs.first_nonfinite()
    assert (found.key, found.record, found.leaf) == ("tree", 3, "tree/a")
    assert (found.steps, found.site, found.lane) == ({"step": 30}, ("train.py:7",), ())
    assert str(found) == "`tree/a` is not finite: record 3, step=30, logged at train.py:7"
    assert logs.filter("fine").first_nonfinite() is None


def test_padding_is_never_taken_for_a_record_that_is_not_finite() -> None:
    x = jnp.zeros((2, 4)).at[0, 2].set(jnp.nan).at[1, 3].set(jnp.nan)
    logs = logdict({"x": x}, count={"x": jnp.array([2, 4])}, rank={"x": 0})
    found = logs.first_nonfinite()
    assert (found.record, found.lane, found.leaf) == (3, (1,), "x")
    assert jax.device_get(logs).first_nonfinite() == found


def test_the_earliest_is_found_where_lanes_have_steps_of_their_own() -> None:
    def f(i: Any) -> None:
        logax.log({"a": jnp.nan * i}, step=i + 4)
        logax.log({"b": jnp.nan}, step=3)

    found = logax.spool(jax.vmap(f))(jnp.arange(2))[1].first_nonfinite()
    assert (found.key, found.steps) == ("b", {"step": 3})


def test_low_precision_and_complex_values_are_looked_at_too() -> None:
    assert logdict({"x": jnp.array([0, jnp.inf], jnp.bfloat16)}).first_nonfinite().record == 1
    assert logdict({"x": np.array([0, 1, 1j * np.inf])}).first_nonfinite().record == 2
    assert logdict({"x": jnp.arange(3), "e": jnp.zeros(0)}).first_nonfinite() is None


def test_keys_without_arrays_that_differ_in_steps_are_not_added() -> None:
    bare = logdict({"x": None}, count={"x": jnp.int32(2)})
    stepped = logdict({"x": None}, steps={"i": {"x": jnp.arange(2)}}, count={"x": jnp.int32(2)})
    with pytest.raises(ValueError, match="cannot join 'x': one has arrays or steps, the other"):
        bare + stepped


def test_reducing_no_prng_keys_leaves_none() -> None:
    keys = jax.random.split(jax.random.key(1), 2)[:0]
    assert logdict({"k": keys}).reduce("last").compact()["k"].shape == (0,)


def test_a_function_of_all_records_needs_lanes_of_one_length() -> None:
    with pytest.raises(TypeError, match="needs records without padding"):
        columns([1, 2, 3], lanes=True).reduce(lambda x: x[0])


def test_the_tangent_of_a_step_is_no_step() -> None:
    logs = logdict({"x": jnp.arange(2.0)}, steps={"i": {"x": jnp.arange(2)}})
    _, tangent = jax.jvp(lambda x: logs | {"x": x}, (logs["x"],), (jnp.array([1.0, jnp.nan]),))
    found = tangent.first_nonfinite()
    assert (found.key, found.record, found.steps) == ("x", 1, {})

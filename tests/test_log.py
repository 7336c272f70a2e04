"""`log` itself: its arguments, the names of leaves, and its absence without a harvest."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from slow_cases import slow

DTYPES = [
    "bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32",
    "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "complex64",
]  # fmt: skip


def spooled(data: Any, options: Any = None, **steps: Any) -> logax.logdict:
    """Return the logs of one `log` call."""
    logs: logax.logdict = logax.spool(lambda: logax.log(data, **(options or {}), **steps))()[1]
    return logs


def as_list(array: Any) -> Any:
    return np.asarray(array).tolist()


# Values.


def by_scan(xs: Any) -> None:
    lax.scan(lambda c, x: (c, logax.log(x)), 0, xs)


def by_while(xs: Any) -> None:
    def body(i: Any) -> Any:
        logax.log({dtype: x[i] for dtype, x in xs.items()})
        return i + 1

    lax.while_loop(lambda i: i < 3, body, 0)


def by_cond(xs: Any) -> None:
    lax.scan(lambda c, x: (c + 1, logax.log(x, every=1, step=c)), 0, xs)


@pytest.mark.parametrize(
    ("function", "options", "rows"),
    [
        (by_scan, {}, slice(None)),
        (by_while, {"capacity": 4}, slice(None)),
        *slow(
            (by_scan, {"capacity": 3}, slice(None)),
            (by_scan, {"capacity": 2}, slice(1, None)),
            (by_scan, {"interval": 2}, slice(None, None, 2)),
            (by_cond, {}, slice(None)),
        ),
    ],
)
def test_values_of_every_dtype_come_back_bit_for_bit(
    function: Callable[..., None], options: dict[str, Any], rows: slice
) -> None:
    ones = np.asarray([[0, 1], [1, 0], [1, 1]])
    xs = {dtype: ones.astype(jnp.dtype(dtype)) for dtype in DTYPES}
    logs = logax.spool(function, **options)(xs)[1].compact()
    assert set(logs) == set(DTYPES)
    for dtype, x in xs.items():
        assert logs[dtype].dtype == x.dtype
        np.testing.assert_array_equal(logs[dtype], x[rows])


def test_values_are_64_bits_wide_where_jax_is() -> None:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        logs = spooled({"i": 2**40, "f": 0.1, "c": 0.1j, "n": np.arange(2)}, step=2**40)
        assert {key: value.dtype.name for key, value in logs.items()} == {
            "i": "int64", "f": "float64", "c": "complex128", "n": "int64",
        }  # fmt: skip
        assert as_list(logs["i"]) == as_list(logs.steps["step"]["f"]) == [2**40]
        assert as_list(logs["f"]) == [0.1]
        means = logax.spool(lambda: logax.log({"i": 2**40 + 1, "c": 0.1j}), reduce="mean")()[1]
        assert as_list(means["i"]) == [2.0**40 + 1]
        assert as_list(means["c"]) == [0.1j]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (3, "int32"),
        (0.5, "float32"),
        (0.5j, "complex64"),
        (np.bool_(True), "bool"),
        (np.int8(-3), "int8"),
        (np.int64(3), "int32"),
        (np.float16(0.5), "float16"),
        (np.float64(0.5), "float32"),
        (np.arange(6).reshape(2, 3), "int32"),
        (np.zeros((0, 3), np.float32), "float32"),
        (jnp.ones((), jnp.bfloat16), "bfloat16"),
    ],
)
def test_python_and_numpy_numbers_are_what_jax_makes_of_them(value: Any, dtype: str) -> None:
    logs = spooled({"x": value})
    assert logs["x"].dtype.name == dtype
    assert logs["x"].shape == (1, *np.shape(value))
    np.testing.assert_array_equal(logs["x"][0], value)


@pytest.mark.parametrize("value", [np.float32("nan"), np.float32("inf"), -np.inf, float("nan")])
def test_nan_and_infinities_are_values(value: float) -> None:
    np.testing.assert_array_equal(spooled({"x": value})["x"], [value])


@pytest.mark.parametrize("options", [{"capacity": 2}, {"reduce": "last"}])
def test_a_loop_without_iterations_in_a_branch_leaves_what_is_kept(options: Any) -> None:
    def never(x: Any) -> Any:
        return lax.scan(lambda x, _: (logax.log({"x": -x}) or x, None), x, None, length=0)[0]

    def f(x: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            logax.log({"x": x})
            return lax.cond(x > 1, never, lambda x: x, x) + 1, None

        return lax.scan(body, x, None, length=4)[0]

    out, logs = logax.spool(f, **options)(0.0)
    assert out == 4.0
    assert as_list(logs["x"]) == [2.0, 3.0][-options.get("capacity", 1) :]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_prng_keys_come_back_as_keys(impl: str) -> None:
    keys = jax.random.split(jax.random.key(1, impl=impl), 3)

    def f(keys: Any) -> None:
        lax.scan(lambda c, key: (c, logax.log({"key": key, "tree": {"a": key, "b": 1}})), 0, keys)

    for options in ({}, {"capacity": 3}):
        _, logs = logax.spool(f, **options)(keys)
        for column in (logs["key"], logs["tree"]["a"]):
            assert column.dtype == keys.dtype
            np.testing.assert_array_equal(jax.random.key_data(column), jax.random.key_data(keys))
        assert as_list(logs["tree"]["b"]) == [1, 1, 1]
    assert (logax.spool(f, interval=2)(keys)[1]["key"] == keys[::2]).all()
    assert logax.spool(f, keys="key", reduce="first")(keys)[1]["key"][0] == keys[0]
    assert logax.spool(f, keys="key", reduce="last")(keys)[1]["key"][0] == keys[2]
    assert as_list(logax.spool(f, keys="key", reduce="count")(keys)[1]["key"]) == [3]


def test_an_object_that_knows_how_to_be_an_array_is_a_value() -> None:
    class Wrapped:
        def __jax_array__(self) -> Any:
            return jnp.arange(3)

    assert as_list(spooled({"x": Wrapped()})["x"]) == [[0, 1, 2]]


# Pytrees and names.


class Pair(NamedTuple):
    left: Any
    right: Any


def test_the_leaves_of_a_value_are_named_by_their_paths() -> None:
    value = {"layers": [Pair(1, 2.0), Pair(3, None)], "scale": np.arange(2)}
    logs = spooled({"grad": value, "loss": 0.5})
    assert {name: as_list(x) for name, x in logs.leaves().items()} == {
        "grad/layers/0/left": [1],
        "grad/layers/0/right": [2.0],
        "grad/layers/1/left": [3],
        "grad/scale": [[0, 1]],
        "loss": [0.5],
    }
    assert isinstance(logs["grad"]["layers"][1], Pair)
    assert logs["grad"]["layers"][1].right is None


def test_globs_choose_leaves_by_these_names() -> None:
    value = {"a": {"weight": 1.0, "bias": 2.0}, "b": {"weight": 3.0, "bias": 4.0}}
    f = lambda: logax.log({"grad": value, "loss": 0.5})  # noqa: E731
    logs = logax.spool(f, keys=["grad/*/weight", "loss"])()[1]
    assert {name: as_list(x) for name, x in logs.leaves().items()} == {
        "grad/a/weight": [1.0],
        "grad/b/weight": [3.0],
        "loss": [0.5],
    }
    assert list(logax.spool(f, keys="grad")()[1].leaves()) == [
        "grad/a/bias", "grad/a/weight", "grad/b/bias", "grad/b/weight",
    ]  # fmt: skip


@pytest.mark.parametrize("empty", [{}, [], (), None, {"a": None, "b": []}])
def test_a_value_without_leaves_is_counted_all_the_same(empty: Any) -> None:
    def f(n: Any) -> None:
        lax.scan(lambda c, i: (c, logax.log({"x": empty, "y": i}, step=i)), 0, jnp.arange(3))
        lax.cond(n > 0, lambda: logax.log({"x": empty}, step=7), lambda: None)

    for n, count, steps in ((1, 4, [0, 1, 2, 7]), (0, 3, [0, 1, 2])):
        logs = logax.spool(f)(n)[1].compact()
        assert logs["x"] == empty
        assert int(logs.count["x"]) == count
        assert as_list(logs.steps["step"]["x"])[:count] == steps
        assert as_list(logs["y"]) == [0, 1, 2]


def test_an_empty_mapping_logs_nothing() -> None:
    assert spooled({}, step=1) == logax.logdict()


def test_prefixes_stand_in_front_of_the_keys_as_they_are() -> None:
    def f() -> None:
        logax.log({"a": 1.0, "b": {"c": 2.0}}, prefix="train/")
        logax.log({"train/a": 3.0})

    logs = logax.spool(f)()[1]
    assert {name: as_list(x) for name, x in logs.leaves().items()} == {
        "train/a": [1.0, 3.0],
        "train/b/c": [2.0],
    }
    assert list(logax.spool(f, keys="train/a", prefix="run.")()[1]) == ["run.train/a"]


def test_a_key_keeps_the_sites_that_log_it() -> None:
    def f() -> None:
        logax.log({"a": 1.0})
        logax.log({"a": 2.0, "b": 3.0})

    first = f.__code__.co_firstlineno + 1
    logs = logax.spool(f)()[1]
    assert logs.site["a"] == (f"{__file__}:{first}", f"{__file__}:{first + 1}")
    assert logs.site["b"] == (f"{__file__}:{first + 1}",)


# Steps, tags, and functions as data.


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "float16", "float32"])
def test_steps_keep_their_dtype(dtype: str) -> None:
    steps = jnp.arange(3).astype(dtype)
    f = lambda: lax.scan(lambda c, i: (c, logax.log({"x": c}, step=i)), 0, steps)  # noqa: E731
    column = logax.spool(f)()[1].steps["step"]["x"]
    assert column.dtype == steps.dtype
    np.testing.assert_array_equal(column, steps)


def test_there_may_be_any_number_of_steps_and_not_every_record_needs_all() -> None:
    def f() -> None:
        logax.log({"x": 1.0}, episode=1, step=10)
        logax.log({"x": 2.0}, step=11)
        logax.log({"y": 3.0})

    logs = logax.spool(f)()[1]
    assert as_list(logs.steps["step"]["x"]) == [10, 11]
    episodes = as_list(logs.episode["x"])
    assert episodes[0] == 1
    assert episodes[1] != 1
    assert "y" not in logs.steps["step"]


def test_steps_of_two_dtypes_are_joined_in_one_that_holds_both() -> None:
    def f() -> None:
        logax.log({"x": 1.0}, step=np.int8(-1))
        logax.log({"x": 2.0}, step=np.uint8(200))

    column = logax.spool(f)()[1].steps["step"]["x"]
    assert column.dtype == jnp.int16
    assert as_list(column) == [-1, 200]


def tagged() -> None:
    logax.log({"a": 1.0})
    logax.log({"b": 2.0}, tags="slow")
    logax.log({"c": 3.0}, tags=("slow", "debug"), explicit=True)
    logax.log({"d": 4.0}, explicit=True)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ["a", "b"]),
        ({"tags": "slow"}, ["b", "c"]),
        ({"tags": ["debug"]}, ["c"]),
        ({"keys": "d"}, ["d"]),
        ({"keys": ["a", "c"]}, ["a", "c"]),
        ({"keys": "*"}, ["a", "b", "c", "d"]),
        ({"keys": "*", "tags": "slow"}, ["b", "c"]),
    ],
)
def test_tags_and_names_choose_and_explicit_logs_wait_to_be_chosen(
    options: dict[str, Any], keys: list[str]
) -> None:
    assert list(logax.spool(tagged, **options)()[1]) == keys


def test_a_function_as_data_is_called_only_when_something_harvests() -> None:
    calls = []

    def data() -> dict[str, Any]:
        calls.append(1)
        return {"x": 1.0}

    f = lambda: logax.log(data)  # noqa: E731
    f()
    jax.jit(f)()
    assert calls == []
    assert as_list(logax.spool(f)()[1]["x"]) == [1.0]
    assert calls == [1]


def test_a_log_among_the_other_arithmetic_functions_is_told_from_them() -> None:
    def f(x: Any) -> Any:
        y = jnp.log(x)
        logax.log({"log": y})
        return jnp.exp(y)

    _, logs = logax.spool(f)(2.0)
    np.testing.assert_array_equal(logs["log"], [jax.jit(jnp.log)(2.0)])


# Options that are misspelt.


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("evry", "every"),
        ("everyy", "every"),
        ("eveyr", "every"),
        ("tag", "tags"),
        ("prefex", "prefix"),
        ("Explicit", "explicit"),
    ],
)
def test_a_step_that_looks_like_an_option_is_warned_of(name: str, option: str) -> None:
    def f() -> None:
        logax.log({"x": 1.0}, **{name: 3})  # type: ignore[arg-type]

    with pytest.warns(UserWarning, match="which is not an option") as caught:
        logs = logax.spool(f)()[1]
    (warning,) = caught
    line = f.__code__.co_firstlineno + 1
    assert str(warning.message) == (
        f"`log` at {__file__}:{line}, among its steps, got `{name}`, which is not an option. Was "
        f"`{option}` meant? Else choose a name that is less like it."
    )
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert as_list(logs.steps[name]["x"]) == [3]


def test_a_misspelling_is_warned_of_once_for_each_line_and_other_steps_never() -> None:
    def f(x: Any) -> None:
        steps = {
            "step": 0,
            "epoch": 1,
            "eves": 2,
            "t": 3,
            "stage": 4,
            "fix": 5,
            "": 6,
            "e" * 10**6: 7,
        }
        logax.log({"x": x}, **steps)  # type: ignore[arg-type]
        logax.log({"y": x}, evry=3)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        f(1.0)  # nobody listens
        for length in range(3):
            logax.spool(f)(jnp.ones(length))
    (warning,) = caught
    assert "evry=3" in linecache.getline(warning.filename, warning.lineno)

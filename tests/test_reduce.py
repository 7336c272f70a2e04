"""Built-in and user-defined reducers, inside and after a program, compared with NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from logax._reducers import as_reducer
from oracle_checks import REDUCTIONS
from slow_cases import slow, slow_but

ROWS = 7
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=(ROWS, *shape)).astype(np.float32)


COLUMNS: dict[str, Any] = {
    "float32": normal(),
    "vector": normal(3),
    "bfloat16": jnp.asarray(normal(2), jnp.bfloat16),
    "float16": np.full(ROWS, 60000, np.float16),
    "int8": RANDOM.integers(-128, 128, size=(ROWS, 2)).astype(np.int8),
    "uint8": RANDOM.integers(0, 256, size=ROWS).astype(np.uint8),
    "int32": RANDOM.integers(-1000, 1000, size=ROWS).astype(np.int32),
    "bool": np.array([0, 1, 1, 0, 1, 1, 1], bool),
    "complex64": (normal(2) + 1j * normal(2)).astype(np.complex64),
    "nan": np.array([1, 2, np.nan, 4, 5, 6, 7], np.float32),
    "empty": np.zeros((ROWS, 0), np.float32),
    "pytree": {"a": normal(), "b": [normal(2), np.arange(ROWS, dtype=np.int32)], "c": None},
}
NARROW: dict[str, Any] = {
    "float8_e4m3fn": jnp.asarray([1, 2, 4, 8, 1, 2, 4]).astype(jnp.float8_e4m3fn),
    "float8_e5m2": jnp.asarray([-1, 2, 4, 8, 1, 2, 4]).astype(jnp.float8_e5m2),
    "int4": jnp.asarray([-8, 7, 1, 0, 7, 7, 7]).astype(jnp.int4),
    "uint4": jnp.asarray([15, 7, 1, 3, 7, 7, 7]).astype(jnp.uint4),
}
BY_NUMPY = REDUCTIONS | {"count": lambda x: np.array(len(x))}
REDUCERS = slow_but(["mean", "last"], BY_NUMPY)


def as_list(array: Any) -> Any:
    return np.asarray(array).tolist()


def series(columns: Any) -> Any:
    """Log the columns record by record."""

    def body(i: Any, record: Any) -> Any:
        logax.log(record, step=i)
        return i + 1, None

    return lax.scan(body, 10, columns)[0]


def reduced(column: Any, how: Any, **options: Any) -> logax.logdict:
    logs: logax.logdict = logax.spool(series, reduce=how, **options)({"x": column})[1]
    return logs


def wide(x: Any) -> Any:
    """Convert to a dtype in which NumPy is precise enough."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return np.asarray(x).astype(np.complex128)
    return np.asarray(x).astype(np.int64 if jnp.issubdtype(x.dtype, jnp.integer) else np.float64)


def assert_close(one: Any, two: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), one, two)


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        *((COLUMNS, how) for how in BY_NUMPY),
        (NARROW, "std"),
        *slow(*((NARROW, how) for how in BY_NUMPY if how != "std")),
    ],
)
def test_built_in_reducers_agree_with_numpy(columns: Any, how: str) -> None:
    columns = jax.tree.map(jnp.asarray, columns)
    if how in ("min", "max"):
        columns.pop("complex64", None)
    _, logs = logax.spool(series, reduce=how)(columns)
    assert list(logs) == sorted(columns)
    expected = jax.tree.map(lambda x: BY_NUMPY[how](wide(x))[None], columns)
    for key in columns:
        assert_close(jax.tree.map(wide, logs[key]), expected[key])
        assert as_list(logs.steps["step"][key]) == [10 if how == "first" else 16]
        assert int(logs.count[key]) == 1


@pytest.mark.parametrize("how", [*REDUCERS, logax.FirstNonFinite(3)])
def test_a_reduction_in_the_program_is_that_of_the_collected_records(how: Any) -> None:
    columns = {"x": {key: COLUMNS[key] for key in ("float32", "bfloat16", "int8", "nan")}}
    inside = logax.spool(series, reduce=how)(columns)[1]
    after = logax.spool(series)(columns)[1].reduce(how)
    assert_close(
        jax.tree.map(wide, inside.compact()["x"]), jax.tree.map(wide, after.compact()["x"])
    )
    dtypes = [jax.tree.map(lambda x: x.dtype.name, logs["x"]) for logs in (inside, after)]
    assert dtypes[0] == dtypes[1]
    assert as_list(inside.steps["step"]["x"]) == as_list(after.steps["step"]["x"])


@pytest.mark.parametrize(
    ("how", "dtypes"),
    [
        ("mean", {"bfloat16": "float32", "int8": "float32", "bool": "float32"}),
        ("sum", {"bfloat16": "float32", "int8": "int32", "uint8": "uint32", "bool": "int32"}),
        ("std", {"float16": "float32", "complex64": "float32"}),
        ("max", {"bfloat16": "bfloat16", "int8": "int8", "bool": "bool", "float16": "float16"}),
        ("last", {"complex64": "complex64", "uint8": "uint8", "float16": "float16"}),
        ("count", {"complex64": "int32", "vector": "int32"}),
    ],
)
def test_sums_and_means_are_in_a_dtype_with_room_and_choices_in_that_of_the_values(
    how: str, dtypes: dict[str, str]
) -> None:
    columns = {key: jnp.asarray(COLUMNS[key]) for key in dtypes}
    _, logs = logax.spool(series, reduce=how)(columns)
    assert {key: value.dtype.name for key, value in logs.items()} == dtypes


@pytest.mark.parametrize("how", ["min", "max"])
def test_what_has_no_order_has_no_least_and_is_named(how: str) -> None:
    with pytest.raises(TypeError) as raised:
        reduced(COLUMNS["complex64"], how)
    message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    for part in ("'min' or 'max'", "complex64", "`x`", f"{__file__}:"):
        assert part in message


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max", "std"])
def test_prng_keys_can_be_chosen_and_counted_but_not_computed_with(how: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(TypeError, match=rf"(?s)'{how}'.*PRNG keys of `x`.*{__file__}:\d+"):
        reduced(keys, how)


def test_the_spread_of_millions_keeps_its_digits() -> None:
    reducer = as_reducer("std")
    state = reducer.start(logax.RecordArrays(jax.ShapeDtypeStruct((), jnp.float32), {}))
    step, merge = jax.jit(reducer.step), jax.jit(reducer.merge)
    for value in (1.0, 3.0):
        state = step(state, logax.RecordArrays(jnp.float32(value), {}))
    for _ in range(25):  # as if each had come 33 million times
        state = merge(state, state)
    for _ in range(3):
        state = step(state, logax.RecordArrays(jnp.float32(2.0), {}))
    record, _ = reducer.finish(state)
    np.testing.assert_allclose(record.value, [1.0], rtol=1e-6)


# The law that lets pieces be folded apart: merging is stepping through all.


@pytest.mark.parametrize(
    "how", [*slow_but(["std"], BY_NUMPY), logax.FirstNonFinite(3), *slow(logax.FirstNonFinite(1))]
)
def test_merging_two_states_is_stepping_through_all_records(how: Any) -> None:
    reducer = as_reducer(how)
    names = ["float32", "int8", "bfloat16", "nan", "bool", "pytree"]
    values = jax.tree.map(jnp.asarray, {name: COLUMNS[name] for name in names})
    records = logax.RecordArrays(values, {"step": jnp.arange(10, 10 + ROWS)})
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), records)

    @jax.jit
    def finished(cut: Any) -> Any:
        """Fold the records before and after the cut separately, then merge the states."""

        def step(states: Any, item: Any) -> Any:
            i, record = item
            new = [reducer.step(state, record) for state in states]
            chosen = [i < cut, i >= cut]
            gated = [
                jax.tree.map(lambda n, o, c=c: jnp.where(c, n, o), n, o)
                for c, n, o in zip(chosen, new, states, strict=True)
            ]
            return gated, None

        starts = [reducer.start(like), reducer.start(like)]
        (first, second), _ = lax.scan(step, starts, (jnp.arange(ROWS), records))
        return reducer.finish(reducer.merge(first, second))

    @jax.jit
    def stepped() -> Any:
        step = lambda state, record: (reducer.step(state, record), None)  # noqa: E731
        return reducer.finish(lax.scan(step, reducer.start(like), records)[0])

    whole = jax.tree.map(wide, stepped())
    for cut in range(ROWS + 1):
        assert_close(jax.tree.map(wide, finished(cut)), whole)


# FirstNonFinite.


def bad_at(index: int | None, value: float = np.nan) -> Any:
    column = np.arange(10.0, dtype=np.float32).repeat(2).reshape(10, 2)
    if index is not None:
        column[index:, 1] = value
    return jnp.asarray(column)


@pytest.mark.parametrize(
    ("index", "window", "value"),
    [
        (0, 3, np.nan),
        (1, 3, np.inf),
        (2, 3, -np.inf),
        (7, 3, np.nan),
        *slow((9, 1, np.nan), (4, 20, np.nan)),
    ],
)
def test_the_first_bad_record_comes_with_those_before_it(
    index: int, window: int, value: float
) -> None:
    column = bad_at(index, value)
    first = max(0, index - window + 1)
    logs = reduced(column, logax.FirstNonFinite(window=window))
    assert logs["x"].shape == (window, 2)
    assert int(logs.count["x"]) == index + 1 - first
    logs = logs.compact()
    np.testing.assert_array_equal(logs["x"], column[first : index + 1])
    np.testing.assert_array_equal(logs.steps["step"]["x"], 10 + np.arange(first, index + 1))


def test_first_non_finite_is_shown_as_it_is_made() -> None:
    assert repr(logax.FirstNonFinite(3)) == "FirstNonFinite(window=3)"


def test_where_all_is_finite_nothing_is_kept() -> None:
    for column in (bad_at(None), jnp.arange(5)):
        logs = reduced(column, logax.FirstNonFinite())
        assert int(logs.count["x"]) == 0
        assert logs.compact()["x"].shape[0] == 0


def test_lanes_go_bad_on_their_own() -> None:
    columns = jnp.stack([bad_at(2), bad_at(None), bad_at(8)])
    logs = jax.jit(jax.vmap(lambda x: reduced(x, logax.FirstNonFinite(2))))(columns)
    assert as_list(logs.count["x"]) == [2, 0, 2]
    np.testing.assert_array_equal(logs["x"][0], columns[0, 1:3])
    np.testing.assert_array_equal(logs["x"][2], columns[2, 7:9])


# The keys, and their numbers of records.


def several(x: Any) -> None:
    for i in range(3):
        logax.log({"loss": x + i, "grad/a": x * i, "grad/b": -x * i}, step=i)


def test_a_mapping_reduces_keys_by_name_and_glob_and_the_first_match_holds() -> None:
    _, logs = logax.spool(several, reduce={"grad/a": "first", "grad/*": "min"})(2.0)
    found = {key: as_list(value) for key, value in logs.items()}
    assert found == {"loss": [2.0, 3.0, 4.0], "grad/a": [0.0], "grad/b": [-4.0]}
    assert as_list(logs.steps["step"]["grad/a"]) == [0]
    assert as_list(logs.steps["step"]["grad/b"]) == [2]


@pytest.mark.parametrize("how", [*REDUCERS, logax.FirstNonFinite(2)])
def test_of_no_records_nothing_comes_out(how: Any) -> None:
    def f(x: Any) -> None:
        lax.cond(x > 5, lambda: logax.log({"x": x}, step=1), lambda: None)

    _, logs = logax.spool(f, reduce=how)(1.0)
    assert int(logs.count["x"]) == 0
    assert logs.compact()["x"].shape == (0,)


def test_a_reduction_needs_no_capacity() -> None:
    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            logax.log({"i": i}, step=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    for how, expected in (("mean", 2), ("sum", 10), ("max", 4), ("last", 4), ("count", 5)):
        assert int(logax.spool(f, reduce=how)(5)[1]["i"][0]) == expected
    _, logs = jax.jit(jax.vmap(logax.spool(f, reduce="sum")))(jnp.array([5, 0, 3]))
    assert as_list(logs["i"]) == [[10], [0], [3]]
    assert as_list(logs.count["i"]) == [1, 0, 1]


def test_interval_and_reduce_reduce_every_kth_record() -> None:
    logs = reduced(jnp.arange(8.0), "sum", interval=3)
    assert as_list(logs["x"]) == [0.0 + 3.0 + 6.0]
    assert as_list(logs.steps["step"]["x"]) == [16]

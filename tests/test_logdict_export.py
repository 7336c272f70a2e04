"""`logdict.to_pandas` and `logdict.to_xarray`."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from logax import log, logdict, spool
from logax._logdict.logdict import missing_step

NONE = missing_step(jnp.int32)


def table(frame: pd.DataFrame) -> list[list[Any]]:
    """Return the column names, then the rows, with None for missing values."""
    cells = frame.astype(object).where(frame.notna(), None)
    return [list(frame.columns), *cells.to_numpy().tolist()]


def test_keys_of_one_call_stand_side_by_side() -> None:
    step = jnp.array([0, 0, 7])
    logs = logdict(
        {"loss": jnp.array([3.0, 2.0, 1.0]), "lr": {"a": jnp.array([1, 2, 3])}},
        steps={"step": {"loss": step, "lr": step}},
    )
    assert table(logs.to_pandas()) == [
        ["record", "step", "loss", "lr/a"],
        [0, 0, 3.0, 1],
        [1, 0, 2.0, 2],
        [2, 7, 1.0, 3],
    ]
    assert logs.to_pandas()["loss"].dtype == np.float32
    assert list(logs.to_pandas("loss").columns) == ["record", "step", "loss"]
    with pytest.raises(KeyError, match="there is 'loss', 'lr'"):
        logs.to_pandas("other")


def test_equal_steps_are_the_same_steps() -> None:
    steps = {"step": {"a": jnp.array([1, 1]), "b": jnp.array([1, 1])}}
    logs = logdict({"a": jnp.array([1, 2]), "b": jnp.array([3, 4])}, steps=steps)
    assert table(logs.to_pandas()) == [["record", "step", "a", "b"], [0, 1, 1, 3], [1, 1, 2, 4]]


def test_keys_of_different_steps_meet_where_all_steps_are_equal() -> None:
    logs = logdict(
        {"loss": jnp.array([3.0, 2.0, 1.0]), "val": jnp.array([10, 20])},
        steps={"step": {"loss": jnp.array([0, 1, 2]), "val": jnp.array([1, 5])}},
    )
    frame = logs.to_pandas()
    assert table(frame) == [
        ["step", "loss", "val"],
        [0, 3.0, None],
        [1, 2.0, 10],
        [2, 1.0, None],
        [5, None, 20],
    ]
    assert frame["val"].dtype == pd.Int32Dtype()


def test_texts_may_be_missing_too() -> None:
    logs = logdict({"x": jnp.arange(3), "text": np.array(["one", "two"])})
    assert logs.to_pandas()["text"].fillna("none").tolist() == ["one", "two", "none"]


@pytest.mark.parametrize("unit", ["ns", "us", "s", "D"])
def test_times_may_be_missing_and_stay_times(unit: str) -> None:
    days = np.array(["2026-11-16", "2026-11-17"], f"M8[{unit}]")
    frame = logdict({"x": jnp.arange(3), "day": days, "took": days - days[0]}).to_pandas()
    assert frame["day"].tolist() == [pd.Timestamp(2026, 11, 16), pd.Timestamp(2026, 11, 17), pd.NaT]
    assert frame["took"].tolist() == [pd.Timedelta(0), pd.Timedelta(days=1), pd.NaT]


def test_records_whose_steps_repeat_are_matched_with_no_other_key() -> None:
    logs = logdict(
        {"a": jnp.array([1, 2, 3]), "b": jnp.array([7, 8])},
        steps={"step": {"a": jnp.array([0, 0, 1]), "b": jnp.array([0, 1])}},
    )
    assert table(logs.to_pandas()) == [
        ["step", "a", "b"],
        [0, 1, None],
        [0, 2, None],
        [0, None, 7],
        [1, 3, 8],
    ]


def test_keys_with_other_step_names_share_no_row() -> None:
    logs = logdict(
        {"a": jnp.array([1, 2]), "b": jnp.array([3]), "c": jnp.array([4])},
        steps={
            "step": {"a": jnp.array([0, 1]), "b": jnp.array([1])},
            "epoch": {"b": jnp.array([0])},
        },
    )
    assert table(logs.to_pandas()) == [
        ["step", "epoch", "a", "b", "c"],
        [0, None, 1, None, None],
        [1, 0, None, 3, None],
        [1, None, 2, None, None],
        [None, None, None, None, 4],
    ]


def test_records_that_lack_their_steps_stay_alone() -> None:
    steps = {"step": {"a": jnp.array([0, NONE]), "b": jnp.array([0, NONE, NONE])}}
    logs = logdict({"a": jnp.array([1, 2]), "b": jnp.array([3, 4, 5])}, steps=steps)
    assert table(logs.to_pandas()) == [
        ["step", "a", "b"],
        [0, 1, 3],
        [None, 2, None],
        [None, None, 4],
        [None, None, 5],
    ]
    assert table(logs.to_pandas("b")) == [
        ["record", "step", "b"],
        [0, 0, 3],
        [1, None, 4],
        [2, None, 5],
    ]


def test_keys_without_steps_meet_by_record() -> None:
    logs = logdict({"a": jnp.array([1.0, 2.0]), "b": jnp.array([True])})
    assert table(logs.to_pandas()) == [["record", "a", "b"], [0, 1.0, True], [1, 2.0, None]]


def test_the_records_of_a_ring_have_their_own_numbers() -> None:
    logs = logdict({"a": jnp.array([1, 2]), "b": jnp.array([3, 4])}, count={"a": jnp.int32(3)})
    assert table(logs.to_pandas()) == [
        ["record", "a", "b"],
        [0, None, 3],
        [1, 1, 4],
        [2, 2, None],
    ]


def test_there_is_a_row_for_each_real_record_of_each_lane() -> None:
    x = jnp.arange(6).reshape(2, 3)
    logs = logdict(
        {"x": x},
        steps={"step": {"x": x * 10}},
        count={"x": jnp.array([1, 2])},
        rank={"x": 0},
    )
    assert table(logs.to_pandas()) == [
        ["lane", "record", "step", "x"],
        [0, 0, 0, 0],
        [1, 0, 30, 3],
        [1, 1, 40, 4],
    ]
    nested = logdict({"x": x[None, :, :1]}, rank={"x": 0})
    assert table(nested.to_pandas()) == [
        ["lane_0", "lane_1", "record", "x"],
        [0, 0, 0, 0],
        [0, 1, 0, 3],
    ]


def test_lanes_are_not_mixed_up_when_keys_meet() -> None:
    logs = logdict(
        {"a": jnp.array([[1, 2], [3, 4]]), "b": jnp.array([[5], [6]])},
        steps={"step": {"a": jnp.array([[0, 1], [0, 1]]), "b": jnp.array([[1], [0]])}},
        rank={"a": 0, "b": 0},
    )
    assert table(logs.to_pandas()) == [
        ["lane", "step", "a", "b"],
        [0, 0, 1, None],
        [0, 1, 2, 5],
        [1, 0, 3, 6],
        [1, 1, 4, None],
    ]


def test_records_that_are_no_scalars_are_arrays_in_cells() -> None:
    logs = logdict(
        {"v": jnp.arange(4.0).reshape(2, 2), "k": jax.random.split(jax.random.key(0), 2)},
        steps={"step": {"v": jnp.array([[0, 1], [2, 3]])}},
    )
    frame = logs.to_pandas("v")
    assert [cell.tolist() for cell in frame["v"]] == [[0, 1], [2, 3]]
    assert [cell.tolist() for cell in frame["step"]] == [[0, 1], [2, 3]]
    assert logs.to_pandas("k")["k"][0].tolist() == [1797259609, 2579123966]
    assert len(logs.to_pandas()) == 4


def test_a_column_named_like_a_key_gets_an_underscore() -> None:
    i = jnp.arange(2)
    logs = logdict({"step": i * 10, "record": i}, steps={"step": {"step": i, "record": i}})
    assert table(logs.to_pandas()) == [
        ["record_", "step_", "step", "record"],
        [0, 0, 0, 0],
        [1, 1, 10, 1],
    ]
    assert logs.to_xarray()["step_"].values.tolist() == [0, 1]


def test_nothing_exports_to_nothing() -> None:
    assert logdict().to_pandas().shape == (0, 0)
    assert len(logdict().to_xarray()) == 0
    empty = logdict({"x": jnp.zeros((0, 2))}, steps={"step": {"x": jnp.zeros(0)}})
    assert table(empty.to_pandas()) == [["record", "step", "x"]]
    assert empty.to_xarray()["x"].shape == (0, 2)


def test_leaves_of_one_name_are_refused() -> None:
    logs = logdict({"a/b": jnp.zeros(2), "a": {"b": jnp.zeros(2)}})
    with pytest.raises(ValueError, match="called 'a/b'"):
        logs.to_pandas()


def test_a_dataset_has_the_steps_as_coordinates() -> None:
    step = jnp.array([0, 5])
    logs = logdict(
        {"loss": jnp.array([1.0, 0.5]), "v": jnp.arange(6).reshape(2, 3)},
        steps={"step": {"loss": step, "v": step}},
        site={"loss": ("train.py:3", "train.py:9")},
    )
    data = logs.to_xarray()
    assert data["loss"].dims == ("record",)
    assert data["v"].dims == ("record", "v_0")
    assert data["v"].dtype == np.int32
    assert data["loss"].attrs == {"site": "train.py:3, train.py:9"}
    assert data["step"].values.tolist() == [0, 5]
    assert data["loss"].swap_dims(record="step").sel(step=5) == 0.5


def test_groups_of_keys_in_a_dataset_have_record_axes_of_their_own() -> None:
    logs = logdict(
        {"loss": jnp.zeros(3), "val": jnp.zeros(2)},
        steps={"step": {"loss": jnp.arange(3), "val": jnp.array([0, 2])}},
    )
    data = logs.to_xarray()
    assert data["loss"].dims == ("record_loss",)
    assert data["val"].dims == ("record_val",)
    assert data["step_val"].values.tolist() == [0, 2]


def test_padding_and_missing_steps_are_nan_in_a_dataset() -> None:
    logs = logdict(
        {"x": jnp.arange(6).reshape(2, 3)},
        steps={"step": {"x": jnp.array([[0, 1, 2], [NONE, 1, 2]])}},
        count={"x": jnp.array([1, 2])},
        rank={"x": 0},
    )
    data = logs.to_xarray()
    assert data["x"].dims == ("lane", "record")
    np.testing.assert_array_equal(data["x"], [[0, np.nan], [3, 4]])
    np.testing.assert_array_equal(data["step"], [[0, np.nan], [np.nan, 1]])


def test_keys_of_different_lanes_have_lane_axes_of_their_own() -> None:
    logs = logdict({"a": jnp.zeros((2, 3))}, rank={"a": 0}) | logdict({"b": jnp.zeros(3)})
    assert logs.to_xarray()["a"].dims == ("lane_a", "record_a")
    assert table(logs.to_pandas())[0] == ["lane", "record", "a", "b"]
    assert logs.to_pandas()["lane"].isna().sum() == 3


def test_narrow_floats_are_widened() -> None:
    logs = logdict({"x": jnp.array([1.5], jnp.bfloat16)})
    assert logs.to_pandas()["x"].dtype == np.float32
    assert logs.to_xarray()["x"].values.tolist() == [1.5]


@pytest.mark.parametrize("name", ["pandas", "xarray"])
def test_what_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'pip install "logax\[{name}\]"'):
        getattr(logdict({"x": jnp.zeros(2)}), f"to_{name}")()


def test_keys_without_arrays_are_left_out() -> None:
    logs = logdict({"x": jnp.arange(2), "none": None}, count={"none": jnp.int32(2)})
    assert list(logs.to_pandas()) == ["record", "x"]


def test_the_tangents_of_integers_are_missing_in_tables() -> None:
    def program(x: Any) -> Any:
        for i in range(2):
            log({"x": x, "n": i}, step=i, time=x)
        return x

    logs = spool(program)(1.0)[1]
    gradient = jax.grad(lambda logs: (logs["x"] * 2).sum(), allow_int=True)(logs)
    nan = [np.nan, np.nan]
    pd.testing.assert_frame_equal(
        gradient.to_pandas(),
        pd.DataFrame(
            {"record": [0, 1], "step": nan, "time": [0.0, 0.0], "x": [2.0, 2.0], "n": nan}
        ),
        check_dtype=False,
    )
    dataset = gradient.to_xarray()
    np.testing.assert_array_equal(dataset["x"], [2.0, 2.0])
    np.testing.assert_array_equal(dataset["n"], nan)
    np.testing.assert_array_equal(dataset["step"], nan)


def test_tangents_of_different_calls_share_no_row() -> None:
    def program(x: Any) -> Any:
        log({"a": x, "b": x}, step=0)
        log({"c": x}, step=5)
        return x

    tangent = jax.jvp(spool(program), (1.0,), (1.0,))[1][1]
    table = tangent.to_pandas()
    assert table[["a", "b", "c"]].notna().to_numpy().tolist() == [
        [True, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize(
    "use",
    [
        lambda logs: logs.to_pandas(),
        lambda logs: logs.to_xarray(),
        lambda logs: logs.compact(),
        lambda logs: logs.first_nonfinite(),
        lambda logs: logs.last["maybe"],
        lambda logs: logs.slice[:1],
        lambda logs: logs.reduce("mean"),
        lambda logs: logs + logs,
        lambda logs: logs == logs,
    ],
)
def test_the_tangent_of_a_count_is_refused(use: Any) -> None:
    _, tangent = _ragged(2.0)
    with pytest.raises(TypeError) as caught:
        use(tangent)
    assert str(caught.value) == (
        "This `logdict` is a tangent, and the tangent of a count does not say how many records "
        "there are. Give it the steps and counts of the logdict that it belongs to: "
        "`logdict(tangent, steps=logs.steps, count=logs.count)`."
    )


@pytest.mark.parametrize(("x", "values"), [(2.0, [1.0, 1.0]), (-2.0, [1.0])])
def test_a_tangent_with_the_counts_of_its_logdict_is_exported(x: float, values: Any) -> None:
    logs, tangent = _ragged(x)
    whole = logdict(tangent, steps=logs.steps, count=logs.count)
    table = whole.to_pandas("maybe")
    assert table["maybe"].tolist() == values
    assert table["step"].tolist() == list(range(len(values)))


def _ragged(x: float) -> tuple[logdict, logdict]:
    """Return a logdict whose count depends on data, and its gradient."""

    def program(x: Any) -> Any:
        log({"maybe": x}, step=0)
        return jax.lax.cond(x > 0, lambda: log({"maybe": x}, step=1), lambda: None)

    logs = spool(program)(x)[1]
    return logs, jax.grad(lambda logs: logs["maybe"].sum(), allow_int=True)(logs)

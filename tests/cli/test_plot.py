"""`logax plot` draws curves of runs into a picture."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax._cli.plot import Curve, CurveGroup, align_curves, figure_of

Call = Callable[..., Any]
BEGINNINGS = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are made."""
    figures: list[Any] = []

    def kept(*arguments: Any) -> Any:
        figures.append(figure_of(*arguments))
        return figures[-1]

    monkeypatch.setattr("logax._cli.plot.figure_of", kept)
    return figures


def curves_of(place: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in place.get_lines()
    }


@pytest.mark.parametrize("ending", list(BEGINNINGS))
def test_the_ending_says_what_the_picture_is(
    call: Call, store: Path, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"loss.{ending}"
    assert call("plot", "first", "loss", "-o", file, "--path", store) == (0, "", "")
    assert file.read_bytes().startswith(BEGINNINGS[ending])


def test_each_key_has_a_panel_and_each_run_a_line(
    call: Call, store: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    file = tmp_path / "x.svg"
    ended = call("plot", "first", "loss", "hits", "--with", "second", "-o", file, "--path", store)
    assert ended == (0, "", "")
    loss, hits = drawn[0].axes
    assert (loss.get_ylabel(), hits.get_ylabel(), hits.get_xlabel()) == ("loss", "hits", "step")
    assert curves_of(loss) == {
        "first": ([0, 1, 2, 3], [2.0, 1.5, 1.0, 0.5]),
        "second": ([0, 1, 2, 3], [1.0, 0.75, 0.5, 0.25]),
    }
    assert list(curves_of(hits)) == ["first", "second"]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["first", "second"]


def test_one_run_gives_its_name_to_the_picture(
    call: Call, store: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    call("plot", "first", "val/loss", "-o", tmp_path / "a.svg", "--path", store)
    call("plot", "all", "loss", "-o", tmp_path / "b.svg", "--path", store)
    call("plot", "seeds", "loss", "-o", tmp_path / "c.svg", "--path", store, "--title", "Mine")
    assert [figure.get_suptitle() for figure in drawn] == ["first", "6 runs", "Mine"]
    assert drawn[0].axes[0].get_xlabel() == "epoch"
    assert drawn[0].axes[0].get_legend() is None


def test_seeds_are_drawn_as_a_mean_and_a_band(
    call: Call, store: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    call("plot", "seeds", "loss", "--band", "-o", tmp_path / "x.svg", "--path", store)
    (place,) = drawn[0].axes
    assert curves_of(place) == {"mean of 3": ([0.0, 5.0], [2.0, 3.0])}
    spread, whole = (each.get_paths()[0].vertices for each in place.collections)
    deviation = float(np.std([0.0, 2.0, 4.0]))
    assert whole[:, 1].min() == 0.0
    assert whole[:, 1].max() == 5.0
    np.testing.assert_allclose(spread[:, 1].min(), 2 - deviation)
    np.testing.assert_allclose(spread[:, 1].max(), 3 + deviation)
    labels = [text.get_text() for text in place.get_legend().get_texts()]
    assert labels == ["mean of 3", "one standard deviation", "minimum to maximum"]


def test_few_runs_are_lines_and_many_a_band_unless_it_is_said(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    path = saved(logax.logdict({"x": np.arange(14.0).reshape(7, 2)}, rank={"x": 0}), name="many")
    where = ["--path", path]
    call("plot", "many", "x", "-o", tmp_path / "a.svg", *where)
    call("plot", "many", "x", "--lines", "-o", tmp_path / "b.svg", *where)
    call("plot", "many-[0-2]", "x", "-o", tmp_path / "c.svg", *where)
    band, lines, few = (curves_of(figure.axes[0]) for figure in drawn)
    assert band == {"mean of 7": ([0.0, 1.0], [6.0, 7.0])}
    assert list(lines) == [f"many-{seed}" for seed in range(7)]
    assert few["many-2"] == ([0.0, 1.0], [4.0, 5.0])
    assert len(few) == 3


def test_lanes_of_one_run_are_drawn_each(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    logs = logax.logdict({"x": np.arange(14.0).reshape(7, 2)}, rank={"x": 0})
    path = saved(logs, lanes="batch")
    call("plot", "last", "x", "-o", tmp_path / "a.svg", "--path", path)
    assert curves_of(drawn[0].axes[0]) == {"mean of 7": ([0.0, 1.0], [6.0, 7.0])}


def test_a_key_without_records_is_an_empty_curve(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    path = saved({"x": np.zeros((0, 2))}, name="plain")
    logs = logax.logdict({"x": np.zeros((2, 0))}, rank={"x": 0})
    saved(logs, name="lanes", lanes="batch")
    for run in ("plain", "lanes"):
        file = tmp_path / f"{run}.svg"
        assert call("plot", run, "x", "-o", file, "--path", path) == (0, "", "")
    plain, lanes = (figure.axes[0].get_lines() for figure in drawn)
    assert [line.get_xdata().tolist() for line in plain] == [[]]
    assert [line.get_xdata().tolist() for line in lanes] == [[], []]


def test_runs_over_different_steps_meet_between_their_points() -> None:
    lines = [
        Curve("a", np.array([0.0, 2.0]), np.array([0.0, 4.0])),
        Curve("b", np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 5.0])),
    ]
    x, rows = align_curves(lines)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(rows, [[0.0, 2.0, 4.0, np.nan], [np.nan, 1.0, 1.0, 5.0]])


def test_a_band_over_very_many_steps_has_a_thousand_points() -> None:
    lines = [
        Curve("a", np.arange(0.0, 3000.0, 2), np.arange(0.0, 3000.0, 2)),
        Curve("b", np.arange(1.0, 3000.0, 2), np.zeros(1500)),
        Curve("none", np.full(2, np.nan), np.zeros(2)),
    ]
    x, rows = align_curves(lines)
    assert (x[0], x[-1], len(x)) == (0, 2999, 1000)
    np.testing.assert_allclose(rows[0][:-1], x[:-1])
    assert np.isnan(rows[1][0])
    assert np.isnan(rows[2]).all()


def test_of_steps_that_come_twice_the_later_counts_in_a_band() -> None:
    lines = [Curve("a", np.array([0.0, 1.0, 0.0]), np.array([1.0, 2.0, 3.0]))] * 2
    x, rows = align_curves(lines)
    assert x.tolist() == [0.0, 1.0]
    assert rows.tolist() == [[3.0, 2.0]] * 2


def test_what_is_not_finite_is_a_gap() -> None:
    nan = np.nan
    line = Curve("a", np.arange(4.0), np.array([1.0, nan, np.inf, -2.0]))
    figure = figure_of({"x": [CurveGroup("a", [line], "step", False)]}, "", False)
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_ydata(), [1, nan, nan, -2])
    figure = figure_of({"x": [CurveGroup("a", [line], "step", False)]}, "", True)
    assert figure.axes[0].get_yscale() == "log"
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_ydata(), [1, nan, nan, nan])


def test_seeds_that_are_not_finite_are_told(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    loss = np.broadcast_to(np.arange(10.0), (10, 10)).copy()
    loss[:3, 5:] = np.nan
    loss[3, 7:] = np.inf
    logs = logax.logdict({"loss": loss, "fine": np.ones((10, 10))}, rank={"loss": 0, "fine": 0})
    path = saved(logs, name="s")
    ended = call("plot", "s", "loss", "fine", "-o", tmp_path / "a.svg", "--path", path)
    assert ended == (
        0,
        "",
        "logax plot: 'loss' of s is not finite in 4 of 10, first at record 5: the mean and the "
        "bands are without them there.\n",
    )
    lost, fine = (list(curves_of(place)) for place in drawn[0].axes)
    assert (lost, fine) == (["mean of 10 (4 not finite)"], ["mean of 10"])


def test_a_run_that_ends_in_nan_is_marked_at_its_last_finite_point(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    path = saved(
        logax.logdict(
            {"loss": np.array([4.0, np.nan, 2.0, np.nan, np.inf])},
            steps={"step": {"loss": np.arange(0, 50, 10)}},
        ),
        name="one",
    )
    ended = call("plot", "one", "loss", "-o", tmp_path / "a.svg", "--path", path)
    said = "logax plot: 'loss' of one is not finite, first at step 10.\n"
    assert ended == (0, "", said)
    cross, line = drawn[0].axes[0].get_lines()
    assert (cross.get_marker(), cross.get_xdata().tolist(), cross.get_ydata().tolist()) == (
        "x",
        [20.0],
        [2.0],
    )
    assert line.get_label() == "one"
    assert drawn[0].axes[0].get_legend() is None


def test_a_curve_of_nothing_is_an_empty_panel() -> None:
    line = Curve("a", np.arange(2.0), np.full(2, np.nan))
    for is_band in (False, True):
        figure = figure_of({"x": [CurveGroup("a", [line, line], "step", is_band)]}, "", True)
        assert figure.axes[0].get_yscale() == "linear"


def test_the_other_axis_can_be_chosen(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    logs = logax.logdict(
        {"x": np.array([1.0, 2.0])},
        steps={"step": {"x": np.array([0, 1])}, "frames": {"x": np.array([10, 30])}},
    )
    path = saved(logs, name="a")
    call("plot", "a", "x", "--x", "frames", "-o", tmp_path / "a.svg", "--path", path)
    assert drawn[0].axes[0].get_xlabel() == "frames"
    assert curves_of(drawn[0].axes[0]) == {"a": ([10.0, 30.0], [1.0, 2.0])}
    ended = call("plot", "a", "x", "--x", "epoch", "-o", tmp_path / "b.svg", "--path", path)
    said = "logax plot: 'x' of run a has no step 'epoch': there is step, frames.\n"
    assert ended == (1, "", said)


def test_names_are_no_formulas_and_are_cut(
    call: Call, saved: Callable[..., Path], tmp_path: Path, drawn: list[Any]
) -> None:
    path = saved({"$\\frac{$": np.arange(3.0)}, name="_$x$\x1b" + "n" * 1000)
    file = tmp_path / "x.png"
    assert call("plot", "last", "*", "-o", file, "--path", path) == (0, "", "")
    assert drawn[0].axes[0].get_ylabel() == "$\\frac{$"
    assert drawn[0].get_suptitle() == "_$x$\\x1b" + "n" * 29 + "..."


def test_a_picture_is_replaced_only_by_force(call: Call, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    file.write_text("mine")
    arguments = ["plot", "first", "loss", "-o", file, "--path", store]
    said = f"logax plot: {file} already exists: `--force` replaces it.\n"
    assert call(*arguments) == (1, "", said)
    assert file.read_text() == "mine"
    assert call(*arguments, "--force").status == 0
    assert file.read_bytes().startswith(BEGINNINGS["png"])


@pytest.mark.parametrize("name", ["x", "x.jpeg", "x.py"])
def test_an_ending_that_says_nothing_is_told(
    call: Call, store: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    said = f"logax plot: the format of {file} is unknown: end it in .png, .svg or .pdf.\n"
    assert call("plot", "first", "loss", "-o", file, "--path", store) == (1, "", said)


def test_a_key_that_no_run_has_is_told_and_one_that_some_have_is_drawn(
    call: Call, store: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    file = tmp_path / "x.svg"
    ended = call("plot", "all", "loss", "lost", "-o", file, "--path", store)
    assert ended == (1, "", "logax plot: 'lost' was not logged in run first. Did you mean loss?\n")
    assert not file.exists()
    ended = call("plot", "first", "hits", "--with", "broken", "-o", file, "--path", store)
    assert ended.status == 0
    assert list(curves_of(drawn[0].axes[0])) == ["first"]


def test_what_has_no_numbers_cannot_be_drawn(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    path = saved(logax.spool(lambda: logax.log({"i": logax.Image(np.zeros((2, 3)))}))()[1])
    ended = call("plot", "last", "i", "-o", tmp_path / "x.svg", "--path", path)
    said = "logax plot: 'i' is image 2x3, which cannot be drawn as a curve.\n"
    assert ended == (1, "", said)


def test_too_many_keys_are_told(call: Call, saved: Callable[..., Path], tmp_path: Path) -> None:
    path = saved({f"k{number}": np.zeros(2) for number in range(17)})
    ended = call("plot", "last", "*", "-o", tmp_path / "x.svg", "--path", path)
    said = "logax plot: 17 keys are too many for one figure: choose 16 or fewer.\n"
    assert ended == (1, "", said)


def test_a_missing_extra_is_told_with_its_pip_line(
    call: Call, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert call("plot", "first", "loss", "-o", tmp_path / "x.png", "--path", store) == (
        1,
        "",
        "logax plot: `logax plot` needs matplotlib, which is not installed. Write "
        '`pip install "logax[matplotlib]"`.\n',
    )

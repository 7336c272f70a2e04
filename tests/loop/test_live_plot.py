"""`PlotLogger`: contents of the plot, times of drawings, and failures."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from gates import pending
from logax._delivery.worker import worker
from logax._support.figures import MAX_POINTS_PER_LINE, Series, downsample, draw_figure
from logax._support.processes import _registered
from logax.loop import CompositeLogger, EveryNStep, PlotLogger, live_plot
from logax.loop.live_plot import render_figure
from loops import Particles, held_state, run

LONG = 60.0  # seconds


@pytest.fixture
def png(tmp_path: Path) -> Path:
    return tmp_path / "run.png"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn from now on."""
    drawn: list[Any] = []

    def kept(*arguments: Any) -> Any:
        drawn.append(draw_figure(*arguments))
        return drawn[-1]

    monkeypatch.setattr(live_plot, "draw_figure", kept)
    return drawn


@contextlib.contextmanager
def busy_worker() -> Iterator[None]:
    """The thread that draws has something else to do."""
    gate = threading.Event()
    worker.put(0, gate.wait, LONG)
    try:
        yield
    finally:
        gate.set()


def energy(state: Particles) -> Any:
    return {"energy": state.energy}


def line(figure: Any, panel: int = 0, number: int = 0) -> tuple[list[Any], list[Any]]:
    drawn = figure.axes[panel].lines[number]
    return list(drawn.get_xdata()), list(drawn.get_ydata())


def series(values: Any) -> Series:
    values = np.asarray(values, float)
    one = Series(None if values.ndim == 1 else values.shape[1])
    for step, value in enumerate(values):
        one.append(step, value)
    return one


# The plot of a run.


def test_the_file_is_a_plot_of_the_values_of_a_run(png: Path, figures: list[Any]) -> None:
    state = run(PlotLogger(energy, EveryNStep(2), png), steps=10)
    assert float(state.energy) == 10
    assert line(figures[-1]) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    image = matplotlib.image.imread(png)
    assert image.shape == (250, 800, 4)
    assert np.ptp(image[..., :3]) > 0.5
    assert os.listdir(png.parent) == [png.name]


def test_without_a_path_it_is_plot_png_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(PlotLogger(energy, 1), steps=2)
    assert matplotlib.image.imread("plot.png").ndim == 3


def test_any_pytree_of_numbers_and_arrays_is_plotted_by_name(png: Path, figures: list[Any]) -> None:
    def view(x: Any) -> Any:
        return {
            "a": [x, np.float32(2)],
            "bf": jnp.bfloat16(1.5),
            "flag": jnp.array([True, False]),
            "n": np.arange(3),
            "python": 7,
        }

    with PlotLogger(view, 1, png) as logger:
        logger.log(jnp.float32(1), 5)
    titles = [panel.get_title(loc="left") for panel in figures[-1].axes]
    assert titles == ["a/0", "a/1", "bf", "flag", "n", "python"]
    values = [[drawn.get_ydata().tolist() for drawn in x.lines] for x in figures[-1].axes]
    assert values == [[[1]], [[2]], [[1.5]], [[1], [0]], [[0], [1], [2]], [[7]]]


def test_entered_again_it_begins_anew(png: Path, figures: list[Any]) -> None:
    logger = PlotLogger(energy, 1, png)
    run(logger, steps=3)
    run(logger, steps=2)
    assert line(figures[-1]) == ([0, 1], [1, 2])


def test_a_run_without_due_steps_leaves_an_empty_plot(png: Path, figures: list[Any]) -> None:
    run(PlotLogger(energy, 1, png), steps=0)
    assert [len(figure.axes) for figure in figures] == [0]
    assert matplotlib.image.imread(png).shape == (250, 800, 4)


@pytest.mark.slow
def test_pyplot_stays_out_of_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from logax.loop import PlotLogger\n"
        "assert 'matplotlib' not in sys.modules\n"
        "os.chdir(sys.argv[1])\n"
        "with PlotLogger(lambda x: x, 1, seconds_between=0) as logger:\n"
        "    logger.log(1.0, 0)\n"
        "print('matplotlib.figure' in sys.modules, 'matplotlib.pyplot' in sys.modules)\n"
        "print('IPython' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["True", "False", "False"], "")
    assert matplotlib.image.imread(tmp_path / "plot.png").ndim == 3


# Drawing of values.


def test_panels_share_the_step_axis_and_have_titles() -> None:
    figure = draw_figure({"loss": series([3, 2, 1]), "a $ b_{": series([5, 6, 7])})
    first, second = figure.axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("loss", "a $ b_{")
    assert (first.get_xlabel(), second.get_xlabel()) == ("", "step")
    assert first.get_shared_x_axes().joined(first, second)
    assert first.get_yscale() == second.get_yscale() == "linear"
    assert line(figure) == ([0, 1, 2], [3, 2, 1])
    assert line(figure, 1) == ([0, 1, 2], [5, 6, 7])
    render_figure(figure, "png")  # a sign of formulas is none in a name


def test_values_that_are_not_finite_are_gaps() -> None:
    figure = draw_figure({"x": series([1, np.nan, 3, np.inf, -np.inf, 6])})
    np.testing.assert_array_equal(line(figure)[1], [1, np.nan, 3, np.nan, np.nan, 6])
    render_figure(draw_figure({"x": series([np.nan, np.inf])}), "png")


def test_lanes_are_thin_lines_of_one_colour() -> None:
    figure = draw_figure({"x": series([[1, 10], [2, 20], [3, 30]]), "one": series([1, 1, 1])})
    lanes, one = figure.axes[0].lines, figure.axes[1].lines
    assert [drawn.get_ydata().tolist() for drawn in lanes] == [[1, 2, 3], [10, 20, 30]]
    assert len({drawn.get_color() for drawn in lanes}) == 1
    assert lanes[0].get_linewidth() < one[0].get_linewidth()


def test_no_lanes_are_no_lines(png: Path, figures: list[Any]) -> None:
    with PlotLogger(lambda x: x, 1, png) as logger:
        logger.log(jnp.zeros(0), 0)
    assert [len(panel.lines) for panel in figures[-1].axes] == [0]


def test_a_logarithmic_panel_has_gaps_where_there_is_no_logarithm() -> None:
    figure = draw_figure({"x": series([1, 0, 100, -1]), "y": series([1, 0, 1, 2])}, ["x"])
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "linear"]
    np.testing.assert_array_equal(line(figure)[1], [1, np.nan, 100, np.nan])
    np.testing.assert_array_equal(line(figure, 1)[1], [1, 0, 1, 2])
    render_figure(draw_figure({"x": series([0, -1, np.nan])}, ["x"]), "png")


def test_a_long_line_is_thinned_and_keeps_its_extremes() -> None:
    steps = np.arange(100_003)
    values = np.sin(steps / 1000.0)
    values[[777, 50_000]] = [9, -9]
    x, y = downsample(steps, values)
    assert len(x) <= MAX_POINTS_PER_LINE + 2
    assert np.all(np.diff(x) > 0)
    assert (x[0], x[-1]) == (0, 100_002)
    np.testing.assert_array_equal(y, values[x])
    assert (x[y.argmax()], x[y.argmin()]) == (777, 50_000)
    for begin in range(0, 100_000, 1000):  # wherever one looks
        there = y[(x >= begin) & (x < begin + 1000)]
        whole = values[begin : begin + 1000]
        np.testing.assert_allclose([there.min(), there.max()], [whole.min(), whole.max()], atol=0.2)


def test_a_line_that_is_not_long_stays_as_it_is() -> None:
    steps, values = (
        np.arange(MAX_POINTS_PER_LINE),
        np.random.default_rng(0).normal(size=MAX_POINTS_PER_LINE),
    )
    x, y = downsample(steps, values)
    np.testing.assert_array_equal(x, steps)
    np.testing.assert_array_equal(y, values)


def test_long_gaps_stay_and_short_ones_hide_nothing() -> None:
    values = np.ones(100_000)
    values[20_000:40_000] = np.nan
    values[70_001] = np.nan
    x, y = downsample(np.arange(100_000), values)
    gaps = x[np.isnan(y)]
    assert 20_000 <= gaps.min() < 20_200
    assert 39_800 < gaps.max() < 40_000


def test_a_value_between_two_gaps_is_a_dot() -> None:
    values = np.full(100, np.nan)
    values[:10], values[50] = 1, 5
    figure = draw_figure({"x": series(values)})
    assert line(figure, number=1) == ([50], [5])
    assert figure.axes[0].lines[1].get_marker() == "."


# Times of drawings.


def test_log_does_not_wait_for_the_device_and_nor_does_the_thread(
    png: Path, figures: list[Any]
) -> None:
    with PlotLogger(energy, 1, png, seconds_between=0) as logger, held_state() as state:
        logger.log(state, 0)
        assert worker.drain(None)  # whoever delivers records is free again
        assert figures == []
    assert line(figures[-1]) == ([0], [0])


def test_one_drawing_at_most_waits_and_no_value_is_left_out(png: Path, figures: list[Any]) -> None:
    assert worker.drain(None)

    def at(step: int) -> None:
        assert sum(job.run == logger._plot._draw_if_due for job in worker._jobs) == 1

    logger = PlotLogger(energy, 1, png, seconds_between=0)
    with busy_worker():
        run(logger, steps=1000, at=at)
        assert len(figures) == 1
    assert worker.drain(None)
    assert len(figures) == 1  # what waited has nothing to do any more
    assert line(figures[0]) == (list(range(1000)), list(range(1, 1001)))


def test_values_come_along_with_the_next_drawing(png: Path, figures: list[Any]) -> None:
    def at(step: int) -> None:
        if step == 0:
            assert worker.drain(None)
            assert len(figures) == 1
            assert png.exists()

    run(PlotLogger(energy, 1, png, seconds_between=3600), steps=3000, at=at)
    assert [line(figure)[0][-1] for figure in figures] == [0, 2999]
    assert line(figures[0]) == ([0], [1])


def test_values_that_wait_for_a_drawing_do_not_wait_on_the_device(png: Path) -> None:
    def at(step: int) -> None:
        if step > 0 and step % live_plot.MAX_PENDING_STEPS == 0:
            assert worker.drain(None)
            assert len(logger._plot._pending) < live_plot.MAX_PENDING_STEPS

    logger = PlotLogger(energy, 1, png, seconds_between=3600)
    run(logger, steps=4 * live_plot.MAX_PENDING_STEPS, at=at)


def test_while_the_loop_runs_the_plot_is_drawn_again(png: Path, figures: list[Any]) -> None:
    with PlotLogger(energy, 1, png, seconds_between=0) as logger:
        for step in range(3):
            logger._plot._next = 0.0  # as if the drawing before was long ago
            logger.log(Particles.at_rest(), step)
            assert worker.drain(None)
            assert line(figures[-1])[0] == list(range(step + 1))
    assert len(figures) == 4


def test_a_drawing_that_takes_long_is_not_soon_done_again(
    png: Path, figures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_plot, "MAX_DRAWING_SHARE", 1e-6)
    at = lambda step: worker.drain(None)  # noqa: E731
    run(PlotLogger(energy, 1, png, seconds_between=0), steps=20, at=at)
    assert [line(figure)[0][-1] for figure in figures] == [0, 19]


@pytest.mark.parametrize("error", [ValueError("exploded"), KeyboardInterrupt()], ids=repr)
def test_after_an_error_the_plot_has_all_values(
    png: Path, figures: list[Any], error: BaseException
) -> None:
    def at(step: int) -> None:
        if step == 5:
            raise error

    with pytest.raises(type(error)) as caught:
        run(PlotLogger(energy, 1, png), at=at)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert line(figures[-1]) == (list(range(6)), list(range(1, 7)))
    assert matplotlib.image.imread(png).ndim == 3


def test_a_loop_in_a_callback_draws_where_it_is(png: Path, figures: list[Any]) -> None:
    worker.put(0, run, PlotLogger(energy, 1, png), 3)
    assert worker.drain(None)
    assert line(figures[-1]) == ([0, 1, 2], [1, 2, 3])


# Failures.


def test_a_missing_folder_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    logger = PlotLogger(energy, 1, tmp_path / "none" / "run.png")
    with pytest.raises(FileNotFoundError, match=r"`PlotLogger` writes to .* Make it first"):
        run(logger, at=lambda step: pytest.fail("there must be no step"))


def test_so_is_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="`PlotLogger` takes the path of a file"):
        run(PlotLogger(energy, 1, tmp_path))


def test_a_drawing_that_fails_is_one_warning_and_the_last_is_an_error(png: Path) -> None:
    def at(step: int) -> None:
        assert worker.drain(None)
        if step == 0:
            png.unlink()
            png.mkdir()
        logger._plot._next = 0.0  # as if the drawing before was long ago

    logger = PlotLogger(energy, 1, png, seconds_between=0)
    with (
        pytest.raises(IsADirectoryError) as caught,
        pytest.warns(UserWarning, match="`PlotLogger` could not draw to .*IsADir") as warned,
    ):
        run(logger, steps=4, at=at)
    assert len(warned) == 1
    assert caught.value.__notes__ == [f"`PlotLogger` could not draw its last plot to {png}."]
    assert os.listdir(png.parent) == [png.name]


def test_one_that_failed_and_was_not_told_is_a_warning_at_the_end(png: Path) -> None:
    gate = threading.Event()

    def at(step: int) -> None:
        png.mkdir()
        gate.set()
        assert worker.drain(None)
        png.rmdir()

    worker.put(0, gate.wait, LONG)
    logger = PlotLogger(energy, 1, png)
    with pytest.warns(UserWarning, match="`PlotLogger` could not draw to .*IsADir") as warned:
        run(logger, steps=1, at=at)
    assert len(warned) == 1
    assert matplotlib.image.imread(png).ndim == 3


def test_a_full_disk_is_an_error_and_the_plot_before_it_stays(png: Path) -> None:
    run(PlotLogger(energy, 1, png), steps=2)
    before = png.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def at(step: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))

    try:
        with busy_worker(), pytest.raises(OSError, match="File too large"):
            run(PlotLogger(energy, 1, png), steps=1, at=at)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert png.read_bytes() == before
    assert os.listdir(png.parent) == [png.name]


def test_the_error_of_the_loop_stays_and_says_that_the_drawing_failed(png: Path) -> None:
    def at(step: int) -> None:
        png.mkdir()
        raise KeyError("mine")

    with busy_worker(), pytest.raises(KeyError, match="mine") as caught:
        run(PlotLogger(energy, 1, png), at=at)
    (note,) = caught.value.__notes__
    assert note.startswith(f"`PlotLogger` could not draw its last plot to {png}. IsADirectoryError")


def test_values_that_could_not_be_computed_are_told_and_the_others_are_drawn(
    png: Path, figures: list[Any]
) -> None:
    def fail(x: Any) -> Any:
        raise ValueError("on the device")

    def loop() -> None:
        gate = threading.Event()
        with PlotLogger(lambda x: {"x": x}, 1, png) as logger:
            logger.log(jnp.float32(1), 0)
            logger.log(pending(gate, fail), 1)
            logger.log(jnp.float32(3), 2)
            gate.set()

    with pytest.warns(UserWarning, match=r"(?s)no values of step 1: .*on the device"):
        loop()
    assert line(figures[-1]) == ([0, 2], [1, 3])


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (jnp.zeros((2, 3)), "`a/0` as float32[2,3]. Reduce it to one axis in the view."),
        (np.complex64(1), "`a/0` as complex64. Make real numbers of it in the view."),
        (jax.random.key(0), "Make real numbers of it in the view."),
        ("text", "`a/0` as 'text' of type `str`. Leave it out of the view."),
    ],
    ids=["two axes", "complex", "key", "text"],
)
def test_what_cannot_be_plotted_comes_out_of_log(png: Path, leaf: Any, text: str) -> None:
    with pytest.raises(TypeError, match="`PlotLogger` takes real numbers") as caught:
        run(PlotLogger(lambda state: {"a": [leaf]}, 1, png))
    assert str(caught.value).endswith(text)


def test_too_many_panels_are_refused(png: Path) -> None:
    run(PlotLogger(lambda state: [state.energy] * 8, 1, png), steps=1)
    with pytest.raises(ValueError, match="`PlotLogger` has room for 8 panels, and its view gave 9"):
        run(PlotLogger(lambda state: [state.energy] * 9, 1, png))


def test_values_that_change_their_shape_are_refused(png: Path) -> None:
    with PlotLogger(lambda x: {"x": x}, 1, png) as logger:
        logger.log(1.0, 0)
        with pytest.raises(ValueError, match="it was one number before and is an array of 2 now"):
            logger.log(np.zeros(2), 1)


def test_a_logarithmic_scale_for_an_unknown_name_is_refused(png: Path) -> None:
    with pytest.raises(ValueError, match="got `los` in `log_scale`, and its view gives `energy`"):
        run(PlotLogger(energy, 1, png, log_scale=["los"]))
    run(PlotLogger(energy, 1, png, log_scale="energy"), steps=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"log_scale": 3}, '`log_scale` as names, such as `("loss",)`, and got 3.'),
        ({"log_scale": [3]}, '`log_scale` as names, such as `("loss",)`, and got [3].'),
        ({"seconds_between": -1}, "`seconds_between` in seconds, 0 or more, and got -1."),
        ({"seconds_between": "1"}, "`seconds_between` in seconds, 0 or more, and got '1'."),
    ],
)
def test_wrong_options_are_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match="`PlotLogger` takes") as caught:
        PlotLogger(energy, 1, **options)
    assert str(caught.value).endswith(text)


def test_it_works_next_to_others(tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    run(CompositeLogger(*[PlotLogger(energy, 1, path) for path in paths]), steps=3)
    assert [matplotlib.image.imread(path).ndim for path in paths] == [3, 3]


def test_the_ending_of_the_path_says_what_is_drawn(tmp_path: Path) -> None:
    run(PlotLogger(energy, 1, tmp_path / "run.svg"))
    assert b"<svg" in (tmp_path / "run.svg").read_bytes()
    with pytest.raises(ValueError, match="xyz"):
        run(PlotLogger(energy, 1, tmp_path / "run.xyz"))


def test_panels_are_in_the_order_of_the_view(png: Path, figures: list[Any]) -> None:
    run(PlotLogger(lambda state: {"z": state.energy, "a": state.energy}, 1, png))
    assert [panel.get_title(loc="left") for panel in figures[-1].axes] == ["z", "a"]


def test_the_largest_numbers_can_be_drawn(png: Path) -> None:
    with PlotLogger(lambda x: x, 1, png) as logger:
        logger.log(1.7e308, 0)
        logger.log(-1.7e308, 1)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_child_that_is_forked_while_a_plot_is_drawn_can_leave(png: Path) -> None:
    with PlotLogger(energy, 1, png) as logger:
        logger.log(Particles.at_rest(), 0)
        drawing = logger._plot
        # As in a forked child: a lock held by a thread that does not exist there.
        with drawing._drawing_lock:
            drawing._reset()
            drawing.end()
        assert drawing in _registered  # so that a fork does that
    assert png.read_bytes().startswith(b"\x89PNG")

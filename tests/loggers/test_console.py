"""`ConsoleLogger`: a live table in a terminal, plain lines elsewhere, the right numbers in both."""

from __future__ import annotations

import io
import math
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logax
from consoles import HOSTILE, Clock, column, run
from destinations.console_lines import last_of, read_console
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._media import HistogramBins, ImagePixels
from logax._support import formatting as words
from logax.loggers._console.console_sink import ConsoleSink
from logax.loggers._console.dashboard import Dashboard
from logax.loggers.console import ConsoleLogger
from logax.testing import CASES, Case


def lines_of(
    values: Any, *, runs: Sequence[RunInfo] = (), keys: Any = None, window: int = 100, **steps: Any
) -> list[str]:
    """The lines of runs with one batch, outside of a terminal."""
    runs = runs or [run("demo")]
    file = io.StringIO()
    sink = ConsoleSink(keys, file, window=window, clock=Clock())
    sink.open(runs)
    sink.write(RecordBatch.of(runs, values, **steps))
    sink.flush()
    sink.close(runs, "finished")
    sink.end()
    return file.getvalue().splitlines()


def line_of(values: Any, **options: Any) -> str:
    """The only line, without its end."""
    (line,) = lines_of(values, **options)
    return line.removesuffix(", finished in 0:00")


# Outside of a terminal.


def test_a_run_has_a_last_line_when_it_ends() -> None:
    values = {"loss": column(0.5, 0.25), "accuracy": column(0.0, 1.0)}
    assert lines_of(values, step=np.asarray([[0, 1]])) == [
        "run demo: step 1 loss=0.25 (mean 0.375) accuracy=1 (mean 0.5), finished in 0:00"
    ]


def test_there_is_a_line_every_five_seconds_at_most() -> None:
    clock, file = Clock(), io.StringIO()
    sink = ConsoleSink(file=file, clock=clock)
    demo = run("demo")
    sink.open([demo])
    for step in range(13):
        clock.now = float(step)
        sink.write(RecordBatch.of([demo], {"loss": column(step)}, step=np.asarray([[step]])))
        sink.flush()
        sink.flush()
    sink.close([demo], "crashed")
    assert file.getvalue().splitlines() == [
        "run demo: step 5 loss=5 (mean 2.5), 1 steps/s, 0:05",
        "run demo: step 10 loss=10 (mean 5), 1 steps/s, 0:10",
        "run demo: step 12 loss=12 (mean 6), crashed in 0:12",
    ]


def test_nothing_is_written_while_nothing_is_new() -> None:
    clock, file = Clock(), io.StringIO()
    sink = ConsoleSink(file=file, clock=clock)
    demo = run("demo")
    sink.open([demo])
    sink.write(RecordBatch.of([demo], {"loss": column(1)}))
    for clock.now in (6.0, 20.0, 90.0):
        sink.flush()
    assert file.getvalue().count("\n") == 1


def test_a_run_without_records_ends_too() -> None:
    file = io.StringIO()
    sink = ConsoleSink(file=file, clock=Clock())
    demo = run("demo")
    sink.open([demo])
    sink.write(RecordBatch.of([demo], {"x": np.zeros((1, 0))}))
    sink.flush()
    sink.close([demo], "finished")
    assert file.getvalue() == "run demo: no records, finished in 0:00\n"


def test_the_end_shows_what_was_not_closed() -> None:
    file = io.StringIO()
    sink = ConsoleSink(file=file, clock=Clock())
    demo = run("demo")
    sink.open([demo])
    sink.write(RecordBatch.of([demo], {"x": column(1)}))
    sink.end()
    sink.end()
    sink.write(RecordBatch.of([demo], {"x": column(2)}))
    sink.flush()
    sink.close([demo], "finished")
    assert file.getvalue() == "run demo: 1 record x=1 (mean 1), 0:00\n"


def test_over_seeds_mean_and_deviation_are_shown() -> None:
    runs = [run(str(seed)) for seed in range(4)]
    loss = np.asarray([[1.0, 2.0], [1.0, 4.0], [1.0, 6.0], [1.0, 8.0]])
    last, mean = loss[:, -1], loss.mean(1)
    expected = f"loss={last.mean():.4g}±{last.std():.2g} (mean {mean.mean():.4g}±{mean.std():.2g})"
    assert expected == "loss=5±2.2 (mean 3±1.1)"
    step = np.broadcast_to([0, 1], (4, 2))
    assert line_of({"loss": loss}, runs=runs, step=step) == f"4 runs: step 1 {expected}"


def test_runs_of_one_name_say_so_and_so_do_the_lanes_of_a_run() -> None:
    two = {"x": np.zeros((2, 1))}
    runs = [RunInfo("a", "demo"), RunInfo("b", "demo")]
    assert line_of(two, runs=runs).startswith("2 runs of demo: ")
    folded = run("demo", lanes=64)
    assert line_of({"x/mean": column(1)}, runs=[folded]).startswith("run demo (64 lanes): ")


def test_each_run_that_ends_by_itself_has_a_line_of_its_own_numbers() -> None:
    file, a, b = io.StringIO(), run("a"), run("b")
    sink = ConsoleSink(file=file, clock=Clock())
    sink.open([a, b])
    sink.write(RecordBatch.of([a, b], {"x": np.asarray([[1.0], [3.0]])}))
    sink.write(RecordBatch.of([b], {"y": column(5)}))
    sink.close([a], "finished")
    sink.close([b], "crashed")
    assert file.getvalue().splitlines() == [
        "run a: 1 record x=1 (mean 1), finished in 0:00",
        "run b: 1 record x=3 (mean 3) y=5 (mean 5), crashed in 0:00",
    ]


def test_runs_that_ended_are_forgotten_when_others_begin() -> None:
    file, a, b, c = io.StringIO(), run("a"), run("b"), run("c")
    clock = Clock()
    sink = ConsoleSink(file=file, clock=clock)
    sink.open([a, b])
    sink.write(
        RecordBatch.of([a, b], {"x": np.asarray([[1.0], [3.0]])}, step=np.zeros((2, 1), int))
    )
    sink.close([a], "finished")
    sink.open([c])
    sink.write(RecordBatch.of([c], {"x": column(5)}, step=np.asarray([[4]])))
    clock.now = 5.0
    sink.flush()
    assert file.getvalue().splitlines()[1] == (
        "2 runs: step 0 to 4 x=4±1 (mean 4±1), 0:05"  # of b and c
    )


def test_a_run_that_ended_without_records_leaves_the_others_what_they_have() -> None:
    a, b, c = run("a"), run("b"), run("c")
    dashboard = Dashboard(None, window=3)
    dashboard.open([a, b])
    dashboard.update(RecordBatch.of([b], {"x": column(1)}))
    dashboard.close([a], "finished")
    dashboard.open([c])
    dashboard.update(RecordBatch.of([b, c], {"x": np.asarray([[2.0], [6.0]])}))
    assert list(dashboard.status) == [b, c]
    np.testing.assert_array_equal(dashboard.summary("x", dashboard.rows([b])).history, [1, 2])
    np.testing.assert_array_equal(dashboard.summary("x", dashboard.rows()).history, [1, 4])


def test_the_mean_is_over_the_last_records_and_the_extremes_over_all() -> None:
    dashboard = Dashboard(None, window=3)
    demo = run("demo")
    dashboard.open([demo])
    for numbers in [(9.0, 1.0), (2.0, 3.0, 4.0, 5.0), (6.0,)]:
        dashboard.update(RecordBatch.of([demo], {"x": column(*numbers)}))
    one = dashboard.summary("x", dashboard.rows())
    assert one.mean is not None
    assert (one.mean.mean, one.low, one.high) == (5.0, 1.0, 9.0)
    np.testing.assert_array_equal(one.history, [4, 5, 6])


def test_numbers_that_are_not_finite_are_shown_and_counted_and_not_averaged() -> None:
    assert line_of({"x": column(1, np.inf, 3, np.nan)}) == (
        "run demo: 4 records x=nan (mean 2, 2 nonfinite)"
    )
    assert line_of({"x": column(-np.inf)}) == "run demo: 1 record x=-inf (1 nonfinite)"
    runs = [run("a"), run("b"), run("c")]
    assert line_of({"x": np.asarray([[1.0], [np.nan], [3.0]])}, runs=runs) == (
        "3 runs: 1 record x=2±1 (1 nonfinite) (mean 2±1, 1 nonfinite)"
    )


def test_an_array_is_shown_by_its_mean_and_says_so() -> None:
    values = {
        "x": np.arange(8.0).reshape(1, 2, 2, 2),
        "z": np.asarray([[3 + 4j]] * 1).repeat(2, 1),
        "flag": np.asarray([[True, False]]),
        "nothing": np.zeros((1, 2, 0)),
    }
    assert line_of(values) == (
        "run demo: 2 records x[2,2] mean=5.5 (mean 3.5) z abs=5 (mean 5) "
        "flag=0 (mean 0.5) nothing=empty [0]"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint32", "int64", "float64"])
def test_numbers_of_every_type_are_shown(dtype: str) -> None:
    values = np.asarray(np.asarray([[2, 4]]).astype(jax.numpy.dtype(dtype)))
    assert line_of({"x": values}) == "run demo: 2 records x=4 (mean 3)"


def test_the_leaves_of_a_pytree_are_shown_by_name() -> None:
    assert line_of({"grad": {"w": [column(1)], "b": column(2)}}) == (
        "run demo: 1 record grad/b=2 (mean 2) grad/w/0=1 (mean 1)"
    )


def test_histograms_images_and_random_keys_are_no_numbers() -> None:
    bins = HistogramBins(
        np.asarray([[[1, 1, 2], [0, 3, 1]]]),
        np.asarray([[[0.0, 1, 2, 3], [0, 1, 2, 3]]]),
        np.asarray([[1, 2]]),
    )
    keys = jax.random.split(jax.random.key(0), (1, 2))
    values = {"h": bins, "picture": ImagePixels(np.zeros((1, 2, 8, 6, 3))), "key": keys}
    assert line_of(values) == (
        "run demo: 2 records h=3 bins (mean 1.75, 3 nonfinite) picture=image 8x6x3"
    )


def test_histograms_of_seeds_are_put_together_between_their_outermost_edges() -> None:
    dashboard, runs = Dashboard(None, 10), [run("a"), run("b")]
    dashboard.open(runs)
    bins = HistogramBins(
        np.asarray([[[2, 3]], [[5, 7]]]),
        np.asarray([[[0.0, 1, 2]], [[2, 3, 4]]]),
        np.asarray([[0], [0]]),
    )
    dashboard.update(RecordBatch.of(runs, {"h": bins}))
    one = dashboard.summary("h", dashboard.rows())
    np.testing.assert_array_equal(one.history, [5, 12])
    assert (one.low, one.high) == (0.0, 4.0)
    other = HistogramBins(np.asarray([[[1, 2, 3]]]), np.asarray([[[0.0, 1, 2, 3]]]), column(0))
    dashboard.update(RecordBatch.of(runs[:1], {"h": other}))  # another number of bins starts over
    np.testing.assert_array_equal(dashboard.summary("h", dashboard.rows()).history, [1, 2, 3])


def test_a_key_that_changes_its_kind_is_shown_as_it_is_now() -> None:
    dashboard, demo = Dashboard(None, 10), run("demo")
    dashboard.open([demo])
    dashboard.update(RecordBatch.of([demo], {"x": ImagePixels(np.zeros((1, 1, 2, 2)))}))
    dashboard.update(RecordBatch.of([demo], {"x": column(7)}))
    one = dashboard.summary("x", dashboard.rows())
    assert one.last is not None
    assert (one.last.mean, one.remark) == (7.0, "")


def test_keys_are_chosen_by_name_or_glob() -> None:
    values = {"loss": column(1), "grad": {"w": column(2), "b": column(3)}, "lossy": column(4)}
    assert line_of(values, keys=("loss",)) == "run demo: 1 record loss=1 (mean 1)"
    assert line_of(values, keys=("*/w", "lossy")) == (
        "run demo: 1 record grad/w=2 (mean 2) lossy=4 (mean 4)"
    )
    assert line_of(values, keys=("grad",)).endswith("grad/b=3 (mean 3) grad/w=2 (mean 2)")


def test_keys_that_were_chosen_are_chosen_in_all_batches() -> None:
    dashboard, demo = Dashboard(("loss",), window=3), run("demo")
    dashboard.open([demo])
    for number in (1, 2):
        dashboard.update(RecordBatch.of([demo], {"lossy": column(0), "loss": column(number)}))
    assert dashboard.keys(dashboard.rows()) == ["loss"]
    np.testing.assert_array_equal(dashboard.summary("loss", dashboard.rows()).history, [1, 2])


def test_a_line_has_a_bounded_number_of_keys() -> None:
    line = line_of({f"k{i:02}": column(i) for i in range(50)})
    assert line.endswith(" k07=7 (mean 7) and 42 more keys")
    assert "k08" not in line
    line = line_of({f"k{i}": column(i) for i in range(9)})
    assert line.endswith(" k7=7 (mean 7) and 1 more key")


def test_a_line_has_all_keys_that_were_chosen() -> None:
    values = {f"k{i:02}": column(i) for i in range(50)}
    expected = " ".join(f"k{i:02}={i} (mean {i})" for i in range(50))
    assert line_of(values, keys=("*",)) == f"run demo: 1 record {expected}"


def test_hostile_keys_that_were_chosen_are_all_shown() -> None:
    (case,) = (case for case in CASES if case.name == "hostile keys")
    file = io.StringIO()
    last = Case("the last", lambda logger: last_of(case.program(logger), most=None))
    last.check(ConsoleLogger(file=file, keys="*"), lambda: read_console(file.getvalue()))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({"epoch": [[3, 4]], "step": [[7, 8]]}, "step 8"),
        ({"epoch": [[3, 4]], "batch": [[7, 8]]}, "epoch 4"),
        ({"time": [[0.5, 0.75]]}, "time 0.75"),
        ({"step": [[7, np.iinfo(np.int64).min]]}, "no records"),  # the last one lacks it
        ({}, "2 records"),
    ],
)
def test_the_step_called_step_counts_else_the_first_else_records(steps: Any, said: str) -> None:
    arrays = {name: np.asarray(values) for name, values in steps.items()}
    assert line_of({"x": column(1, 2)}, **arrays) == f"run demo: {said} x=2 (mean 1.5)"


def test_streams_may_have_different_numbers_of_records() -> None:
    runs = [run("a"), run("b"), run("c")]
    values = {"x": np.asarray([[1.0, 2.0, 9.0], [9.0, 3.0, 4.0], [9.0, 9.0, 9.0]])}
    real = np.asarray([[True, True, False], [False, True, True], [False, False, False]])
    step = np.asarray([[0, 1, 99], [99, 5, 6], [99, 99, 99]])
    line = line_of(values, runs=runs, real=real, step=step)
    assert line == "3 runs: step 1 to 6 x=3±1 (mean 2.5±1)"


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_the_user_is_shown_and_does_nothing(text: str) -> None:
    written = "\n".join(lines_of({text: column(1)}, runs=[run(text)], **{text: np.zeros((1, 1))}))
    assert written.isprintable()
    assert len(written) < 400
    written.encode()


def test_markup_is_shown_as_it_is_and_control_characters_escaped() -> None:
    assert line_of({"[red]x[/]\n": column(1)}) == "run demo: 1 record [red]x[/]\\n=1 (mean 1)"
    long = words.format_text("a" * 500 + "end", words.UNICODE)
    assert long == "a" * 40 + "…" + "a" * 16 + "end"
    assert words.format_text("ä€", words.ASCII) == "\\xe4\\u20ac"


def test_a_file_that_takes_ascii_only_gets_ascii() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, "ascii")
    sink = ConsoleSink(file=file, clock=Clock())
    runs = [run("ü"), run("b")]
    sink.open(runs)
    sink.write(RecordBatch.of(runs, {"ä": np.asarray([[1.0], [3.0]])}))
    sink.close(runs[:1], "finished")
    sink.close(runs, "finished")
    assert raw.getvalue().decode().splitlines() == [
        "run \\xfc: 1 record \\xe4=1 (mean 1), finished in 0:00",
        "2 runs: 1 record \\xe4=2+-1 (mean 2+-1), finished in 0:00",
    ]


class Broken(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


class BrokenTerminal(Broken):
    def isatty(self) -> bool:
        return True


def closed_file() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("make", [Broken, BrokenTerminal, closed_file])
def test_what_cannot_be_written_stops_nothing(make: Any) -> None:
    assert lines_of({"x": column(1)}) == ["run demo: 1 record x=1 (mean 1), finished in 0:00"]
    demo = run("demo")
    sink = ConsoleSink(file=make())
    sink.open([demo])
    sink.write(RecordBatch.of([demo], {"x": column(1)}))
    sink.flush()
    sink.close([demo], "finished")
    sink.end()


def test_a_program_without_a_standard_error_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    demo = run("demo")
    sink = ConsoleSink()
    sink.open([demo])
    sink.write(RecordBatch.of([demo], {"x": column(1)}))
    sink.close([demo], "finished")


# Compare the statistics with the simplest implementation.

NUMBERS = st.floats(width=32) | st.sampled_from([0.0, 1.0, -2.5])


@st.composite
def batches(draw: Any) -> list[tuple[list[int], Any, Any]]:
    """Some streams of four, their records, and which are real."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        streams = draw(st.permutations(range(4)))[: draw(st.integers(1, 4))]
        records = draw(st.integers(0, 7))
        size = len(streams) * records
        values = draw(st.lists(NUMBERS, min_size=size, max_size=size))
        real = draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
        shape = (len(streams), records)
        dtype = draw(st.sampled_from([np.float32, np.float64]))
        mask = None if real is None else np.asarray(real, bool).reshape(shape)
        found.append((streams, np.asarray(values, dtype).reshape(shape), mask))
    return found


def finite(numbers: Any) -> list[float]:
    return [float(x) for x in numbers if math.isfinite(x)]


@given(batches(), st.integers(1, 6))
def test_what_is_shown_is_what_was_logged(given_batches: Any, window: int) -> None:
    runs = [run(str(i)) for i in range(4)]
    dashboard = Dashboard(None, window)
    dashboard.open(runs)
    logged: list[list[float]] = [[] for _ in runs]
    for streams, values, real in given_batches:
        dashboard.update(RecordBatch.of([runs[i] for i in streams], {"x": values}, real=real))
        for stream, row, mask in zip(
            streams, values, values == values if real is None else real, strict=True
        ):
            there = row if real is None else row[mask]
            logged[stream] += [float(x) for x in there]
    kept = [numbers for numbers in logged if numbers]
    rows = dashboard.rows()
    if not kept:
        assert dashboard.keys(rows) == []
        return
    one = dashboard.summary("x", rows)
    everything = [x for numbers in kept for x in numbers]
    assert one.nonfinite == len(everything) - len(finite(everything))
    assert one.low == min(finite(everything), default=np.inf)
    assert one.high == max(finite(everything), default=-np.inf)
    last = [numbers[-1] for numbers in kept]
    assert one.last is not None
    assert one.last.nonfinite == len(last) - len(finite(last))
    if finite(last):
        np.testing.assert_allclose(one.last.mean, np.mean(finite(last)), rtol=1e-12)
        if len(last) > 1:
            np.testing.assert_allclose(one.last.deviation, np.std(finite(last)), rtol=1e-6)
    means = [np.mean(finite(numbers[-window:])) for numbers in kept if finite(numbers[-window:])]
    assert (one.mean is None) == (not means)
    if one.mean is not None:
        np.testing.assert_allclose(one.mean.mean, np.mean(means), rtol=1e-6, atol=1e-6)
    ages = range(min(max(map(len, kept)), window), 0, -1)
    history = [finite(x[-age] for x in kept if len(x) >= age) for age in ages]
    expected = [np.mean(x) if x else np.nan for x in history]
    np.testing.assert_allclose(one.history, expected, rtol=1e-6, atol=1e-6)


def test_lanes_of_a_run_are_streams_of_their_own() -> None:
    demo = run("demo")
    streams = tuple(Stream(demo, (lane,)) for lane in range(3))
    x = np.asarray([[1.0], [2.0], [6.0]])
    order = np.zeros((3, 1), int)
    file = io.StringIO()
    sink = ConsoleSink(file=file, clock=Clock())
    sink.open([demo])
    sink.write(RecordBatch(streams, {"x": x}, {}, order))
    sink.close([demo], "finished")
    assert file.getvalue() == (
        f"run demo (3 lanes): 1 record x=3±{x.std():.2g} (mean 3±{x.std():.2g}), finished in 0:00\n"
    )


# Formatting of numbers and times.


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"),
        (-0.5, "-0.5"),
        (123456.0, "123456"),
        (1e7, "1e+07"),
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (np.nan, "nan"),
        (-np.inf, "-inf"),
    ],
)
def test_numbers_are_short(x: float, text: str) -> None:
    assert words.format_number(x) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00"), (61, "1:01"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert words.format_clock(seconds) == text


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([], ""),
        ([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"),
        ([5, 5, 5], "▅▅▅"),
        ([0, np.nan, 1], "▁!█"),
        ([np.nan], "!"),
        ([-1.7e308, 0, 1.7e308], "▁▅█"),
        (np.repeat(np.arange(8), 5), "▁▂▃▄▅▆▇█"),
        (np.arange(1000), "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_sparkline_goes_from_the_least_to_the_greatest(history: Any, text: str) -> None:
    assert words.sparkline(history, 8, words.UNICODE) == text


@given(st.lists(st.floats(), min_size=1, max_size=60), st.integers(1, 30))
def test_a_sparkline_is_never_wider_than_asked(history: list[float], width: int) -> None:
    with np.errstate(all="ignore"):
        line = words.sparkline(history, width, words.UNICODE)
    assert len(line) == min(width, len(history))
    assert set(line) <= set("▁▂▃▄▅▆▇█!")


@given(st.text(max_size=200))
def test_shown_text_is_printable_and_short(text: str) -> None:
    shown = words.format_text(text, words.UNICODE)
    assert len(shown) <= words.MAX_NAME_CHARS
    assert not any(unicodedata.category(letter)[0] == "C" for letter in shown)


# The logger itself.


def train(seed: Any) -> Any:
    """Ten steps of something."""

    def body(x: Any, i: Any) -> Any:
        logax.log({"loss": x}, step=i)
        return x / 2, None

    return jax.lax.scan(body, seed, jax.numpy.arange(10))[0]


def untimed(text: str) -> list[str]:
    return [line.rpartition(" in ")[0] for line in text.splitlines()]


def test_a_run_is_shown_while_its_results_stay_the_same() -> None:
    file = io.StringIO()
    logger = ConsoleLogger(file=file)
    with logger.run(name="demo") as state:
        assert logger.tap(train, state, buffer=4)(512.0) == 0.5
        logger.log(state, {"score": 3}, step=10)
    assert untimed(file.getvalue()) == [
        "run demo: step 10 loss=1 (mean 102.3) score=3 (mean 3), finished"
    ]
    with pytest.raises(KeyError), logger.run(name="other"):
        raise KeyError
    assert untimed(file.getvalue())[1:] == ["run other: no records, crashed"]


def test_seeds_of_one_compiled_call_are_shown_together() -> None:
    file = io.StringIO()
    logger = ConsoleLogger(file=file)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 64))
    seeds = 512.0 * jax.numpy.arange(64)
    jax.vmap(lambda state, x: logger.spool(train, state)(x))(states, seeds)
    logger.finish(states)
    spread = f"±{np.arange(64).std():.2g}"
    assert untimed(file.getvalue()) == [
        f"64 runs: step 9 loss=31.5{spread} (mean 3222±1.9e+03), finished"
    ]


def test_seeds_may_be_folded_into_one_run() -> None:
    file = io.StringIO()
    logger = ConsoleLogger(file=file, lanes="aggregate", keys="*/max")
    states = jax.vmap(lambda key: logger.init(key, name="demo"))(
        jax.random.split(jax.random.key(0), 4)
    )
    jax.vmap(lambda state, x: logger.tap(train, state)(x))(states, 512.0 * jax.numpy.arange(4))
    logger.finish(states)
    assert untimed(file.getvalue()) == [
        "run demo (4 lanes): step 9 loss/max=3 (mean 306.9), finished"
    ]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keys": [1]}, TypeError, "`keys` takes a string or strings, and got [1]."),
        (
            {"file": 3},
            TypeError,
            "`ConsoleLogger` takes a `file` to write to, and got 3 of type `int`.",
        ),
        ({"refresh": 0}, ValueError, "`ConsoleLogger` takes `refresh` of 1 or more, and got 0."),
        ({"window": 1.5}, ValueError, "`ConsoleLogger` takes `window` of 1 or more, and got 1.5."),
        (
            {"lanes": "all"},
            ValueError,
            "`ConsoleLogger` takes `lanes` as 'split', 'aggregate' or 'group', and got 'all'.",
        ),
    ],
)
def test_wrong_options_are_told_at_once(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        ConsoleLogger(**options)
    assert str(caught.value) == text


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_rich_is_needed_and_elsewhere_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError) as caught:
        ConsoleLogger(file=FakeTerminal())
    assert str(caught.value) == (
        '`ConsoleLogger` needs rich, which is not installed. Write `pip install "logax[rich]"`.'
    )
    file = io.StringIO()
    with ConsoleLogger(file=file).run(name="demo"):
        pass
    assert untimed(file.getvalue()) == ["run demo: no records, finished"]
    logger, later = ConsoleLogger(), FakeTerminal()
    monkeypatch.setattr(sys, "stderr", later)
    with logger.run(name="demo"):
        pass
    assert untimed(later.getvalue()) == ["run demo: no records, finished"]

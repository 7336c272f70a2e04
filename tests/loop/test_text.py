"""Lines of text, and callbacks, on the steps that are due."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from logax import EveryNStep, OnSteps
from logax.loop import CallbackLogger, CompositeLogger, PrintLogger, PythonLogger, TqdmLogger
from loops import Particles, held_state, run


def energies(state: Particles) -> dict[str, Any]:
    return {"energy": state.energy, "at": {"x": state.position[:, 0]}}


def test_a_line_is_printed_for_each_step_that_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    run(PrintLogger(energies, EveryNStep(4)))
    assert capsys.readouterr().out.splitlines() == [
        "step 0: energy=1, at/x=1",
        "step 4: energy=5, at/x=5",
        "step 8: energy=9, at/x=9",
    ]


def test_lines_can_go_to_a_file_and_be_of_any_tree() -> None:
    text = io.StringIO()
    run(PrintLogger(lambda state: state.energy / 3, OnSteps([1]), file=text))
    run(PrintLogger(lambda state: (state.energy, "a"), OnSteps([1]), file=text))
    run(PrintLogger(lambda state: state, OnSteps([1]), file=text))
    assert text.getvalue().splitlines() == [
        "step 1: value=0.6667",
        "step 1: 0=2, 1=a",
        "step 1: position=2, energy=2",
    ]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_on_the_same_screen_stays_below_the_lines() -> None:
    screen = Screen()
    bar = TqdmLogger(10, file=screen)
    run(CompositeLogger(bar, PrintLogger(lambda state: state.energy, EveryNStep(5), file=screen)))
    shown = [line.rpartition("\r")[2] for line in screen.getvalue().split("\n")]
    assert shown[0].startswith("step 0: value=1")
    assert shown[1].startswith("step 5: value=6")
    assert "10/10" in shown[2]


def test_lines_of_logging_stay_above_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    mine = logging.getLogger("above a bar")
    mine.addHandler(logging.StreamHandler(screen))
    lines = PythonLogger(lambda state: state.energy, 5, logger=mine, level=logging.ERROR)
    run(CompositeLogger(TqdmLogger(10), lines))
    shown = [line.rpartition("\r")[2] for line in screen.getvalue().split("\n")]
    assert shown[:2] == ["step 0: value=1", "step 5: value=6"]
    assert "10/10" in shown[2]


def test_names_that_would_clash_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    run(PrintLogger(lambda state: {"a": {"b": 1.0}, "a/b": 2.0, "z": 3, "y": 4}, OnSteps([0])))
    run(PrintLogger(lambda state: None, OnSteps([0])))
    assert capsys.readouterr().out.splitlines() == ["step 0: a/b=1, a/b_=2, z=3, y=4", "step 0"]


def test_python_logging_gets_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run(PythonLogger(energies, EveryNStep(5)))
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("logax.loop", "INFO", "step 0: energy=1, at/x=1"),
        ("logax.loop", "INFO", "step 5: energy=6, at/x=6"),
    ]


def test_another_logger_and_level_can_be_given(caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("mine")
    run(PythonLogger(energies, OnSteps([2]), logger=mine, level=logging.ERROR))
    assert [(r.name, r.levelname) for r in caplog.records] == [("mine", "ERROR")]


def test_nothing_is_looked_at_for_a_logger_that_is_silent() -> None:
    quiet = PythonLogger(energies, 1, level=logging.DEBUG)
    printer = PrintLogger(energies, OnSteps([9]))
    with CompositeLogger(quiet, printer) as logger, held_state() as state:
        for step in range(9):
            logger.log(state, step)


def test_a_function_is_called_with_state_and_step_when_due() -> None:
    seen: list[Any] = []
    run(CallbackLogger(lambda state, step: seen.append((float(state.energy), step)), EveryNStep(4)))
    assert seen == [(1.0, 0), (5.0, 4), (9.0, 8)]


def test_what_a_function_raises_stops_the_loop() -> None:
    def fail(state: Particles, step: int) -> None:
        raise LookupError(f"at {step}")

    with pytest.raises(LookupError, match="at 3"):
        run(CallbackLogger(fail, OnSteps([3])))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrintLogger({"x": 1}, 1), "`PrintLogger` takes a view, a function of the state"),
        (lambda: PrintLogger(energies, 1, file=3), "`PrintLogger` takes a `file` to write to"),
        (lambda: PrintLogger(energies, -5), "The schedule of `PrintLogger` takes a whole number"),
        (lambda: PythonLogger("x", 1), "`PythonLogger` takes a view"),
        (lambda: PythonLogger(energies, 1, logger="a"), 'Write `logging.getLogger("name")`'),
        (lambda: CallbackLogger(3, 1), "`CallbackLogger` takes a function of state and step"),
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert message in str(caught.value)


def test_inside_a_traced_function_the_error_points_to_log() -> None:
    with PrintLogger(lambda state: state, 1) as logger, pytest.raises(TypeError) as caught:
        jax.jit(lambda x: logger.log(x, 0))(jnp.float32(1))
    assert 'write `logax.log({"name": x})` inside it' in str(caught.value)

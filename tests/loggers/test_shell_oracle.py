"""Loggers against the oracle: a run has every record of its lane once, each key in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from hard_programs import HARD
from oracle import Program
from oracle_checks import compiled_quickly
from program_strategies import programs, states
from programs import State
from tap_checks import check_logged, check_logged_lanes
from test_oracle import STATES
from test_tap_oracle import buffers


def every_other(first: int) -> list[Any]:
    """Every program, of which one in two is slow: those that the other test has."""
    return [
        pytest.param(
            program,
            id=program.__name__,
            marks=[] if number % 2 == first else [pytest.mark.slow],
        )
        for number, program in enumerate(HARD)
    ]


@pytest.mark.parametrize("program", every_other(0))
@compiled_quickly()
def test_a_run_has_the_records_of_a_hard_program(program: Program) -> None:
    check_logged(program, 7 if HARD.index(program) % 4 else 1, *STATES)


@pytest.mark.parametrize("program", every_other(1))
@compiled_quickly()
def test_the_run_of_each_lane_has_its_records(program: Program) -> None:
    check_logged_lanes(program, 1 if HARD.index(program) % 4 == 1 else 7, STATES)


@settings(max_examples=2)
@given(programs(), buffers, states())
@compiled_quickly()
def test_a_run_has_the_records_of_a_random_program(
    program: Program, buffer: int, state: State
) -> None:
    check_logged(program, buffer, state)


@pytest.mark.slow
@settings(max_examples=150)
@given(programs(), buffers, states())
@compiled_quickly()
def test_a_run_has_the_records_of_many_random_programs(
    program: Program, buffer: int, state: State
) -> None:
    check_logged(program, buffer, state)


@pytest.mark.slow
@settings(max_examples=150)
@given(programs(), buffers, states(), states())
@compiled_quickly()
def test_the_run_of_each_lane_has_the_records_of_a_random_program(
    program: Program, buffer: int, one: State, two: State
) -> None:
    check_logged_lanes(program, buffer, [one, two])

"""`tap` against the oracle: every record once, in order, of fixed and random programs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_programs import HARD
from oracle import Program
from program_strategies import programs, states
from programs import State
from tap_checks import (
    check_tapped,
    check_tapped_gradient,
    check_tapped_interval,
    check_tapped_jitted,
    check_tapped_lanes,
)
from test_oracle import STATES

each_hard_program = pytest.mark.parametrize("program", HARD, ids=lambda program: program.__name__)
BUFFERS = (1, 7, 64)
buffers = st.sampled_from(BUFFERS)


@each_hard_program
@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_hard_program_delivers_what_the_oracle_recorded(program: Program, buffer: int) -> None:
    check_tapped(program, buffer, *STATES)


@each_hard_program
@pytest.mark.parametrize(
    "buffer", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 64))]
)
def test_each_lane_of_a_hard_program_delivers_its_records(program: Program, buffer: int) -> None:
    check_tapped_lanes(program, buffer, STATES, whole=buffer == 7)


@settings(max_examples=18)
@given(programs(), buffers, states())
def test_a_random_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped(program, buffer, state)


@settings(max_examples=10)
@given(programs(), st.sampled_from((1, 2, 7, 64)), st.lists(states(), min_size=3, max_size=4))
def test_each_lane_of_a_random_program_delivers_its_records(
    program: Program, buffer: int, lanes: list[State]
) -> None:
    check_tapped_lanes(program, buffer, lanes, whole=buffer == 7)


@settings(max_examples=5)
@given(programs(), buffers, states())
def test_tap_and_jit_commute_on_random_programs(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_jitted(program, buffer, state)


@settings(max_examples=10)
@given(programs(), buffers, states(), st.integers(2, 3))
def test_an_interval_thins_what_random_programs_deliver(
    program: Program, buffer: int, state: State, interval: int
) -> None:
    check_tapped_interval(program, buffer, state, interval)


@settings(max_examples=12)
@given(programs(unbounded=False), buffers, states())
def test_the_gradient_through_tap_is_the_plain_one(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_gradient(program, buffer, state)

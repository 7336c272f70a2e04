"""The checks of `tap` against the oracle on many more random programs, in parts."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from oracle import Program
from program_strategies import programs, states
from programs import State
from tap_checks import (
    check_tapped,
    check_tapped_donated,
    check_tapped_gradient,
    check_tapped_interval,
    check_tapped_jitted,
    check_tapped_lanes,
)
from test_oracle_slow import LANES, in_parts

pytestmark = pytest.mark.slow
BUFFERS = st.sampled_from((1, 2, 3, 7, 64))


@in_parts(2, 60, program=programs(), buffer=BUFFERS, state=states())
def test_a_random_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped(program, buffer, state)


@in_parts(2, 16, program=programs(), buffer=BUFFERS, lanes=LANES, whole=st.booleans())
def test_each_lane_of_a_random_program_delivers_its_records(
    program: Program, buffer: int, lanes: list[State], whole: bool
) -> None:
    check_tapped_lanes(program, buffer, lanes, whole)


@in_parts(2, 12, program=programs(), buffer=BUFFERS, state=states())
def test_tap_and_jit_commute_on_random_programs(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_jitted(program, buffer, state)


@in_parts(2, 12, program=programs(), buffer=BUFFERS, state=states())
def test_a_donated_state_changes_nothing_that_is_delivered(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_donated(program, buffer, state)


@in_parts(2, 16, program=programs(), buffer=BUFFERS, state=states(), interval=st.integers(2, 4))
def test_an_interval_thins_what_random_programs_deliver(
    program: Program, buffer: int, state: State, interval: int
) -> None:
    check_tapped_interval(program, buffer, state, interval)


@in_parts(2, 16, program=programs(unbounded=False), buffer=BUFFERS, state=states())
def test_the_gradient_through_tap_is_the_plain_one(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_gradient(program, buffer, state)

"""`tap` against the oracle: every record once, in order, of fixed and random programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_programs import HARD
from oracle import Program
from oracle_checks import compiled_quickly
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
from test_oracle import STATES, every_other

BUFFERS = (1, 7, 64)
buffers = st.sampled_from(BUFFERS)


def each_program_and_buffer() -> Iterator[Any]:
    """Every program with one of the buffers in turn; what is left out of all pairs is slow."""
    for number, program in enumerate(HARD):
        for buffer in BUFFERS:
            taken = buffer == BUFFERS[number % len(BUFFERS)]
            marks = [] if taken else [pytest.mark.slow]
            yield pytest.param(buffer, program, marks=marks, id=f"{buffer}-{program.__name__}")


@pytest.mark.parametrize(("buffer", "program"), list(each_program_and_buffer()))
def test_a_hard_program_delivers_what_the_oracle_recorded(program: Program, buffer: int) -> None:
    check_tapped(program, buffer, *STATES)


@every_other(1)
@pytest.mark.parametrize(
    "buffer", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 64))]
)
def test_each_lane_of_a_hard_program_delivers_its_records(program: Program, buffer: int) -> None:
    check_tapped_lanes(program, buffer, STATES, whole=buffer == 7)


@settings(max_examples=3)
@given(programs(), buffers, states())
@compiled_quickly()
def test_a_random_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped(program, buffer, state)


@settings(max_examples=3)
@given(programs(), st.sampled_from((1, 2, 7, 64)), st.lists(states(), min_size=3, max_size=4))
@compiled_quickly()
def test_each_lane_of_a_random_program_delivers_its_records(
    program: Program, buffer: int, lanes: list[State]
) -> None:
    check_tapped_lanes(program, buffer, lanes, whole=buffer == 7)


@settings(max_examples=2)
@given(programs(), buffers, states())
@compiled_quickly()
def test_tap_and_jit_commute_on_random_programs(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_jitted(program, buffer, state)


@settings(max_examples=1)
@given(programs(), buffers, states())
@compiled_quickly()
def test_a_donated_state_changes_nothing_that_is_delivered(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_donated(program, buffer, state)


@settings(max_examples=2)
@given(programs(), buffers, states(), st.integers(2, 3))
@compiled_quickly()
def test_an_interval_thins_what_random_programs_deliver(
    program: Program, buffer: int, state: State, interval: int
) -> None:
    check_tapped_interval(program, buffer, state, interval)


@settings(max_examples=3)
@given(programs(unbounded=False), buffers, states())
@compiled_quickly()
def test_the_gradient_through_tap_is_the_plain_one(
    program: Program, buffer: int, state: State
) -> None:
    check_tapped_gradient(program, buffer, state)

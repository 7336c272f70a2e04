"""`tap` against the oracle: every record once, in order, of fixed and random programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from hard_programs import HARD
from oracle import Program
from oracle_checks import on_random_programs
from program_strategies import derivatives, programs, states
from programs import State
from tap_checks import (
    check_tapped,
    check_tapped_donated,
    check_tapped_gradient,
    check_tapped_interval,
    check_tapped_jitted,
    check_tapped_lanes,
)
from test_oracle import LANES, STATES, one_hard_program_in

BUFFERS = (1, 7, 64, None)  # with None, the host adapts it
BUFFER = st.sampled_from((None, 1, 2, 3, 7, 64))


def each_program_and_buffer() -> Iterator[Any]:
    """All pairs, which are slow but for every other program with one of the buffers in turn."""
    for index, program in enumerate(HARD):
        for buffer in BUFFERS:
            taken = index % 2 == 1 and buffer == BUFFERS[index // 2 % len(BUFFERS)]
            marks = [] if taken else [pytest.mark.slow]
            yield pytest.param(buffer, program, marks=marks, id=f"{buffer}-{program.__name__}")


@pytest.mark.parametrize(("buffer", "program"), list(each_program_and_buffer()))
def test_a_hard_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int | None
) -> None:
    check_tapped(program, buffer, *STATES)


@one_hard_program_in(4, first=2)
@pytest.mark.parametrize(
    "buffer", [7, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 64))]
)
def test_each_lane_of_a_hard_program_delivers_its_records(
    program: Program, buffer: int | None
) -> None:
    check_tapped_lanes(program, buffer, STATES, whole=buffer == 7)


@on_random_programs(12, 96, program=programs(), buffer=BUFFER, state=states())
def test_a_random_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int | None, state: State
) -> None:
    check_tapped(program, buffer, state)


@on_random_programs(12, 96, program=derivatives(), buffer=BUFFER, state=states())
def test_a_derivative_of_a_random_program_delivers_what_the_oracle_recorded(
    program: Program, buffer: int | None, state: State
) -> None:
    check_tapped(program, buffer, state)


@on_random_programs(6, 36, program=programs(), buffer=BUFFER, lanes=LANES, whole=st.booleans())
def test_each_lane_of_a_random_program_delivers_its_records(
    program: Program, buffer: int | None, lanes: list[State], whole: bool
) -> None:
    check_tapped_lanes(program, buffer, lanes, whole)


@on_random_programs(3, 24, program=programs(), buffer=BUFFER, state=states())
def test_tap_and_jit_commute_on_random_programs(
    program: Program, buffer: int | None, state: State
) -> None:
    check_tapped_jitted(program, buffer, state)


@on_random_programs(1, 12, program=programs(), buffer=BUFFER, state=states())
def test_a_donated_state_changes_nothing_that_is_delivered(
    program: Program, buffer: int | None, state: State
) -> None:
    check_tapped_donated(program, buffer, state)


@on_random_programs(
    3, 24, program=programs(), buffer=BUFFER, state=states(), interval=st.integers(2, 4)
)
def test_an_interval_thins_what_random_programs_deliver(
    program: Program, buffer: int | None, state: State, interval: int
) -> None:
    check_tapped_interval(program, buffer, state, interval)


@on_random_programs(3, 24, program=programs(unbounded=False), buffer=BUFFER, state=states())
def test_the_gradient_through_tap_is_the_plain_one(
    program: Program, buffer: int | None, state: State
) -> None:
    check_tapped_gradient(program, buffer, state)

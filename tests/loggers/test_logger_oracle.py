"""Loggers against the oracle: a run has every record of its lane once, each key in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hard_programs import HARD
from logger_checks import (
    check_aggregate,
    check_lanes_of_one_run,
    check_logged,
    check_logged_lanes,
)
from oracle import Program
from oracle_checks import compiled_quickly
from program_strategies import programs, states
from programs import State
from test_oracle import STATES, one_hard_program_in
from test_tap_oracle import BUFFER

ways = st.sampled_from((None, 1, 7, 64))  # None is the logger's `spool`, else it is its `tap`
LANES = st.lists(states(), min_size=2, max_size=2)
EQUAL = programs(
    kinds=("float32", "int32", "vector"), ragged=False, without=("Shards",), steady=True
)


def way_of(program: Program) -> int | None:
    return (1, 7, None, 7)[HARD.index(program) % 4]


@one_hard_program_in(5, first=2)
@compiled_quickly()
def test_a_run_has_the_records_of_a_hard_program(program: Program) -> None:
    check_logged(program, way_of(program), *STATES[:2])


@one_hard_program_in(5, first=0)
@compiled_quickly()
def test_the_run_of_each_lane_has_its_records(program: Program) -> None:
    check_logged_lanes(program, way_of(program), STATES)


@settings(max_examples=2)
@given(programs(), ways, LANES)
@compiled_quickly()
def test_a_run_has_the_records_of_a_random_program(
    program: Program, way: int | None, starts: list[State]
) -> None:
    check_logged(program, way, *starts)


@settings(max_examples=1)
@given(programs(), ways, LANES)
@compiled_quickly()
def test_one_run_given_to_all_lanes_has_the_records_of_each(
    program: Program, way: int | None, lanes: list[State]
) -> None:
    check_lanes_of_one_run(program, way, lanes)


@settings(max_examples=1)
@given(EQUAL, BUFFER, LANES)
@compiled_quickly()
def test_an_aggregate_has_mean_least_and_greatest_of_each_record(
    program: Program, buffer: int, lanes: list[State]
) -> None:
    check_aggregate(program, buffer, lanes)


@pytest.mark.slow
@settings(max_examples=12)
@given(programs(), ways, LANES)
@compiled_quickly()
def test_a_run_has_the_records_of_many_random_programs(
    program: Program, way: int | None, starts: list[State]
) -> None:
    check_logged(program, way, *starts)


@pytest.mark.slow
@settings(max_examples=12)
@given(programs(), ways, LANES)
@compiled_quickly()
def test_the_run_of_each_lane_has_the_records_of_a_random_program(
    program: Program, way: int | None, lanes: list[State]
) -> None:
    check_logged_lanes(program, way, lanes)
    check_lanes_of_one_run(program, way, lanes)


@pytest.mark.slow
@settings(max_examples=12)
@given(EQUAL, BUFFER, LANES)
@compiled_quickly()
def test_aggregates_of_many_random_programs(
    program: Program, buffer: int, lanes: list[State]
) -> None:
    check_aggregate(program, buffer, lanes)

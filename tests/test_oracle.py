"""`spool` against the oracle: every record, value, step and order, of fixed and random programs.

The fixed programs come first, one hard case each under a name that says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from hard_programs import HARD, loops_of_length_zero, while_in_a_loop_of_length_zero
from oracle import Program
from oracle_checks import (
    REDUCTIONS,
    check_donated,
    check_gradient,
    check_jitted,
    check_kept,
    check_lanes,
    check_nesting,
    check_plain,
    check_records,
    check_reduction,
    check_tags,
    on_random_programs,
)
from program_strategies import derivatives, programs, states
from programs import REAL, State

STATES: list[State] = [
    {"x": np.float32(x), "n": np.int32(n), "v": np.asarray(v, np.float32)}
    for x, n, v in [(0, 0, [0, 1, 2]), (3, 2, [9, 4, 4]), (8, 5, [1, 15, 7]), (6, 3, [2, 2, 0])]
]


def one_hard_program_in(number: int, first: int) -> Callable[[Any], Any]:
    """All hard programs, which are slow but for each `number`-th one, beginning with `first`."""
    return pytest.mark.parametrize(
        "program",
        [
            pytest.param(
                program,
                marks=[] if index % number == first else [pytest.mark.slow],
                id=program.__name__,
            )
            for index, program in enumerate(HARD)
        ],
    )


@one_hard_program_in(2, first=0)
def test_a_hard_program_logs_what_the_oracle_recorded(program: Program) -> None:
    check_plain(program, *STATES)
    check_records(program, *STATES)


@one_hard_program_in(3, first=1)
def test_each_lane_of_a_hard_program_logs_what_the_oracle_recorded(program: Program) -> None:
    check_lanes(program, STATES)


@one_hard_program_in(4, first=3)
def test_interval_and_capacity_keep_some_records_of_a_hard_program(program: Program) -> None:
    check_kept(program, STATES, interval=2, capacity=3)


@pytest.mark.parametrize("program", [loops_of_length_zero, while_in_a_loop_of_length_zero])
def test_a_reduction_of_no_records_has_no_records(program: Program) -> None:
    for how in (*REDUCTIONS, "count"):
        check_reduction(program, STATES[:1], how)


LANES = st.lists(states(), min_size=2, max_size=4)
SOME = st.lists(states(), min_size=1, max_size=2)


@on_random_programs(30, 240, program=programs(), state=states())
def test_a_random_program_logs_what_the_oracle_recorded(program: Program, state: State) -> None:
    check_records(program, state)


@on_random_programs(2, 24, program=programs() | derivatives(), state=states())
def test_a_random_program_is_the_same_without_a_harvest(program: Program, state: State) -> None:
    check_plain(program, state)


@on_random_programs(0, 12, program=programs(size=14), state=states())
def test_a_long_random_program_logs_what_the_oracle_recorded(
    program: Program, state: State
) -> None:
    check_records(program, state)


@on_random_programs(36, 240, program=derivatives(), state=states())
def test_a_derivative_of_a_random_program_logs_what_the_oracle_recorded(
    program: Program, state: State
) -> None:
    check_records(program, state)


@on_random_programs(12, 84, program=programs(), lanes=LANES)
def test_each_lane_of_a_random_program_logs_what_the_oracle_recorded(
    program: Program, lanes: list[State]
) -> None:
    check_lanes(program, lanes)


@on_random_programs(4, 24, program=programs(), state=states())
def test_spool_and_jit_commute_on_random_programs(program: Program, state: State) -> None:
    check_jitted(program, state)


@on_random_programs(2, 12, program=programs(), state=states())
def test_a_donated_state_changes_nothing_on_random_programs(program: Program, state: State) -> None:
    check_donated(program, state)


@on_random_programs(6, 36, program=programs(), lanes=SOME, interval=st.integers(2, 4))
def test_an_interval_thins_random_programs(
    program: Program, lanes: list[State], interval: int
) -> None:
    check_kept(program, lanes, interval=interval)


@on_random_programs(
    6,
    36,
    program=programs(),
    lanes=SOME,
    interval=st.integers(1, 2),
    capacity=st.integers(1, 5),
)
def test_a_small_capacity_keeps_the_last_records_of_random_programs(
    program: Program, lanes: list[State], interval: int, capacity: int
) -> None:
    check_kept(program, lanes, interval, capacity)


@on_random_programs(
    6,
    48,
    program=programs(kinds=REAL),
    lanes=SOME,
    how=st.sampled_from([*REDUCTIONS, "count"]),
    interval=st.integers(1, 3),
)
def test_a_reduction_of_a_random_program_is_that_of_numpy(
    program: Program, lanes: list[State], how: str, interval: int
) -> None:
    check_reduction(program, lanes, how, interval)


@on_random_programs(6, 48, program=programs(unbounded=False), state=states())
def test_the_gradient_through_spool_is_the_plain_one(program: Program, state: State) -> None:
    check_gradient(program, state)


@on_random_programs(
    4,
    24,
    program=programs(),
    state=states(),
    keep_logs=st.booleans(),
    pick=st.integers(0, 2),
    prefix=st.sampled_from(["", "run/"]),
)
def test_nested_harvests_share_random_programs_by_name(
    program: Program, state: State, keep_logs: bool, pick: int, prefix: str
) -> None:
    check_nesting(program, state, keep_logs, pick, prefix)


@on_random_programs(
    4, 24, program=programs(), state=states(), tag=st.sampled_from(["seldom", "dear"])
)
def test_tags_choose_from_random_programs(program: Program, state: State, tag: str) -> None:
    check_tags(program, state, tag)

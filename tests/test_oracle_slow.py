"""The checks against the oracle on many more random programs, in parts for parallel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from oracle import Program
from oracle_checks import (
    REDUCTIONS,
    check_donated,
    check_gradient,
    check_inside_gradient,
    check_jitted,
    check_kept,
    check_lanes,
    check_nesting,
    check_records,
    check_reduction,
    check_tags,
)
from program_strategies import programs, programs_for_gradients, states
from programs import REAL, State

pytestmark = pytest.mark.slow


def in_parts(parts: int, examples: int, **strategies: Any) -> Callable[[Any], Any]:
    """Run a check on `examples` random draws, in `parts` tests of one seed each."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("part", range(parts))
        def test(part: int) -> None:
            run = settings(max_examples=examples // parts)
            run(seed(part)(given(**strategies)(check)))()

        test.__name__ = check.__name__
        return test

    return decorate


LANES = st.lists(states(), min_size=2, max_size=4)
SOME = st.lists(states(), min_size=1, max_size=2)


@in_parts(4, 160, program=programs(), state=states())
def test_a_random_program_logs_what_the_oracle_recorded(program: Program, state: State) -> None:
    check_records(program, state)


@in_parts(2, 12, program=programs(size=14), state=states())
def test_a_long_random_program_logs_what_the_oracle_recorded(
    program: Program, state: State
) -> None:
    check_records(program, state)


@in_parts(2, 40, program=programs(), lanes=LANES)
def test_each_lane_of_a_random_program_logs_what_the_oracle_recorded(
    program: Program, lanes: list[State]
) -> None:
    check_lanes(program, lanes)


@in_parts(2, 12, program=programs(), state=states())
def test_spool_and_jit_commute_on_random_programs(program: Program, state: State) -> None:
    check_jitted(program, state)


@in_parts(2, 12, program=programs(), state=states())
def test_a_donated_state_changes_nothing_on_random_programs(program: Program, state: State) -> None:
    check_donated(program, state)


@in_parts(2, 16, program=programs(), lanes=SOME, interval=st.integers(2, 4))
def test_an_interval_thins_random_programs(
    program: Program, lanes: list[State], interval: int
) -> None:
    check_kept(program, lanes, interval=interval)


@in_parts(
    2,
    16,
    program=programs(),
    lanes=SOME,
    interval=st.integers(1, 2),
    capacity=st.integers(1, 5),
)
def test_a_small_capacity_keeps_the_last_records_of_random_programs(
    program: Program, lanes: list[State], interval: int, capacity: int
) -> None:
    check_kept(program, lanes, interval, capacity)


@in_parts(
    2,
    24,
    program=programs(kinds=REAL),
    lanes=SOME,
    how=st.sampled_from([*REDUCTIONS, "count"]),
    interval=st.integers(1, 3),
)
def test_a_reduction_of_a_random_program_is_that_of_numpy(
    program: Program, lanes: list[State], how: str, interval: int
) -> None:
    check_reduction(program, lanes, how, interval)


@in_parts(2, 32, program=programs(unbounded=False), state=states())
def test_the_gradient_through_spool_is_the_plain_one(program: Program, state: State) -> None:
    check_gradient(program, state)


@in_parts(2, 24, program=programs_for_gradients(), state=states())
def test_spool_sees_the_records_inside_a_gradient(program: Program, state: State) -> None:
    check_inside_gradient(program, state)


@in_parts(
    2,
    16,
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


@in_parts(2, 12, program=programs(), state=states(), tag=st.sampled_from(["seldom", "dear"]))
def test_tags_choose_from_random_programs(program: Program, state: State, tag: str) -> None:
    check_tags(program, state, tag)

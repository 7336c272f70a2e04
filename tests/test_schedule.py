"""Schedules in Python loops, compared with asking at every step; test_every.py tests programs."""

from __future__ import annotations

import operator
import time
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
import logax.loop
from logax import Between, EveryNStep, EverySeconds, Once, OnSteps

TOTAL = 60

single = st.one_of(
    st.builds(Once),
    st.builds(EveryNStep, st.integers(1, 12)),
    st.builds(OnSteps, st.lists(st.integers(0, TOTAL + 10), max_size=6)),
    st.tuples(st.integers(0, TOTAL), st.none() | st.integers(0, 20)).map(
        lambda ends: Between(ends[0], None if ends[1] is None else ends[0] + ends[1])
    ),
)
fixed = st.recursive(
    single,
    lambda parts: st.builds(
        lambda combine, a, b: combine(a, b),
        st.sampled_from([operator.or_, operator.and_]),
        parts,
        parts,
    ),
    max_leaves=6,
)


def due(schedule: Any, total: int = TOTAL) -> list[int]:
    return [step for step in range(total) if schedule.should_log(step)]


@hypothesis.settings(max_examples=200)
@hypothesis.given(a=fixed, b=fixed)
def test_both_and_either_are_those_of_sets(a: Any, b: Any) -> None:
    assert due(a | b) == sorted({*due(a), *due(b)})
    assert due(a & b) == sorted({*due(a)} & {*due(b)})


@hypothesis.settings(max_examples=200)
@hypothesis.given(schedule=fixed, total=st.integers(0, TOTAL))
def test_rows_are_counted_and_numbered_as_the_steps_are_due(schedule: Any, total: int) -> None:
    steps = due(schedule, total)
    if isinstance(schedule, Once):
        assert schedule.leading_shape(total) == ()
        assert schedule.dataset_index(0) is ...
    else:
        assert schedule.leading_shape(total) == (len(steps),)
        assert [schedule.dataset_index(step) for step in steps] == list(range(len(steps)))


@hypothesis.settings(max_examples=40)
@hypothesis.given(schedule=fixed)
def test_a_traced_step_gets_the_same_answer(schedule: Any) -> None:
    steps = jnp.arange(TOTAL)
    answers = jax.vmap(lambda step: jnp.asarray(schedule.should_log(step)))(steps)
    assert np.flatnonzero(answers).tolist() == due(schedule)
    assert [bool(schedule.should_log(np.int64(step))) for step in range(TOTAL)] == answers.tolist()


@hypothesis.settings(max_examples=40)
@hypothesis.given(schedule=fixed)
def test_a_schedule_is_printed_as_it_could_be_written(schedule: Any) -> None:
    names = {"EveryNStep": EveryNStep, "OnSteps": OnSteps, "Between": Between, "Once": Once}
    assert due(eval(repr(schedule), names)) == due(schedule)


def test_a_schedule_with_a_clock_is_printed_so_too() -> None:
    either = EverySeconds(3) | EveryNStep(4)
    said = "EveryNStep(n=4) | EverySeconds(3)"
    assert repr(either) == said
    assert repr(either & Between(0, 9)) == f"Between(first=0, last=9) & ({said})"


def test_many_windows_and_far_steps_are_counted_at_once() -> None:
    windows: Any = OnSteps([])
    for first in range(0, 10_000, 100):
        windows = windows | Between(first, first + 9)
    nested: Any = OnSteps([])
    for size in range(50):
        nested = nested | Between(size, 1000 - size)
    assert nested.leading_shape(10**12) == (1001,)
    assert (windows & EveryNStep(5)).leading_shape(10**12) == (200,)
    assert EveryNStep(7).dataset_index(7 * 10**15) == 10**15
    assert (EveryNStep(6) | EveryNStep(10)).leading_shape(30 * 10**15) == (7 * 10**15,)


class Odd:
    """A user's schedule."""

    def should_log(self, step: int) -> bool:
        return step % 2 == 1


def test_a_schedule_of_your_own_combines_from_both_sides() -> None:
    assert due(Odd() | EveryNStep(4), 9) == due(EveryNStep(4) | Odd(), 9) == [0, 1, 3, 4, 5, 7, 8]
    assert due(Odd() & Between(2, 6), 9) == due(Between(2, 6) & Odd(), 9) == [3, 5]
    assert not hasattr(Odd() & Between(2, 6), "leading_shape")
    assert due(Between(0, 2) | 4, 9) == [0, 1, 2, 4, 8]
    with pytest.raises(TypeError, match="unsupported operand"):
        EveryNStep(2) | "3"


class Fourth:
    """A schedule that returns numbers and None."""

    def should_log(self, step: int) -> Any:
        return step & 4 or None


def test_whatever_is_true_counts_as_yes() -> None:
    assert due(EveryNStep(1) & Fourth(), 9) == due(Fourth() | OnSteps([]), 9) == [4, 5, 6, 7]


def test_negative_and_very_large_steps_get_one_answer_everywhere() -> None:
    for schedule, step in ((EveryNStep(2), -2), (EveryNStep(2**31), 2**31), (EveryNStep(3), -2)):
        answers = [schedule.should_log(kind(step)) for kind in (int, np.int64)]
        kind = jnp.uint32 if step > 0 else jnp.int32
        answers.append(jax.jit(schedule.should_log)(kind(step)))
        assert {bool(answer) for answer in answers} == {step % schedule.n == 0}


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(TypeError, match=r"A schedule takes a step.*in this order"):
        EveryNStep(2).should_log({"x": 1})
    with pytest.raises(ValueError, match="`dataset_index` takes a step that is due, and 5 is"):
        EveryNStep(2).dataset_index(5)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def due_in_time(schedule: Any, clock: Clock, steps: Any = range(10)) -> list[int]:
    """Return the due steps of a loop whose steps take a second each."""
    found = []
    for step in steps:
        if schedule.should_log(step):
            found.append(step)
        clock.now += 1.0
    return found


def test_seconds_are_counted_from_the_last_step_that_was_due(clock: Clock) -> None:
    assert due_in_time(EverySeconds(3), clock) == [0, 3, 6, 9]
    assert due_in_time(EverySeconds(2.5), clock) == [0, 3, 6, 9]
    assert due_in_time(EverySeconds(0.1), clock) == list(range(10))
    assert due_in_time(EverySeconds(3), clock, range(20, 30)) == [20, 23, 26, 29]


def test_several_may_share_a_clock_and_a_new_run_begins_anew(clock: Clock) -> None:
    shared = EverySeconds(4)
    asked = [(shared.should_log(step), shared.should_log(step)) for step in range(3)]
    assert asked == [(True, True), (False, False), (False, False)]
    assert due_in_time(shared, clock) == [0, 4, 8]
    assert due_in_time(shared, clock) == [0, 4, 8]


@pytest.mark.parametrize("swap", [False, True])
def test_a_clock_waits_for_the_steps_that_it_is_combined_with(clock: Clock, swap: bool) -> None:
    parts = (EverySeconds(2), EveryNStep(3))
    a, b = parts[::-1] if swap else parts
    assert due_in_time(a & b, clock, range(12)) == [0, 3, 6, 9]
    slow = EverySeconds(5) & EveryNStep(2)
    assert due_in_time(slow, clock, range(14)) == [0, 6, 12]
    assert not hasattr(slow, "leading_shape")
    a, b = (EveryNStep(4), EverySeconds(3)) if swap else (EverySeconds(3), EveryNStep(4))
    assert due_in_time(a | b, clock, range(12)) == [0, 3, 4, 6, 8, 9]


def test_the_real_clock_is_looked_at() -> None:
    before, schedule = time.monotonic(), EverySeconds(0.01)
    assert schedule.should_log(0)
    step = 1
    while not schedule.should_log(step):
        step += 1
    assert time.monotonic() - before >= 0.01


def test_inside_a_program_there_is_no_clock() -> None:
    def f(i: Any) -> None:
        logax.log({"x": 1.0}, every=EverySeconds(1) & EveryNStep(2), step=i)

    with pytest.raises(
        ValueError, match=r"no clock, and got EveryNStep\(n=2\) & EverySeconds\(1\)"
    ):
        logax.spool(f)(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EveryNStep(-3), "`EveryNStep` takes a whole number of 1 or more, and got -3."),
        (lambda: EveryNStep(2.5), "and got 2.5."),  # type: ignore[arg-type]
        (
            lambda: EverySeconds(0),
            "`EverySeconds` takes `seconds` in seconds, more than 0, and got 0",
        ),
        (lambda: EverySeconds(float("nan")), "and got nan."),
        (lambda: EverySeconds("1"), "and got '1'."),  # type: ignore[arg-type]
        (lambda: Between(5, 2), "and got 5 and 2. Write `Between(2, 5)`."),
        (lambda: Between(-1, 2), "`Between` takes whole numbers of 0 or more, and got -1 and 2."),
        (lambda: OnSteps([-1]), "`OnSteps` takes whole numbers of 0 or more, and got (-1,)."),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
        make()
    assert message in str(caught.value)


def test_schedules_are_the_same_wherever_they_are_imported_from() -> None:
    names = [
        "Between",
        "EveryNStep",
        "EverySeconds",
        "LoggingFrequency",
        "Once",
        "OnSteps",
        "Schedule",
    ]
    assert all(getattr(logax, name) is getattr(logax.loop, name) for name in names)
    assert logax.LoggingFrequency is logax.Schedule
    assert all(isinstance(each, logax.Schedule) for each in (Once(), EverySeconds(1), Odd()))

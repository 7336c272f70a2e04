"""Checks that stop a run, and the contents of the error."""

from __future__ import annotations

import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax import EveryNStep, OnSteps
from logax.loop import CheckLogger, InvariantViolation, nan_check
from loops import Particles, advance, held_state, run


def energy_is_small(state: Any) -> Any:
    return state.energy < 6


def test_a_run_stops_at_the_step_that_breaks_an_invariant() -> None:
    done: list[int] = []
    check = CheckLogger(energy_is_small, EveryNStep(1), "The energy is too large.")
    with pytest.raises(InvariantViolation, match=r"^Step 5: The energy is too large\.$") as caught:
        run(check, at=done.append)
    assert done == [0, 1, 2, 3, 4]
    assert caught.value.step == 5
    assert isinstance(caught.value.view, Particles)
    assert caught.value.view.energy == 6
    np.testing.assert_array_equal(caught.value.view.position, np.full((4, 2), 6.0))


def test_only_the_steps_of_the_schedule_are_looked_at() -> None:
    with pytest.raises(InvariantViolation, match=r"Step 8: `energy_is_small` does not hold\."):
        run(CheckLogger(energy_is_small, EveryNStep(4)))
    run(CheckLogger(energy_is_small, OnSteps([0, 4])))


def test_the_error_carries_what_the_view_gives_and_survives_what_follows() -> None:
    check = CheckLogger(energy_is_small, 1, view=lambda state: {"at": state.position[0]})
    kept: list[Particles] = []

    def loop() -> None:
        state = Particles.at_rest()
        with check:
            for step in range(10):
                state = advance(state)
                kept[:] = [state]
                check.log(state, step)

    with pytest.raises(InvariantViolation) as caught:
        loop()
    advance(advance(kept[0]))
    np.testing.assert_array_equal(caught.value.view["at"], [6.0, 6.0])
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - processes pass errors on so
    assert (str(again), again.step) == (str(caught.value), 5)


def test_python_answers_are_answers() -> None:
    run(CheckLogger(lambda state: True, 1))
    with pytest.raises(InvariantViolation, match="Step 0"):
        run(CheckLogger(lambda state: np.False_, 1))


def test_an_answer_for_each_particle_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must answer with one boolean.*Write `\.all\(\)`"):
        run(CheckLogger(lambda state: state.position > 0, 1))


def test_the_device_is_waited_for_only_when_due() -> None:
    with CheckLogger(energy_is_small, OnSteps([9])) as check, held_state() as state:
        for step in range(9):
            check.log(state, step)


@pytest.mark.parametrize("answer", ["no", None, 1, [], jnp.float32(0)])
def test_an_answer_that_is_no_boolean_is_refused(answer: Any) -> None:
    check = CheckLogger(lambda state: answer, 1)
    with check, pytest.raises(TypeError, match=r"`<lambda>` of `CheckLogger` must answer with one"):
        check.log(0.0, 0)


def test_inside_a_traced_function_the_error_points_to_log() -> None:
    with (
        CheckLogger(lambda x: x > 0, 1) as check,
        pytest.raises(TypeError, match=r"write `logax\.log"),
    ):
        jax.jit(lambda x: check.log(x, 0))(jnp.float32(1))


# NaNs.


def break_at(step: int, value: float) -> Any:
    state = Particles.at_rest()
    with CheckLogger(nan_check(), 1) as check:
        for i in range(10):
            state = advance(state)
            if i == step:
                state.position = state.position.at[1].set(value)
            check.log(state, i)


def test_a_nan_stops_the_run_and_is_named() -> None:
    with pytest.raises(InvariantViolation) as caught:
        break_at(4, np.nan)
    assert str(caught.value) == "Step 4: There are NaNs: 2 of 8 in `position`."
    assert caught.value.step == 4
    assert np.isnan(caught.value.view.position[1]).all()


def test_infinities_are_only_looked_for_if_asked() -> None:
    break_at(4, np.inf)
    check = CheckLogger(nan_check(infinite=True), 1)
    message = r"NaNs or infinities: 1 of 2 in the value\."
    with check, pytest.raises(InvariantViolation, match=message):
        check.log(jnp.array([1.0, -jnp.inf]), 0)


def test_the_view_says_what_to_look_at() -> None:
    check = CheckLogger(nan_check(lambda state: {"e": state["energy"]}), 1, "The run blew up.")
    bad = {"energy": jnp.float32(jnp.nan), "position": jnp.zeros(2)}
    with check:
        check.log({"energy": jnp.float32(0), "position": jnp.full(2, jnp.nan)}, 0)
        with pytest.raises(InvariantViolation) as caught:
            check.log(bad, 1)
    assert str(caught.value) == "Step 1: The run blew up. There are NaNs: 1 of 1 in `e`."
    assert list(caught.value.view) == ["e"]


def test_models_whole_numbers_and_keys_have_no_nans() -> None:
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    state = (model, jnp.arange(3), jax.random.key(0), "text", None, np.float32(1))
    with CheckLogger(nan_check(), 1) as check:
        check.log(state, 0)
        check.log((), 1)
        broken = eqx.tree_at(lambda m: m.layers[1].bias, model, jnp.full(2, jnp.nan))
        with pytest.raises(InvariantViolation, match=r"2 of 2 in `0/layers/1/bias`"):
            check.log((broken, *state[1:]), 2)


def test_numbers_of_python_and_numpy_are_looked_at_as_they_are() -> None:
    with CheckLogger(nan_check(), 1) as check, pytest.raises(InvariantViolation, match="`loss`"):
        check.log({"loss": float("nan")}, 0)
    with CheckLogger(nan_check(infinite=True), 1) as check:
        check.log(
            {"wide": np.array([1e39]), "long": np.longdouble(1), "swapped": np.ones(2, ">f8")}, 0
        )
        with pytest.raises(InvariantViolation, match="1 of 2 in `swapped`"):
            check.log({"swapped": np.array([1, np.inf], ">f8")}, 1)


def test_arrays_may_be_on_different_devices() -> None:
    first, second, *_ = jax.devices()
    state = {"a": jax.device_put(jnp.ones(2), first), "b": jax.device_put(jnp.ones(2), second)}
    with CheckLogger(nan_check(), 1) as check:
        check.log(state, 0)
        with pytest.raises(InvariantViolation, match="1 of 2 in `b`"):
            check.log({**state, "b": state["b"].at[0].set(jnp.nan)}, 1)


def test_the_explanation_is_of_what_was_checked_and_the_view_is_what_was_asked_for() -> None:
    check = CheckLogger(nan_check(), 1, "It blew up", view=lambda state: state["b"])
    with check, pytest.raises(InvariantViolation) as caught:
        check.log({"w": jnp.array([jnp.nan]), "b": jnp.zeros(2)}, 0)
    assert str(caught.value) == "Step 0: It blew up. There are NaNs: 1 of 1 in `w`."
    np.testing.assert_array_equal(caught.value.view, [0, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CheckLogger(nan_check, 1), "Write `nan_check()`."),
        (lambda: CheckLogger(bool, 1, print), "`CheckLogger` takes a `message` to show, and got"),
        (lambda: CheckLogger(True, 1), "takes a function of the state that returns True if"),
        (lambda: CheckLogger(bool, 1, view=3), "`CheckLogger` takes a view, a function of the"),
        (lambda: nan_check(jnp.zeros(3)), "`nan_check` takes a view, a function of the state, and"),
        (lambda: CheckLogger(bool, 0), "The schedule of `CheckLogger` takes a whole number of 1"),
        (
            lambda: CheckLogger(bool, EveryNStep),
            "any object with `should_log(step)`, and got <class",
        ),
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert message in str(caught.value)

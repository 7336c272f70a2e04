"""`run_loop` and `key_chain`: arguments of the steps, calls of the logger, end of the loop."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

from logax.loop import CallbackLogger, NullLogger, RingBufferLogger, key_chain, run_loop
from loops import Particles, Told

KEY = jax.random.key(3)


def walk(key: Any, x: Any) -> Any:
    return x + jax.random.normal(key, x.shape)


def walked(start: Any, indices: Any) -> Any:
    for i in indices:
        start = jax.jit(walk)(jax.random.fold_in(KEY, i), start)
    return start


def test_a_loop_is_the_loop_by_hand() -> None:
    x = jnp.arange(3.0)
    out = run_loop(walk, x, 40, key=KEY)
    np.testing.assert_array_equal(out, walked(x, range(40)))


def test_without_a_key_the_step_takes_the_state_alone() -> None:
    assert float(run_loop(lambda x: x * 2, jnp.float32(1), 10)) == 1024
    assert float(run_loop(lambda x: x * 2, 1.0, 3)) == 8
    assert float(run_loop(lambda x: x * 2, np.float32(1), 0)) == 1


def test_the_state_that_was_given_stays_and_those_after_it_are_donated() -> None:
    state = Particles.at_rest()
    seen: list[Any] = []

    def step(state: Particles) -> Particles:
        return Particles(state.position + 1, state.energy + 1)

    last = run_loop(step, state, 5, logger=CallbackLogger(lambda s, i: seen.append(s), 1))
    np.testing.assert_array_equal(state.position, np.zeros((4, 2)))
    assert float(state.energy) == 0
    assert float(last.energy) == 5
    assert [s.position.is_deleted() for s in seen] == [True] * 4 + [False]


def test_the_logger_sees_every_step_and_is_left_at_the_end() -> None:
    book: list[Any] = []
    run_loop(
        lambda s: Particles(s.position, s.energy + 1),
        Particles.at_rest(),
        3,
        logger=Told("a", book),
    )
    assert [entry[1:] for entry in book] == [
        ("enter",),
        ("log", 0, 1.0),
        ("log", 1, 2.0),
        ("log", 2, 3.0),
        ("exit",),
    ]


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped() -> None:
    x = jnp.arange(3.0)
    steps: list[int] = []
    logger = CallbackLogger(lambda state, step: steps.append(step), 1)
    half = run_loop(walk, x, 17, key=KEY, logger=logger)
    whole = run_loop(walk, half, 40, key=KEY, logger=logger, start_step=17)
    assert steps == list(range(40))
    np.testing.assert_array_equal(whole, run_loop(walk, x, 40, key=KEY))
    np.testing.assert_array_equal(run_loop(walk, x, 5, key=KEY, start_step=5), x)
    warm = run_loop(walk, x, 9, key=KEY, warmup=4)
    half = run_loop(walk, x, 6, key=KEY, warmup=4)
    again = run_loop(walk, half, 9, key=KEY, warmup=4, start_step=6)
    np.testing.assert_array_equal(again, warm)


def test_warm_up_comes_first_unlogged_with_keys_of_its_own() -> None:
    x = jnp.arange(3.0)
    ring = RingBufferLogger(99)
    out = run_loop(walk, x, 4, key=KEY, logger=ring, warmup=3)
    warm = walked(x, [2**32 - 3, 2**32 - 2, 2**32 - 1])
    np.testing.assert_array_equal(out, walked(warm, range(4)))
    assert [step for step, _ in ring.buf] == [0, 1, 2, 3]
    np.testing.assert_array_equal(ring.buf[0][1], walked(warm, [0]))


def test_an_array_ends_the_loop_one_step_after_it_is_true() -> None:
    ring = RingBufferLogger(99)
    out = run_loop(lambda x: x + 1, jnp.float32(0), 50, logger=ring, until=lambda x: x >= 5)
    assert float(out) == 6
    assert [step for step, _ in ring.buf] == list(range(6))
    assert float(ring.buf[-1][1]) == 6
    assert float(run_loop(lambda x: x + 1, jnp.float32(0), 5, until=lambda x: x >= 5)) == 5


def test_a_part_of_the_state_can_say_when_to_end() -> None:
    def step(state: Any) -> Any:
        return {"x": state["x"] + 1, "done": state["done"] | (state["x"] > 3)}

    start = {"x": jnp.float32(0), "done": jnp.array(False)}
    out = run_loop(step, start, 20, until=lambda state: state["done"])
    assert float(out["x"]) == 6
    flips = run_loop(lambda flag: ~flag, jnp.array(True), 9, until=lambda flag: flag)
    assert not flips


def test_answers_of_both_kinds_count() -> None:
    answers = iter([jnp.array(True), False, False, False])
    assert float(run_loop(lambda x: x + 1, jnp.float32(0), 4, until=lambda x: next(answers))) == 2


def test_a_bound_that_is_never_reached_costs_nothing() -> None:
    out = run_loop(lambda x: x + 1, jnp.float32(0), 10**30, until=lambda x: bool(x > 3))
    assert float(out) == 4
    assert float(run_loop(lambda x: x + 1, jnp.float32(0), 0, warmup=np.uint8(3))) == 3  # type: ignore[arg-type]


def test_a_boolean_of_python_ends_it_at_once() -> None:
    out = run_loop(lambda x: x + 1, jnp.float32(0), 50, until=lambda x: float(x) >= 5)
    assert float(out) == 5


def test_the_loop_compiles_the_step_once_in_all_calls() -> None:
    traces: list[int] = []

    def step(key: Any, x: Any) -> Any:
        traces.append(1)
        return walk(key, x)

    run_loop(step, jnp.zeros(3), 5, key=KEY, warmup=2)
    run_loop(step, jnp.ones(3), 5, key=KEY)
    assert len(traces) == 1


def test_jitted_steps_and_bound_methods_are_steps() -> None:
    class Model:
        scale = 2.0

        def step(self, x: Any) -> Any:
            return x * self.scale

    assert float(run_loop(jax.jit(lambda x: x + 1), jnp.float32(0), 3)) == 3
    assert float(run_loop(Model().step, jnp.float32(1), 3)) == 8


def test_a_step_that_does_not_tell_what_it_takes_is_a_step() -> None:
    class Doubles:
        __signature__ = 1  # which is none

        def __call__(self, x: Any) -> Any:
            return x * 2

    with pytest.raises(TypeError, match="__signature__"):
        inspect.signature(Doubles())
    assert float(run_loop(Doubles(), jnp.float32(1), 3)) == 8


# States of all kinds.


def test_the_state_of_a_flax_model_in_training() -> None:
    model = nn.Dense(1)
    x = jnp.linspace(-1, 1, 8)[:, None]
    weights = model.init(KEY, x)
    state = TrainState.create(apply_fn=model.apply, params=weights, tx=optax.sgd(0.1))

    def step(state: TrainState) -> TrainState:
        def loss(weights: Any) -> Any:
            return jnp.mean((state.apply_fn(weights, x) - 3 * x) ** 2)

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    ring = RingBufferLogger(2)
    out = run_loop(step, state, 50, logger=ring)
    assert int(out.step) == 50
    assert int(state.step) == 0
    slope = ring.buf[-1][1].params["params"]["kernel"]
    np.testing.assert_array_equal(slope, out.params["params"]["kernel"])
    assert abs(float(slope[0, 0]) - 3) < 0.5


def test_a_model_of_equinox_whose_step_compiles_itself() -> None:
    model = eqx.nn.MLP(1, 1, 8, 1, key=KEY)
    x = jnp.linspace(-1, 1, 8)[:, None]

    @eqx.filter_jit(donate="all")
    def step(model: Any) -> Any:
        slopes = eqx.filter_grad(lambda m: jnp.mean((jax.vmap(m)(x) - x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, slopes))

    before = np.array(model.layers[0].weight)
    ring = RingBufferLogger(1)
    out = run_loop(step, model, 20, logger=ring)
    np.testing.assert_array_equal(model.layers[0].weight, before)
    assert not np.array_equal(out.layers[0].weight, before)
    np.testing.assert_array_equal(ring.buf[0][1].layers[0].weight, out.layers[0].weight)


def test_dictionaries_tuples_and_keys_in_the_state() -> None:
    def step(state: Any) -> Any:
        key, draw = jax.random.split(state["key"])
        return {"key": key, "x": (state["x"][0] + jax.random.normal(draw), None)}

    start = {"key": KEY, "x": (jnp.float32(0), None)}
    a, b = (run_loop(step, start, 5) for _ in range(2))
    assert float(a["x"][0]) == float(b["x"][0]) != 0
    assert numbers_of(start["key"]) == numbers_of(KEY)


# Keys.


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(3)], ids=["typed", "raw"])
def test_a_chain_folds_the_number_of_the_step_into_the_key(key: Any) -> None:
    chain = list(itertools.islice(key_chain(key), 70))
    assert [numbers_of(each) for each in chain] == [
        numbers_of(jax.random.fold_in(key, i)) for i in range(70)
    ]
    later = itertools.islice(key_chain(key, start=50), 20)
    assert [numbers_of(each) for each in later] == [numbers_of(each) for each in chain[50:]]


@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(3)], ids=["typed", "raw"])
def test_a_chain_with_a_shape_splits_the_key_of_each_step(key: Any) -> None:
    steps = list(itertools.islice(key_chain(key, (2, 3), start=5), 2))
    each = [jax.random.split(jax.random.fold_in(key, i), (2, 3)) for i in (5, 6)]
    assert [step.shape for step in steps] == [(2, 3, *key.shape)] * 2
    assert [numbers_of(step) for step in steps] == [numbers_of(own) for own in each]


def numbers_of(key: Any) -> list[int]:
    """Return the key data as a list."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run_loop(lambda x: x, 1.0, -1), "`run_loop` takes `num_steps` of 0 or more"),
        (lambda: run_loop(lambda x: x, 1.0, 1, warmup=-1), "takes `warmup` of 0 or more, and got"),
        (lambda: run_loop(lambda x: x, 1.0, 1, start_step=0.5), "`start_step` of 0 or more"),
        (lambda: run_loop(lambda x: x, 1.0, 3, start_step=5), "For 3 more, write `num_steps=8`."),
        (
            lambda: run_loop(lambda x: x, 1.0, 3, key=KEY),
            "`run_loop` calls `step_fn(key, state)` with a `key`, and got `<lambda>(x)`: too many",
        ),
        (
            lambda: run_loop(lambda key, x: x, 1.0, 3),
            "calls `step_fn(state)` without a `key`, and got `<lambda>(key, x)`: missing",
        ),
        (lambda: run_loop(walk, 1.0, 3, key=7), "`run_loop` takes one PRNG key, and got 7"),
        (lambda: run_loop(lambda x: x, 1.0, 3, until=lambda x: None), "and answered with None of"),
        (lambda: run_loop(3, 1.0, 1), "`run_loop` takes a function as `step_fn`, and got 3"),
        (
            lambda: run_loop(lambda x: x, jnp.zeros(2), 3, until=lambda x: x > 1),
            "`until` of `run_loop` must answer with one boolean, and answered with shape (2,).",
        ),
        (lambda: key_chain(jax.random.split(KEY, 3)), "`key_chain` takes one PRNG key, and"),
        (lambda: key_chain(7), "`key_chain` takes one PRNG key, and got 7"),
        (
            lambda: key_chain(KEY, 50),
            "`key_chain` takes a tuple of whole numbers as `shape`, and got",
        ),
        (
            lambda: key_chain(KEY, (2, -1)),
            "Write `shape=(8,)` for 8 keys at each step, and `start=`",
        ),
        (lambda: key_chain(KEY, start=-1), "`key_chain` takes `start` of 0 or more, and got -1"),
    ],
)
def test_wrong_use_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert message in str(caught.value)


def test_an_error_in_the_step_leaves_the_logger() -> None:
    book: list[Any] = []

    def step(state: Particles) -> Particles:
        raise LookupError("in the step")

    with pytest.raises(LookupError, match="in the step"):
        run_loop(step, Particles.at_rest(), 3, logger=Told("a", book))
    assert book == [("a", "enter"), ("a", "exit", "LookupError")]
    assert isinstance(NullLogger().__enter__(), NullLogger)

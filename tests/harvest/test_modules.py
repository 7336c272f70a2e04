"""equinox models as arguments, as functions and as results: passed as they are, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from models import TRACES, Net
from slow_cases import slow

X = np.arange(1.0, 4.0, dtype=np.float32)


def net(weight: float = 2.0) -> Net:
    return Net(jnp.full(3, weight), jax.nn.relu, "layer", 2)


def apply(model: Net, x: Any) -> Any:
    return model(x)


def assert_logs_of_net(result: tuple[Any, logax.logdict], weight: float = 2.0) -> None:
    out, logs = result
    assert out == (weight**2 * X).sum()
    assert list(logs) == ["layer"]
    np.testing.assert_array_equal(logs["layer"], [weight * X, weight**2 * X])
    np.testing.assert_array_equal(logs.steps["step"]["layer"], [0, 1])


WAYS: dict[str, Callable[[Net], Any]] = {
    "spool(step)(model, x)": lambda m: logax.spool(apply)(m, X),
    "spool(step)(model=model, x=x)": lambda m: logax.spool(apply)(model=m, x=X),
    "spool(filter_jit(step))": lambda m: logax.spool(eqx.filter_jit(apply))(m, X),
    "filter_jit(spool(step))": lambda m: eqx.filter_jit(logax.spool(apply))(m, X),
    "spool(model)": lambda m: logax.spool(m)(X),
    "filter_jit(spool(model))": lambda m: eqx.filter_jit(logax.spool(m))(X),
    "jit(spool(model))": lambda m: jax.jit(logax.spool(m))(X),
    "spool(model.__call__)": lambda m: logax.spool(m.__call__)(X),
    "spool(filter_jit(model))": lambda m: logax.spool(eqx.filter_jit(m))(X),
    "spool(jitted method)": lambda m: logax.spool(m.jitted)(X),
    "spool(unbound jitted method)": lambda m: logax.spool(Net.jitted)(m, X),
    "spool(function that holds the model)": lambda m: logax.spool(lambda x: apply(m, x))(X),
    "jit(spool(...)) of arrays alone": lambda m: jax.jit(
        lambda arrays: logax.spool(apply)(eqx.combine(arrays, eqx.filter(m, eqx.is_array, True)), X)
    )(eqx.filter(m, eqx.is_array)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_is_passed_as_it_is(way: str) -> None:
    assert_logs_of_net(WAYS[way](net()))


@pytest.mark.parametrize(
    "way",
    [
        "spool(step)(model, x)", "spool(filter_jit(step))", "spool(model)",
        *slow(
            "spool(step)(model=model, x=x)", "filter_jit(spool(step))", "spool(model.__call__)",
            "spool(filter_jit(model))", "spool(jitted method)", "spool(unbound jitted method)",
        ),
    ],
)  # fmt: skip
def test_four_models_compile_once(way: str) -> None:
    jax.clear_caches()
    TRACES.clear()
    for weight in (2.0, 3.0, 4.0, 5.0):
        assert_logs_of_net(WAYS[way](net(weight)), weight)
    assert TRACES == ["call"]


def test_methods_of_four_models_compile_once() -> None:
    TRACES.clear()
    for weight in (2.0, 4.0, 6.0, 8.0):
        out, logs = logax.spool(net(weight).halved)(X)
        np.testing.assert_array_equal(out, weight / 2 * X)
        np.testing.assert_array_equal(logs["halved"], [weight / 2 * X])
    assert TRACES == ["halved"]


def test_models_with_other_static_parts_are_other_programs() -> None:
    spooled = logax.spool(apply)
    other = Net(jnp.full(3, 2.0), jnp.negative, "other", 1)
    assert_logs_of_net(spooled(net(), X))
    out, logs = spooled(other, X)
    assert out == (-2 * X).sum()
    np.testing.assert_array_equal(logs["other"], [2 * X])
    assert_logs_of_net(spooled(net(), X))


@pytest.mark.parametrize("wrap", [logax.spool, lambda f: eqx.filter_jit(logax.spool(f))])
def test_a_returned_model_is_whole(wrap: Callable[[Any], Any]) -> None:
    def step(model: Net, x: Any) -> Net:
        logax.log({"weight": model.weight})
        return eqx.tree_at(lambda m: m.weight, model, model.weight + 1)

    model, logs = wrap(step)(net(), X)
    assert isinstance(model, Net)
    assert (model.activation, model.name, model.times) == (jax.nn.relu, "layer", 2)
    np.testing.assert_array_equal(model.weight, jnp.full(3, 3.0))
    np.testing.assert_array_equal(logs["weight"], [jnp.full(3, 2.0)])
    assert_logs_of_net(logax.spool(apply)(model, X), 3.0)


def test_the_gradient_of_a_spooled_loss_is_that_of_the_loss() -> None:
    expected = eqx.filter_grad(apply)(net(), X)
    for function in (logax.spool(apply), eqx.filter_jit(logax.spool(apply))):
        gradient, logs = eqx.filter_grad(function, has_aux=True)(net(), X)
        np.testing.assert_array_equal(gradient.weight, expected.weight)
        np.testing.assert_array_equal(logs["layer"], [2 * X, 4 * X])
    gradient, logs = logax.spool(eqx.filter_grad(apply))(net(), X)
    np.testing.assert_array_equal(gradient.weight, expected.weight)
    np.testing.assert_array_equal(logs["layer"], [2 * X, 4 * X])


def test_filter_vmap_gives_lanes() -> None:
    batch = np.stack([X, 10 * X])
    _, logs = eqx.filter_vmap(logax.spool(apply), in_axes=(None, 0))(net(), batch)
    np.testing.assert_array_equal(logs["layer"], np.stack([2 * batch, 4 * batch], axis=1))
    np.testing.assert_array_equal(logs.count["layer"], [2, 2])
    _, logs = logax.spool(eqx.filter_vmap(apply, in_axes=(None, 0)))(net(), batch)
    np.testing.assert_array_equal(logs["layer"], np.stack([2 * batch, 4 * batch]))


def test_a_model_can_be_logged_leaf_by_leaf() -> None:
    def step(model: Net, x: Any) -> None:
        gradient = eqx.filter_grad(logax.nolog(apply))(model, x)
        logax.log({"gradient": gradient})
        logax.log({"gradient": jax.tree.map(jnp.zeros_like, gradient)})

    _, logs = logax.spool(step)(net(), X)
    assert isinstance(logs["gradient"], Net)
    assert list(logs.leaves()) == ["gradient/weight"]
    np.testing.assert_array_equal(logs["gradient"].weight, [4 * X, 0 * X])
    _, logs = logax.spool(step, reduce="mean")(net(), X)
    np.testing.assert_array_equal(logs["gradient"].weight, [2 * X])


def test_a_model_with_state_is_an_argument_like_any_other() -> None:
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")

    def step(state: Any, batch: Any) -> Any:
        out, state = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
            batch, state
        )
        logax.log({"normed": out})
        return out, state

    batch = np.stack([X, 10 * X])
    (out, after), logs = logax.spool(step)(state, batch)
    expected, expected_after = eqx.filter_jit(step)(state, batch)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(logs["normed"], [expected])
    for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(expected_after), strict=True):
        np.testing.assert_array_equal(one, two)

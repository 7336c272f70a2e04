"""Real programs of other libraries, with `log` inside the function they are given.

Values are compared with an independent account of the same program: what it returns by hand, a
closed form, or `jax.debug.callback` beside the `log`. XLA may fuse differently when more is
returned, so equality is to a relative 1e-5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import blackjax
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from jax import lax
from numpyro.infer.hmc import hmc
from numpyro.infer.util import log_density

import logax
from slow_cases import slow

SEEN: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def _see_anew() -> Iterator[None]:
    SEEN.clear()
    yield
    jax.effects_barrier()


def note(data: dict[str, Any], **steps: Any) -> None:
    """Logs, and tells the host the same by JAX's own means."""
    logax.log(data, **steps)
    jax.debug.callback(lambda seen: SEEN.append(jax.tree.map(np.asarray, seen)), data)


def assert_as_seen(logs: logax.logdict, *keys: str) -> None:
    """What was logged is what the host saw, which JAX may tell it in any order."""

    def ordered(rows: Any) -> Any:
        return sorted(np.asarray(rows).reshape(len(rows), -1).tolist())

    jax.effects_barrier()
    for key in keys:
        rows = [each[key] for each in SEEN]
        assert int(logs.count[key]) == len(rows)
        assert ordered(logs[key]) == ordered(rows)


def assert_close(one: Any, two: Any) -> None:
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


# Training loops.

INPUTS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
TARGETS = np.sin(INPUTS.sum(axis=1))


def test_an_optax_training_loop() -> None:
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, 20))
    parameters = {"w": jnp.ones(3), "b": jnp.zeros(())}

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        residual = jnp.tanh(x @ parameters["w"] + parameters["b"]) - y
        logax.log({"residual": jnp.abs(residual).max()})
        return (residual**2).mean()

    def train(parameters: Any, by_hand: bool) -> Any:
        def body(carry: Any, i: Any) -> Any:
            parameters, state = carry
            value, gradient = jax.value_and_grad(loss)(parameters, INPUTS, TARGETS)
            updates, state = optimizer.update(gradient, state, parameters)
            logax.log({"loss": value, "gradient": gradient}, step=i)
            kept = (value, gradient) if by_hand else None
            return (optax.apply_updates(parameters, updates), state), kept

        return lax.scan(body, (parameters, optimizer.init(parameters)), jnp.arange(20))

    (carry, _), logs = logax.spool(train, static_argnames="by_hand")(parameters, by_hand=False)
    expected, (losses, gradients) = jax.jit(train, static_argnums=1)(parameters, True)
    jax.tree.map(assert_close, carry, expected)
    assert_close(logs["loss"], losses)
    jax.tree.map(assert_close, logs["gradient"], gradients)
    assert logs["loss"][-1] < logs["loss"][0]
    assert logs["residual"].shape == (20,)
    np.testing.assert_array_equal(logs.steps["step"]["gradient"], np.arange(20))


class Perceptron(eqx.Module):
    """An equinox model with dropout that logs what its layers do."""

    layers: list[eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(3, 4, key=first), eqx.nn.Linear(4, "scalar", key=second)]
        self.dropout = eqx.nn.Dropout(0.25)

    def __call__(self, x: Any, key: Any) -> Any:
        hidden = self.dropout(jnp.tanh(self.layers[0](x)), key=key)
        logax.log({"hidden": hidden})
        return self.layers[1](hidden)


def test_an_equinox_model_is_trained_step_by_step() -> None:
    optimizer = optax.adam(1e-2)

    def step(model: Any, state: Any, x: Any, y: Any, key: Any) -> Any:
        def loss(model: Any) -> Any:
            keys = jax.random.split(key, len(x))
            return ((jax.vmap(model)(x, keys) - y) ** 2).mean()

        value, gradient = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_array))
        logax.log({"loss": value})
        return eqx.apply_updates(model, updates), state, value

    ours = theirs = Perceptron(jax.random.key(0))
    state = other = optimizer.init(eqx.filter(ours, eqx.is_array))
    spooled, reference = logax.spool(step), eqx.filter_jit(step)
    for i in range(3):
        key = jax.random.key(i)
        (ours, state, value), logs = spooled(ours, state, INPUTS, TARGETS, key)
        theirs, other, expected = reference(theirs, other, INPUTS, TARGETS, key)
        assert_close(value, expected)
        assert_close(logs["loss"], [expected])
        assert logs["hidden"].shape == (1, 16, 4)
        dropped = (np.asarray(logs["hidden"]) == 0).mean()
        assert 0.05 < dropped < 0.5
    jax.tree.map(assert_close, eqx.filter(ours, eqx.is_array), eqx.filter(theirs, eqx.is_array))
    assert ours.layers[1].out_features == "scalar"


def test_a_flax_nnx_model_is_trained_in_one_scan() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.hidden, self.out = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            hidden = nnx.tanh(self.hidden(x))
            logax.log({"hidden": hidden.mean()})
            return self.out(hidden)[:, 0]

    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        def body(carry: Any, i: Any) -> Any:
            model, optimizer = carry
            value, gradient = nnx.value_and_grad(lambda m: ((m(x) - y) ** 2).mean())(model)
            optimizer.update(model, gradient)
            logax.log({"loss": value}, step=i)
            return carry, value

        return body((model, optimizer), jnp.arange(5))[1]

    def made() -> Any:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    ours, theirs = made(), made()
    losses, logs = logax.spool(train)(*ours, INPUTS, TARGETS)
    expected = nnx.jit(train)(*theirs, INPUTS, TARGETS)
    assert_close(losses, expected)
    assert_close(logs["loss"], expected)
    assert logs["hidden"].shape == (5,)
    np.testing.assert_array_equal(logs.steps["step"]["loss"], np.arange(5))
    for a, b in zip(
        jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs)), strict=True
    ):
        assert_close(a, b)


# Differential equations.


def decayed(y0: Any) -> Any:
    """Ten steps of Euler's method for y' = -y."""

    def field(t: Any, y: Any, _: Any) -> Any:
        logax.log({"y": y}, time=t)
        return -y

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Euler(), 0.0, 1.0, 0.1, y0, max_steps=64
    )
    return solution.ys[-1]


def test_a_diffrax_solve_of_known_steps() -> None:
    times, factors = np.arange(10) * 0.1, 0.9 ** np.arange(10)
    y, logs = logax.spool(decayed, capacity=32)(2.0)
    logs = logs.compact()
    assert_close(y, jax.jit(decayed)(2.0))
    assert_close(logs["y"], 2 * factors)
    assert_close(logs.steps["time"]["y"], times)
    _, logs = jax.jit(jax.vmap(logax.spool(decayed, capacity=32)))(jnp.array([1.0, 3.0]))
    logs = logs.compact()
    assert_close(logs["y"], np.outer([1.0, 3.0], factors))


@pytest.mark.slow
def test_the_gradient_through_a_diffrax_solve_is_unchanged() -> None:
    gradient, logs = jax.jit(jax.grad(logax.spool(decayed, capacity=32), has_aux=True))(2.0)
    assert gradient == jax.jit(jax.grad(decayed))(2.0)
    assert_close(logs.compact()["y"], 2 * 0.9 ** np.arange(10))


def test_an_adaptive_diffrax_solve() -> None:
    def solved(y0: Any) -> Any:
        def field(t: Any, y: Any, rate: Any) -> Any:
            note({"t": t, "y": y})
            return -rate * y

        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, None, y0, jnp.array([1.0, 5.0]),
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
        ).ys[-1]  # fmt: skip

    y, logs = logax.spool(solved, capacity=500)(jnp.ones(2))
    logs = logs.compact()
    np.testing.assert_allclose(y, np.exp([-1.0, -5.0]), rtol=1e-2)
    assert_as_seen(logs, "t", "y")
    assert int(logs.count["t"]) > 10


# Samplers.


def log_normal(x: Any) -> Any:
    density = -0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi)
    note({"position": x, "density": density})
    return density


@pytest.mark.parametrize("sampler", ["hmc", *slow("nuts")])
def test_a_blackjax_chain(sampler: str) -> None:
    options = {"step_size": 0.3, "inverse_mass_matrix": jnp.ones(2)}
    if sampler == "hmc":
        options["num_integration_steps"] = 3
    kernel = getattr(blackjax, sampler)(log_normal, **options)

    def chain(key: Any) -> Any:
        def body(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            logax.log({"accepted": info.acceptance_rate})
            return state, (state.position, info.acceptance_rate)

        return lax.scan(body, kernel.init(jnp.ones(2)), jax.random.split(key, 5))[1]

    capacity = None if sampler == "hmc" else {"position": 200, "density": 200}
    (positions, accepted), logs = logax.spool(chain, capacity=capacity)(jax.random.key(0))
    logs = logs.compact()
    assert_as_seen(logs, "position", "density")
    np.testing.assert_array_equal(logs["accepted"], accepted)
    assert sampler != "hmc" or int(logs.count["position"]) == 1 + 5 * 3
    assert_close(positions, jax.jit(chain)(jax.random.key(0))[0])


OBSERVED = np.array([1.0, 2.0, 3.0], np.float32)


def model(observed: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    note({"mean": mean, "scale": scale})
    with numpyro.plate("data", len(observed)):
        numpyro.sample("observed", dist.Normal(mean, scale), obs=observed)


def test_the_density_of_a_numpyro_model() -> None:
    def density(mean: Any) -> Any:
        return log_density(model, (OBSERVED,), {}, {"mean": mean, "scale": 1.0})[0]

    means = jnp.array([0.0, 0.5, 2.0])
    densities, logs = jax.jit(jax.vmap(logax.spool(density)))(means)
    expected = -0.5 * (means**2 + ((OBSERVED - means[:, None]) ** 2).sum(1))
    assert_close(densities - densities[0], expected - expected[0])
    np.testing.assert_array_equal(logs["mean"][:, 0], means)


@pytest.mark.slow
def test_a_numpyro_chain() -> None:
    def potential(z: Any) -> Any:
        return -log_density(model, (OBSERVED,), {}, {"mean": z["m"], "scale": jnp.exp(z["s"])})[0]

    init_kernel, sample_kernel = hmc(potential, algo="HMC")

    def chain(key: Any) -> Any:
        start = {"m": jnp.zeros(()), "s": jnp.zeros(())}
        state = init_kernel(
            start,
            num_warmup=0,
            step_size=0.1,
            trajectory_length=0.3,
            adapt_step_size=False,
            rng_key=key,
        )

        def body(state: Any, i: Any) -> Any:
            state = sample_kernel(state)
            logax.log({"energy": state.potential_energy}, step=i)
            return state, (state.potential_energy, state.z["m"])

        return lax.scan(body, state, jnp.arange(4))[1]

    (energies, means), logs = logax.spool(chain, capacity=200)(jax.random.key(0))
    logs = logs.compact()
    assert_as_seen(logs, "mean", "scale")
    np.testing.assert_array_equal(logs["energy"], energies)
    assert int(logs.count["mean"]) > 4
    assert len(set(np.asarray(means).tolist())) > 2
    assert_close(means, jax.jit(chain)(jax.random.key(0))[1])

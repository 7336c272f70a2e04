"""Make any optimizer of optax say its iteration, loss and gradient norm.

`logged` wraps an optimizer. Its `update` takes the loss as `value=`, where optax takes it too,
and works inside `jit` and `scan` as well as in a Python loop, where it waits for nothing.

    pip install optax
    python examples/optimizer.py
"""

import logging
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random

import logax
from logax.iterations import log_convergence_async, log_iteration_async


class LoggedState(NamedTuple):
    """The number of the iteration, and the state of the optimizer."""

    iteration: Array
    inner: Any


def logged(
    optimizer: optax.GradientTransformation, verbose: int = 1
) -> optax.GradientTransformationExtraArgs:
    """The same optimizer with a line for each iteration; `update` takes the loss as `value`."""
    inner = optax.with_extra_args_support(optimizer)

    def init(parameters: Any) -> LoggedState:
        return LoggedState(jnp.zeros((), jnp.int32), inner.init(parameters))

    def update(
        gradient: Any, state: Any, parameters: Any = None, *, value: Any, **extra: Any
    ) -> tuple[Any, LoggedState]:
        updates, after = inner.update(gradient, state.inner, parameters, value=value, **extra)
        log_iteration_async(
            state.iteration,
            value,
            optax.tree.norm(gradient),
            "step={step:.3e}",
            verbose,
            step=optax.tree.norm(updates),
        )
        return updates, LoggedState(state.iteration + 1, after)

    return optax.GradientTransformationExtraArgs(init, update)


def loss_of(weights: Array, points: Array, labels: Array) -> Array:
    """Logistic loss."""
    logits = points @ weights
    return jnp.mean(jax.nn.softplus(jnp.where(labels, -logits, logits)))


def train(optimizer: Any, points: Array, labels: Array, steps: int, verbose: int = 1) -> Array:
    """Train in one compiled loop."""

    def step(carry: Any, _: None) -> Any:
        weights, state = carry
        loss, gradient = jax.value_and_grad(loss_of)(weights, points, labels)
        updates, state = optimizer.update(gradient, state, weights, value=loss)
        return (optax.apply_updates(weights, updates), state), None

    weights = jnp.zeros(points.shape[1])
    (weights, _), _ = lax.scan(step, (weights, optimizer.init(weights)), None, length=steps)
    loss, gradient = jax.value_and_grad(loss_of)(weights, points, labels)
    log_convergence_async("all steps done", steps, loss, None, optax.tree.norm(gradient), verbose)
    return weights


def main() -> None:
    """Train with two optimizers: compiled as a whole, and step by step from Python."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    points = random.normal(random.key(0), (200, 3))
    labels = points @ jnp.array([1.0, -2.0, 0.5]) > 0

    print("adam, one compiled loop, every tenth iteration")
    jax.jit(lambda: train(logged(optax.adam(0.1)), points, labels, 50))()
    logax.flush()

    print("sgd, a Python loop, every iteration")
    optimizer = logged(optax.sgd(1.0, momentum=0.5), verbose=2)
    compiled = jax.jit(jax.value_and_grad(loss_of))
    weights = jnp.zeros(3)
    state = optimizer.init(weights)
    for _ in range(5):
        loss, gradient = compiled(weights, points, labels)
        updates, state = optimizer.update(gradient, state, weights, value=loss)
        weights = optax.apply_updates(weights, updates)
    logax.flush()

    print("adam, no lines; all iterations come back as arrays")
    silent = logged(optax.adam(0.1), verbose=0)
    print(logax.spool(lambda: train(silent, points, labels, 50, verbose=0))()[1])


if __name__ == "__main__":
    main()

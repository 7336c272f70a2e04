"""Fit a decaying oscillation to noisy points by Levenberg-Marquardt, in one compiled function.

The loop is a `lax.while_loop`; each iteration says its line while it runs, and so does the end.

    python examples/curve_fit.py
"""

import logging
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

import logax
from logax.iterations import log_convergence_async, log_iteration_async

TRUE = jnp.array([2.0, 0.3, 1.5, 0.4])  # amplitude, decay, frequency, phase
REASONS = ("out of iterations", "gradient is small", "steps are small")


class State(NamedTuple):
    """Where the fit stands."""

    iteration: Array
    parameters: Array
    damping: Array
    gradient_norm: Array
    step_norm: Array


def model(parameters: Array, times: Array) -> Array:
    """A decaying oscillation."""
    amplitude, decay, frequency, phase = parameters
    wave: Array = amplitude * jnp.exp(-decay * times) * jnp.sin(frequency * times + phase)
    return wave


def fit(start: Array, times: Array, points: Array, limit: int = 100) -> Array:
    """Levenberg-Marquardt from a start to the parameters of least squares."""

    def residuals(parameters: Array) -> Array:
        return model(parameters, times) - points

    def cost_of(parameters: Array) -> Array:
        return 0.5 * jnp.sum(residuals(parameters) ** 2)

    def goes_on(state: State) -> Array:
        small = (state.gradient_norm < 1e-4) | (state.step_norm < 1e-6)
        return (state.iteration < limit) & ~small

    def improve(state: State) -> State:
        parameters = state.parameters
        slopes = jax.jacobian(residuals)(parameters)
        gradient, curvature = slopes.T @ residuals(parameters), slopes.T @ slopes
        damped = curvature + state.damping * jnp.diag(jnp.diag(curvature))
        step = -jnp.linalg.solve(damped, gradient)
        better = cost_of(parameters + step) < cost_of(parameters)
        log_iteration_async(
            state.iteration,
            cost_of(parameters),
            jnp.linalg.norm(gradient),
            "damping={damping:.1e} step={step:.3e} taken={taken}",
            verbose=2,
            damping=state.damping,
            step=jnp.linalg.norm(step),
            taken=better,
        )
        return State(
            state.iteration + 1,
            jnp.where(better, parameters + step, parameters),
            jnp.where(better, state.damping / 5, state.damping * 4),
            jnp.linalg.norm(gradient),
            jnp.where(better, jnp.linalg.norm(step), jnp.inf),
        )

    first = State(jnp.array(0), start, jnp.array(1e-2), jnp.array(jnp.inf), jnp.array(jnp.inf))
    last = lax.while_loop(goes_on, improve, first)
    log_convergence_async(
        REASONS,
        last.iteration,
        cost_of(last.parameters),
        None,
        last.gradient_norm,
        code=jnp.where(last.gradient_norm < 1e-4, 1, jnp.where(last.step_norm < 1e-6, 2, 0)),
    )
    return last.parameters


def main() -> None:
    """Fit, and compare with the truth."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    times = jnp.linspace(0, 8, 200)
    points = model(TRUE, times) + 0.05 * random.normal(random.key(0), times.shape)
    parameters = jax.jit(fit)(jnp.array([1.0, 0.1, 1.2, 0.0]), times, points)
    logax.flush()
    print("found", jnp.round(parameters, 3), "true", TRUE)


if __name__ == "__main__":
    main()

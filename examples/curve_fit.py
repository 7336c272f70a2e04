"""Fit a decaying oscillation to noisy points by Levenberg-Marquardt, in one compiled function.

The loop is a `lax.while_loop`. Each iteration says its line while it runs, and so does the end. The
same two calls are logs: `spool` returns the history of the fit as arrays, for the picture.

    pip install matplotlib
    python examples/curve_fit.py [--output curve_fit.png]
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from matplotlib.figure import Figure

import logax
from logax.iterations import log_convergence_async, log_iteration_async

TRUE = jnp.array([2.0, 0.3, 1.5, 0.4])  # amplitude, decay, frequency, phase
NOISE = 0.05
LIMIT = 100
REASONS = ("out of iterations", "gradient is small", "steps are small")


class State(NamedTuple):
    """Where the fit stands."""

    iteration: Array
    parameters: Array
    damping: Array
    gradient_norm: Array
    reason: Array  # to end, one of `REASONS`; 0 as long as there is none


def model(parameters: Array, times: Array) -> Array:
    """A decaying oscillation."""
    amplitude, decay, frequency, phase = parameters
    wave: Array = amplitude * jnp.exp(-decay * times) * jnp.sin(frequency * times + phase)
    return wave


def fit(start: Array, times: Array, points: Array) -> tuple[Array, Array]:
    """Levenberg-Marquardt from a start to the parameters of least squares, and their errors."""

    def residuals(parameters: Array) -> Array:
        return (model(parameters, times) - points) / NOISE

    def cost_of(parameters: Array) -> Array:
        return 0.5 * jnp.sum(residuals(parameters) ** 2)

    def improve(state: State) -> State:
        parameters, damping = state.parameters, state.damping
        slopes = jax.jacobian(residuals)(parameters)
        gradient, curvature = slopes.T @ residuals(parameters), slopes.T @ slopes
        step = -jnp.linalg.solve(curvature + damping * jnp.diag(jnp.diag(curvature)), gradient)
        cost, gradient_norm = cost_of(parameters), jnp.linalg.norm(gradient)
        step_norm, better = jnp.linalg.norm(step), cost_of(parameters + step) < cost
        log_iteration_async(
            state.iteration,
            cost,
            gradient_norm,
            "damping={damping:.1e} step={step:.3e} taken={taken}",
            verbose=2,
            damping=damping,
            step=step_norm,
            taken=better,
        )
        return State(
            state.iteration + 1,
            jnp.where(better, parameters + step, parameters),
            jnp.where(better, damping / 5, damping * 4),
            gradient_norm,
            jnp.where(gradient_norm < 1e-2, 1, jnp.where(better & (step_norm < 1e-5), 2, 0)),
        )

    zero, infinity = jnp.array(0), jnp.array(jnp.inf)
    last = lax.while_loop(
        lambda state: (state.iteration < LIMIT) & (state.reason == 0),
        improve,
        State(zero, start, jnp.array(1e-2), infinity, zero),
    )
    cost = cost_of(last.parameters)
    log_convergence_async(REASONS, last.iteration, cost, None, last.gradient_norm, code=last.reason)
    slopes = jax.jacobian(residuals)(last.parameters)
    return last.parameters, jnp.sqrt(jnp.diag(jnp.linalg.inv(slopes.T @ slopes)))


def draw(times: Array, points: Array, parameters: Array, history: Any, output: Path) -> None:
    """The curve, and how the fit got there."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    curve, way = figure.subplots(1, 2)
    curve.plot(times, points, ".", color="silver", label="measured")
    curve.plot(times, model(parameters, times), label="fitted")
    curve.set(xlabel="time")
    curve.legend()
    for name in ("cost", "gradient_norm", "damping"):
        way.semilogy(history.step[name], history[name], ".-", label=name.replace("_", " "))
    way.set(xlabel="iteration")
    way.legend()
    figure.savefig(output, dpi=120)


def main() -> None:
    """Fit, compare with the truth, and draw."""
    parser = argparse.ArgumentParser(description="Fit a curve by Levenberg-Marquardt.")
    parser.add_argument("--output", type=Path, default=Path("curve_fit.png"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

    times = jnp.linspace(0, 8, 200)
    points = model(TRUE, times) + NOISE * random.normal(random.key(0), times.shape)
    spooled = logax.spool(fit, tags="iteration", capacity=LIMIT)
    (parameters, errors), history = spooled(jnp.array([1.0, 0.1, 1.2, 0.0]), times, points)
    logax.flush()

    names = ("amplitude", "decay", "frequency", "phase")
    for name, found, error, true in zip(names, parameters, errors, TRUE, strict=True):
        print(f"{name:9} {found:.3f} ± {error:.3f}, in truth {true:.3f}")
    draw(times, points, parameters, history.compact(), options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

"""Fit an oscillator with diffrax, and see each evaluation and each step that the solver takes.

The vector field logs where it is evaluated, and a step size controller logs what it decides. Both
are called in loops of diffrax that end when they are done, so a harvest says how many records it
keeps (`capacity`), or folds them (`reduce`).

Where a gradient is taken, the harvest may stand on either side of it:

- inside, `grad(spool(loss), has_aux=True)`, it sees the solve that runs forward;
- around, `spool(grad(loss))`, it sees all that runs, and that is for the adjoint to choose.
  `DirectAdjoint` evaluates the field on its way forward only; `RecursiveCheckpointAdjoint`, the
  default, solves again from its checkpoints; `BacksolveAdjoint` solves back in time.

    pip install diffrax optax matplotlib
    python examples/diffrax_fit.py --steps 60 --output oscillator.png
"""

import argparse
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from matplotlib.figure import Figure

import logax

TRUE, START = jnp.array([3.0, 0.4]), jnp.array([1.0, 0.0])  # damping, and a constant push
TIMES = jnp.linspace(0.0, 8.0, 60)
ADJOINTS: tuple[Any, ...] = (
    diffrax.RecursiveCheckpointAdjoint,
    diffrax.DirectAdjoint,
    diffrax.BacksolveAdjoint,
)


def field(time: Any, state: Array, parameters: Array) -> Array:
    """The oscillator of van der Pol."""
    position, speed = state
    damping, push = parameters
    logax.log({"position": position}, time=time)
    return jnp.stack([speed, damping * (1 - position**2) * speed - position + push])


class Watched(diffrax.PIDController):
    """The usual step size controller, with a record of each attempt."""

    def adapt_step_size(self, t0: Any, t1: Any, *others: Any) -> Any:
        """Decide on a step as usual, and say it."""
        decision = super().adapt_step_size(t0, t1, *others)
        logax.log({"size": t1 - t0, "rejected": ~decision[0]}, time=t0)
        return decision


def solve(parameters: Array, adjoint: Any = ADJOINTS[0]) -> Array:
    """Return the position at each of the times."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=TIMES[-1],
        dt0=0.5,
        y0=jnp.array([2.0, 0.0]),
        args=parameters,
        saveat=diffrax.SaveAt(ts=TIMES),
        stepsize_controller=Watched(rtol=1e-4, atol=1e-6),
        max_steps=128,
        adjoint=adjoint(),
    )
    return jnp.asarray(solution.ys)[:, 0]


def loss_of(parameters: Array, points: Array, adjoint: Any = ADJOINTS[0]) -> Array:
    """Mean square distance of the solution from the points."""
    return jnp.mean((solve(parameters, adjoint) - points) ** 2)


def fit(points: Array, steps: int) -> Array:
    """Fit the parameters, and log for each step what it cost the solver."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.3, steps), b1=0.7, b2=0.95)
    folds = {"position": "count", "size": "min", "rejected": "sum"}
    gradient = logax.spool(jax.value_and_grad(loss_of), reduce=folds)

    def step(state: tuple[Array, Any], i: Array) -> tuple[tuple[Array, Any], None]:
        parameters, memory = state
        (loss, slope), solver = gradient(parameters, points)
        logax.log({"loss": loss, "parameters": parameters}, step=i)
        logax.log(
            {"evaluations": solver.last["position"], "least size": solver.last["size"]}, step=i
        )
        change, memory = optimizer.update(slope, memory)
        return (jnp.add(parameters, change), memory), None

    return lax.scan(step, (START, optimizer.init(START)), jnp.arange(steps))[0][0]


def plot(solver: logax.logdict, points: Array, logs: logax.logdict, output: Path) -> None:
    """Draw where the field was evaluated, the steps of the solver, and the fit."""
    figure = Figure(figsize=(11, 3.5), layout="constrained")
    where, sizes, losses = figure.subplots(1, 3)
    where.plot(TIMES, points, "o", markersize=3, label="points")
    where.plot(solver.time["position"], solver["position"], "k|", label="evaluations")
    for wanted, style in ((False, "."), (True, "rx")):
        chosen = solver["rejected"] == wanted
        label = "rejected" if wanted else "accepted"
        sizes.plot(solver.time["size"][chosen], solver["size"][chosen], style, label=label)
    losses.plot(logs["loss"])
    where.set(title="position", xlabel="time")
    sizes.set(title="step size", xlabel="time", yscale="log")
    losses.set(title="loss", xlabel="step of the optimizer", yscale="log")
    where.legend()
    sizes.legend()
    figure.savefig(output)


def main() -> None:
    """Solve, fit, and compare what the adjoints evaluate."""
    parser = argparse.ArgumentParser(description="Fit an oscillator, and watch the solver.")
    parser.add_argument("--steps", type=int, default=60, help="steps of the optimizer")
    parser.add_argument("--output", type=Path, default=Path("oscillator.png"), help="where to plot")
    options = parser.parse_args()

    truth, solver = logax.spool(solve, capacity=1000)(TRUE)
    solver = solver.compact()
    rejected = solver["rejected"].sum()
    print(f"One solve: {len(solver['size'])} steps, {rejected} of them rejected,", end=" ")
    print(f"{len(solver['position'])} evaluations")

    points = truth + 0.05 * random.normal(random.key(0), TIMES.shape)
    found, logs = logax.spool(fit, static_argnames="steps")(points, steps=options.steps)
    print(logs)
    print("found", jnp.round(found, 2), "true", TRUE)

    inside = jax.grad(logax.spool(loss_of, reduce="count"), has_aux=True)
    print("Evaluations in one gradient, and who sees them:")
    print(f"{inside(TRUE, points)[1].last['position']:6} the harvest inside of it")
    for adjoint in ADJOINTS:
        _, around = logax.spool(jax.grad(loss_of), reduce="count")(TRUE, points, adjoint)
        print(f"{around.last['position']:6} the harvest around it, {adjoint.__name__}")
    plot(solver, points, logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

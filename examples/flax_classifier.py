"""Train a flax nnx classifier with optax on two spirals, and see what it does inside.

Logs stand in the model's `__call__`, in the loss and in the training step; `log` works in all of
them under `nnx.jit`, `nnx.value_and_grad`, `nnx.scan`, `nnx.vmap` and `nnx.remat`, in any nesting.
`spool` and `tap` take modules and optimizers as arguments and update them in place, as nnx does:

1. the step that is compiled by `nnx.jit`, called from a Python loop, shown as it runs by `live`;
2. the whole training as one `nnx.scan`, with all of its records returned by `spool`.

    pip install flax optax matplotlib
    python examples/flax_classifier.py --steps 600 --output classifier.png
"""

import argparse
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array, random
from matplotlib.figure import Figure

import logax

Optimizer = nnx.Optimizer[Any]
RATE = optax.warmup_cosine_decay_schedule(0.0, 0.01, warmup_steps=50, decay_steps=600)


class Classifier(nnx.Module):
    """Two hidden layers, with dropout, and one logit."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(2, 64, rngs=rngs)
        self.second = nnx.Linear(64, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.05, rngs=rngs)
        self.last = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, points: Array) -> Array:
        """Return a logit for each point."""
        hidden = nnx.relu(self.first(points))
        hidden = self.dropout(nnx.relu(self.second(hidden)))
        logax.log({"active": jnp.mean(hidden > 0)})
        return self.last(hidden)[:, 0]


def spirals(key: Array, number: int = 512) -> tuple[Array, Array]:
    """Draw points on two spirals, and say on which of them each one lies."""
    turn_key, noise_key = random.split(key)
    second = jnp.arange(number) % 2
    turn = 3 * jnp.pi * jnp.sqrt(random.uniform(turn_key, (number,), minval=0.02))
    angle = turn + jnp.pi * second
    points = turn[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) / 4
    return points + 0.06 * random.normal(noise_key, points.shape), second


def loss_of(model: Classifier, points: Array, labels: Array) -> Array:
    """Cross-entropy."""
    logits = model(points)
    loss: Array = optax.sigmoid_binary_cross_entropy(logits, labels).mean()
    logax.log({"loss": loss, "accuracy": jnp.mean((logits > 0) == labels)})
    return loss


def train_step(model: Classifier, optimizer: Optimizer, step: Array | int) -> None:
    """Improve the model by one batch."""
    gradient = nnx.grad(loss_of)(model, *spirals(random.fold_in(random.key(1), step)))
    optimizer.update(model, gradient)
    logax.log({"gradient": optax.tree.norm(gradient), "rate": RATE(step)}, step=step)


def train(model: Classifier, optimizer: Optimizer, steps: int) -> None:
    """Improve the model in a loop that is compiled as a whole."""

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def loop(both: tuple[Classifier, Optimizer], step: Array) -> tuple[Classifier, Optimizer]:
        train_step(*both, step)
        return both

    loop((model, optimizer), jnp.arange(steps))


def new(seed: int) -> tuple[Classifier, Optimizer]:
    """Draw a model, and make the optimizer that will train it."""
    model = Classifier(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)


def plot(model: Classifier, logs: logax.logdict, output: Path) -> None:
    """Draw what was logged, and how the model divides the plane."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    curves = figure.subplot_mosaic([["loss", "accuracy", "plane"], ["gradient", "rate", "plane"]])
    plane = curves.pop("plane")
    for key, axes in curves.items():
        axes.plot(logs[key], linewidth=0.8)
        axes.set(title=key, xlabel="step", yscale="log" if key == "gradient" else "linear")

    side = jnp.linspace(-2.8, 2.8, 80)
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1)
    logits = model(grid.reshape(-1, 2)).reshape(80, 80)
    plane.contourf(side, side, logits > 0, levels=1, cmap="coolwarm", alpha=0.4)
    points, labels = spirals(random.key(2))
    plane.scatter(points[:, 0], points[:, 1], c=labels, cmap="coolwarm", s=5)
    plane.set_aspect("equal")
    figure.savefig(output)


def main() -> None:
    """Watch some steps, then train and look at all of it."""
    parser = argparse.ArgumentParser(description="Train a classifier on two spirals.")
    parser.add_argument("--steps", type=int, default=600, help="updates of the model")
    parser.add_argument("--output", type=Path, default=Path("classifier.png"), help="where to plot")
    options = parser.parse_args()

    print("Three steps that `nnx.jit` compiles, as they run:")
    compiled, state = nnx.jit(train_step), new(seed=0)
    compiled(*state, 0)  # nobody listens: no log is in this program
    with logax.live(print, keys=["loss", "accuracy"]):
        for step in range(1, 4):
            compiled(*state, step)

    print(f"{options.steps} steps in one `nnx.scan`, returned:")
    model, optimizer = new(seed=0)
    _, logs = logax.spool(train, static_argnames="steps")(model, optimizer, steps=options.steps)
    print(logs)

    model.set_attributes(deterministic=True)  # no dropout
    loss, tested = logax.spool(loss_of)(model, *spirals(random.key(2)))
    print(f"On new points: loss {loss:.3f}, accuracy {tested.last['accuracy']:.3f}")
    plot(model, logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

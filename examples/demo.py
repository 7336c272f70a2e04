"""Train one small network from several seeds, in one compiled function, and look inside.

`train` logs from within `lax.scan`. `logax.tap` shows the losses while the compiled function runs,
`logax.spool` returns what was logged next to the result, and `vmap` gives every seed a lane of its
own.

    python examples/demo.py --seeds 6 --steps 1000 --output demo.png
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from matplotlib.figure import Figure

import logax

WIDTH = 24
BATCH = 128
NOISE = 0.15


class Layer(NamedTuple):
    """An affine map."""

    weight: Array
    bias: Array


Network = list[Layer]


# The network ----------------------------------------------------------------------------------


def new_network(key: Array) -> Network:
    """Draw the weights of two inputs, two hidden layers and one output."""
    sizes = [2, WIDTH, WIDTH, 1]
    keys = random.split(key, 3)
    return [
        Layer(random.normal(key, (fan_in, fan_out)) / jnp.sqrt(fan_in), jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def predict(network: Network, points: Array) -> Array:
    """Return a logit for each point: positive for the upper moon."""
    for layer in network[:-1]:
        points = jnp.tanh(points @ layer.weight + layer.bias)
    return (points @ network[-1].weight + network[-1].bias)[:, 0]


def two_moons(key: Array) -> tuple[Array, Array]:
    """Draw points on two interleaved half circles, and say on which of them each one lies."""
    angle_key, moon_key, noise_key = random.split(key, 3)
    angle = random.uniform(angle_key, (BATCH,), maxval=jnp.pi)
    upper = random.bernoulli(moon_key, shape=(BATCH,))
    x = jnp.where(upper, jnp.cos(angle), 1.0 - jnp.cos(angle))
    y = jnp.where(upper, jnp.sin(angle), 0.5 - jnp.sin(angle))
    return jnp.stack([x, y], axis=-1) + NOISE * random.normal(noise_key, (BATCH, 2)), upper


def loss_and_accuracy(network: Network, points: Array, upper: Array) -> tuple[Array, Array]:
    """Return the mean cross-entropy and the share of points on the right side."""
    logits = predict(network, points)
    loss = jnp.mean(jax.nn.softplus(jnp.where(upper, -logits, logits)))
    return loss, jnp.mean((logits > 0) == upper)


# Training, with logs --------------------------------------------------------------------------


def train(key: Array, steps: int) -> Network:
    """Train a network by gradient descent with momentum."""
    network_key, data_key = random.split(key)
    network = new_network(network_key)
    gradient = jax.value_and_grad(loss_and_accuracy, has_aux=True)

    def update(state: tuple[Network, Network], step: Array) -> tuple[tuple[Network, Network], None]:
        network, velocity = state
        points, upper = two_moons(random.fold_in(data_key, step))
        (loss, accuracy), slope = gradient(network, points, upper)
        logax.log({"loss": loss, "accuracy": accuracy}, step=step)

        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.03 * g, velocity, slope)
        network = jax.tree.map(jnp.add, network, velocity)
        return (network, velocity), None

    at_rest = jax.tree.map(jnp.zeros_like, network)
    (network, _), _ = lax.scan(update, (network, at_rest), jnp.arange(steps))
    return network


# While it runs --------------------------------------------------------------------------------


def show_live(record: logax.record) -> None:
    """Show the losses of all seeds: in place on a terminal, elsewhere a line for every tenth."""
    done, total = int(np.min(record.step)) + 1, record.total or 1
    losses = "  ".join(f"{loss:.3f}" for loss in record["loss"][:8])
    more = "  ..." if len(record["loss"]) > 8 else ""
    line = f"{done:>6} of {total}  losses {losses}{more}"
    if sys.stdout.isatty():
        print(f"\r{line}\x1b[K", end="\n" if done == total else "", flush=True)
    elif done * 10 // total > (done - 1) * 10 // total:
        print(line, flush=True)


# What was logged ------------------------------------------------------------------------------


def sparkline(values: np.ndarray, width: int = 24) -> str:
    """Draw a curve in one line of text."""
    heights = np.array([part.mean() for part in np.array_split(values, min(width, len(values)))])
    span = np.ptp(heights) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round(7 * h)] for h in (heights - heights.min()) / span)


def table(loss: np.ndarray, accuracy: np.ndarray) -> str:
    """Show each seed's loss at a few steps, its curve, and the accuracy of its last tenth."""
    count = loss.shape[1]
    steps = np.linspace(0, count - 1, min(6, count)).astype(int)
    tail = accuracy[:, -max(1, count // 10) :].mean(axis=1)
    rows = [(str(seed), loss[seed], tail[seed]) for seed in range(len(loss))]
    rows.append(("mean", loss.mean(axis=0), tail.mean()))

    lines = [
        "  ".join(["seed", *(f"{step:>6}" for step in steps), "log loss".ljust(24), "accuracy"])
    ]
    for name, curve, share in rows:
        cells = [f"{name:>4}", *(f"{curve[step]:6.3f}" for step in steps)]
        lines.append("  ".join([*cells, sparkline(np.log(curve)).ljust(24), f"{share:8.1%}"]))
    return "\n".join(lines)


def plot(steps: np.ndarray, loss: np.ndarray, output: Path) -> None:
    """Draw the loss of each seed, thin, and their mean."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps.T, loss.T, color="teal", alpha=0.25, linewidth=0.8)
    axes.plot(steps[0], loss.mean(axis=0), color="black", label=f"mean of {len(loss)} seeds")
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Two moons, one network per seed")
    axes.legend()
    figure.savefig(output, dpi=150)


def main() -> None:
    """Train, and show the logs as a table and a plot."""
    parser = argparse.ArgumentParser(description="Train one small network from several seeds.")
    parser.add_argument("--seeds", type=int, default=6, help="how many networks to train")
    parser.add_argument("--steps", type=int, default=1000, help="updates of each network")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where to plot")
    options = parser.parse_args()

    begin = time.perf_counter()
    keys = random.split(random.key(0), options.seeds)
    train_one = partial(train, steps=options.steps)
    shown = logax.tap(train_one, show_live, "loss", keep_logs=True, buffer=20, lanes="batch")
    _, logs = jax.jit(jax.vmap(logax.spool(shown)))(keys)
    logax.flush()  # all of it has been shown
    # One row for each seed, one column for each record.
    loss, accuracy = np.asarray(logs["loss"]), np.asarray(logs["accuracy"])
    seconds = time.perf_counter() - begin

    print(f"\n{options.seeds} seeds of {options.steps} steps, one compiled function, ", end="")
    print(f"{seconds:.1f} s with its compilation.\n\n      loss at step")
    print(table(loss, accuracy))
    plot(np.asarray(logs.step["loss"]), loss, options.output)
    print(f"\nThe curves are in {options.output}.")


if __name__ == "__main__":
    main()

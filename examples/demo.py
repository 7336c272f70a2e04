"""Train one small network from 64 seeds in one compiled call, watch it, keep it, look at it.

`train` logs from within `lax.scan`, and knows nothing of seeds or of loggers. `logger.init` begins
a run for each key, under `vmap` too; `logger.tap` sends what `train` logs to that run while it is
running: to the terminal, and to a folder. The command `logax` then looks at the folder.

    pip install rich matplotlib
    python examples/demo.py --seeds 64 --steps 2000 --runs runs --output demo.png
"""

import argparse
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

import logax
from logax.loggers import ConsoleLogger, Logger, MultiLogger, SaveLogger

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


def two_moons(key: Array, number: int = BATCH) -> tuple[Array, Array]:
    """Draw points on two interleaved half circles, and say on which of them each one lies."""
    angle_key, moon_key, noise_key = random.split(key, 3)
    angle = random.uniform(angle_key, (number,), maxval=jnp.pi)
    upper = random.bernoulli(moon_key, shape=(number,))
    x = jnp.where(upper, jnp.cos(angle), 1.0 - jnp.cos(angle))
    y = jnp.where(upper, jnp.sin(angle), 0.5 - jnp.sin(angle))
    return jnp.stack([x, y], axis=-1) + NOISE * random.normal(noise_key, (number, 2)), upper


def loss_and_accuracy(network: Network, points: Array, upper: Array) -> tuple[Array, Array]:
    """Return the mean cross-entropy and the share of points on the right side."""
    logits = predict(network, points)
    loss = jnp.mean(jax.nn.softplus(jnp.where(upper, -logits, logits)))
    return loss, jnp.mean((logits > 0) == upper)


# Training, with logs --------------------------------------------------------------------------


def train(key: Array, steps: int) -> Network:
    """Train a network by gradient descent with momentum, and test it now and then."""
    network_key, data_key = random.split(key)
    network = new_network(network_key)
    gradient = jax.value_and_grad(loss_and_accuracy, has_aux=True)
    new_points = two_moons(random.key(1), 1024)

    def update(state: tuple[Network, Network], step: Array) -> tuple[tuple[Network, Network], None]:
        network, velocity = state
        points, upper = two_moons(random.fold_in(data_key, step))
        (loss, accuracy), slope = gradient(network, points, upper)
        logax.log({"loss": loss, "accuracy": accuracy}, step=step)

        def test() -> dict[str, Array]:  # computed when it is due, and if somebody listens
            loss, accuracy = loss_and_accuracy(network, *new_points)
            return {"test/loss": loss, "test/accuracy": accuracy}

        logax.log(test, every=20, step=step)

        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.03 * g, velocity, slope)
        network = jax.tree.map(jnp.add, network, velocity)
        return (network, velocity), None

    at_rest = jax.tree.map(jnp.zeros_like, network)
    (network, _), _ = lax.scan(update, (network, at_rest), jnp.arange(steps))
    return network


# Seeds ----------------------------------------------------------------------------------------


def train_seeds(logger: Logger, seeds: int, steps: int) -> list[Network]:
    """Train a network from each seed, all in one compiled call, with a run for each."""
    config = {"width": WIDTH, "batch": BATCH, "steps": steps}

    def train_one(key: Array) -> Network:
        state = logger.init(key, name="moons", config=config)
        network: Network = logger.tap(partial(train, steps=steps), state, buffer=20)(key)
        logger.finish(state)
        return network

    keys = random.split(random.key(0), seeds)
    networks: list[Network] = jax.jit(jax.vmap(train_one))(keys)
    return networks


def look(*arguments: str) -> None:
    """Run the command `logax`, and show how it is written."""
    print(f"\n$ logax {shlex.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "logax", *arguments], check=True)


def main() -> None:
    """Train, and look at what was kept."""
    parser = argparse.ArgumentParser(description="Train one small network from many seeds.")
    parser.add_argument("--seeds", type=int, default=64, help="how many networks to train")
    parser.add_argument("--steps", type=int, default=2000, help="updates of each network")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where to keep the runs")
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where to plot")
    options = parser.parse_args()

    print(f"Training {options.seeds} small networks in one compiled call.")
    print(f"The runs go to {options.runs}, the curves to {options.output}.", flush=True)
    begin = time.perf_counter()
    logger = MultiLogger(SaveLogger(options.runs), ConsoleLogger(window=options.steps))
    train_seeds(logger, options.seeds, options.steps)
    logger.close()  # all of it is shown, and kept
    seconds = time.perf_counter() - begin
    print(f"\n{options.seeds} seeds of {options.steps} steps in one compiled call: ", end="")
    print(f"{seconds:.1f} s with its compilation.", flush=True)

    folder = str(options.runs)
    look("ls", folder, "--limit", "5")
    look("show", "last", "test/loss", "--path", folder)
    how = ("--log", "--force", "--title", f"Two moons, {options.seeds} seeds")
    look("plot", "last", "test/loss", *how, "--path", folder, "-o", str(options.output))
    print(f"\nThe curves are in {options.output}, the runs in {folder}.")


if __name__ == "__main__":
    main()

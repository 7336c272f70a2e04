"""Look into the layers of a deep equinox network: activations and gradient norms, layer by layer.

Each layer logs what it sees for one sample, inside `__call__`. The loss maps the model over a batch
with a harvest inside, `jax.vmap(spool(model))`, and logs the means over the batch; an epoch is
harvested with `reduce="mean"`, and its means are logged once. All of it happens in the program, in
`eqx.filter_value_and_grad`, `lax.scan`, `eqx.filter_vmap` and `eqx.filter_jit`; no model is changed
for it, and no auxiliary output is passed around.

Two networks are trained at once, one as equinox draws it and one with larger weights, so that
activations keep their size from layer to layer. The table shows why the first learns late.

    pip install equinox optax matplotlib
    python examples/equinox_norms.py --epochs 30 --output norms.png
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array, lax, random
from matplotlib.figure import Figure

import logax

DEPTH, WIDTH, BATCHES, BATCH = 10, 32, 20, 64
NAMES, GAINS = ("default", "scaled"), jnp.array([1.0, 6.0**0.5])
State = tuple["Network", Any]


class Layer(eqx.Module):
    """A layer of rectifiers that knows its number."""

    linear: eqx.nn.Linear
    number: int = eqx.field(static=True)

    def __init__(self, number: int, gain: Array, key: Array) -> None:
        linear = eqx.nn.Linear(2 if number == 0 else WIDTH, WIDTH, key=key)
        self.linear = eqx.tree_at(lambda layer: layer.weight, linear, gain * linear.weight)
        self.number = number

    def __call__(self, x: Array) -> Array:
        """Return the activations, and log how large they are and how many are zero."""
        x = jax.nn.relu(self.linear(x))
        logax.log({f"size/{self.number}": jnp.sqrt(jnp.mean(x**2))})
        logax.log({f"zero/{self.number}": jnp.mean(x == 0)})
        return x


class Network(eqx.Module):
    """Layers, and one output."""

    layers: list[Layer]
    last: eqx.nn.Linear

    def __init__(self, gain: Array, key: Array) -> None:
        *keys, last = random.split(key, DEPTH + 1)
        self.layers = [Layer(number, gain, key) for number, key in enumerate(keys)]
        self.last = eqx.nn.Linear(WIDTH, "scalar", key=last)

    def __call__(self, x: Array) -> Array:
        """Return a number for a point."""
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def loss_of(model: Network, points: Array, heights: Array) -> Array:
    """Mean square error over a batch."""
    outputs, logs = jax.vmap(logax.spool(model))(points)  # a lane for each sample
    logax.log({key: jnp.mean(values) for key, values in logs.items()})
    return jnp.mean((outputs - heights) ** 2)


def train(gain: Array, epochs: int) -> Network:
    """Fit waves over a square, and log once an epoch."""
    optimizer = optax.adam(2e-3)
    arrays, static = eqx.partition(Network(gain, random.key(0)), eqx.is_array)

    def step(state: State, key: Array) -> tuple[State, None]:
        arrays, memory = state
        points = random.uniform(key, (BATCH, 2), minval=-1.0)
        heights = jnp.sin(4 * points[:, 0]) * jnp.cos(4 * points[:, 1])
        model = eqx.combine(arrays, static)
        loss, slope = eqx.filter_value_and_grad(loss_of)(model, points, heights)
        norms = [jnp.linalg.norm(layer.linear.weight) for layer in slope.layers]
        logax.log({"loss": loss, **{f"gradient/{i}": norm for i, norm in enumerate(norms)}})
        change, memory = optimizer.update(slope, memory)
        return (eqx.apply_updates(arrays, change), memory), None

    def epoch(state: State, number: Array) -> tuple[State, None]:
        keys = random.split(random.fold_in(random.key(1), number), BATCHES)
        (state, _), logs = logax.spool(partial(lax.scan, step), reduce="mean")(state, keys)
        logax.log(logs.last, epoch=number)
        return state, None

    (arrays, _), _ = lax.scan(epoch, (arrays, optimizer.init(arrays)), jnp.arange(epochs))
    model: Network = eqx.combine(arrays, static)
    return model


def plot(logs: logax.logdict, output: Path) -> None:
    """Draw the gradient norm of each layer, and the loss, of both networks."""
    figure = Figure(figsize=(11, 3.5), layout="constrained")
    *panels, losses = figure.subplots(1, 3)
    for network, (axes, name) in enumerate(zip(panels, NAMES, strict=True)):
        for layer in range(DEPTH):
            color = (layer / DEPTH, 0.3, 1 - layer / DEPTH)
            axes.plot(logs[f"gradient/{layer}"][network], color=color, label=f"layer {layer}")
        axes.set(title=f"gradient norms, {name}", xlabel="epoch", yscale="log")
        losses.plot(logs["loss"][network], label=name)
    panels[0].legend(fontsize="x-small", ncols=2)
    losses.set(title="loss", xlabel="epoch", yscale="log")
    losses.legend()
    figure.savefig(output)


def main() -> None:
    """Train both networks, and compare them layer by layer."""
    parser = argparse.ArgumentParser(description="Look into the layers of a deep network.")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of twenty batches")
    parser.add_argument("--output", type=Path, default=Path("norms.png"), help="where to plot")
    options = parser.parse_args()

    both = eqx.filter_vmap(logax.spool(partial(train, epochs=options.epochs)))
    _, logs = eqx.filter_jit(both)(GAINS)  # networks come first, then epochs

    print(f"{'first epoch':11} | {'activations':^15} | {'share of zeros':^15} | {'gradient':^15}")
    print(f"{'':11}" + " | {:7} {:7}".format(*NAMES) * 3)
    for layer in range(DEPTH):
        columns = [logs[f"{key}/{layer}"][:, 0] for key in ("size", "zero", "gradient")]
        cells = [" | {:7.2g} {:7.2g}".format(*column) for column in columns]
        print(f"layer {layer:<5}" + "".join(cells))
    for name, losses in zip(NAMES, logs["loss"], strict=True):
        print(f"{name}: loss {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")
    plot(logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

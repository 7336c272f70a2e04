"""Train on four devices at once, each with its part of the data, and see what each of them sees.

`shard_map` runs one program on every device: its own batch, its own loss and gradient, and a `psum`
that makes the mean gradient, so that all devices take the same step. A call of `log` inside of it
is a call on every device. `spool` around it returns an axis for the devices; what is the same on
all of them, as the global loss is, has it too.

The labels that one device was given are partly wrong. The global loss goes down and says nothing of
it. The losses of the devices do.

    pip install matplotlib
    python examples/data_parallel.py [--steps 400] [--output data_parallel.png]

Four devices are simulated on the CPU; where there are several accelerators, it trains on these.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import logax
from logax.loggers import ProgressLogger

DEVICES = 4
BATCH = 64  # on each device, in each step
RATE = 1.0
SPOILED = 2  # the device whose labels are partly wrong

jax.config.update("jax_num_cpu_devices", DEVICES)  # before JAX is first used

Network = dict[str, Array]


def devices() -> Mesh:
    """Several accelerators, or as many simulated devices."""
    found = jax.devices()[:DEVICES]
    found = found if len(found) > 1 else jax.devices("cpu")
    return jax.make_mesh((len(found),), ("data",), (AxisType.Auto,), devices=found)


def new_data(key: Array, shards: int, number: int = 1024) -> tuple[Array, Array]:
    """Points and whether they lie in a ring; every third label of one shard is turned around."""
    points = random.uniform(key, (shards, number, 2), minval=-1.0, maxval=1.0)
    inside = jnp.abs(jnp.linalg.norm(points, axis=-1) - 0.6) < 0.25
    wrong = jnp.zeros_like(inside).at[SPOILED % shards, ::3].set(True)
    return points.reshape(-1, 2), (inside ^ wrong).reshape(-1)


def new_network(key: Array, width: int = 32) -> Network:
    """Draw the weights of one hidden layer."""
    first, second = random.split(key)
    return {
        "in": 3.0 * random.normal(first, (2, width)),
        "bias": random.normal(second, (width,)),
        "out": jnp.zeros(width),
    }


def loss_of(network: Network, points: Array, labels: Array) -> Array:
    """The mean cross-entropy."""
    logits = jnp.tanh(points @ network["in"] + network["bias"]) @ network["out"]
    return jnp.mean(jax.nn.softplus(jnp.where(labels, -logits, logits)))


def norm_of(slope: Network) -> Array:
    """The length of a gradient."""
    return jnp.sqrt(sum(jnp.sum(part**2) for part in jax.tree.leaves(slope)))


def train(network: Network, points: Array, labels: Array, steps: int) -> Network:
    """What each device does: `points` and `labels` are its own, the network is that of all."""

    def update(network: Network, step: Array) -> tuple[Network, None]:
        rows = random.choice(random.fold_in(random.key(2), step), len(points), (BATCH,))
        loss, slope = jax.value_and_grad(loss_of)(network, points[rows], labels[rows])
        sums = lax.psum((loss, slope), "data")
        all_loss, all_slope = jax.tree.map(lambda total: total / lax.axis_size("data"), sums)
        found = {
            "loss": loss,
            "gradient_norm": norm_of(slope),
            "global/loss": all_loss,
            "global/gradient_norm": norm_of(all_slope),
        }
        logax.log(found, step=step)
        return jax.tree.map(lambda part, way: part - RATE * way, network, all_slope), None

    return lax.scan(update, network, jnp.arange(steps))[0]


def draw(logs: Any, output: Path) -> None:
    """The loss and the gradient of each device, averaged over some steps, and those of all."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    smooth = partial(np.convolve, np.ones(20) / 20, mode="valid")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "gradient_norm"), strict=True):
        for device, values in enumerate(np.asarray(logs[name]).T):
            axes.plot(smooth(values), linewidth=1, label=f"device {device}")
        axes.plot(smooth(logs[f"global/{name}"][:, 0]), "k--", label="all")
        axes.set(xlabel="step", ylabel=name.replace("_", " "))
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(output, dpi=120)


def main() -> None:
    """Train, and compare the devices."""
    parser = argparse.ArgumentParser(description="Train on several devices, and see each of them.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", type=Path, default=Path("data_parallel.png"))
    options = parser.parse_args()

    mesh = devices()
    network, (points, labels) = new_network(random.key(0)), new_data(random.key(1), mesh.size)
    sharded = jax.shard_map(
        partial(train, steps=options.steps),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data")),
        out_specs=P(),
        check_vma=False,  # so that gradients are each device's own until they are summed
    )
    with ProgressLogger(show="*loss") as progress:
        watched = logax.tap(sharded, progress, buffer=50, keep_logs=True)
        _, logs = jax.jit(logax.spool(watched))(network, points, labels)

    print(logs)
    last = {name: np.asarray(values[-100:]).mean(axis=0) for name, values in logs.items()}
    print("\nmeans of the last 100 steps\n  device   loss  gradient norm")
    for device in range(mesh.size):
        print(f"{device:8} {last['loss'][device]:6.3f} {last['gradient_norm'][device]:14.3f}")
    print(f"     all {last['global/loss'][0]:6.3f} {last['global/gradient_norm'][0]:14.3f}")
    difference = np.abs(np.mean(logs["loss"], axis=1) - logs["global/loss"][:, 0]).max()
    print(f"the mean of the devices is the global loss, within {difference:.0e}")
    print(f"the labels of device {last['loss'].argmax()} look wrong")
    draw(logs, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

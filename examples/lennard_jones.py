"""A Lennard-Jones liquid: watched by a bar, profiled, stored, continued, and drawn from its file.

A crystal of 108 atoms melts. The step is compiled: ten steps of velocity Verlet, forces by `grad`.
The loop around it is Python, and what there is to see of it are three loggers: a bar with the
temperature, a profile of three steps, and a writer that stores the setup once, the energies at
every step, and a frame, from which a run can go on, at every fifth.

Interrupt it and start it again, or ask for more steps: it goes on after the last frame that is in
the file. How well energy is conserved, and how the atoms are arranged, is read from the file alone.

    pip install "logax[hdf5]" matplotlib
    python examples/lennard_jones.py [--steps 500] [--file liquid.h5] [--output liquid.png]
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from matplotlib.figure import Figure

from logax.loop import CompositeLogger, ProfileLogger, TqdmLogger, run_loop
from logax.storage import HDF5StorageReader, HDF5StorageWriter, Once, OnSteps, WriterGroupConfig

CELLS = 3  # of the crystal along each axis, with four atoms each
ATOMS = 4 * CELLS**3
BOX = (ATOMS / 0.8442) ** (1 / 3)  # the density of a liquid
CUTOFF = 2.5
TIME_STEP = 0.004
SUBSTEPS = 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Liquid:
    """The state: where the atoms are, how fast they move, and what pulls at them."""

    position: Array
    velocity: Array
    force: Array


def potential(position: Array) -> Array:
    """The energy of all pairs, each with the nearest image of the other, zero at the cutoff."""
    first, second = np.triu_indices(ATOMS, 1)
    apart = position[first] - position[second]
    apart = apart - BOX * jnp.round(apart / BOX)
    sixth = 1 / jnp.sum(apart**2, axis=-1) ** 3
    least = CUTOFF**-6
    pairs = 4 * (sixth**2 - sixth) - 4 * (least**2 - least)
    return jnp.sum(jnp.where(sixth > least, pairs, 0.0))


def advance(liquid: Liquid) -> Liquid:
    """Some steps of velocity Verlet."""

    def step(_: Array, liquid: Liquid) -> Liquid:
        half = liquid.velocity + 0.5 * TIME_STEP * liquid.force
        position = (liquid.position + TIME_STEP * half) % BOX
        force = -jax.grad(potential)(position)
        return Liquid(position, half + 0.5 * TIME_STEP * force, force)

    advanced: Liquid = lax.fori_loop(0, SUBSTEPS, step, liquid)
    return advanced


def crystal(key: Array) -> Liquid:
    """Atoms in a face-centred lattice, with random velocities and a centre of mass at rest."""
    halves = jnp.stack(jnp.meshgrid(*3 * [jnp.arange(2 * CELLS)]), axis=-1).reshape(-1, 3)
    position = halves[halves.sum(axis=-1) % 2 == 0] * BOX / (2 * CELLS)
    velocity = 1.2 * random.normal(key, position.shape)
    velocity = velocity - velocity.mean(axis=0)
    return Liquid(position, velocity, -jax.grad(potential)(position))


@jax.jit
def energies(liquid: Liquid) -> dict[str, Array]:
    """Of each atom, in the mean."""
    kinetic = 0.5 * jnp.sum(liquid.velocity**2) / ATOMS
    total = kinetic + potential(liquid.position) / ATOMS
    return {"total": total, "temperature": kinetic * 2 / 3}


def stored(steps: int) -> dict[str, WriterGroupConfig[Liquid, Any]]:
    """What the file has: three groups, each by its own schedule."""
    return {
        "setup": WriterGroupConfig(lambda _: {"box": BOX, "time": TIME_STEP * SUBSTEPS}, Once()),
        "energies": WriterGroupConfig(energies, 1),
        "frames": WriterGroupConfig(lambda liquid: liquid, OnSteps(range(4, steps, 5))),
    }


def begin_or_go_on(path: Path) -> tuple[Liquid, int]:
    """The state to go on with, and the step: the start, or what follows the last frame."""
    liquid = crystal(random.key(0))
    if not path.exists():
        return liquid, 0
    with HDF5StorageReader[Any](path) as reader:
        frames = reader.focus_group("frames", like=liquid)
        if not len(frames):
            return liquid, 0
        return jax.tree.map(jnp.asarray, frames[-1]), int(frames.steps[-1]) + 1


def simulate(path: Path, steps: int) -> None:
    """All steps that are not in the file yet."""
    liquid, first = begin_or_go_on(path)
    print(f"from step {first} to {steps}")
    if first >= steps:
        return
    with tempfile.TemporaryDirectory() as folder:
        profile = ProfileLogger(folder, first + 2, first + 4)
        logger = CompositeLogger(
            TqdmLogger(steps, energies, initial=first),
            HDF5StorageWriter(path, stored(steps), liquid, steps, mode="a", start_step=first),
            profile,
        )
        run_loop(advance, liquid, steps, logger=logger, start_step=first)
        if profile.trace_path:  # unless there were too few steps
            print(profile.report())


def distribution(position: Any, box: float) -> tuple[Any, Any]:
    """How often atoms are at some distance of each other, by how often they would be in a gas."""
    apart = position[:, :, None] - position[:, None]
    distance = np.linalg.norm(apart - box * np.round(apart / box), axis=-1)
    edges = np.linspace(0.5, box / 2, 80)
    counts, _ = np.histogram(distance, edges)
    gas = np.diff(4 / 3 * np.pi * edges**3) * len(position) * ATOMS**2 / box**3
    return (edges[1:] + edges[:-1]) / 2, counts / gas


def look(path: Path, output: Path) -> None:
    """Read the file, and draw what is in it."""
    with HDF5StorageReader[Any](path) as reader:
        setup = reader.focus_group("setup")[...]
        rows, frames = reader.focus_group("energies"), reader.focus_group("frames")
        time, found = setup["time"] * rows.steps, rows[...]
        late = frames[len(frames) // 2 :].position  # when it has melted
        print(f"{len(rows)} steps and {len(frames)} frames, complete: {reader.complete}")
    drift = found["total"] - found["total"][0]
    distance, density = distribution(late, setup["box"])
    nearest = distance[density.argmax()]
    print(f"energy {found['total'][0]:.4f}, off by at most {np.abs(drift).max():.4f}")
    print(f"temperature {found['temperature'][len(time) // 2 :].mean():.3f}")
    print(f"nearest neighbours at {nearest:.2f}, where they are {density.max():.2f} times as dense")

    figure = Figure(figsize=(10, 3), layout="constrained")
    curves = {
        ("time", "change of energy"): (time, drift),
        ("time", "temperature"): (time, found["temperature"]),
        ("distance of two atoms", "radial distribution"): (distance, density),
    }
    for axes, (labels, values) in zip(figure.subplots(1, 3), curves.items(), strict=True):
        axes.plot(*values)
        axes.set(xlabel=labels[0], ylabel=labels[1])
    figure.savefig(output, dpi=120)
    print(f"the plot: {output}")


def main() -> None:
    """Simulate what is missing, and look at all of it."""
    parser = argparse.ArgumentParser(description="Simulate a Lennard-Jones liquid.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--file", type=Path, default=Path("liquid.h5"))
    parser.add_argument("--output", type=Path, default=Path("liquid.png"))
    options = parser.parse_args()

    simulate(options.file, options.steps)
    look(options.file, options.output)


if __name__ == "__main__":
    main()

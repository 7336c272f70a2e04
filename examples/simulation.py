"""A small gas of Lennard-Jones atoms, and a Python loop that is watched while it runs.

    pip install matplotlib
    python examples/simulation.py [--steps 400] [--output simulation.png]

The step is compiled: ten steps of velocity Verlet for 64 atoms in a periodic box. The loop around
it is Python, and all that there is to see of it are loggers: a bar, the last states in case it
dies, a check for NaNs and one for the energy, a live plot, and a profile of three steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from logax.loop import (
    CheckLogger,
    CompositeLogger,
    EveryNStep,
    PlotLogger,
    ProfileLogger,
    RingBufferLogger,
    TqdmLogger,
    nan_check,
    run_loop,
)

BOX = 10.0
TIME_STEP = 0.004
SUBSTEPS = 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Gas:
    """The state: where the atoms are, how fast they move, and what pulls at them."""

    position: Any
    velocity: Any
    force: Any


def potential(position: Any) -> Any:
    """The energy of all pairs, each with the nearest image of the other."""
    apart = position[:, None] - position
    apart = apart - BOX * jnp.round(apart / BOX)
    square = jnp.sum(apart**2, axis=-1)
    pairs = jnp.triu(jnp.ones_like(square), 1) > 0
    sixth = 1 / jnp.where(pairs, square, 1.0) ** 3
    return jnp.sum(jnp.where(pairs & (square < 9.0), 4 * (sixth**2 - sixth), 0.0))


def advance(gas: Gas) -> Gas:
    """Some steps of velocity Verlet."""

    def step(_: int, gas: Gas) -> Gas:
        half = gas.velocity + 0.5 * TIME_STEP * gas.force
        position = (gas.position + TIME_STEP * half) % BOX
        force = -jax.grad(potential)(position)
        return Gas(position, half + 0.5 * TIME_STEP * force, force)

    advanced: Gas = jax.lax.fori_loop(0, SUBSTEPS, step, gas)
    return advanced


def start(key: Any) -> Gas:
    """Atoms on a grid, with random velocities and a centre of mass at rest."""
    places = (jnp.arange(8) + 0.5) * BOX / 8
    position = jnp.stack(jnp.meshgrid(places, places), axis=-1).reshape(-1, 2)
    velocity = jax.random.normal(key, position.shape)
    velocity = velocity - velocity.mean(axis=0)
    return Gas(position, velocity, -jax.grad(potential)(position))


@jax.jit
def observables(gas: Gas) -> dict[str, Any]:
    """What one wants to see of it."""
    kinetic = 0.5 * jnp.sum(gas.velocity**2)
    return {
        "energy": (kinetic + potential(gas.position)) / len(gas.position),
        "temperature": kinetic / len(gas.position),
    }


def main() -> None:
    """Run the simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", type=Path, default=Path("simulation.png"))
    options = parser.parse_args()

    gas = start(jax.random.key(0))
    energy = float(observables(gas)["energy"])
    with tempfile.TemporaryDirectory() as folder:
        profile = ProfileLogger(folder, start_step=10, end_step=12)
        ring = RingBufferLogger(5, dump="last_states.npz")
        logger = CompositeLogger(
            TqdmLogger(options.steps, observables),
            ring,
            CheckLogger(nan_check(), EveryNStep(10)),
            CheckLogger(
                lambda gas: abs(observables(gas)["energy"] - energy) < 0.05,
                EveryNStep(50),
                "The energy drifts: make the time step smaller.",
            ),
            PlotLogger(observables, EveryNStep(2), options.output),
            profile,
        )
        gas = run_loop(advance, gas, options.steps, logger=logger)
        print(profile.report())

    last = ", ".join(f"{name}={float(value):.3f}" for name, value in observables(gas).items())
    print(f"\nafter {options.steps} steps: {last}; at the start: energy={energy:.3f}")
    print("the last states that were kept:", *(step for step, _ in ring.buf))
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

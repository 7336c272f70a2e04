"""A small simulation of kUPS: 32 atoms of argon in a periodic box."""

from __future__ import annotations

from typing import Any

import ase.build
import jax
import jax.numpy as jnp
from kups.application.md.data import MdParameters, MdState, md_state_from_ase
from kups.application.md.simulation import make_md_propagator
from kups.application.potential.filter import POSITIONS_AND_CELL
from kups.application.simulations.potentials import LjPotentialConfig
from kups.core.lens import identity_lens
from kups.core.neighborlist import UniversalNeighborlistParameters

PARAMETERS = MdParameters(
    temperature=40.0,
    time_step=2.0,
    friction_coefficient=0.01,
    thermostat_time_constant=100.0,
    target_pressure=1e5,
    pressure_coupling_time=1000.0,
    compressibility=1e-9,
    minimum_scale_factor=0.9,
    integrator="verlet",
    initialize_momenta=True,
)


def argon() -> tuple[Any, MdState]:
    """The propagator of kUPS, and the state that it begins with."""
    whole = identity_lens(MdState)
    forces = LjPotentialConfig(
        cutoff=5.0, parameters={"Ar": (3.405, 0.0104)}, mixing_rule="lorentz_berthelot"
    )
    potential, cutoff = forces.build(whole, POSITIONS_AND_CELL)
    crystal = ase.build.bulk("Ar", "fcc", a=5.3, cubic=True) * (2, 2, 2)
    particles, systems = md_state_from_ase(crystal, PARAMETERS, key=jax.random.key(1))
    neighbours = UniversalNeighborlistParameters.estimate(
        particles.data.system.counts, systems, cutoff
    )
    state = MdState(particles, systems, neighbours, step=jnp.array([0]))
    return make_md_propagator(whole, PARAMETERS.integrator, potential), state

"""A wave on a string: what a Python loop computes goes to a file, is continued, and is read back.

    pip install "logax[hdf5]" matplotlib
    python examples/trajectory.py [--steps 2000] [--output trajectory.png]

The string is plucked, and loses its energy to friction. A writer stores how it is set up once, and
a frame every tenth step. In the middle the run is interrupted; run again, it goes on after the last
frame that is in the file. The picture is drawn from the file alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from logax.loop import CallbackLogger, CompositeLogger, TqdmLogger, run_loop
from logax.storage import (
    EveryNStep,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    OnSteps,
    WriterGroupConfig,
    resume_state,
)

POINTS = 201
TIME_STEP = 0.004
SPEED = 1.0
FRICTION = 0.3


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class String:
    """The state: how far each point is from rest, and how fast it moves."""

    height: Any
    velocity: Any


@dataclasses.dataclass
class Stored:
    """What is stored of it: two groups."""

    setup: WriterGroupConfig[String, Any]
    frames: WriterGroupConfig[String, Any]


def places() -> Any:
    """Where the points are, on a string of length one."""
    return jnp.linspace(0.0, 1.0, POINTS)


def advance(string: String) -> String:
    """One step of the damped wave equation, both ends held."""
    width = 1.0 / (POINTS - 1)
    bend = jnp.diff(string.height, 2) / width**2
    push = SPEED**2 * bend - FRICTION * string.velocity[1:-1]
    velocity = string.velocity.at[1:-1].add(TIME_STEP * push)
    return String(string.height + TIME_STEP * velocity, velocity)


def energy(string: String) -> Any:
    """Of motion and of tension."""
    slope = jnp.diff(string.height) * (POINTS - 1)
    return 0.5 * (jnp.mean(string.velocity**2) + SPEED**2 * jnp.mean(slope**2))


STORED = Stored(
    setup=WriterGroupConfig(lambda string: {"x": places(), "speed": SPEED}, Once()),
    frames=WriterGroupConfig(
        lambda string: {"string": string, "energy": energy(string)}, EveryNStep(10)
    ),
)


def pluck() -> String:
    """A bump at a third of the string, at rest."""
    height = jnp.exp(-(((places() - 1 / 3) / 0.05) ** 2))
    return String(height.at[0].set(0.0).at[-1].set(0.0), jnp.zeros(POINTS))


def simulate(path: Path, steps: int, interrupted_at: int | None = None) -> None:
    """Run all steps that are not in the file yet."""
    string, first = resume_state(
        path, lambda stored: stored.frames, pluck(), where=lambda row: row["string"]
    )
    print(f"from step {first}")

    def interrupt(string: String, step: int) -> None:
        raise KeyboardInterrupt(f"as if you had pressed Ctrl-C after step {step}")

    logger = CompositeLogger(
        TqdmLogger(steps, initial=first),
        HDF5StorageWriter(path, STORED, string, steps, mode="a", start_step=first),
        CallbackLogger(interrupt, OnSteps([] if interrupted_at is None else [interrupted_at])),
    )
    run_loop(advance, string, steps, logger=logger, start_step=first)


def draw(path: Path, output: Path) -> None:
    """Draw the string over time, and its energy."""
    with HDF5StorageReader[Stored](path) as reader:
        x = reader.focus_group(lambda stored: stored.setup)[...]["x"]
        frames = reader.focus_group(lambda stored: stored.frames)
        print(f"{len(frames)} frames of {reader.actual_steps} steps, complete: {reader.complete}")
        height = frames.focus(lambda row: row["string"].height)[...]
        energies = frames.focus(lambda row: row["energy"])[...]
        time = TIME_STEP * (frames.steps + 1)

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    over_time, decay = figure.subplots(1, 2)
    picture = over_time.pcolormesh(time, x, height.T, cmap="RdBu_r", vmin=-0.6, vmax=0.6)
    over_time.set(xlabel="time", ylabel="place")
    figure.colorbar(picture, ax=over_time, label="height")
    decay.semilogy(time, energies, color="teal", label="stored")
    decay.semilogy(
        time, energies[0] * np.exp(-FRICTION * time), "--", color="black", label="exp(-friction t)"
    )
    decay.set(xlabel="time", ylabel="energy")
    decay.legend()
    figure.savefig(output, dpi=120)


def main() -> None:
    """Simulate, be interrupted, go on, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("trajectory.png"))
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "string.h5"
        with contextlib.suppress(KeyboardInterrupt):
            simulate(path, options.steps, interrupted_at=options.steps // 3)
        simulate(path, options.steps)
        draw(path, options.output)
    print(f"the plot: {options.output}")


if __name__ == "__main__":
    main()

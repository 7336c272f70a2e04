"""Draw the pictures of the documentation, from programs that are in the repository.

    python tools/draw_pictures.py

`demo.png`, `simulation.png` and `trajectory.png` are what the examples of these names draw.
`molecules.png` is drawn from the logs of the first program in docs/log.md, so that the page shows
the logs of its own code.
Needs logax and matplotlib.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
LARGEST = 300_000
"""Bytes. Pictures stay in the history of the repository for good."""


def first_program(page: Path) -> dict[str, Any]:
    """Run the first block of Python of a page, and return its names."""
    block = re.search(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"{page} has no block of Python.")
    names: dict[str, Any] = {}
    exec(compile(block[1], str(page), "exec"), names)
    return names


def draw_by(example: str) -> Callable[[Path], None]:
    """Let an example draw its plot."""

    def draw(output: Path) -> None:
        program = ROOT / "examples" / example
        subprocess.run([sys.executable, program, "--output", output], check=True)

    return draw


def draw_molecules(output: Path) -> None:
    """Draw the energies over time, and the first and the last histogram of the velocities."""
    logs = jax.device_get(first_program(ROOT / "docs" / "log.md")["logs"].compact())
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    over_time, distribution = figure.subplots(1, 2)

    time, energy = logs.time["energy"], logs["energy"]
    over_time.plot(time, energy["kinetic"], color="teal", label="kinetic")
    over_time.plot(time, energy["potential"], color="darkorange", label="potential")
    over_time.plot(time, energy["kinetic"] + energy["potential"], color="black", label="sum")
    over_time.set(xlabel="time", ylabel="energy", ylim=(0, None))
    over_time.legend()

    velocity, step = logs["velocity"], logs.step["velocity"]
    for record, color in ((0, "silver"), (-1, "teal")):
        counts, edges = velocity.counts[record], velocity.edges[record]
        density = counts / np.sum(counts) / np.diff(edges)
        distribution.stairs(density, edges, color=color, label=f"step {step[record]}", linewidth=2)
    distribution.set(xlabel="velocity", ylabel="density")
    distribution.legend()
    figure.savefig(output, dpi=120)


def main() -> None:
    """Draw all of them."""
    IMAGES.mkdir(exist_ok=True)
    pictures = {
        "demo.png": draw_by("demo.py"),
        "molecules.png": draw_molecules,
        "simulation.png": draw_by("simulation.py"),
        "trajectory.png": draw_by("trajectory.py"),
    }
    for name, draw in pictures.items():
        draw(IMAGES / name)
        size = (IMAGES / name).stat().st_size
        print(f"{name}: {size} bytes")
        if size > LARGEST:
            raise ValueError(f"{name} has {size} bytes, and may have {LARGEST}.")


if __name__ == "__main__":
    main()

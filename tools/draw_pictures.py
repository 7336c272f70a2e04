"""Draw the pictures of the documentation, from programs that are in the repository.

    python tools/draw_pictures.py

`demo.png`, `ppo.png`, `sampler.png` and so on are what the examples of these names draw.
`molecules.png` is drawn from the logs of the first program in docs/log.md, so that the page shows
the logs of its own code.
`console.svg` is what `ConsoleLogger` shows of 64 seeds of a small network.
Needs logax, matplotlib and rich, and what the examples need.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

import logax
from logax.loggers.console import ConsoleLogger

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
    """Let an example draw its plot; what else it writes is not kept."""

    def draw(output: Path) -> None:
        program = ROOT / "examples" / example
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, program, "--output", output], cwd=folder, check=True)

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


class Terminal(io.StringIO):
    """A terminal that remembers what was drawn."""

    def isatty(self) -> bool:
        """Yes."""
        return True

    def last(self) -> str:
        """The last drawing: what follows the last line that was erased."""
        return self.getvalue().rpartition("\x1b[2K")[2].rstrip("\n")


def train(key: Any) -> None:
    """Fit a sine with a small network."""
    first, second, points = jax.random.split(key, 3)
    weights = {
        "in": 2 * jax.random.normal(first, (32,)),
        "bias": jax.random.normal(points, (32,)),
        "out": jax.random.normal(second, (32,)) / 6,
    }

    def loss(weights: Any, x: Any) -> Any:
        hidden = jnp.tanh(jnp.outer(x, weights["in"]) + weights["bias"])
        return jnp.mean((hidden @ weights["out"] - jnp.sin(x)) ** 2)

    def update(weights: Any, step: Any) -> Any:
        x = jax.random.uniform(jax.random.fold_in(points, step), (64,), minval=-2, maxval=2)
        value, gradient = jax.value_and_grad(loss)(weights, x)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        rate = 0.01 * (1 + jnp.cos(jnp.pi * step / 2000))
        logax.log(
            {
                "loss": value,
                "gradient": norm,
                "rate": rate,
                "weights": logax.Histogram(weights["in"], bins=24),
            },
            step=step,
        )
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), None

    jax.lax.scan(update, weights, jnp.arange(2000))


def draw_console(output: Path) -> None:
    """Draw the table of 64 seeds, in the letters of whoever looks at it."""
    os.environ |= {"COLUMNS": "92", "LINES": "24", "TERM": "xterm-256color"}
    terminal = Terminal()
    logger = ConsoleLogger(file=terminal, window=2000)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 64))
    keys = jax.random.split(jax.random.key(1), 64)
    jax.vmap(lambda state, key: logger.tap(train, state, buffer=50)(key))(states, keys)
    logger.finish(states)
    console = Console(record=True, file=io.StringIO(), width=92)
    console.print(Text.from_ansi(terminal.last()))
    # Without the fonts that it would fetch from elsewhere, and the line about who made it.
    drawn = re.sub(
        r"@font-face \{.*?\}|<!--.*?-->", "", console.export_svg(title="logax"), flags=re.S
    )
    output.write_text(re.sub(r"\s*\n\s*", "\n", drawn))


def main() -> None:
    """Draw all of them."""
    IMAGES.mkdir(exist_ok=True)
    pictures = {
        "console.svg": draw_console,
        "demo.png": draw_by("demo.py"),
        "molecules.png": draw_molecules,
        "ppo.png": draw_by("ppo.py"),
        "sampler.png": draw_by("sampler.py"),
        "equinox_norms.png": draw_by("equinox_norms.py"),
        "lennard_jones.png": draw_by("lennard_jones.py"),
        "data_parallel.png": draw_by("data_parallel.py"),
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

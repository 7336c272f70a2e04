"""The examples run as they are, and say what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def said_by(name: str, *options: str) -> list[str]:
    """What an example prints, line by line."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def iterations_in(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"Optim.*: iter=(\d+) ", line))]


def test_the_curve_fit_finds_the_curve_and_says_how() -> None:
    *steps, end, result = said_by("curve_fit.py")
    assert iterations_in(steps) == list(range(len(steps)))
    reason = "gradient is small|steps are small"
    assert re.match(rf"Convergence: reason=({reason}) \| iterations={len(steps)} \| ", end)
    assert " | time=" in end
    found = [float(number) for number in re.findall(r"\d+\.\d*", result)]
    assert len(found) == 8
    assert all(abs(x - y) < 0.05 for x, y in zip(found[:4], found[4:], strict=True))


def test_the_simulation_is_watched_while_it_runs(tmp_path: Path) -> None:
    output = tmp_path / "simulation.png"
    report, *rest = said_by("simulation.py", "--steps", "120", "--output", str(output))
    assert report.startswith("steps 10 to 12: ")
    assert any("jit_advance/" in line for line in rest)
    assert "the last states that were kept: 115 116 117 118 119" in rest
    (summary,) = [line for line in rest if line.startswith("after 120 steps: ")]
    last, _, start = map(float, re.findall(r"=(-?\d+\.\d+)", summary))
    assert abs(last - start) < 0.05
    assert output.read_bytes().startswith(b"\x89PNG")
    assert not (ROOT / "last_states.npz").exists()


def test_the_stored_trajectory_is_continued_and_drawn(tmp_path: Path) -> None:
    output = tmp_path / "trajectory.png"
    lines = said_by("trajectory.py", "--steps", "300", "--output", str(output))
    assert lines == [
        "from step 0",
        "from step 101",
        "30 frames of 300 steps, complete: True",
        f"the plot: {output}",
    ]
    assert output.read_bytes().startswith(b"\x89PNG")


def test_the_wrapped_optimizers_say_their_iterations() -> None:
    lines = said_by("optimizer.py")
    second, third = (i for i, line in enumerate(lines) if line.startswith(("sgd", "adam, no")))
    assert iterations_in(lines[:second]) == [0, 10, 20, 30, 40]
    assert lines[second - 1].startswith("Convergence: reason=all steps done | iterations=50 | ")
    assert iterations_in(lines[second:third]) == [0, 1, 2, 3, 4]
    assert iterations_in(lines[third:]) == []
    assert lines[third + 1].startswith("cost: 50 records of float32, last ")
    costs = [float(cost) for cost in re.findall(r"cost=(\S+)", "\n".join(lines[:second]))]
    assert costs == sorted(costs, reverse=True)

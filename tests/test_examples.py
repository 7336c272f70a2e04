"""The examples run as they are, and say what they promise."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import logax
from examples import ROOT, assert_drawn, assert_picture, iterations_in, said_by

pytestmark = pytest.mark.slow  # each is a process that compiles its programs


def test_the_demo_keeps_a_run_for_each_seed_beside_earlier_ones_and_draws_them(
    tmp_path: Path,
) -> None:
    logax.save({"loss": np.zeros(60, np.float32)}, tmp_path / "runs", name="earlier")
    (tmp_path / "demo.png").write_bytes(b"an earlier one")
    lines = said_by("demo.py", "--seeds", "6", "--steps", "60", folder=tmp_path)
    assert lines[:2] == [
        "Training 6 small networks in one compiled call.",
        "The runs go to runs, the curves to demo.png.",
    ]
    assert any(line.startswith("6 seeds of 60 steps in one compiled call: ") for line in lines)
    commands = [line.split()[2] for line in lines if line.startswith("$ logax ")]
    assert commands == ["ls", "show", "plot"]
    assert sum(" finished " in line for line in lines) == 5  # the newest, as `ls` has them
    assert lines[-1] == "The curves are in demo.png, the runs in runs."
    assert_picture(tmp_path / "demo.png")

    runs = logax.load(tmp_path / "runs")
    assert [run.name for run in runs.values()] == ["earlier", *(f"moons-{i}" for i in range(6))]
    assert {run.status for run in runs.values()} == {"finished"}
    loss = runs["loss"][1:]
    assert loss.shape == (6, 60)
    assert (loss[:, -10:].mean(axis=1) < loss[:, :10].mean(axis=1)).all()
    run = runs.find("moons-5")
    assert np.array_equal(run.steps["step"]["test/loss"], [0, 20, 40])
    assert run.config == {"width": 24, "batch": 128, "steps": 60}


def test_the_curve_fit_finds_the_curve_and_says_how(tmp_path: Path) -> None:
    output = tmp_path / "curve_fit.png"
    lines = said_by("curve_fit.py", "--output", str(output))
    *steps, end, a, b, c, d, _ = lines
    assert iterations_in(steps) == list(range(len(steps)))
    reason = "gradient is small|steps are small"
    assert re.match(rf"Convergence: reason=({reason}) \| iterations={len(steps)} \| ", end)
    assert " | time=" in end
    for line in (a, b, c, d):
        found, error, true = map(float, re.findall(r"\d+\.\d+", line))
        assert abs(found - true) < 3 * error < 0.06
    assert_drawn(lines, output)


def test_the_simulation_is_watched_while_it_runs(tmp_path: Path) -> None:
    output = tmp_path / "simulation.png"
    report, *rest = said_by("simulation.py", "--steps", "120", "--output", str(output))
    assert report.startswith("steps 10 to 12: ")
    assert any("jit_advance/" in line for line in rest)
    assert "the last states that were kept: 115 116 117 118 119" in rest
    (summary,) = [line for line in rest if line.startswith("after 120 steps: ")]
    last, _, start = map(float, re.findall(r"=(-?\d+\.\d+)", summary))
    assert abs(last - start) < 0.05
    assert_drawn(rest, output)
    assert not (ROOT / "last_states.npz").exists()


def test_the_stored_trajectory_is_continued_and_drawn(tmp_path: Path) -> None:
    output = tmp_path / "trajectory.png"
    lines = said_by("trajectory.py", "--steps", "300", "--output", str(output))
    assert lines[:-1] == [
        "from step 0",
        "from step 101",
        "30 frames of 300 steps, complete: True",
    ]
    assert_drawn(lines, output)


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

"""The examples of the sciences run as they are, and what they find is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import assert_drawn, line_of, numbers_in, said_by
from logax.storage import HDF5StorageReader

pytestmark = pytest.mark.slow


def test_the_sampler_accepts_what_it_aims_at_and_diverges_in_the_funnel(tmp_path: Path) -> None:
    output = tmp_path / "sampler.png"
    few = ("--warmup", "200", "--steps", "200", "--chains", "8")
    lines = said_by("sampler.py", *few, "--output", str(output))
    for key in ("warmup/acceptance", "warmup/step_size", "acceptance", "divergent", "leapfrogs"):
        assert line_of(lines, f"{key}: ").startswith(f"{key}: 8 lanes of 200 records of ")
    accepted, target, diverged, steps = numbers_in(line_of(lines, "accepted "))
    assert abs(accepted - target) < 0.15
    assert steps == 1600
    assert 0 < diverged < 400
    inside, outside = numbers_in(line_of(lines, "log_spread where "))
    assert inside < outside
    mean, _, reduction = numbers_in(line_of(lines, "mean "))
    assert abs(mean - 4.4) < 2
    assert reduction < 1.5
    assert_drawn(lines, output)


def test_a_numpyro_model_is_evaluated_as_often_as_its_kernel_says(tmp_path: Path) -> None:
    output = tmp_path / "numpyro.png"
    few = ("--steps", "100", "--chains", "3")
    lines = said_by("numpyro_model.py", *few, "--output", str(output))
    for key in ("acceptance", "step_size", "leapfrogs", "divergent"):
        assert line_of(lines, f"nuts/{key}: ").startswith(f"nuts/{key}: 3 lanes of 200 records ")
    accepted, target, _ = numbers_in(line_of(lines, "accepted "))
    assert abs(accepted - target) < 0.15
    leapfrogs = numbers_in(line_of(lines, "leapfrogs "))
    evaluations = numbers_in(line_of(lines, "evaluations "))
    assert len(set(leapfrogs)) == 3
    # Each chain looks at its start twice more.
    assert np.subtract(evaluations, leapfrogs).tolist() == [2, 2, 2]
    assert_drawn(lines, output)


def test_numpyro_is_watched_with_nothing_wrapped(tmp_path: Path) -> None:
    lines = said_by(
        "numpyro_model.py", "--steps", "100", "--chains", "3", "--live", folder=tmp_path
    )
    middle, low, high = numbers_in(line_of(lines, "mean "))
    assert low < middle < high
    assert abs(middle - 4.4) < 2
    assert not list(tmp_path.iterdir())


def test_the_liquid_keeps_its_energy_and_goes_on_from_its_file(tmp_path: Path) -> None:
    path, output = tmp_path / "liquid.h5", tmp_path / "liquid.png"
    where = ("--file", str(path), "--output", str(output))
    begun = said_by("lennard_jones.py", "--steps", "20", *where)
    assert begun[0] == "from step 0 to 20"
    assert begun[1].startswith("steps 2 to 4: ")
    assert any("jit_advance/" in line for line in begun)
    with HDF5StorageReader(path) as reader:
        first_frames = reader.focus_group("frames")[...].position

    lines = said_by("lennard_jones.py", "--steps", "100", *where)
    assert lines[0] == "from step 20 to 100"
    assert "100 steps and 20 frames, complete: True" in lines
    energy, off = numbers_in(line_of(lines, "energy "))
    assert abs(energy + 4.39) < 0.02
    assert off < 0.002
    distance, density = numbers_in(line_of(lines, "nearest neighbours at "))
    assert abs(distance - 1.1) < 0.05
    assert 2.5 < density < 3.5
    assert_drawn(lines, output)

    with HDF5StorageReader(path) as reader:
        frames, energies = reader.focus_group("frames"), reader.focus_group("energies")
        assert frames.steps.tolist() == list(range(4, 100, 5))
        assert energies.steps.tolist() == list(range(100))
        np.testing.assert_array_equal(frames[:4].position, first_frames)
        total = energies[...]["total"]
        assert abs(total[20] - total[19]) < 0.001  # where it went on


def test_the_devices_are_told_apart_and_their_mean_is_the_global_loss(tmp_path: Path) -> None:
    output = tmp_path / "data_parallel.png"
    lines = said_by("data_parallel.py", "--output", str(output))
    for key in ("loss", "gradient_norm", "global/loss", "global/gradient_norm"):
        assert line_of(lines, f"{key}: ").startswith(f"{key}: 400 records of float32[4], ")
    table = lines.index("  device   loss  gradient norm") + 1
    devices = np.array([numbers_in(line) for line in lines[table : table + 4]])
    assert devices[:, 0].tolist() == [0, 1, 2, 3]
    losses, norms = devices[:, 1], devices[:, 2]
    loss, norm = numbers_in(lines[table + 4])
    assert abs(losses.mean() - loss) < 0.001
    assert norm < norms.mean()
    assert losses[2] > losses[[0, 1, 3]].max() + 0.2
    assert numbers_in(line_of(lines, "the mean of the devices "))[0] < 1e-6
    assert "the labels of device 2 look wrong" in lines
    assert_drawn(lines, output)

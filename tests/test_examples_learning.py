"""The examples that train or fit with a library run as they are, and what they log is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import assert_drawn, line_of, numbers_in, said_by

pytestmark = pytest.mark.slow


def test_all_seeds_of_ppo_learn_to_balance_the_pole(tmp_path: Path) -> None:
    output = tmp_path / "ppo.png"
    lines = said_by("ppo.py", "--seeds", "3", "--updates", "16", "--output", str(output))
    for key in ("episodes", "loss", "entropy", "kl", "return"):
        assert line_of(lines, f"{key}: ").startswith(f"{key}: 3 lanes of 16 records of ")
    returns = [numbers_in(line)[1:] for line in lines if line.startswith("seed ")]
    assert len(returns) == 3
    assert all(last > 2 * first > 20 for first, last in returns)
    assert_drawn(lines, output)


def test_the_flax_classifier_learns_and_its_logs_come_through_nnx(tmp_path: Path) -> None:
    output = tmp_path / "classifier.png"
    lines = said_by("flax_classifier.py", "--steps", "250", "--output", str(output))
    live = [numbers_in(line) for line in lines if re.fullmatch(r"loss=\S+ accuracy=\S+", line)]
    assert len(live) == 3
    assert all(loss > 0.5 for loss, _ in live)
    for key in ("active", "loss", "accuracy", "gradient", "rate"):
        assert line_of(lines, f"{key}: ").startswith(f"{key}: 250 records of float32, last ")
    loss, accuracy = numbers_in(line_of(lines, "On new points: "))
    assert loss < 0.1
    assert accuracy > 0.97
    assert_drawn(lines, output)


def test_the_equinox_layers_show_why_one_network_learns_late(tmp_path: Path) -> None:
    output = tmp_path / "norms.png"
    lines = said_by("equinox_norms.py", "--epochs", "5", "--output", str(output))
    layers = [numbers_in(line) for line in lines if line.startswith("layer ")]
    assert [int(number) for number, *_ in layers] == list(range(10))
    for _, *sizes_zeros_gradients in layers:
        default_size, scaled_size, *zeros = sizes_zeros_gradients[:4]
        assert 0 < default_size < scaled_size
        assert all(0.3 < share < 0.8 for share in zeros)
    default_gradient, scaled_gradient = layers[0][-2:]
    assert 0 < default_gradient < 1e-3 * scaled_gradient
    first, last = numbers_in(line_of(lines, "scaled: "))
    assert last < 0.3 * first
    assert_drawn(lines, output)


def test_the_diffrax_fit_counts_what_the_solver_and_each_adjoint_evaluate(tmp_path: Path) -> None:
    output = tmp_path / "oscillator.png"
    lines = said_by("diffrax_fit.py", "--steps", "30", "--output", str(output))
    steps, rejected, evaluations = numbers_in(lines[0])
    assert 0 < rejected < steps
    # Six stages a step, and the first of all once more after each rejection at time 0.
    assert evaluations == 6 * steps + 1 + 2
    for key in ("loss", "parameters", "evaluations", "least size"):
        assert line_of(lines, f"{key}: ").startswith(f"{key}: 30 records of ")
    damping, push, *truth = numbers_in(line_of(lines, "found "))
    assert [damping, push] == pytest.approx(truth, abs=0.2)
    heading = lines.index("Evaluations in one gradient, and who sees them:")
    inside, checkpoints, direct, back = (int(line.split()[0]) for line in lines[heading + 1 : -1])
    assert inside == direct == evaluations
    assert checkpoints > 2 * evaluations
    assert back > 2 * evaluations
    assert_drawn(lines, output)

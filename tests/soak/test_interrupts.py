"""Programs that are ended while they stream: what was delivered is on disk, in order, once."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import logax
from soak.interrupts import STEPS, stream
from soak.processes import finish, start

WAYS = pytest.mark.parametrize(
    ("way", "number", "code"),
    [
        ("uncaught", signal.SIGINT, -signal.SIGINT),
        ("code", signal.SIGINT, 7),
        ("discard", signal.SIGINT, 7),
        ("terminated", signal.SIGTERM, -signal.SIGTERM),
    ],
)


@pytest.mark.slow
@WAYS
def test_what_was_delivered_before_the_end_is_kept(
    way: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    check_interrupt(tmp_path, way, number, code, buffer=50, seed=0)


@pytest.mark.campaign
@pytest.mark.parametrize("buffer", [1, 50])
@WAYS
def test_what_was_delivered_before_each_of_many_ends_is_kept(
    way: str,
    number: signal.Signals,
    code: int,
    buffer: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    for seed in range(1, 11):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_interrupt(folder, way, number, code, buffer, seed)
    record_property("interrupts", 10)


def check_interrupt(
    folder: Path, way: str, number: signal.Signals, code: int, buffer: int, seed: int
) -> None:
    process = start(stream, folder, way, buffer)
    assert process.stdout is not None
    lines = random.Random(f"{way} {buffer} {seed}").choice([1, 3, 6])
    said = [int(process.stdout.readline()) for _ in range(lines)]
    process.send_signal(number)
    got, rest, errors = finish(process)
    said += map(int, rest.split())
    assert got == code, errors
    assert ("KeyboardInterrupt" in errors) == (way == "uncaught")
    assert "DeliveryError" not in errors
    (run,) = logax.load(folder).values()
    assert run.status == "crashed"
    found = run["x"]
    assert len(found) >= said[-1]
    np.testing.assert_array_equal(found, np.arange(len(found)))
    np.testing.assert_array_equal(run.steps["step"]["x"], np.arange(len(found)) % STEPS)

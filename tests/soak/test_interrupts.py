"""Programs that are ended while they stream: what was delivered is on disk, in order, once."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import numpy as np
import pytest

import logax
from soak.interrupts import STEPS, stream
from soak.processes import finish, start


@pytest.mark.slow
@pytest.mark.parametrize("buffer", [1, 50])
@pytest.mark.parametrize(
    ("way", "number", "code"),
    [
        ("uncaught", signal.SIGINT, -signal.SIGINT),
        ("code", signal.SIGINT, 7),
        ("discard", signal.SIGINT, 7),
        ("terminated", signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_what_was_delivered_before_the_end_is_kept(
    way: str, number: signal.Signals, code: int, buffer: int, tmp_path: Path
) -> None:
    process = start(stream, tmp_path, way, buffer)
    assert process.stdout is not None
    lines = random.Random(f"{way} {buffer}").choice([1, 3, 6])
    said = [int(process.stdout.readline()) for _ in range(lines)]
    process.send_signal(number)
    got, rest, errors = finish(process)
    said += map(int, rest.split())
    assert got == code, errors
    assert ("KeyboardInterrupt" in errors) == (way == "uncaught")
    assert "DeliveryError" not in errors
    (run,) = logax.load(tmp_path).values()
    assert run.status == "crashed"
    found = run["x"]
    assert len(found) >= said[-1]
    np.testing.assert_array_equal(found, np.arange(len(found)))
    np.testing.assert_array_equal(run.steps["step"]["x"], np.arange(len(found)) % STEPS)

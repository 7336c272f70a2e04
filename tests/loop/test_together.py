"""All loggers together: steps that are not due cost nothing, and nothing stays open."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax import EveryNStep, EverySeconds, OnSteps
from logax.loop import (
    CallbackLogger,
    CheckLogger,
    CompositeLogger,
    NotifyLogger,
    PlotLogger,
    PrintLogger,
    ProfileLogger,
    PythonLogger,
    RingBufferLogger,
    TqdmLogger,
    nan_check,
)
from loops import Particles, advance, held_state

NEVER = OnSteps([10**6])


def everything(folder: Path, schedule: Any) -> list[Any]:
    """One of each."""

    def energy(state: Particles) -> dict[str, Any]:
        return {"energy": state.energy}

    return [
        TqdmLogger(10**6, energy, file=io.StringIO()),
        RingBufferLogger(2, schedule=schedule),
        CheckLogger(nan_check(), schedule),
        CallbackLogger(lambda state, step: None, schedule),
        PrintLogger(energy, schedule, file=io.StringIO()),
        PythonLogger(energy, schedule),
        PlotLogger(energy, schedule, folder / "plot.png"),
        NotifyLogger("http://127.0.0.1:9/", schedule, energy, ends=False),
        ProfileLogger(folder, 10**6, 10**6),
    ]


@pytest.mark.filterwarnings("ignore:`ProfileLogger`")  # the loop ends before it begins
def test_where_nothing_is_due_nothing_is_waited_for_or_moved(tmp_path: Path) -> None:
    logger = CompositeLogger(*everything(tmp_path, NEVER))
    with logger, held_state() as state, jax.transfer_guard("disallow"):
        for step in range(20):
            logger.log(state, step)


@pytest.mark.filterwarnings("ignore:`ProfileLogger`")
def test_a_clock_that_is_not_due_touches_nothing_either(tmp_path: Path) -> None:
    logger = CompositeLogger(*everything(tmp_path, EverySeconds(1e6) & OnSteps(range(1, 20))))
    with logger, held_state() as state, jax.transfer_guard("disallow"):
        logger.log(state, 0)


def test_a_step_may_be_an_array_which_is_waited_for(tmp_path: Path) -> None:
    count = jax.jit(lambda i: i + 1, donate_argnums=0)
    text = io.StringIO()
    ring, bar = RingBufferLogger(3, schedule=EveryNStep(2)), TqdmLogger(8, file=text)
    i = jnp.int32(0)
    with CompositeLogger(ring, bar, PlotLogger(lambda x: x, 1, tmp_path / "plot.png")) as logger:
        for _ in range(7):
            logger.log(i * 2, i)
            i = count(i)
    assert [(step, int(x)) for step, x in ring.buf] == [(2, 4), (4, 8), (6, 12)]
    assert bar.position == 7
    assert "7/8" in text.getvalue()


def test_a_step_that_is_no_whole_number_is_refused() -> None:
    with RingBufferLogger(3) as ring, pytest.raises(TypeError) as caught:
        ring.log(jnp.zeros(2), 1.0)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "`RingBufferLogger.log` takes the number of the step, an int, and got 1.0 of type `float`. "
        "Write `logger.log(state, step)`, with `step` of `range(num_steps)`."
    )


LOOP = """
import signal, sys, jax, jax.numpy as jnp
from logax.loop import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
folder = sys.argv[1]
logger = CompositeLogger(
    TqdmLogger(10**9, lambda x: {"x": x}),
    RingBufferLogger(3, dump=f"{folder}/ring.npz"),
    PlotLogger(lambda x: {"x": x}, 100, f"{folder}/plot.png"),
    ProfileLogger(f"{folder}/trace", 5, 10**9),
    CallbackLogger(lambda x, step: print(step, flush=True), OnSteps([50])),
)
step = jax.jit(lambda x: x + 1, donate_argnums=0)
x = jnp.float32(0)
with logger:
    for i in range(10**9):
        x = step(x)
        logger.log(x, i)
"""


@pytest.mark.slow
def test_a_loop_that_is_interrupted_closes_all_that_it_had_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOOP, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "50\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert "KeyboardInterrupt" in err
    with np.load(tmp_path / "ring.npz") as arrays:
        steps = arrays["step"].tolist()
        assert steps == [steps[0], steps[0] + 1, steps[0] + 2]
        assert steps[0] >= 48
        np.testing.assert_array_equal(arrays["value"], arrays["step"] + 1)
    assert "`RingBufferLogger` wrote the states of steps" in err
    (bar,) = re.findall(r"(\d+)/1000000000 \[[^\n]*\n(?!.*/1000000000)", err)
    assert int(bar) >= 51
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [path.suffix for path in (tmp_path / "trace").rglob("*.xplane.pb")] == [".pb"]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    def once() -> None:
        state = Particles.at_rest()
        with CompositeLogger(*everything(tmp_path, OnSteps([0]))[:7]) as logger:
            for step in range(3):
                state = advance(state)
                logger.log(state, step)

    once()
    before = threading.active_count()
    for _ in range(5):
        once()
    assert threading.active_count() == before
    assert float(jnp.float32(1)) == 1

"""What the tests of the command share: a folder of runs, and a way to call it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import logax
from logax._cli import main
from logax.loggers.save import SaveLogger


class Ended(NamedTuple):
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in this process, on a terminal of 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ended(status, *capsys.readouterr())

    return run


# What `python -m logax` does. Whoever started the tests may have had them ignore interrupts.
_AS_A_PROGRAM = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("logax", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command as a program, which is gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", _AS_A_PROGRAM, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
        )
        started.append(program)
        return program

    yield begin
    for program in started:
        with program:  # closes its pipes
            program.kill()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with the same keys, a crashed one, and three seeds of a group."""
    path = tmp_path_factory.mktemp("store") / "runs"
    logger = SaveLogger(path)
    for name, rate in (("first", 0.5), ("second", 0.25)):
        with logger.run(name=name, config={"rate": rate, "model": {"width": 8}}) as state:
            for step in range(4):
                logger.log(state, {"loss": rate * (4 - step), "hits": step**2}, step=step)
            logger.log(state, {"val/loss": 2 * rate}, epoch=1)
    with contextlib.suppress(ZeroDivisionError), logger.run(name="broken") as state:
        logger.log(state, {"loss": float("nan")}, step=7)
        raise ZeroDivisionError
    logger.close()
    logs = logax.logdict(
        {"loss": np.arange(6.0).reshape(3, 2)},
        steps={"step": {"loss": np.array([[0, 5]] * 3)}},
        rank={"loss": 0},
    )
    logax.save(logs, path, name="seeds", lanes="group")
    return path


@pytest.fixture(scope="session")
def ids(store: Path) -> dict[str, str]:
    """The id of each run by its name."""
    return {run.name: run.id for run in logax.load(store).values()}


@pytest.fixture
def logged(tmp_path: Path) -> Callable[..., Path]:
    """Log records, each its values and its steps, to a run in a folder of its own."""

    def log(*records: tuple[dict[str, Any], dict[str, int]]) -> Path:
        logger = SaveLogger(tmp_path / "own")
        with logger.run() as state:
            for values, steps in records:
                logger.log(state, values, **steps)
        logger.close()
        return tmp_path / "own"

    return log


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Save a run to a folder of its own."""

    def save(data: Any, **more: Any) -> Path:
        logax.save(data, tmp_path / "own", **more)
        return tmp_path / "own"

    return save

"""Processes that fork while a program streams into a logger, and children that end, log and exit.

No child computes with JAX, which may wait for threads that it has not got.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import logax
from logax.loggers import JSONLLogger, MultiLogger, SaveLogger
from logax.loggers._text.shared_files import open_locked
from logax.loop import (
    CallbackLogger,
    CompositeLogger,
    PrintLogger,
    PythonLogger,
    RingBufferLogger,
    TqdmLogger,
)
from soak.counting import counter

CHILDREN, STEPS, OWN = 40, 200, 5

count = counter(STEPS)


def fork_under_load(folder: str) -> dict[str, Any]:
    """Fork again and again while another thread streams, and say how all ended and what was got."""
    warnings.simplefilter("ignore")  # those of Python and JAX, that forking may hang
    logax.configure(queue_bytes=2**18)  # so that delivery keeps pace
    logger = MultiLogger(SaveLogger(f"{folder}/runs"), JSONLLogger(f"{folder}/run.jsonl"))
    seen: list[float] = []
    tapped = logax.tap(count, lambda one: seen.append(float(one["x"])), buffer=10)
    ends, calls = threading.Event(), 0
    with logger.run(name="parent") as state:
        logax.flush()  # what is known of the machine is known now

        def stream() -> None:
            nonlocal calls
            while not ends.is_set():
                start = np.float32(calls * STEPS)
                tapped(start)
                logger.tap(count, state, buffer=10)(start)
                calls += 1

        thread = threading.Thread(target=stream)
        thread.start()
        codes = []
        for number in range(CHILDREN):
            pid = os.fork()
            if not pid:
                _child(number, logger, state, Path(folder))
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        ends.set()
        thread.join()
    logax.flush()
    logger.close()
    return {"codes": codes, "number": calls * STEPS, "seen": seen == list(range(calls * STEPS))}


def fork_while_locked(path: str) -> str:
    """Whether a file to which lines were added can be locked while a child of that time lives."""
    ends, end = os.pipe()
    with open_locked(path):
        pid = os.fork()
        if not pid:
            os.close(end)
            os.read(ends, 1)  # until the parent closes it
            os._exit(0)
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = "free"
        except BlockingIOError:
            found = "locked"
    os.close(end)
    os.waitpid(pid, 0)
    return found


def _child(number: int, logger: Any, state: Any, folder: Path) -> NoReturn:
    """Do what a child does, of four things one, and end."""
    if number % 4 == 0:
        os._exit(number)
    if number % 4 == 1:
        logger.log(state, {"of a child": float(number)}, step=number)
    if number % 4 == 2:
        with logger.run(name=f"child {number}") as own:
            for step in range(OWN):
                logger.log(own, {"x": float(step)}, step=step)
    if number % 4 == 3:
        loop(folder / f"loop {number}", logger, number)
    atexit._run_exitfuncs()  # and no more: MLIR's threads, which are not here, are waited for then
    os._exit(number)


def loop(folder: Path, logger: Any, number: int) -> None:
    """A loop of Python with all kinds of loggers, whose state is an array of NumPy."""
    folder.mkdir()
    handler = logging.FileHandler(folder / "python.log")
    named = logging.getLogger(f"of {number}")
    named.addHandler(handler)
    named.setLevel(logging.INFO)

    def view(x: Any) -> Any:
        return {"x": x}

    with (
        open(folder / "printed", "w") as printed,
        open(folder / "bar", "w") as bar,
        open(folder / "called", "w") as called,
        CompositeLogger(
            PrintLogger(view, 1, file=printed),
            PythonLogger(view, 1, logger=named),
            TqdmLogger(OWN, view, file=bar),
            CallbackLogger(lambda x, step: print(step, x.sum(), file=called), 1),
            RingBufferLogger(2),
            logger.loop(view, 1, name=f"loop {number}"),
        ) as together,
    ):
        for step in range(OWN):
            together.log(np.float32(step), step)

"""What is opened and closed again, a thousand times; and what the process takes on the way."""

from __future__ import annotations

import gc
import io
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import logax
from logax.loggers import CSVLogger, JSONLLogger, MultiLogger, SaveLogger
from logax.loop import (
    CallbackLogger,
    CheckLogger,
    CompositeLogger,
    PrintLogger,
    PythonLogger,
    RingBufferLogger,
    TqdmLogger,
    nan_check,
)
from logax.storage import HDF5StorageReader, HDF5StorageWriter, Once, WriterGroupConfig
from soak.counting import counter
from soak.processes import footprint

Cycle = Callable[[int], None]
FILES = 20  # that the cycles take in turn

count = counter(5)


def runs(folder: str) -> Cycle:
    """Runs of one logger."""
    logger, key = SaveLogger(folder), jax.random.key(0)

    def cycle(number: int) -> None:
        state = logger.init(key, name="run", config={"rate": 0.1})
        logger.log(state, {"x": float(number)}, step=number)
        logger.finish(state)
        with logger.run(name="block") as state:
            logger.tap(count, state, buffer=3)(float(number))

    return cycle


def loggers(folder: str) -> Cycle:
    """Loggers with a file each; every second one is only forgotten."""

    def cycle(number: int) -> None:
        logger = SaveLogger(os.path.join(folder, str(number % FILES)))
        with logger.run(name=str(number)) as state:
            logger.tap(count, state, buffer=3)(float(number))
        if number % 2:
            logger.close()

    return cycle


def several(folder: str) -> Cycle:
    """Several loggers together, of texts."""

    def cycle(number: int) -> None:
        place = os.path.join(folder, str(number % FILES))
        logger = MultiLogger(JSONLLogger(f"{place}.jsonl"), CSVLogger(f"{place}.csv"))
        with logger.run(name=str(number)) as state:
            logger.spool(count, state)(float(number))
        logger.close()

    return cycle


def callbacks(folder: str) -> Cycle:
    """Callbacks of taps and of live blocks."""
    jitted = jax.jit(count)

    def cycle(number: int) -> None:
        tapped: list[float] = []
        seen: list[float] = []
        logax.tap(count, lambda one: tapped.append(float(one["x"])), buffer=2)(float(number))
        with logax.live(lambda one: seen.append(float(one["x"]))):
            jitted(float(number))
        logax.flush()
        assert tapped == seen == [number + i for i in range(5)]

    return cycle


def trajectories(folder: str) -> Cycle:
    """Writers and readers of trajectories."""
    config = {
        "rows": WriterGroupConfig(lambda x: {"x": x}, 1),
        "start": WriterGroupConfig(lambda x: x, Once()),
    }

    def cycle(number: int) -> None:
        path = os.path.join(folder, f"{number % FILES}.h5")
        with HDF5StorageWriter(path, config, np.zeros(3), mode="w") as writer:
            for step in range(5):
                writer.log(np.full(3, float(number + step)), step)
        with HDF5StorageReader(path) as reader:
            rows = reader.focus_group("rows")[...]["x"]
        assert rows[:, 0].tolist() == [number + step for step in range(5)]

    return cycle


def loops(folder: str) -> Cycle:
    """Loops with many loggers, one of them a run on disk."""
    logger = SaveLogger(folder)
    logging.getLogger("logax").setLevel(logging.ERROR)

    def view(x: Any) -> Any:
        return {"x": x}

    def cycle(number: int) -> None:
        ring, seen = RingBufferLogger(2), list[float]()
        with CompositeLogger(
            TqdmLogger(5, view, file=io.StringIO()),
            PrintLogger(view, 1, file=io.StringIO()),
            PythonLogger(view, 1),
            CheckLogger(nan_check(), 1),
            CallbackLogger(lambda x, step: seen.append(float(x)), 1),
            logger.loop(view, 1, name="loop"),
            ring,
        ) as together:
            x = jnp.float32(number)
            for step in range(5):
                together.log(x, step)
                x = x + 1
        assert [step for step, _ in ring.buf] == [3, 4]
        assert seen == [number + i for i in range(5)]

    return cycle


def measure(kind: str, folder: str, at: list[int]) -> list[Any]:
    """What the process takes after so many cycles."""
    cycle = {
        each.__name__: each for each in (runs, loggers, several, callbacks, trajectories, loops)
    }
    step, found = cycle[kind](folder), []
    for number in range(1, at[-1] + 1):
        step(number)
        if number in at:
            found.append(footprint())
    return found


def fresh_functions(number: int) -> list[int]:
    """Of so many functions and callbacks, each used once, how many are still there."""
    logger = SaveLogger("runs")
    functions, calls = [], []
    for each in range(number):

        def function(x: Any, each: int = each) -> Any:
            logax.log({"x": x}, step=each)
            return x + each

        def callback(one: logax.record, each: int = each) -> None:
            assert (one["x"], one.step) == (1.0, each)

        assert logax.tap(function, callback)(1.0) == 1 + each
        assert logax.spool(function)(1.0)[1]["x"] == 1.0
        with logger.run() as state:
            logger.tap(function, state)(1.0)
        functions.append(weakref.ref(function))
        calls.append(weakref.ref(callback))
        del function, callback
    logax.flush()
    gc.collect()
    return [sum(ref() is not None for ref in refs) for refs in (functions, calls)]

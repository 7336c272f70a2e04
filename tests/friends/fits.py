"""Fits with NLSQ, and what was seen of them, as JSON: `python fits.py FOLDER` writes it there.

A program of its own, since importing NLSQ changes the whole process: it turns 64-bit numbers on,
sets a folder for compiled programs, and gives the standard `logging` a handler.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from nlsq import StopOptimization, curve_fit

import logax
from logax.iterations import log_convergence_async, log_iteration_async
from logax.loggers import SaveLogger
from logax.loop import CheckLogger, InvariantViolation
from logax.storage import HDF5StorageReader, HDF5StorageWriter, WriterGroupConfig

START = [1.0, 1.0, 1.0]
x = np.linspace(0, 4, 50)
y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.02 * np.sin(40 * x)


def decay(x: Any, height: Any, rate: Any, floor: Any) -> jax.Array:
    """The model, which says where it is evaluated."""
    logax.log({"height": height, "rate": rate, "floor": floor})
    return height * jnp.exp(-rate * x) + floor


def say(iteration: int, cost: float, params: Any, info: dict[str, Any]) -> None:
    """A callback: our line and our record for each iteration."""
    slope = abs(info["gradient"]).max()
    moved = info["step_norm"]
    log_iteration_async(iteration, cost, slope, "{moved:.1e}", 2, moved=moved, params=params)


class Lines(logging.Handler):
    """Keeps the lines of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.texts.append(record.getMessage())


def known(fit: Any) -> dict[str, Any]:
    """What NLSQ says of a fit."""
    return {
        "params": fit.popt,
        "cost": fit.cost,
        "nit": fit.nit,
        "evaluations": fit.nfev + fit.njev,
    }


def with_lines() -> dict[str, Any]:
    """Iterations and the end as lines."""
    lines = Lines()
    logger = logging.getLogger("logax.iterations")
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    states: list[Any] = []

    def also_keep(iteration: int, cost: float, params: Any, info: dict[str, Any]) -> None:
        say(iteration, cost, params, info)
        states.append([iteration, cost, abs(info["gradient"]).max(), info["step_norm"], params])

    fit = curve_fit(decay, x, y, p0=START, callback=also_keep)
    log_convergence_async(fit.message, fit.nit, fit.cost, 1.5, fit.optimality)
    logax.flush()
    logger.removeHandler(lines)
    end = [fit.message, fit.nit, fit.cost, fit.optimality]
    return {**known(fit), "lines": lines.texts, "states": states, "end": end}


def kept(folder: Path) -> dict[str, Any]:
    """Everything that is logged, the model's own logs too, in a run of `SaveLogger`."""
    logger = SaveLogger(folder / "runs")
    with logger.run(name="decay") as state, logger.live(state):
        fit = curve_fit(decay, x, y, p0=START, callback=say)
    run = logax.load(folder / "runs").find("decay")
    wanted = ("cost", "gradient_norm", "params", "height", "rate", "floor")
    history = {name: run[name] for name in wanted}
    return {**known(fit), "history": history, "steps": run.steps["step"]["cost"]}


def tapped(start: list[float] = START, **options: Any) -> dict[str, Any]:
    """The logs of the model alone, by `tap`."""
    seen: list[logax.record] = []
    fit = curve_fit(logax.tap(decay, seen.append), x, y, p0=start, **options)
    logax.flush()
    points = [[record["height"], record["rate"], record["floor"]] for record in seen]
    return {**known(fit), "points": points, "derivatives": fit.njev}


def stored(folder: Path) -> dict[str, Any]:
    """The iterations as the steps of a Python loop."""
    config = {"fit": WriterGroupConfig(lambda state: state, 1)}
    first = {"cost": 0.0, "params": np.zeros(3)}
    with HDF5StorageWriter(folder / "fit.h5", config, first) as writer:

        def store(iteration: int, cost: float, params: Any, info: dict[str, Any]) -> None:
            writer.log({"cost": cost, "params": params}, iteration)

        fit = curve_fit(decay, x, y, p0=START, callback=store)
    with HDF5StorageReader(folder / "fit.h5") as reader:
        rows = reader.focus_group("fit")
        return {**known(fit), "steps": rows.steps, "rows": rows[...]}


def checked() -> dict[str, Any]:
    """A check that fails at the second iteration, as it is, and turned into NLSQ's way to stop."""
    check = CheckLogger(lambda state: state["cost"] > 0.1, 1, "Good enough.")

    def look(iteration: int, cost: float, params: Any, info: dict[str, Any]) -> None:
        check.log({"cost": cost}, iteration)

    def look_and_stop(**state: Any) -> None:
        try:
            look(**state)
        except InvariantViolation as error:
            raise StopOptimization from error

    with warnings.catch_warnings(record=True) as said, check:
        warnings.simplefilter("always")
        whole = curve_fit(decay, x, y, p0=START, callback=look)
    with check:
        short = curve_fit(decay, x, y, p0=START, callback=look_and_stop)
    said_of_it = [str(warning.message) for warning in said]
    return {"nit": whole.nit, "warnings": said_of_it, "stopped at": short.nit}


def spooled() -> str:
    """The error that `spool` of a whole fit raises."""
    try:
        logax.spool(lambda start: curve_fit(decay, x, y, p0=start).popt)(jnp.ones(3))
    except jax.errors.TracerArrayConversionError as error:
        return type(error).__name__
    return ""


def main(folder: Path) -> None:
    """Fit again and again, and write down what was seen."""
    found = {
        "plain": known(curve_fit(decay, x, y, p0=START)),
        "with_lines": with_lines(),
        "kept": kept(folder),
        "tapped": tapped(),
        "bounded": tapped(bounds=(0, 9)),
        "far": tapped(start=[5.0, 20.0, -3.0]),
        "stored": stored(folder),
        "checked": checked(),
        "spooled": spooled(),
    }
    (folder / "fits.json").write_text(json.dumps(found, default=np.ndarray.tolist))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

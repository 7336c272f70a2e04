"""`logax doctor`: check the installation and suggest fixes.

The checks compare versions with the tested ones, run a tap and a spool, and write and read a run in
the working folder and in the system's folder for temporary files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import logax
from logax._cli.options import add_json_option
from logax._cli.terminal import escape_lines, write, write_json
from logax._support.messages import describe_error

_MIN_JAX = (0, 8)
_MAX_TESTED_JAX = (0, 12)
_MIN_PYTHON = (3, 11)
EXTRAS = {  # module and purpose
    "hdf5": ("h5py", "trajectories"),
    "rich": ("rich", "the live table of `ConsoleLogger`"),
    "tensorboard": ("tensorboardX", "`TensorBoardLogger`"),
    "wandb": ("wandb", "`WandbLogger`"),
    "mlflow": ("mlflow", "`MLflowLogger`"),
    "trackio": ("trackio", "`TrackioLogger`"),
    "pandas": ("pandas", "`to_pandas`"),
    "parquet": ("pyarrow", "`logax export --to parquet`"),
    "xarray": ("xarray", "`to_xarray`"),
    "matplotlib": ("matplotlib", "`logax plot` and `PlotLogger`"),
}


class Check(NamedTuple):
    """Result of one check.

    Attributes:
      kind: Heading of the group of checks.
      name: Subject of the check.
      status: "ok"; "missing" for an extra; "note" for a possible problem; "fails".
      found: Version, number or error that was found.
      fix: Suggested fix; "" if there is none.
    """

    kind: str
    name: str
    status: str
    found: str
    fix: str = ""


def run_checks() -> list[Check]:
    """Run all checks, in order."""
    return [
        *check_versions(),
        check_devices(),
        *check_extras(),
        check_tap(),
        check_spool(),
        *check_stores(),
    ]


def check_versions() -> list[Check]:
    """Check Python and the required packages."""
    python = "ok" if sys.version_info[:2] >= _MIN_PYTHON else "fails"
    fix = "" if python == "ok" else "Use Python 3.11 or newer."
    return [
        Check("versions", "logax", "ok", logax.__version__),
        Check("versions", "Python", python, platform.python_version(), fix),
        check_jax_version(jax.__version__),
        Check("versions", "jaxlib", "ok", _version_of("jaxlib") or "?"),
        Check("versions", "NumPy", "ok", np.__version__),
        Check("versions", "SQLite", "ok", sqlite3.sqlite_version),
    ]


def check_jax_version(version: str) -> Check:
    """Check that a version of JAX is a tested one."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _MIN_JAX:
        return Check("versions", "JAX", "fails", version, 'Write `pip install -U "jax>=0.8"`.')
    if numbers > _MAX_TESTED_JAX:
        fix = "It is newer than those that logax is tested with, 0.8 to 0.12; it may well work."
        return Check("versions", "JAX", "note", version, fix)
    return Check("versions", "JAX", "ok", version)


def check_devices() -> Check:
    """Check that JAX finds devices."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        fix = "Write `JAX_PLATFORMS=cpu logax doctor` to see whether the CPU works."
        return Check("devices", "devices", "fails", describe_error(error), fix)
    kinds = [device.device_kind for device in found]
    counted = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return Check("devices", found[0].platform, "ok", ", ".join(counted))


def check_extras() -> list[Check]:
    """Look for optional packages, without importing them."""
    return [_check_extra(name, *each) for name, each in EXTRAS.items()]


def _check_extra(name: str, module: str, purpose: str) -> Check:
    if importlib.util.find_spec(module) is None:
        line = f'pip install "logax[{name}]"'
        return Check("extras", name, "missing", f"{line}  for {purpose}", f"Write `{line}`.")
    version = _version_of(module) or _version_of(f"{module}-skinny") or "installed"
    return Check("extras", name, "ok", f"{version}  for {purpose}")


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tap() -> Check:
    """Check that records arrive from a running program."""

    def check() -> str:
        got: list[tuple[int, float]] = []
        total = logax.tap(_program, lambda x: got.append((int(x.step), float(x["x"]))))(3)
        logax.flush()
        return _expect_equal((float(total), got), (3.0, [(0, 0.0), (1, 1.0), (2, 2.0)]))

    fix = "Programs can still be harvested with `logax.spool`, if that works."
    return _try_check("works here", "tap", check, fix)


def check_spool() -> Check:
    """Check that a program returns its records."""

    def check() -> str:
        total, logs = logax.spool(_program)(3)
        found = float(total), np.asarray(logs["x"]).tolist(), np.asarray(logs.step["x"]).tolist()
        return _expect_equal(found, (3.0, [0.0, 1.0, 2.0], [0, 1, 2]))

    return _try_check("works here", "spool", check, "Reinstall jax and jaxlib of the same version.")


def _program(number: Any) -> Any:
    def body(total: Any, i: Any) -> tuple[Any, None]:
        logax.log({"x": 1.0 * i}, step=i)
        return total + i, None

    return jax.lax.scan(body, jnp.float32(0) * number, jnp.arange(3))[0]


def check_stores() -> list[Check]:
    """Check that runs can be written and read, here and in the folder for temporary files."""
    here = _check_store("runs in this folder", os.curdir)
    there = _check_store("runs in the temporary folder", None)
    if here.status == there.status == "note":
        here = here._replace(status="fails")
    return [here, there]


def _check_store(name: str, folder: str | None) -> Check:
    from logax.loggers import SaveLogger  # noqa: PLC0415 - only this check needs it

    def check() -> str:
        with tempfile.TemporaryDirectory(prefix=".logax-doctor-", dir=folder) as place:
            logger = SaveLogger(place)
            with logger.run(name="doctor") as state:
                logger.log(state, {"x": 0.5}, step=3)
            logger.close()
            found = logax.load(place).find("doctor")
            read = found["x"].tolist(), found.steps["step"]["x"].tolist(), found.status
            return _expect_equal(read, ([0.5], [3], "finished"))

    fix = "Give `SaveLogger` a folder that may be written to, on a disk with room."
    return _try_check("works here", name, check, fix, "note")


def _expect_equal(found: Any, expected: Any) -> str:
    if found == expected:
        return "works"
    raise ValueError(f"{found} came back in place of {expected}")


def _try_check(
    kind: str, name: str, check: Callable[[], str], fix: str, otherwise: str = "fails"
) -> Check:
    try:
        return Check(kind, name, "ok", check())
    except Exception as error:  # noqa: BLE001 - any error is a failed check
        return Check(kind, name, otherwise, describe_error(error), fix)


EXAMPLE = """\
  logax doctor
  logax doctor --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_json_option(parser)


def run(options: Any) -> int:
    """Run and print all checks; return 1 if an essential one fails."""
    checks = run_checks()
    failed = [check for check in checks if check.status == "fails"]
    if options.json:
        write_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    else:
        _write(checks, failed)
    return 1 if failed else 0


def _write(checks: list[Check], failed: list[Check]) -> None:
    signs = {"ok": "ok", "missing": "-", "note": "!", "fails": "FAILS"}
    for kind in dict.fromkeys(check.kind for check in checks):
        write(kind)
        own = [check for check in checks if check.kind == kind]
        width = max(len(check.name) for check in own)
        for check in own:
            write(f"  {signs[check.status]:5}  {check.name:{width}}  {_escape_line(check.found)}")
        write("")
    for check in checks:
        if check.status in ("fails", "note") and check.fix:
            write(f"{check.name}: {_escape_line(check.fix)}")
    write(_verdict(failed))


def _verdict(failed: list[Check]) -> str:
    if not failed:
        return "Logging works here."
    return f"Logging does not work here: {', '.join(check.name for check in failed)}."


def _escape_line(text: str) -> str:
    return escape_lines(text, sys.stdout).replace("\n", " ")

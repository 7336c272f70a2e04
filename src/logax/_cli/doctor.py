"""The checks of `logax doctor`.

Versions are compared with those that are tested; a tap and a spool run for real, and a store is
written and read for real, in the working folder and in the system's folder for temporary files.

`logax doctor`: what is here, what works, and how to mend what does not.
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
from logax._cli.options import add_command
from logax._cli.terminal import safe_lines, write, write_json
from logax._support.messages import described

_OLDEST = (0, 8)
_NEWEST = (0, 12)
_PYTHON = (3, 11)
EXTRAS = {  # the module to look for, what it is for
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
    """What was found.

    Attributes:
      kind: Under which heading it stands.
      name: What was looked at.
      status: "ok"; "missing", of what is optional; "note", of what may be in the way; "fails".
      found: What there is.
      mend: What to do about it; "" if nothing.
    """

    kind: str
    name: str
    status: str
    found: str
    mend: str = ""


def all_checks() -> list[Check]:
    """Everything, in order."""
    return [*versions(), devices(), *extras(), tap(), spool(), *stores()]


def versions() -> list[Check]:
    """Of what is required."""
    python = "ok" if sys.version_info[:2] >= _PYTHON else "fails"
    mend = "" if python == "ok" else "Use Python 3.11 or newer."
    return [
        Check("versions", "logax", "ok", logax.__version__),
        Check("versions", "Python", python, platform.python_version(), mend),
        jax_version(jax.__version__),
        Check("versions", "jaxlib", "ok", _version_of("jaxlib") or "?"),
        Check("versions", "NumPy", "ok", np.__version__),
        Check("versions", "SQLite", "ok", sqlite3.sqlite_version),
    ]


def jax_version(version: str) -> Check:
    """Whether this version of JAX is one that is tested."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        return Check("versions", "JAX", "fails", version, 'Write `pip install -U "jax>=0.8"`.')
    if numbers > _NEWEST:
        mend = "It is newer than those that logax is tested with, 0.8 to 0.12; it may well work."
        return Check("versions", "JAX", "note", version, mend)
    return Check("versions", "JAX", "ok", version)


def devices() -> Check:
    """Whether JAX finds any."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        mend = "Write `JAX_PLATFORMS=cpu logax doctor` to see whether the CPU works."
        return Check("devices", "devices", "fails", described(error), mend)
    kinds = [device.device_kind for device in found]
    counted = [f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)]
    return Check("devices", found[0].platform, "ok", ", ".join(counted))


def extras() -> list[Check]:
    """What is optional: its version, or how to get it. Nothing is imported."""
    return [_extra(name, *each) for name, each in EXTRAS.items()]


def _extra(name: str, module: str, purpose: str) -> Check:
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


def tap() -> Check:
    """Whether records arrive while a program runs."""

    def check() -> str:
        got: list[tuple[int, float]] = []
        total = logax.tap(_program, lambda x: got.append((int(x.step), float(x["x"]))))(3)
        logax.flush()
        return _same((float(total), got), (3.0, [(0, 0.0), (1, 1.0), (2, 2.0)]))

    mend = "Programs can still be harvested with `logax.spool`, if that works."
    return _tried("works here", "tap", check, mend)


def spool() -> Check:
    """Whether a program returns its records."""

    def check() -> str:
        total, logs = logax.spool(_program)(3)
        found = float(total), np.asarray(logs["x"]).tolist(), np.asarray(logs.step["x"]).tolist()
        return _same(found, (3.0, [0.0, 1.0, 2.0], [0, 1, 2]))

    return _tried("works here", "spool", check, "Reinstall jax and jaxlib of the same version.")


def _program(number: Any) -> Any:
    def body(total: Any, i: Any) -> tuple[Any, None]:
        logax.log({"x": 1.0 * i}, step=i)
        return total + i, None

    return jax.lax.scan(body, jnp.float32(0) * number, jnp.arange(3))[0]


def stores() -> list[Check]:
    """Whether runs can be written and read, here and in the folder for temporary files."""
    here = _store("runs in this folder", os.curdir)
    there = _store("runs in the temporary folder", None)
    if here.status == there.status == "note":
        here = here._replace(status="fails")
    return [here, there]


def _store(name: str, folder: str | None) -> Check:
    from logax.loggers.save import SaveLogger  # noqa: PLC0415 - only where it is needed

    def check() -> str:
        with tempfile.TemporaryDirectory(prefix=".logax-doctor-", dir=folder) as place:
            logger = SaveLogger(place)
            with logger.run(name="doctor") as state:
                logger.log(state, {"x": 0.5}, step=3)
            logger.close()
            found = logax.load(place).find("doctor")
            read = found["x"].tolist(), found.steps["step"]["x"].tolist(), found.status
            return _same(read, ([0.5], [3], "finished"))

    mend = "Give `SaveLogger` a folder that may be written to, on a disk with room."
    return _tried("works here", name, check, mend, "note")


def _same(found: Any, expected: Any) -> str:
    if found == expected:
        return "works"
    raise ValueError(f"{found} came back in place of {expected}")


def _tried(
    kind: str, name: str, check: Callable[[], str], mend: str, otherwise: str = "fails"
) -> Check:
    try:
        return Check(kind, name, "ok", check())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return Check(kind, name, otherwise, described(error), mend)


_EXAMPLE = """\
  logax doctor
  logax doctor --json"""


def add(commands: Any) -> argparse.ArgumentParser:
    """How it is called."""
    parser = add_command(commands, "doctor", "check that logging works here", _EXAMPLE)
    parser.add_argument("--json", action="store_true", help="print an object in JSON")
    return parser


def run(options: Any) -> int:
    """Check everything; 1 if something essential fails."""
    checks = all_checks()
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
            write(f"  {signs[check.status]:5}  {check.name:{width}}  {_safe(check.found)}")
        write("")
    for check in checks:
        if check.status in ("fails", "note") and check.mend:
            write(f"{check.name}: {_safe(check.mend)}")
    write(_verdict(failed))


def _verdict(failed: list[Check]) -> str:
    if not failed:
        return "Logging works here."
    return f"Logging does not work here: {', '.join(check.name for check in failed)}."


def _safe(text: str) -> str:
    return safe_lines(text, sys.stdout).replace("\n", " ")

"""A plugin of pytest's for `make campaigns`: write what each campaign did and found to a file.

A campaign says what it counts, kills or flipped bits, by pytest's `record_property`. The file is
`benchmarks/results/DATE-campaigns-jax-VERSION.json`.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
_campaigns: list[dict[str, Any]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called by pytest, of workers in the process that controls them."""
    if report.when == "call" or report.outcome == "failed":
        _campaigns.append(
            {
                "campaign": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 1),
                **dict(report.user_properties),
            }
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, unless this is a worker or nothing ran."""
    if not hasattr(session.config, "workerinput") and _campaigns:
        write_results(FOLDER, _campaigns)


def write_results(folder: Path, campaigns: list[dict[str, Any]]) -> Path:
    """Write campaigns with the versions that they ran with, and return the file."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    found: dict[str, Any] = {
        "date": now.isoformat(),
        **versions,
        "python": platform.python_version(),
        "campaigns": sorted(campaigns, key=lambda each: each["campaign"]),
    }
    file = folder / f"{now.date()}-campaigns-jax-{versions['jax']}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")
    return file

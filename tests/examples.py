"""Runs the programs of `examples/`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def said_by(name: str, *options: str, folder: Path = ROOT) -> list[str]:
    """What an example prints, line by line."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def assert_drawn(lines: list[str], output: Path) -> None:
    """An example said where its picture is, and there it is."""
    assert f"the plot: {output}" in lines
    assert_picture(output)


def assert_picture(path: Path) -> None:
    """There is a picture."""
    assert path.read_bytes().startswith(b"\x89PNG")


def iterations_in(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"Optim.*: iter=(\d+) ", line))]


def numbers_in(line: str) -> list[float]:
    """All numbers of a line."""
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", line)]


def line_of(lines: list[str], start: str) -> str:
    """The one line that starts so."""
    (found,) = [line for line in lines if line.startswith(start)]
    return found

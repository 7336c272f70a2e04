"""Find uv, which makes the environments, or install it privately with pip.

A uv on the PATH is used if it runs and is recent enough. Otherwise pip puts the pinned one into
`.envs/uv`, where nothing else sees it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".envs"
OLDEST = (0, 9, 0)


def uv(*arguments: str) -> None:
    """Run uv; raise `subprocess.CalledProcessError` if it fails."""
    settings = {
        **os.environ,
        # The certificates of this machine, not only those that uv brings along.
        "UV_SYSTEM_CERTS": "1",
        # The interpreters are found by tools/interpreters.py; none is fetched in silence.
        "UV_PYTHON_DOWNLOADS": "never",
    }
    subprocess.run([_executable(), *arguments], check=True, cwd=ROOT, env=settings)


def _executable() -> str:
    on_path = shutil.which("uv")
    if on_path is not None and _version(on_path) >= OLDEST:
        return on_path
    private = ENVIRONMENTS / "uv" / "bin" / "uv"
    if not private.exists():
        pinned = ROOT / "requirements" / "constraints-uv.txt"
        target = ["--target", str(private.parent.parent), "--upgrade"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        silent = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        command = [*pip, *target, "--requirement", str(pinned)]
        subprocess.run(command, check=True, env={**os.environ, **silent})
    return str(private)


def _version(executable: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", answer.stdout)
    return tuple(int(part) for part in found.groups()) if found else ()

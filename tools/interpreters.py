"""Find the Python interpreters that the environments are made of.

    python3 tools/interpreters.py 3.11 3.12     # print one path for each, or fail

A candidate counts only if it runs and reports the version that is wanted: version managers put
shims on the PATH also for versions that are not there. A version that cannot be found is an error,
because a row of the matrix that is left out in silence looks like one that passed.

This file and its neighbours run on whatever `python3` is, so they keep to old syntax.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys

KNOWN = ("3.13", "3.12", "3.11")
"""The versions that have constraints, newest first."""

_QUESTION = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"


class NotFoundError(Exception):
    """No candidate ran and had the wanted version."""


def ask(candidate: str) -> tuple[str, str] | None:
    """Return the version and the real path of an interpreter, or None if it does not run."""
    try:
        answer = subprocess.run(
            [candidate, "-c", _QUESTION], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    version, path = answer.stdout.splitlines()
    return version, path


def find(version: str) -> str:
    """Return the path of a Python of this version ("3.12"), from the PATH or from pyenv."""
    candidates = _on_path(version) + _under_pyenv(version)
    for candidate in candidates:
        answer = ask(candidate)
        if answer is not None and answer[0] == version:
            return answer[1]
    searched = "\n".join("  " + place for place in candidates) or "  (no candidate at all)"
    raise NotFoundError(
        f"Python {version} was not found. Looked for `python{version}`, `python3` and `python` "
        f"on the PATH and for versions/{version}.* under `pyenv root`; these did not run or were "
        f"of another version:\n{searched}\n"
        f"Install Python {version}, for instance with `pyenv install {version}`."
    )


def default() -> str:
    """Return the version of the PATH's `python3`, or the newest known one if that is too old."""
    answer = ask("python3")
    if answer is not None and number(answer[0]) >= number(KNOWN[-1]):
        return answer[0]
    for version in KNOWN:
        try:
            find(version)
        except NotFoundError:
            continue
        return version
    raise NotFoundError(
        f"logax needs Python {KNOWN[-1]} or newer. `python3` on the PATH is "
        f"{answer[0] if answer else 'not there'}, and none of {', '.join(KNOWN)} was found on the "
        f"PATH or under `pyenv root`."
    )


def number(version: str) -> tuple[int, ...]:
    """Return a version in a form that can be compared."""
    return tuple(int(part) for part in version.split("."))


def _on_path(version: str) -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    names = [f"python{version}", "python3", "python"]
    found = [shutil.which(name, path=folder) for name in names for folder in folders]
    return [path for path in found if path is not None]


def _under_pyenv(version: str) -> list[str]:
    found = []
    for root in _pyenv_roots():
        pattern = os.path.join(glob.escape(root), "versions", f"{version}.*")
        releases = [path for path in glob.glob(pattern) if re.fullmatch(r"[\d.]+", _name(path))]
        releases.sort(key=lambda path: number(_name(path)), reverse=True)
        found += [os.path.join(path, "bin", "python") for path in releases]
    return found


def _pyenv_roots() -> list[str]:
    try:
        answer = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        # Shells that run no profile often lack pyenv on the PATH, and still have its versions.
        usual = os.path.join(os.path.expanduser("~"), ".pyenv")
        return [os.environ.get("PYENV_ROOT", usual)]
    return [answer.stdout.strip()]


def _name(path: str) -> str:
    return os.path.basename(path)


def main(versions: list[str]) -> int:
    """Print one path for each version; say what is missing, and return the exit status."""
    try:
        paths = [find(version) for version in versions]
    except NotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(paths))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Make the environments that the Makefile's targets run in.

    python3 tools/environments.py default        # print the name of the one that `make test` uses
    python3 tools/environments.py create NAME    # make .envs/NAME, from nothing

An environment is called `jax-0.8.0-python-3.11` (the tests and checks, with that JAX on that
Python), `demo`, `bench` or `docs`. Everything in it has the version that a file in requirements/
says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import interpreters
from installer import ENVIRONMENTS, uv
from pins import ROWS

NEWEST_JAX = list(ROWS)[-1]
NEWEST_PYTHON = interpreters.KNOWN[0]


def default() -> str:
    """Return the name of the environment with the newest JAX that the PATH's Python runs."""
    python = interpreters.default()
    return f"jax-{newest_jax(python)}-python-{python}"


def newest_jax(python: str) -> str:
    """Return the newest JAX of the matrix that is to be run on this Python."""
    number = interpreters.number
    return [jax for jax, oldest in ROWS.items() if number(oldest) <= number(python)][-1]


def row_of(name: str) -> str:
    """Return the row of the matrix whose Python and versions an environment has."""
    if name.startswith("jax-"):
        return name
    if name == "bench":  # one of the peers needs it
        try:
            interpreters.find(NEWEST_PYTHON)
        except interpreters.NotFoundError:
            return default()
        return f"jax-{NEWEST_JAX}-python-{NEWEST_PYTHON}"
    return default()


def create(name: str) -> None:
    """Make the environment anew."""
    row = row_of(name)
    jax, python = row[len("jax-") :].split("-python-")
    if name == "docs":
        wanted = ["--group", "docs"]
        constraints = "requirements/constraints-docs.txt"
    else:
        groups = ["test", "check", "friends"] if name == row else [name]
        wanted = ["--editable", ".", *(word for group in groups for word in ("--group", group))]
        constraints = f"requirements/constraints-jax-{jax}.txt"
    interpreter = interpreters.find(python)
    place = ENVIRONMENTS / name
    print(f"Making .envs/{name} with Python {python}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    uv("venv", "--quiet", "--python", interpreter, str(place))
    pins = ["-c", constraints, "--build-constraints", "requirements/constraints-build.txt"]
    # Python may have been told to write no bytecode, and would compile JAX in every process.
    options = ["--quiet", "--compile-bytecode", "--python", str(place)]
    uv("pip", "install", *options, *pins, *wanted)


def main(arguments: list[str]) -> int:
    """Do what the command line says, and return the exit status."""
    try:
        if arguments == ["default"]:
            print(default())
        elif len(arguments) == 2 and arguments[0] == "create":
            create(arguments[1])
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except interpreters.NotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

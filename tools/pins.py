"""Write the exact versions in requirements/ anew, each file from what pyproject.toml asks for.

Run by `make pins`, after a change of the dependencies or to move to newer ones. The files hold no
hosts and no hashes: they say which versions, and the machine's own settings say where from.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from installer import uv

ROWS = {"0.8.0": "3.11", "0.10.2": "3.11", "0.11.2": "3.12", "0.12.0.1": "3.12"}
"""Each JAX of the matrix, oldest first, with the oldest Python that it is to be run on."""
TOO_OLD_FOR_PEERS = "0.8.0"


def compile_pins(name: str, python: str, *wanted: str) -> None:
    """Resolve what is wanted on this Python and newer, into one file of requirements/."""
    output = f"requirements/constraints-{name}.txt"
    form = ["--universal", "--no-annotate", "--no-header", "--no-emit-index-url", "--upgrade"]
    uv("pip", "compile", "--quiet", *form, "--python-version", python, *wanted, "-o", output)
    print(output)


def main() -> int:
    """Write all files."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.txt"
        for jax, python in ROWS.items():
            fixed.write_text(f"jax=={jax}\n")
            peers = ["bench"] if jax != TOO_OLD_FOR_PEERS else []
            names = ["test", "check", "friends", "demo", *peers]
            groups = [word for name in names for word in ("--group", name)]
            compile_pins(f"jax-{jax}", python, "pyproject.toml", *groups, "-c", str(fixed))
        compile_pins("docs", "3.11", "--group", "docs")
        for name, packages in {"build": "hatchling\neditables\n", "uv": "uv\n"}.items():
            fixed.write_text(packages)
            compile_pins(name, "3.11", str(fixed))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Import times: processes that import logax against processes that do not.

Each timing starts Python, imports and ends. `import logax` alone loads neither JAX nor NumPy; the
rows that allow 60 ms import JAX first on both sides, so the difference is that of logax.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from typing import Any

from benchmarks.case import Case
from benchmarks.timing import Side

ALLOWED_SECONDS = 0.06
PACKAGES = "import logax.loggers, logax.loop, logax.storage"
HELP = "import contextlib, io, runpy, sys; sys.argv = ['logax', '--help']"
HELP += "\nwith contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):"
HELP += "\n    runpy.run_module('logax', run_name='__main__')"
USES = "import jax, logax; logax.log, logax.spool, logax.tap, logax.load"


@dataclasses.dataclass(frozen=True)
class Starting:
    """A process that runs a program.

    Attributes:
      code: The program.
      extra: Seconds that are added to each timing.
    """

    code: str
    extra: float = 0.0

    def seconds(self, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            subprocess.run([sys.executable, "-c", self.code], check=True)
        return time.perf_counter() - start + number * self.extra

    def results(self) -> Any:
        return [0]


def _sides(by_hand: Starting, logax: Starting) -> Any:
    def make() -> tuple[Side, Side]:
        return by_hand, logax

    return make


_GROUP = "import"
CASES = [
    Case(
        _GROUP,
        "logax, against an empty Python",
        None,
        _sides(Starting("pass"), Starting("import logax")),
    ),
    Case(
        _GROUP,
        "jax and logax, against jax and 60 ms",
        1.0,
        _sides(Starting("import jax", ALLOWED_SECONDS), Starting("import jax, logax")),
    ),
    Case(
        _GROUP,
        "loggers, loop and storage too, against jax, logax and 60 ms",
        1.0,
        _sides(
            Starting("import jax, logax", ALLOWED_SECONDS),
            Starting(f"import jax, logax; {PACKAGES}"),
        ),
    ),
    Case(
        _GROUP,
        "jax and the first use of log, spool, tap and load, against jax",
        None,
        _sides(Starting("import jax"), Starting(USES)),
    ),
    Case(
        _GROUP,
        "logax --help, against an empty Python",
        None,
        _sides(Starting("pass"), Starting(HELP)),
    ),
]

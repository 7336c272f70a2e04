"""Programs of the soak tests, each a function that runs in a process of its own, and what it takes.

What such a function returns goes to its standard output, as the last line, in JSON. Its warnings
are errors, and it has one device. A process that takes very long is ended.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import logax

LONG = 250  # seconds
_RUN = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # where it came ignored
sys.path[:0] = json.loads(sys.argv[1])
import importlib
function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
answer = function(*json.loads(sys.argv[4]))
print(json.dumps(answer), flush=True)
"""


def start(function: Callable[..., Any], *arguments: Any) -> subprocess.Popen[str]:
    """Have a function of a module called in a new process."""
    paths = [str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)]
    given = [str(each) if isinstance(each, Path) else each for each in arguments]
    call = [json.dumps(paths), function.__module__, function.__name__, json.dumps(given)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _RUN, *call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, the rest of what it says, and its errors."""
    try:
        said, errors = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and its children
        said, errors = process.communicate()
        raise AssertionError(f"the program hangs; it said {said!r} and {errors!r}") from None
    return process.returncode, said, errors


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process that ends well and complains of nothing."""
    code, said, errors = finish(start(function, *arguments))
    assert (code, errors) == (0, ""), errors
    return json.loads(said.splitlines()[-1])


class Footprint(NamedTuple):
    """What this process takes, when all is delivered and what nobody holds is gone.

    Attributes:
      files: Open descriptors.
      threads: Of Python.
      blocks: Of memory that Python holds, one or more for each object.
      resident: Bytes of memory, those of native code too.
    """

    files: int
    threads: int
    blocks: int
    resident: int


def footprint() -> Footprint:
    """What this process takes now."""
    logax.flush()
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    return Footprint(files, threading.active_count(), sys.getallocatedblocks(), resident())


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def most_resident() -> int:
    """Bytes of memory that this process had at most.

    `getrusage` does not know it: what it says begins with the most that the parent had.
    """
    said = Path("/proc/self/status").read_text()
    return int(said.partition("VmHWM:")[2].split()[0]) * 1024

"""Processes for the tests of delivery: each runs a program in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LONG = 60.0  # seconds

BEGIN = """
import os, signal, sys, threading
import numpy as np
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import logax

os.chdir(sys.argv[1])

def into(name):
    file = open(name, "w")
    def callback(one):
        file.write(f"{int(np.asarray(one['x']).flat[0])}\\n")
        file.flush()
    return callback

def count(x, length):
    def body(carry, i):
        logax.log({"x": carry}, step=i)
        return carry + 1, None
    return lax.scan(body, x, jnp.arange(length))[0]

def on_devices(x):
    mesh = Mesh(np.array(jax.devices()), ("i",))
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("i")))

def lately(x):
    x = lax.fori_loop(0, 300, lambda _, x: jnp.sin(x), x)
    return count(x.sum() * 0, 30)
"""


def start(program: str, folder: Path, before: str = "") -> subprocess.Popen[str]:
    """Run a program after what all of them need, in a folder of its own."""
    text = before + BEGIN + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", text, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its return code, output and errors."""
    try:
        out, err = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        out, err = process.communicate()
        pytest.fail(f"the program hangs; it wrote {out!r} and {err!r}")
    return process.returncode, out, err

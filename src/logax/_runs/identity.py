"""Ids of runs, and the facts about the machine that every run records.

The id of a run consists of the time, a random token of the process and a count, so that no two runs
anywhere share one: `20260131-142501-9f86d081-0`. A run that is one lane of a `vmap` around `init`
appends its lane: `20260131-142501-9f86d081-0-2`.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from logax._version import __version__

_ID = re.compile(r"(\d{8}-\d{6}-[0-9a-f]{8}-\d+)((?:-\d+)*)")


def new_run_id(now: float) -> str:
    """Return an id that no other run has, for a run that begins at this wall time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{_process_token(os.getpid())}-{next(_count)}"


def lane_suffix(lane: Sequence[int]) -> str:
    """Return the suffix of the id and the name of a lane's run."""
    return "".join(f"-{i}" for i in lane)


def split_run_id(identity: str) -> tuple[str, tuple[int, ...]]:
    """Split the id of a run into the id that all lanes of its `init` share, and its lane."""
    match = _ID.fullmatch(identity)
    if match is None:
        return identity, ()
    return match[1], tuple(int(part) for part in match[2].split("-")[1:])


@functools.cache
def machine_facts() -> Mapping[str, Any]:
    """Return host, process, versions and device, which every run of this process records."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "logax": __version__,
        "device": _device_kind(),
    }


@functools.cache
def _device_kind() -> str:
    """Return the kind of the first device.

    The cache outlives a fork: in a forked process JAX may wait for threads that do not exist there.
    """
    try:
        return str(jax.devices()[0].device_kind)
    except RuntimeError:  # JAX finds no device, and raises again when the user computes
        return "none"


@functools.cache
def _process_token(process: int) -> str:
    """Return random letters; a forked process has another number, and so another token."""
    return secrets.token_hex(4)


_count = itertools.count()
os.register_at_fork(after_in_child=machine_facts.cache_clear)

"""Where a run takes place, and with what."""

from __future__ import annotations

import functools
import os
import platform
import socket
from collections.abc import Mapping
from typing import Any

import jax

from logax._version import __version__


@functools.cache
def machine_facts() -> Mapping[str, Any]:
    """What is written down with every run of this process."""
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
    """Asked for once: in a process that was forked, JAX may wait for threads that are not there."""
    try:
        return str(jax.devices()[0].device_kind)
    except RuntimeError:  # JAX finds no device, which it tells whoever computes
        return "none"


os.register_at_fork(after_in_child=machine_facts.cache_clear)

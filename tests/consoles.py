"""Shared by the tests of the console: a clock, runs, columns and hostile texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from logax._delivery.record_batch import RunInfo


class Clock:
    """A clock that tests set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(name: str, **more: Any) -> RunInfo:
    return RunInfo(f"id-{name}", name, **more)


def column(*numbers: float) -> Any:
    """Records of one stream."""
    return np.asarray([numbers], np.float32)


HOSTILE = [
    "a\nb",
    "\x1b[2J\x1b]0;owned\x07",
    "[bold red]x[/]",
    "\u202egnp.exe",
    "\ud800",
    "x" * 1_000_000,
    "\r\t\x00\x9b1m",
    ":smile: {0} %s",
]

"""Reset objects with locks and threads in forked processes."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Resettable(Protocol):
    """An object with locks or threads, which do not survive a fork."""

    def _reset(self) -> None:
        """Return to the initial state: pending work belongs to the parent process."""


def reset_after_fork(each: Resettable) -> None:
    """Call `_reset` of an object in every forked process. Holds only a weak reference."""
    _registered.add(each)


def _reset_registered() -> None:
    for each in list(_registered):
        each._reset()


_registered: weakref.WeakSet[Resettable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_reset_registered)

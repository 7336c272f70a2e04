"""What has locks and threads is made anew in a process that is forked."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """What has locks and threads, which a process that is forked has not."""

    def _reset(self) -> None:
        """Be as it was made; what was under way is the other process's."""


def renew_after_fork(each: Renewable) -> None:
    """Have it reset in every process that is forked, as long as it lives."""
    _renewed.add(each)


def _reset_after_fork() -> None:
    for each in list(_renewed):
        each._reset()


_renewed: weakref.WeakSet[Renewable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_reset_after_fork)

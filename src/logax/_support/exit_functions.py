"""Exit functions that run as if `import logax` had registered them, although modules load later.

Python calls exit functions in the reverse order of their registration. A function that a user
registers after `import logax` may log, so it must run before the last flush.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_functions: list[Callable[[], None]] = []


def call_at_exit(function: Callable[[], None]) -> None:
    """Have a function called when Python exits, the last one first."""
    _functions.append(function)


@atexit.register
def _call_all() -> None:
    while _functions:
        _functions.pop()()

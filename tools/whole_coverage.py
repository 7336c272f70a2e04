"""A plugin of pytest's for `make coverage`: what a worker found is saved before the worker ends.

Coverage saves when Python exits. A worker of pytest-xdist may be ended before it comes to that, and
then nothing is left of all its tests.
"""

from __future__ import annotations

import coverage


def pytest_sessionfinish() -> None:
    """Called by pytest, in each worker as well."""
    current = coverage.Coverage.current()
    if current is not None:
        current.save()

"""Cases for `pytest.mark.parametrize` that run in the slow suite, beside those in the fast one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """The cases, each marked as slow. A tuple is the values of several parameters."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def slow_but(fast: Sequence[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases, of which those that are not among `fast` are marked as slow."""
    return [*fast, *slow(*(case for case in cases if case not in fast))]

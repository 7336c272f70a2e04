"""Cases of a test that run in the slow suite, beside those that run in the fast one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def slow(*cases: Any) -> Sequence[Any]:
    """The cases for `pytest.mark.parametrize`, each marked as slow; tuples are several values."""
    return [
        pytest.param(*case, marks=pytest.mark.slow)
        if isinstance(case, tuple)
        else pytest.param(case, marks=pytest.mark.slow)
        for case in cases
    ]

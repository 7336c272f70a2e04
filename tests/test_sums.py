"""Sums of integers that do not fit in 32 bits."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import logax


@pytest.mark.parametrize(("kind", "most"), [(np.int64, 2**62), (np.uint64, 2**63)])
def test_sums_are_64_bits_wide_where_the_numbers_are(kind: type, most: int) -> None:
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        logs = logax.logdict({"x": np.array([most, 1, 2**40], kind)}).reduce("sum")
        assert logs["x"].dtype == kind
        assert logs["x"].tolist() == [most + 1 + 2**40]

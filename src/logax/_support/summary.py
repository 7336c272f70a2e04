"""Summary statistics of one key, as consoles and tables show them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Mean and standard deviation of one number over the streams where it is finite.

    Attributes:
      mean: Mean of the finite numbers; the first number if none is finite.
      deviation: Standard deviation; None for a single stream.
      nonfinite: Number of streams where the number is not finite.
    """

    mean: float
    deviation: float | None = None
    nonfinite: int = 0

    @staticmethod
    def of(numbers: Any) -> Spread | None:
        """Return the spread of an array with one number per stream; None if it is empty."""
        if not numbers.size:
            return None
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            return Spread(float(numbers[0]), None, numbers.size)
        deviation = None if numbers.size == 1 else float(finite.std())
        return Spread(float(finite.mean()), deviation, numbers.size - finite.size)


def divide_or_nan(total: Any, number: Any) -> Any:
    """Divide totals by numbers, with NaN where a number is 0."""
    return np.divide(total, number, out=np.full(np.shape(total), np.nan), where=number > 0)


@dataclasses.dataclass(frozen=True)
class KeySummary:
    """Statistics of one key. The defaults describe a key without records.

    Attributes:
      suffix: Text shown after the key.
      remark: Text shown instead of the last number.
      last: Numbers of the last record of each stream.
      mean: Means over the last records of each stream.
      low: Minimum over all streams and records.
      high: Maximum over all streams and records.
      history: Numbers that the sparkline shows.
      nonfinite: Number of records that are not finite.
    """

    suffix: str = ""
    remark: str = ""
    last: Spread | None = None
    mean: Spread | None = None
    low: float = np.inf
    high: float = -np.inf
    history: Any = ()
    nonfinite: int = 0

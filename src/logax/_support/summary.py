"""What is shown of one key, in numbers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Spread(NamedTuple):
    """A number of several streams: its mean and standard deviation over those that are finite.

    Attributes:
      mean: If none is finite, the first of them.
      deviation: None where there is one stream only.
      nonfinite: Of how many streams it is not finite.
    """

    mean: float
    deviation: float | None = None
    nonfinite: int = 0

    @staticmethod
    def of(numbers: Any) -> Spread | None:
        """Of the number of each stream; None if there is no stream."""
        if not numbers.size:
            return None
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            return Spread(float(numbers[0]), None, numbers.size)
        deviation = None if numbers.size == 1 else float(finite.std())
        return Spread(float(finite.mean()), deviation, numbers.size - finite.size)


def means(total: Any, number: Any) -> Any:
    """Each total over its number, NaN where that is 0."""
    return np.divide(total, number, out=np.full(np.shape(total), np.nan), where=number > 0)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is known of a key, or nothing where it has no record.

    Attributes:
      suffix: What stands after the key.
      remark: Stands in place of the last number.
      last, mean: Of the last record, and of the last ones of each stream.
      low, high: Over all streams and records.
      history: What the sparkline shows.
      nonfinite: How many records there were that are not finite.
    """

    suffix: str = ""
    remark: str = ""
    last: Spread | None = None
    mean: Spread | None = None
    low: float = np.inf
    high: float = -np.inf
    history: Any = ()
    nonfinite: int = 0

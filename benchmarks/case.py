"""One row of the table: a program by hand and with logax, and how dear the second may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.timing import Comparison, Effort, Side, compare
from logax import logdict


@dataclasses.dataclass(frozen=True)
class Case:
    """A comparison to be made.

    Attributes:
      group: What is compared.
      name: Of which program.
      goal: The largest ratio that is good enough, or None for a row that only informs.
      make: Makes the two sides: by hand, and with logax.
      tolerance: The relative difference there may be between results.
    """

    group: str
    name: str
    goal: float | None
    make: Callable[[], tuple[Side, Side]]
    tolerance: float = 1e-3

    def run(self, effort: Effort) -> Comparison:
        """Check that both sides give the same arrays, then time them."""
        by_hand, logax = self.make()
        self._check(by_hand.results(), logax.results())
        return compare(by_hand, logax, effort)

    def _check(self, by_hand: Any, logax: Any) -> None:
        """A comparison of programs that return different things is worth nothing.

        Steps and counts that keys share are one array by hand, and may be several in a logdict.
        """
        theirs, ours = jax.tree.leaves(by_hand), jax.tree.leaves(logax)
        if isinstance(logax[-1], logdict):
            out, values, side = by_hand
            theirs = jax.tree.leaves((out, values))
            named = dict(logax[-1])
            distinct = _distinct(ours[len(jax.tree.leaves((logax[0], named))) :])
            theirs, ours = theirs + _distinct(side), ours[: len(theirs)] + distinct
        types = [[(x.shape, x.dtype) for x in leaves] for leaves in (theirs, ours)]
        if types[0] != types[1]:
            raise RuntimeError(f"{self.name}: by hand {types[0]}, with logax {types[1]}.")
        for one, two in zip(theirs, ours, strict=True):
            np.testing.assert_allclose(two, one, rtol=self.tolerance, atol=1e-5, err_msg=self.name)


def _distinct(arrays: Any) -> list[Any]:
    """The arrays without repetitions."""
    return list({(x.shape, x.dtype, np.asarray(x).tobytes()): x for x in arrays}.values())

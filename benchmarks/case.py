"""One row of the table: a program by hand and with logax, and how dear the second may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.timing import Comparison, Effort, Side, compare


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
    tolerance: float = 1e-5

    def run(self, effort: Effort) -> Comparison:
        """Check that both sides give the same arrays, then time them."""
        by_hand, logax = self.make()
        self._check(by_hand.results(), logax.results())
        return compare(by_hand, logax, effort)

    def _check(self, by_hand: Any, logax: Any) -> None:
        """Leaf for leaf: a comparison of programs that return different things is worth nothing."""
        ours, theirs = jax.tree.leaves(logax), jax.tree.leaves(by_hand)
        types = [[(x.shape, x.dtype) for x in leaves] for leaves in (theirs, ours)]
        if types[0] != types[1]:
            raise RuntimeError(f"{self.name}: by hand {types[0]}, with logax {types[1]}.")
        for one, two in zip(theirs, ours, strict=True):
            np.testing.assert_allclose(two, one, rtol=self.tolerance, err_msg=self.name)

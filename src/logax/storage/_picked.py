"""Rows of a view that only picks small arrays of the state.

Such a row takes no program: if the arrays are there, and on the host, they are copied at once. That
takes a fraction of the time in which JAX calls one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from logax.storage._parcels import Parcels
from logax.storage._states import are_together

_IS_DELETED = operator.methodcaller("is_deleted")
_IS_READY = operator.methodcaller("is_ready")
_MOST = 2**16  # bytes: larger rows are better copied while the loop goes on


class Picks:
    """What a view picks of states that are made like one that it was shown.

    Args:
      structure: Of that state.
      leaves: Of that state: arrays, or their shapes.
      places: Which of the leaves the view gives.
      parcels: How they travel.
    """

    def __init__(
        self, structure: Any, leaves: Sequence[Any], places: Sequence[int], parcels: Parcels
    ) -> None:
        self._structure, self._forms = structure, _forms(leaves)
        self._places, self._parcels = places, parcels
        self._can_be_read = True
        self._shardings: list[Any] = []  # that were found to be of one place

    @staticmethod
    def places(given: Sequence[Any], picked: Sequence[Any]) -> list[int] | None:
        """Where what a view gave, traced, is among what it was given; None if not all of it is.

        Nor may there be types that Python cannot read: those that NumPy lacks, and PRNG keys.
        """
        found = {id(x): i for i, x in enumerate(given) if getattr(x.dtype, "isbuiltin", 0) == 1}
        if any(id(x) not in found for x in picked) or sum(x.nbytes for x in picked) > _MOST:
            return None
        return [found[id(x)] for x in picked]

    def __call__(self, structure: Any, leaves: Sequence[Any]) -> list[Any] | None:
        """The row of a state; None if that takes a program."""
        if not self._can_be_read or structure != self._structure or _forms(leaves) != self._forms:
            return None
        picked = [leaves[i] for i in self._places]
        if any(map(_IS_DELETED, picked)) or not all(map(_IS_READY, picked)):
            return None  # a program waits for them, or says that they are gone
        shardings = [x.sharding for x in picked]
        if shardings != self._shardings and not are_together(picked):
            return None  # a program says that it cannot take them, ready or not
        self._shardings = shardings
        try:
            return self._parcels.read(picked)
        except TypeError:  # they are not on one CPU, and hardly ever will be
            self._can_be_read = False
            return None


def _forms(leaves: Sequence[Any]) -> list[Any]:
    return [(x.shape, x.dtype) for x in leaves]

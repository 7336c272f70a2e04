"""What a compiled view takes of a state: its arrays, apart from all else.

What is no array and no number, such as the functions that modules have among their leaves, belongs
to the program: another one is another program. Numbers of Python and NumPy would lose bits on their
way into a program, so that a state that has some is not for one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from logax._compat import ConcreteArray
from logax.loop._copies import numbers_of

NUMBERS = (bool, int, float, complex)
_ARRAYS = {ConcreteArray}


class Frame(NamedTuple):
    """What a state is besides its arrays: its structure, and leaves that are no numbers."""

    structure: Any
    others: tuple[tuple[int, Any], ...] = ()

    def filled(self, arrays: list[Any]) -> Any:
        """The state with these arrays."""
        leaves = list(arrays)
        for i, other in self.others:
            leaves.insert(i, other)
        return jax.tree.unflatten(self.structure, leaves)


def split(leaves: list[Any], structure: Any) -> tuple[Frame, list[Any]] | None:
    """The arrays of a state, and the rest; None if a program cannot see all of it."""
    if are_arrays(leaves):
        return Frame(structure), leaves
    others = tuple((i, x) for i, x in enumerate(leaves) if not _is_array(x))
    if not all(_belongs_to_the_program(x) for _, x in others):
        return None
    return Frame(structure, others), [x for x in leaves if _is_array(x)]


def signature(frame: Frame, arrays: list[Any]) -> Any:
    """What a program is compiled for."""
    return frame, tuple((x.shape, x.dtype) for x in arrays)


def are_arrays(leaves: list[Any]) -> bool:
    """Whether all are of types that are known to be arrays: the quick way, for every step."""
    return _ARRAYS.issuperset(map(type, leaves))


def are_together(arrays: list[Any]) -> bool:
    """Whether one program can take them all."""
    arrays = [numbers_of(x) for x in arrays if isinstance(x, jax.Array)]
    return len({frozenset(x.devices()) for x in arrays}) <= 1


def is_on_one_device(state: Any) -> bool:
    """Whether arrays can be looked at from end to end without other devices."""
    arrays = [numbers_of(x) for x in jax.tree.leaves(state) if _is_array(x)]
    return all(isinstance(x, jax.Array) and len(x.devices()) == 1 for x in arrays)


def _is_array(leaf: Any) -> bool:
    """Whether it is an array of JAX, or the shape of one, and no tracer."""
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        _ARRAYS.add(type(leaf))  # PRNG keys have a class of their own, which JAX does not name
    return type(leaf) in _ARRAYS or isinstance(leaf, jax.ShapeDtypeStruct)


def _belongs_to_the_program(leaf: Any) -> bool:
    if hasattr(leaf, "dtype") or isinstance(leaf, NUMBERS):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True

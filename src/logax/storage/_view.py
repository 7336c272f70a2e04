"""A view of the state as rows: what is computed in a program of its own, and travels from there.

Where the numbers of the state are JAX arrays, a view is compiled together with the copies that it
needs: one call gives arrays that nobody else owns, small ones packed into one. Where a view only
picks arrays that are small, there, and on the host, they are copied without that call. Any other
state, and a view that wants to see numbers, is looked at as it is, with a copy of each array.

What a view gives must not change its structure, its shapes and its types. In a compiled view that
is looked at when it is traced, which JAX does anew whenever it could have changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import ConcreteArray, Tree
from logax._serialization.dtypes import Kind, kind_of
from logax._serialization.trees import Node, Parts, outlined
from logax._support.arrays import shape_name
from logax._support.messages import add_note, received
from logax.loop._states import copied, numbers_of, on_their_way, refuse_tracers
from logax.storage._transfer import (
    NUMBERS,
    Frame,
    Parcels,
    Picks,
    are_arrays,
    are_together,
    is_on_one_device,
    signature,
    split,
)

Numbers = np.ndarray[Any, Any]
Row = list[Any]  # arrays that are on their way to the host, or there

_LARGEST = 2**32 - 8  # bytes: an HDF5 chunk has 4 GiB at most, with its checksum


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of what a view gives."""

    parts: Parts
    shape: tuple[int, ...]
    kind: Kind

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape that it has in the file, for one row."""
        return (*self.shape, *self.kind.more)

    @property
    def row_bytes(self) -> int:
        """What one row takes."""
        return math.prod(self.stored_shape) * self.kind.stored.itemsize

    @property
    def said(self) -> str:
        """Type and shape, for people."""
        return shape_name(self.kind.name, self.shape)


class View:
    """What a view gives, as rows.

    Args:
      name: Of its group, for messages.
      view: The user's function.
      state: One that it will be given; what it gives for that is what it must always give.
      seals: Whether large arrays come with their checksum where they can.
    """

    def __init__(
        self, name: str, view: Callable[[Any], Tree], state: Any, *, seals: bool = True
    ) -> None:
        self._name, self._view = name, view
        self.outline: Node
        self.leaves: list[Leaf] = []
        self._on_device: list[int] = []
        self._on_host: list[int] = []
        self._constants: dict[Any, list[Any]] = {}
        self._compiled: Any = None
        self._compiled_whole: Any = None  # the same of states that are arrays alone, sooner called
        self._places: list[int] | None = None  # of what it picks, if it does nothing else
        self._passed: Any = None  # types and shapes that were found right
        self._stays = False  # what is computed is on the host already
        try:
            parts = split(*jax.tree.flatten(state))
            if parts is not None and are_together(parts[1]) and self._is_compiled(*parts):
                self._compiled = jax.jit(self._traced, static_argnums=0)
                if not self._on_host:
                    self._compiled_whole = jax.jit(self._traced_whole)
            else:
                self._learn(view(state))
        except Exception as error:
            add_note(error, f"`HDF5StorageWriter` was looking at the view of `{name}`.")
            raise
        self.row_bytes = sum(leaf.row_bytes for leaf in self.leaves)
        device = [self.leaves[i] for i in self._on_device]
        self._parcels = Parcels(
            [(x.stored_shape, x.kind) for x in device], seals=seals and is_on_one_device(state)
        )
        self._picks: Picks | None = None
        if self._compiled_whole is not None and self._places is not None:
            leaves, structure = jax.tree.flatten(state)
            self._picks = Picks(structure, leaves, self._places, self._parcels)

    def _is_compiled(self, frame: Frame, given: list[Any]) -> bool:
        def looked_at(given: list[Any]) -> list[Any]:
            own = self._learn(self._view(frame.filled(given)))
            self._places = None if frame.others else Picks.places(given, own)
            return own

        try:
            jax.eval_shape(looked_at, given)
        except _NEEDS_NUMBERS:
            return False
        return True

    def __call__(self, state: Any) -> Row:
        """One row, which neither waits for the device nor shares memory with the state."""
        leaves, structure = jax.tree.flatten(state)
        if self._compiled_whole is not None and are_arrays(leaves):
            picked = None if self._picks is None else self._picks(structure, leaves)
            if picked is not None:
                return picked
            arrays: list[Any] = self._compiled_whole(state)
        else:
            parts = None if self._compiled is None else split(leaves, structure)
            if parts is None:
                return self._looked_at(state, leaves)
            arrays = self._compiled(*parts)
            if self._on_host:
                arrays = arrays + self._constants[signature(*parts)]
        if not self._stays:
            self._stays = _is_on_host(arrays)
            on_their_way(arrays)
        return arrays

    def _looked_at(self, state: Any, leaves: list[Any]) -> Row:
        """A row of a state as it is, for which there is no program."""
        refuse_tracers(leaves)
        arrays: list[Any] = copied([numbers_of(x) for x in self._checked(self._view(state))])
        if self._compiled is not None:
            arrays = self._packed(arrays) + self._others(arrays)
        on_their_way(arrays)
        return arrays

    def columns(self, rows: Sequence[Numbers]) -> list[Numbers]:
        """Of rows on the host, stacked, the column of each leaf, as it is stored."""
        columns: list[Any] = [None] * len(self.leaves)
        if self._compiled is None:
            columns = list(rows)
        else:
            travelled = len(rows) - len(self._on_host)
            device = self._parcels.unpack(rows[:travelled])
            places = self._on_device + self._on_host
            for i, column in zip(places, [*device, *rows[travelled:]], strict=True):
                columns[i] = column
        return [
            leaf.kind.to_stored(column, (len(column), *leaf.stored_shape))
            for leaf, column in zip(self.leaves, columns, strict=True)
        ]

    def chunks(self, rows: Sequence[Numbers]) -> dict[int, Numbers]:
        """Of one row on the host, the arrays that came with their checksum."""
        if self._compiled is None:
            return {}
        travelled = len(rows) - len(self._on_host)
        found = zip(self._on_device, self._parcels.chunks(rows[:travelled]), strict=True)
        return {i: chunk for i, chunk in found if chunk is not None}

    def _traced(self, frame: Frame, given: list[Any]) -> list[Any]:
        leaves = [numbers_of(leaf) for leaf in self._checked(self._view(frame.filled(given)))]
        # What is no JAX array is the same for all states of these types, and keeps its own type.
        self._constants[signature(frame, given)] = self._others(leaves)
        return self._packed(leaves)

    def _traced_whole(self, state: Any) -> list[Any]:
        return self._packed([numbers_of(leaf) for leaf in self._checked(self._view(state))])

    def _packed(self, leaves: list[Any]) -> list[Any]:
        return self._parcels.pack([jnp.asarray(leaves[i]) for i in self._on_device])

    def _others(self, leaves: list[Any]) -> list[Any]:
        return [np.asarray(leaves[i]) for i in self._on_host]

    def _learn(self, given: Tree) -> list[Any]:
        """Note what a view gives, the first time."""
        self.outline, found = outlined(given)
        self.leaves = [self._leaf(parts, leaf) for parts, leaf in found]
        self._on_device = [i for i, (_, x) in enumerate(found) if isinstance(x, jax.Array)]
        self._on_host = [i for i, (_, x) in enumerate(found) if not isinstance(x, jax.Array)]
        return [x for _, x in found if isinstance(x, jax.Array)]

    def _checked(self, given: Tree) -> list[Any]:
        """The leaves of what a view gives, if these are the same as ever."""
        leaves, structure = jax.tree.flatten(given)
        form = (structure, [(type(x), np.shape(x), _dtype_of(x)) for x in leaves])
        if form == self._passed:
            return leaves
        outline, found = outlined(given)
        if outline != self.outline:
            here = {"/".join(parts) for parts, _ in found}
            there = {"/".join(leaf.parts) for leaf in self.leaves}
            gone = ", ".join(f"`{name or 'value'}`" for name in sorted(there - here))
            new = ", ".join(f"`{name or 'value'}`" for name in sorted(here - there))
            changes = [f"{gone} missing" if gone else "", f"{new} new" if new else ""]
            what = " and ".join(filter(None, changes)) or "a container of another type"
            raise ValueError(
                f"The view of `{self._name}` must always give the same structure, and now there "
                f"is {what}. This step was not stored; all others are."
            )
        for leaf, (parts, x) in zip(self.leaves, found, strict=True):
            own = self._leaf(parts, x)
            if own != leaf:
                raise ValueError(
                    f"The view of `{self._name}` must always give the same shapes and types, and "
                    f"`{'/'.join(parts) or 'value'}`, which was {leaf.said}, is now {own.said}. "
                    "This step was not stored; all others are. If all states are like this one, "
                    "give `initial_state` as they are, by `jax.eval_shape(step, state)`."
                )
        if [id(x) for x in leaves] == [id(x) for _, x in found]:
            self._passed = form
        return [x for _, x in found]

    def _leaf(self, parts: Parts, x: Any) -> Leaf:
        name = "/".join(parts) or "value"
        numbers = x
        if isinstance(x, NUMBERS):
            numbers = np.asarray(x)
        is_array = isinstance(numbers, jax.Array | np.ndarray | np.generic)
        if not is_array or isinstance(numbers, np.ma.MaskedArray):
            raise TypeError(
                f"The view of `{self._name}` must give arrays and numbers, and `{name}` is "
                f"{received(x)}. Leave it out (of an equinox module all that is no array, by "
                "`eqx.filter(module, eqx.is_array)`), or store a number that stands for it."
            )
        kind = kind_of(numbers)
        if kind is None:
            raise TypeError(
                f"The view of `{self._name}` gives `{name}` of the type {numbers.dtype}, which "
                "cannot be stored. Convert it in the view."
            )
        leaf = Leaf(parts, tuple(numbers.shape), kind)
        if leaf.row_bytes > _LARGEST:
            raise ValueError(
                f"The view of `{self._name}` gives `{name}` of {leaf.row_bytes} bytes, and one "
                f"array has {_LARGEST} a row at most. Split it in the view."
            )
        return leaf


def is_there(row: Row) -> bool:
    """Whether a row can be read without waiting: a quick look, for every row."""
    arrays: list[Any] = [x for x in row if type(x) is ConcreteArray]
    return all(array.is_ready() for array in arrays)


def _dtype_of(leaf: Any) -> Any:
    """The type of a number; that of an int of Python depends on how large it is."""
    return np.asarray(leaf).dtype if type(leaf) is int else getattr(leaf, "dtype", None)


def _is_on_host(arrays: list[Any]) -> bool:
    devices = {x for array in arrays if isinstance(array, jax.Array) for x in array.devices()}
    return all(device.platform == "cpu" for device in devices)


_NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)

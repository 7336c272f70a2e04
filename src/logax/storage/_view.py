"""A view of the state as a function that returns rows, independent of the state's memory.

If the state consists of JAX arrays, the view is compiled together with the copies that it needs:
one call returns arrays that share no memory with the state, with the small ones packed into one. A
view that only selects small arrays, ready and on the host, is copied without that call. For any
other state, and for a view that needs concrete values, the view runs uncompiled, and each array is
copied.

A view must always return the same structure, shapes and dtypes. A compiled view is checked when it
is traced, and JAX traces it again whenever these could have changed.
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
from logax._serialization.dtypes import StoredType, stored_type_of
from logax._serialization.trees import LeafPath, Node, outline_tree
from logax._support.arrays import shape_name
from logax._support.messages import add_note, describe_value
from logax.loop._pytrees import copy_tree, refuse_tracers, start_host_transfer, unwrap_keys
from logax.storage._transfer import (
    PYTHON_NUMBERS,
    LeafSelection,
    RowPacking,
    StaticState,
    are_colocated,
    are_known_arrays,
    is_on_one_device,
    partition_state,
    state_signature,
)

Numbers = np.ndarray[Any, Any]
Row = list[Any]  # arrays on the host, or on their way to it

_MAX_ROW_BYTES = 2**32 - 8  # an HDF5 chunk has at most 4 GiB, including its checksum

# Raised when a view needs concrete values, and so cannot be compiled.
_TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """Layout of one array of a row.

    Attributes:
      parts: Keys that lead to the array in a row.
      shape: Shape in a row.
      kind: Type, in memory and in the file.
    """

    parts: LeafPath
    shape: tuple[int, ...]
    kind: StoredType

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one row in the file."""
        return (*self.shape, *self.kind.extra_axes)

    @property
    def row_bytes(self) -> int:
        """Size of one row in the file."""
        return math.prod(self.stored_shape) * self.kind.stored_dtype.itemsize

    @property
    def description(self) -> str:
        """Dtype and shape for messages, such as `float32[3]`."""
        return shape_name(self.kind.name, self.shape)


class View:
    """Evaluate a view of the state, as rows.

    Args:
      name: Name of the group, for messages.
      view: The user's function.
      state: Example state, or its shapes. All rows must be like the one of this state.
      adds_checksums: True to append checksums to large arrays where possible.
    """

    def __init__(
        self, name: str, view: Callable[[Any], Tree], state: Any, *, adds_checksums: bool = True
    ) -> None:
        self._name, self._view = name, view
        self.outline: Node
        self.leaves: list[ArrayLayout] = []
        self._device_leaves: list[int] = []
        self._host_leaves: list[int] = []
        self._constants: dict[Any, list[Any]] = {}
        self._compiled: Any = None
        self._compiled_whole: Any = None  # for states of arrays only, which JAX calls faster
        self._selected: list[int] | None = None  # leaves of the state, if the view only selects
        self._last_valid_form: Any = None
        self._is_result_on_host = False
        try:
            parts = partition_state(*jax.tree.flatten(state))
            if parts is not None and are_colocated(parts[1]) and self._can_compile(*parts):
                self._compiled = jax.jit(self._trace, static_argnums=0)
                if not self._host_leaves:
                    self._compiled_whole = jax.jit(self._trace_whole)
            else:
                self._record_leaves(view(state))
        except Exception as error:
            add_note(error, f"`HDF5StorageWriter` evaluated the view of `{name}`.")
            raise
        self.row_bytes = sum(leaf.row_bytes for leaf in self.leaves)
        device_leaves = [self.leaves[i] for i in self._device_leaves]
        self._packing = RowPacking(
            [(x.stored_shape, x.kind) for x in device_leaves],
            adds_checksums=adds_checksums and is_on_one_device(state),
        )
        self._selection: LeafSelection | None = None
        if self._compiled_whole is not None and self._selected is not None:
            leaves, structure = jax.tree.flatten(state)
            self._selection = LeafSelection(structure, leaves, self._selected, self._packing)

    def _can_compile(self, static: StaticState, arrays: list[Any]) -> bool:
        def evaluate(arrays: list[Any]) -> list[Any]:
            result = self._record_leaves(self._view(static.combine(arrays)))
            is_whole = not static.leaves
            self._selected = (
                LeafSelection.find_selected_leaves(arrays, result) if is_whole else None
            )
            return result

        try:
            jax.eval_shape(evaluate, arrays)
        except _TRACER_ERRORS:
            return False
        return True

    def __call__(self, state: Any) -> Row:
        """Return the row of a state, without waiting for the device."""
        leaves, structure = jax.tree.flatten(state)
        if self._compiled_whole is not None and are_known_arrays(leaves):
            selected = None if self._selection is None else self._selection(structure, leaves)
            if selected is not None:
                return selected
            arrays: list[Any] = self._compiled_whole(state)
        else:
            parts = None if self._compiled is None else partition_state(leaves, structure)
            if parts is None:
                return self._call_uncompiled(state, leaves)
            arrays = self._compiled(*parts)
            if self._host_leaves:
                arrays = arrays + self._constants[state_signature(*parts)]
        if not self._is_result_on_host:
            self._is_result_on_host = _are_on_host(arrays)
            start_host_transfer(arrays)
        return arrays

    def _call_uncompiled(self, state: Any, leaves: list[Any]) -> Row:
        refuse_tracers(leaves)
        result = self._check_leaves(self._view(state))
        arrays: list[Any] = copy_tree([unwrap_keys(x) for x in result])
        if self._compiled is not None:
            arrays = self._pack(arrays) + self._take_host_leaves(arrays)
        start_host_transfer(arrays)
        return arrays

    def unpack_columns(self, rows: Sequence[Numbers]) -> list[Numbers]:
        """Return one array per leaf, as it is stored, of stacked rows on the host."""
        columns: list[Any] = [None] * len(self.leaves)
        if self._compiled is None:
            columns = list(rows)
        else:
            packed = len(rows) - len(self._host_leaves)
            unpacked = [*self._packing.unpack(rows[:packed]), *rows[packed:]]
            for i, column in zip(self._device_leaves + self._host_leaves, unpacked, strict=True):
                columns[i] = column
        return [
            leaf.kind.encode(column, (len(column), *leaf.stored_shape))
            for leaf, column in zip(self.leaves, columns, strict=True)
        ]

    def unpack_chunks(self, rows: Sequence[Numbers]) -> dict[int, Numbers]:
        """Return the arrays of one row that have a checksum, by the index of their leaf."""
        if self._compiled is None:
            return {}
        packed = len(rows) - len(self._host_leaves)
        found = zip(self._device_leaves, self._packing.chunks(rows[:packed]), strict=True)
        return {i: chunk for i, chunk in found if chunk is not None}

    def _trace(self, static: StaticState, arrays: list[Any]) -> list[Any]:
        result = self._check_leaves(self._view(static.combine(arrays)))
        leaves = [unwrap_keys(leaf) for leaf in result]
        # Leaves that are not JAX arrays are constants of the program, and keep their NumPy dtype.
        self._constants[state_signature(static, arrays)] = self._take_host_leaves(leaves)
        return self._pack(leaves)

    def _trace_whole(self, state: Any) -> list[Any]:
        return self._pack([unwrap_keys(leaf) for leaf in self._check_leaves(self._view(state))])

    def _pack(self, leaves: list[Any]) -> list[Any]:
        return self._packing.pack([jnp.asarray(leaves[i]) for i in self._device_leaves])

    def _take_host_leaves(self, leaves: list[Any]) -> list[Any]:
        return [np.asarray(leaves[i]) for i in self._host_leaves]

    def _record_leaves(self, result: Tree) -> list[Any]:
        """Record the structure of the first result of the view, and return its JAX arrays."""
        self.outline, found = outline_tree(result)
        self.leaves = [self._array_layout(parts, leaf) for parts, leaf in found]
        self._device_leaves = [i for i, (_, x) in enumerate(found) if isinstance(x, jax.Array)]
        self._host_leaves = [i for i, (_, x) in enumerate(found) if not isinstance(x, jax.Array)]
        return [x for _, x in found if isinstance(x, jax.Array)]

    def _check_leaves(self, result: Tree) -> list[Any]:
        """Return the leaves of a result of the view; raise if they differ from the first ones."""
        leaves, structure = jax.tree.flatten(result)
        form = (structure, [(type(x), np.shape(x), _dtype_of(x)) for x in leaves])
        if form == self._last_valid_form:
            return leaves
        outline, found = outline_tree(result)
        if outline != self.outline:
            here = {"/".join(parts) for parts, _ in found}
            there = {"/".join(leaf.parts) for leaf in self.leaves}
            gone = ", ".join(f"`{name or 'value'}`" for name in sorted(there - here))
            new = ", ".join(f"`{name or 'value'}`" for name in sorted(here - there))
            changes = [f"{gone} missing" if gone else "", f"{new} new" if new else ""]
            what = " and ".join(filter(None, changes)) or "a container of another type"
            raise ValueError(
                f"The view of `{self._name}` must always return the same structure, and now there "
                f"is {what}. This step was not stored; all others are."
            )
        for leaf, (parts, x) in zip(self.leaves, found, strict=True):
            layout = self._array_layout(parts, x)
            if layout != leaf:
                raise ValueError(
                    f"The view of `{self._name}` must always return the same shapes and types, and "
                    f"`{'/'.join(parts) or 'value'}`, which was {leaf.description}, is now "
                    f"{layout.description}. This step was not stored; all others are. If all "
                    "states are like this one, give `initial_state` as they are, by "
                    "`jax.eval_shape(step, state)`."
                )
        if [id(x) for x in leaves] == [id(x) for _, x in found]:
            self._last_valid_form = form
        return [x for _, x in found]

    def _array_layout(self, parts: LeafPath, x: Any) -> ArrayLayout:
        name = "/".join(parts) or "value"
        numbers = x
        if isinstance(x, PYTHON_NUMBERS):
            numbers = np.asarray(x)
        is_array = isinstance(numbers, jax.Array | np.ndarray | np.generic)
        if not is_array or isinstance(numbers, np.ma.MaskedArray):
            raise TypeError(
                f"The view of `{self._name}` must return arrays and numbers, and `{name}` is "
                f"{describe_value(x)}. Leave it out (of an equinox module all that is not an "
                "array, by `eqx.filter(module, eqx.is_array)`), or store a number instead."
            )
        kind = stored_type_of(numbers)
        if kind is None:
            raise TypeError(
                f"The view of `{self._name}` returns `{name}` of the type {numbers.dtype}, which "
                "cannot be stored. Convert it in the view."
            )
        layout = ArrayLayout(parts, tuple(numbers.shape), kind)
        if layout.row_bytes > _MAX_ROW_BYTES:
            raise ValueError(
                f"The view of `{self._name}` returns `{name}` of {layout.row_bytes} bytes, and a "
                f"row of one array has at most {_MAX_ROW_BYTES} bytes. Split it in the view."
            )
        return layout


def is_row_ready(row: Row) -> bool:
    """Return whether a row can be read without waiting for the device."""
    arrays: list[Any] = [x for x in row if type(x) is ConcreteArray]
    return all(array.is_ready() for array in arrays)


def _dtype_of(leaf: Any) -> Any:
    """Return the dtype of a leaf; that of a Python int depends on its value."""
    return np.asarray(leaf).dtype if type(leaf) is int else getattr(leaf, "dtype", None)


def _are_on_host(arrays: list[Any]) -> bool:
    devices = {x for array in arrays if isinstance(array, jax.Array) for x in array.devices()}
    return all(device.platform == "cpu" for device in devices)

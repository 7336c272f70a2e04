"""Keep the last states of a loop, and write them to a file after a crash."""

from __future__ import annotations

import collections
import os
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import jax
import numpy as np

from logax._compat import Tree
from logax._logdict.export import free_name
from logax._schedule import Schedule
from logax._support.files import check_writable, open_atomic, validate_path
from logax._support.messages import add_note, describe_error
from logax._support.validation import validate_positive
from logax.loop._pytrees import copy_tree, fetch_tree, leaves_with_names, widen_dtype
from logax.loop.protocol import ScheduledLogger, validate_view

Numbers = np.ndarray[Any, Any]


class RingBufferLogger(ScheduledLogger):
    """Keep the last `k` states, or views of them.

        with RingBufferLogger(5, dump="last_states.npz") as ring:
            ...
        for step, state in ring.buf:
            ...

    The copies stay on the device: they cost `k` times the memory of the view and hardly any time.
    `buf` fetches them. They remain after the end of the block, until the logger is entered again.

    Args:
      k: Number of states to keep.
      view: Function from the state to the pytree to keep; by default the whole state.
      schedule: Steps to keep: a schedule, or a number n for every n-th step.
      dump: File to write if the loop fails or is interrupted, for `numpy.load`. It has the array
        `step` and, for each array of the view, one array by its name (`positions`,
        `layers/0/weight`) with a leading axis for the steps. An array called `step` is stored as
        `step_`; an array whose shape changed is stored once per step, such as `positions@7`.
        Dtypes that NumPy lacks are widened, and leaves other than arrays and numbers are left out.
        A note on the exception that ends the loop reports the file, or why it could not be written.
    """

    def __init__(
        self,
        k: int,
        view: Callable[[Any], Tree] | None = None,
        *,
        schedule: int | Schedule = 1,
        dump: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(schedule)
        self._entries: collections.deque[tuple[int, Tree]] = collections.deque(
            maxlen=validate_positive("RingBufferLogger", "k", k)
        )
        self._view = None if view is None else validate_view("RingBufferLogger", view)
        self._dump = None if dump is None else validate_path("RingBufferLogger", "dump", dump)

    def _begin(self) -> None:
        if self._dump is not None:
            check_writable("RingBufferLogger", self._dump)
        self._entries.clear()

    def _take(self, state: Any, step: int) -> None:
        self._entries.append((step, copy_tree(state if self._view is None else self._view(state))))

    @property
    def buf(self) -> list[tuple[int, Any]]:
        """Pairs `(step, value)`, oldest first, with NumPy arrays; PRNG keys as their key data."""
        return [(step, fetch_tree(value)) for step, value in self._entries]

    def _end(self, error: BaseException | None) -> None:
        if error is not None and self._dump is not None:
            try:
                note = self._write_dump(self._dump)
            except Exception as failure:  # noqa: BLE001 - it must not replace the loop's error
                note = f"could not write the last states to {self._dump}: {describe_error(failure)}"
            add_note(error, f"`RingBufferLogger` {note}")

    def _write_dump(self, path: str) -> str:
        """Write the states that can be fetched and stored, and return a description of them."""
        kept, lost = [], 0
        for step, value in self._entries:
            try:
                kept.append((step, dict(leaves_with_names(fetch_tree(value)))))
            except RuntimeError:  # the program that computes it may be the one that failed
                lost += 1
        arrays, others = _stack_rows(kept)
        with open_atomic("RingBufferLogger", path) as file:
            _write_npz(file, arrays)
        what = f"the states of steps {kept[0][0]} to {kept[-1][0]}" if kept else "no state"
        what = f"the state of step {kept[0][0]}" if len(kept) == 1 else what
        left = f" Left out, since they are not arrays: {', '.join(others)}." if others else ""
        missing = f" {lost} more could not be fetched." if lost else ""
        return f"wrote {what} to {path}.{left}{missing}"


def _stack_rows(kept: list[tuple[int, dict[str, Any]]]) -> tuple[dict[str, Numbers], list[str]]:
    """Return one array per name, with an axis for the steps, and the names of other leaves."""
    arrays: dict[str, Numbers] = {"step": np.array([step for step, _ in kept], np.int64)}
    others = []
    for name in dict.fromkeys(name for _, leaves in kept for name in leaves):
        rows: dict[int, Any] = {
            step: _as_storable(leaves[name]) for step, leaves in kept if name in leaves
        }
        own = name or "value"
        if any(row is None for row in rows.values()):
            others.append(f"`{own}`")
        elif len(rows) == len(kept) and len({(x.shape, x.dtype) for x in rows.values()}) == 1:
            arrays[free_name(own, arrays)] = np.stack(list(rows.values()))
        else:
            arrays.update((free_name(f"{own}@{step}", arrays), x) for step, x in rows.items())
    return arrays, others


def _as_storable(leaf: Any) -> Numbers | None:
    """Return a leaf as an array that NumPy's files support, or None."""
    if not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        return None
    array = widen_dtype(np.asarray(leaf))
    return None if array.dtype.hasobject or array.dtype == jax.dtypes.float0 else array


def _write_npz(file: BinaryIO, arrays: dict[str, Numbers]) -> None:
    """Write an npz file like `numpy.savez`, but with any names."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = name.encode("utf-8", "backslashreplace").decode()
            with archive.open(f"{member}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)

"""The last states of a loop, to look at after a crash."""

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
from logax._support.files import as_path, check_place, replacing
from logax._support.messages import add_note, described
from logax._support.validation import at_least_one
from logax.loop._base import EnteredLogger, checked_view
from logax.loop._states import copied, fetched, in_order, widened

Numbers = np.ndarray[Any, Any]


class RingBufferLogger(EnteredLogger):
    """Keeps the last k states, or views of them.

        with RingBufferLogger(5, dump="last_states.npz") as ring:
            ...
        for step, state in ring.buf:
            ...

    The copies are on the device, which costs its memory k times and a loop next to nothing; they
    are fetched when they are looked at. They stay when the block is left, until it is entered
    again.

    Args:
      k: How many.
      view: What to keep of the state; by default all of it.
      schedule: Of which steps: a schedule, or a number n for every n-th step.
      dump: A file to write them to if the loop fails or is interrupted, for `numpy.load`: the array
        `step`, and for each array of the state or view one with an axis in front for the steps, by
        its name (`positions`, `layers/0/weight`). An array of the state that is called `step` is
        `step_` there, and one whose shape changed is `name@7` for each step. Types that NumPy lacks
        are widened, and what is no array is left out. The error that ends the loop says that it
        was written, or why not.
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
            maxlen=at_least_one("RingBufferLogger", "k", k)
        )
        self._view = None if view is None else checked_view("RingBufferLogger", view)
        self._dump = None if dump is None else as_path("RingBufferLogger", "dump", dump)

    def _begin(self) -> None:
        if self._dump is not None:
            check_place("RingBufferLogger", self._dump)
        self._entries.clear()

    def _take(self, state: Any, step: int) -> None:
        self._entries.append((step, copied(state if self._view is None else self._view(state))))

    @property
    def buf(self) -> list[tuple[int, Any]]:
        """Pairs of step and value, oldest first, as NumPy arrays; of PRNG keys their numbers."""
        return [(step, fetched(value)) for step, value in self._entries]

    def _end(self, error: BaseException | None) -> None:
        if error is not None and self._dump is not None:
            try:
                note = self._dumped(self._dump)
            except Exception as failure:  # noqa: BLE001 - it must not take the place of the other
                note = f"could not write the last states to {self._dump}: {described(failure)}"
            add_note(error, f"`RingBufferLogger` {note}")

    def _dumped(self, path: str) -> str:
        """Write what can be fetched and stored, and say what that is."""
        kept, lost = [], 0
        for step, value in self._entries:
            try:
                kept.append((step, dict(in_order(fetched(value)))))
            except RuntimeError:  # what failed may be the program that makes it
                lost += 1
        arrays, others = _stacked(kept)
        with replacing("RingBufferLogger", path) as file:
            _write(file, arrays)
        what = f"the states of steps {kept[0][0]} to {kept[-1][0]}" if kept else "no state"
        what = f"the state of step {kept[0][0]}" if len(kept) == 1 else what
        left = f" Left out, since they are no arrays: {', '.join(others)}." if others else ""
        missing = f" {lost} more could not be fetched." if lost else ""
        return f"wrote {what} to {path}.{left}{missing}"


def _stacked(kept: list[tuple[int, dict[str, Any]]]) -> tuple[dict[str, Numbers], list[str]]:
    """One array for each name, with an axis for the steps; and the names of what is no array."""
    arrays: dict[str, Numbers] = {"step": np.array([step for step, _ in kept], np.int64)}
    others = []
    for name in dict.fromkeys(name for _, leaves in kept for name in leaves):
        rows: dict[int, Any] = {
            step: _storable(leaves[name]) for step, leaves in kept if name in leaves
        }
        own = name or "value"
        if any(row is None for row in rows.values()):
            others.append(f"`{own}`")
        elif len(rows) == len(kept) and len({(x.shape, x.dtype) for x in rows.values()}) == 1:
            arrays[free_name(own, arrays)] = np.stack(list(rows.values()))
        else:
            arrays.update((free_name(f"{own}@{step}", arrays), x) for step, x in rows.items())
    return arrays, others


def _storable(leaf: Any) -> Numbers | None:
    """An array as NumPy's files can hold it, or None."""
    if not isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        return None
    array = widened(np.asarray(leaf))
    return None if array.dtype.hasobject or array.dtype == jax.dtypes.float0 else array


def _write(file: BinaryIO, arrays: dict[str, Numbers]) -> None:
    """What `numpy.savez` writes, for names of any kind."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = name.encode("utf-8", "backslashreplace").decode()
            with archive.open(f"{member}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)

"""The last states of a loop, to look at after a crash."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._checks import at_least_one
from logax._columns.rows import leaf_name
from logax._compat import Tree
from logax._errors import described
from logax._files import replacing
from logax._schedule import Schedule
from logax.loop._copies import copied, fetched
from logax.loop._entered import EnteredLogger
from logax.loop.lines import checked_view


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
        its name (`positions`, `layers/0/weight`). Types that NumPy lacks are widened. The error
        that ends the loop says that it was written, or why not.
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
        self._dump = None if dump is None else os.fspath(dump)

    def _begin(self) -> None:
        self._entries.clear()

    def _take(self, state: Any, step: int) -> None:
        self._entries.append((step, copied(state if self._view is None else self._view(state))))

    @property
    def buf(self) -> list[tuple[int, Any]]:
        """Pairs of step and value, oldest first, as NumPy arrays."""
        return [(step, fetched(value)) for step, value in self._entries]

    def _end(self, error: BaseException | None) -> None:
        if error is not None and self._dump is not None:
            try:
                error.add_note(self._dumped(self._dump))
            except (OSError, ValueError) as failure:
                error.add_note(
                    f"`RingBufferLogger` could not write the last states to {self._dump}: "
                    f"{described(failure)}"
                )

    def _dumped(self, path: str) -> str:
        """Write what can be fetched, and say what that is."""
        kept, lost = [], 0
        for step, value in self._entries:
            try:
                kept.append((step, _flat(fetched(value))))
            except RuntimeError:  # what failed may be the program that makes it
                lost += 1
        arrays = {"step": np.array([step for step, _ in kept], np.int64)}
        for name in dict.fromkeys(name for _, leaves in kept for name in leaves):
            rows = [leaves.get(name) for _, leaves in kept]
            alike = len({None if row is None else (row.shape, row.dtype) for row in rows}) == 1
            if alike:
                arrays[name if name != "step" else "step_"] = np.stack(rows)  # type: ignore[arg-type]
                continue
            for (step, _), row in zip(kept, rows, strict=True):
                if row is not None:
                    arrays[f"{name}@{step}"] = row
        with replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        steps = f"of steps {kept[0][0]} to {kept[-1][0]}" if kept else "there were none"
        missing = f" {lost} more could not be fetched." if lost else ""
        return f"`RingBufferLogger` wrote the last {len(kept)} states to {path}: {steps}.{missing}"


def _flat(tree: Tree) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name, of types that NumPy's files have."""
    flat = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
            array = np.asarray(leaf)
            flat[leaf_name("", path)[1:] or "value"] = array.astype(_storable(array.dtype))
    return flat


def _storable(dtype: Any) -> Any:
    if dtype.kind != "V" and dtype.isbuiltin == 1:
        return dtype
    return np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32

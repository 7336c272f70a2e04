"""What a callback is given: one record, as a dictionary of NumPy values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from logax._columns.rows import leaf_name
from logax._delivery.packets import Site


class record(dict[str, Any]):  # noqa: N801 - a kind of dictionary, as `logdict` is
    """What one execution of one `log` call said: its keys with their values.

    Attributes:
      steps: The step counters of the call, by name. Each is an attribute too, where its name is
        free: `record.step`.
      lane: Under `vmap`, the indices of this lane, outermost first; () elsewhere.
      shard: Under `shard_map`, the index of this shard; None elsewhere.
      site: File and line of the `log` call.
      tags: Its tags.
      total: How many records there will be of its first key in this call, for each lane, where the
        program says so; else None.
      real: With `lanes="batch"`, which lanes the record is of, or None for all of them.
    """

    __slots__ = ("lane", "real", "shard", "site", "steps", "tags", "total")
    steps: dict[str, Any]
    lane: tuple[int, ...]
    shard: int | None
    site: str
    tags: tuple[str, ...]
    total: int | None
    real: Any

    def __getattr__(self, name: str) -> Any:
        steps = object.__getattribute__(self, "steps")
        if name in steps:
            return steps[name]
        raise AttributeError(
            f"A `record` has no attribute {name!r}, and this one no step of that name: its steps "
            f"are {list(steps)}."
        )

    def copy(self) -> record:
        """The same once more, with all that is known of it."""
        return copy.copy(self)

    def __repr__(self) -> str:
        return f"record({dict.__repr__(self)}, steps={self.steps!r}, lane={self.lane!r})"

    def __str__(self) -> str:
        """One line: lane, steps, values."""
        words = [f"lane={','.join(map(str, self.lane))}"] if self.lane else []
        words += [f"shard={self.shard}"] if self.shard is not None else []
        words += [f"{name}={_short(step)}" for name, step in self.steps.items()]
        for key, value in self.items():
            leaves = jax.tree_util.tree_leaves_with_path(value)
            words += [f"{leaf_name(key, path)}={_short(leaf)}" for path, leaf in leaves]
            words += [] if leaves else [f"{key}={{}}"]
        return " ".join(words)


_FEW = 8  # elements of an array that is shown whole


def _short(value: Any) -> str:
    if value.ndim == 0 and not isinstance(value, jax.Array):  # those are PRNG keys
        number = value.item()
        return f"{number:.6g}" if isinstance(number, (float, complex)) else str(number)
    if value.size <= _FEW and not isinstance(value, jax.Array):
        shown = np.array2string(value, precision=6, separator=" ", max_line_width=10**6)
        return " ".join(shown.split())
    return f"{value.dtype.name}{list(value.shape)}"


def made(
    site: Site, arrays: Sequence[Any], lane: tuple[int, ...], shard: int | None, real: Any
) -> record:
    """One record of a site, given its arrays: leaves, then steps."""
    spec = site.spec
    one = record(site.values(arrays))
    one.steps = dict(zip(spec.steps, arrays[len(arrays) - len(spec.steps) :], strict=True))
    one.lane, one.shard, one.real = lane, shard, real
    one.site, one.tags, one.total = spec.site, spec.tags, site.total
    return one

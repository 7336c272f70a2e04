"""`logs.first_nonfinite()`: where the first NaN or infinity is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.records import Records
from logax._columns.rows import is_missing, leaf_name, module_of


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A record that holds a NaN or an infinity.

    Attributes:
      key: The key it was logged under.
      record: Its index among the records that were kept.
      steps: Its steps by name; those it lacks are left out.
      site: File and line of the calls that log the key.
      lane: The indices of its lane, () where there are no lanes.
      leaf: The name of the leaf that is not finite; the key itself where the value is one array.
    """

    key: str
    record: int
    steps: dict[str, Any]
    site: tuple[str, ...]
    lane: tuple[int, ...]
    leaf: str

    def __str__(self) -> str:
        steps = "".join(f", {name}={value}" for name, value in self.steps.items())
        lane = f", lane {', '.join(map(str, self.lane))}" if self.lane else ""
        site = f", logged at {' and '.join(self.site)}" if self.site else ""
        return f"`{self.leaf}` is not finite: record {self.record}{steps}{lane}{site}"


def first_nonfinite(columns: Mapping[str, Records]) -> NonFinite | None:
    """The earliest, on the host: by the first step that all have, else by the record index.

    Of several the first key, then lane.
    """
    found = [bad for key, records in columns.items() for bad in _in_key(key, records)]
    shared = [name for x in found[:1] for name in x.steps if all(name in y.steps for y in found)]
    name = "step" if "step" in shared else next(iter(shared), "")
    return min(found, key=lambda bad: _when(bad, name), default=None)


def _when(bad: NonFinite, name: str) -> Any:
    """The least of its steps of a name, where lanes have one each; else which record it is."""
    if name not in bad.steps:
        return bad.record
    step = np.asarray(bad.steps[name])
    return step[~is_missing(step)].min()


def _in_key(key: str, records: Records) -> Iterator[NonFinite]:
    """The first bad record of each leaf."""
    axis = records.axis
    for path, x in jax.tree_util.tree_leaves_with_path(records.value):
        if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size:
            continue
        # Only one bit for each record travels.
        finite = module_of(x).isfinite(x).all(axis=tuple(range(axis + 1, x.ndim)))
        bad = ~np.asarray(finite)
        bad &= np.arange(x.shape[axis]) < np.asarray(records.real())[..., None]
        if not bad.any():
            continue
        record = int(np.argmax(bad.any(axis=tuple(range(axis)))))
        lane = tuple(int(i) for i in np.argwhere(bad[..., record])[0])
        steps = {}
        for name, column in records.steps.items():
            step = np.asarray(column[(*lane, record)])
            if not is_missing(step).all():
                steps[name] = step.tolist()
        yield NonFinite(key, record, steps, records.site, lane, leaf_name(key, path))

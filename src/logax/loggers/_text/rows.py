"""Portions as columns of text, one row a record.

A column has the name of its leaf (`grad/w`) or step. What stands in every row has names of its own
(`run`, `lane`, `shard`, `event`): a leaf or step called like that has an underscore behind its name
(`run_`, and one called `run_` has two). In a record with a step and a leaf of the same name the
underscore is the leaf's, so that a column called like a step is the step wherever there is one; of
two leaves of the same name it is the later one's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._columns.export import free_name
from logax._columns.rows import as_utf8, is_missing
from logax._logdict import leaf_name
from logax._show import is_shown
from logax.loggers._text.cells import cells
from logax.loggers.sink import Portion, Stream

Numbers = np.ndarray[Any, Any]

_OURS = re.compile(r"(run|lane|shard|event)_*\Z")


class Rows(NamedTuple):
    """Records by column.

    Attributes:
      streams: Of the portion.
      owner: For each row the number of its stream.
      order: For each row where it stands in the program.
      steps: The names of the columns that are steps.
      columns: By name the text of each row; None where a record lacks the step.
    """

    streams: Sequence[Stream]
    owner: Numbers
    order: Numbers
    steps: Sequence[str]
    columns: Mapping[str, Sequence[str | None]]


def rows_of(portion: Portion) -> Rows:
    """The real records of a portion, one stream after the other."""
    shape = np.shape(portion.order)
    number = math.prod(shape)
    real = None if portion.real is None else np.asarray(portion.real)

    def flat(x: Any) -> Any:
        return x.reshape(number, *x.shape[2:]) if real is None else x[real]

    steps: dict[str, Sequence[str | None]] = {}
    for name, step in portion.steps.items():
        steps[free_name(_own_name(name), steps)] = _step_cells(flat(np.asarray(step)))
    leaves: dict[str, list[str]] = {}
    for key, value in portion.values.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_shown):
            name = free_name(_own_name(leaf_name(key, path)), {*steps, *leaves})
            leaves[name] = cells(jax.tree.map(flat, leaf))
    owner = flat(np.broadcast_to(np.arange(shape[0])[:, None], shape))
    order = flat(np.asarray(portion.order))
    return Rows(portion.streams, owner, order, tuple(steps), {**steps, **leaves})


def _own_name(name: str) -> str:
    name = as_utf8(name)  # as it will be read
    return f"{name}_" if _OURS.match(name) else name


def _step_cells(steps: Numbers) -> Sequence[str | None]:
    texts = cells(steps)
    lacks = is_missing(steps)
    if not lacks.any():
        return texts
    gone = np.asarray(lacks.reshape(len(texts), -1).all(1)).tolist()
    return [None if none else text for text, none in zip(texts, gone, strict=True)]

"""Arrays as JSON, one text a record.

| value | text |
| --- | --- |
| boolean, integer | `true`, `12` |
| float | in as few digits as its own type needs; `NaN`, `Infinity`, `-Infinity` |
| complex number | `{"real": 1.0, "imag": -2.0}` |
| array | nested lists, `[[1, 2], [3, 4]]`; of complex numbers one for each part |
| typed PRNG key | the list of its bits |
| histogram | `{"counts": [...], "edges": [...], "nonfinite": 0}` |
| image | `{"pixels": [...]}` |

`NaN` and `Infinity` are not in the standard of JSON. Python, pandas and JavaScript's JSON5 read
them, and a `null` in their place would hide what went wrong.

Portions as columns of text, one row a record.

A column has the name of its leaf (`grad/w`) or step. What stands in every row has names of its own
(`run`, `lane`, `shard`, `event`): a leaf or step called like that has an underscore behind its name
(`run_`, and one called `run_` has two). In a record with a step and a leaf of the same name the
underscore is the leaf's, so that a column called like a step is the step wherever there is one; of
two leaves of the same name it is the later one's.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._delivery.record_batch import RecordBatch, Stream
from logax._logdict.export import free_name
from logax._logdict.logdict import leaf_name
from logax._media import is_shown
from logax._support.arrays import as_utf8, is_key_array, is_missing

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def cells(value: Any) -> list[str]:
    """The text of each record of a leaf, whose arrays have the records along their first axis."""
    if is_shown(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _objects(names, [cells(getattr(value, name)) for name in names])
    if is_key_array(value):
        value = jax.random.key_data(value)
    x = np.asarray(value)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _objects(["real", "imag"], [cells(x.real), cells(x.imag)])
    return _nested(_texts(x.reshape(-1)), x.shape)


def as_json(value: Any) -> Any:
    """What users say about a run, as JSON takes it. What it does not know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return json.loads(cells(np.asarray(value)[None])[0]) if _is_numbers(value) else str(value)
    return str(value)


def _is_numbers(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.number) or array.dtype == np.bool_)


def _texts(x: np.ndarray[Any, Any]) -> list[str]:
    """The text of each element."""
    if x.dtype == np.bool_:
        return ["true" if one else "false" for one in x.tolist()]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return list(map(str, x.tolist()))
    # NumPy's own scalars know their type, and say how few digits it needs.
    texts = list(map(repr, x.tolist()) if x.dtype == np.float64 else map(str, x))
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        finite = np.isfinite(x).all()
    if not finite:
        texts = [_NOT_FINITE.get(text, text) for text in texts]
    return texts


def _nested(texts: list[str], shape: Sequence[int]) -> list[str]:
    """Texts of elements as texts of what stands along the first axis."""
    for axis in range(len(shape) - 1, 0, -1):
        size, number = shape[axis], math.prod(shape[:axis])
        rows = (texts[row * size : (row + 1) * size] for row in range(number))
        texts = [f"[{', '.join(row)}]" for row in rows]
    return texts


def _objects(names: Sequence[str], columns: Sequence[list[str]]) -> list[str]:
    form = "{" + ", ".join(f'"{name}": %s' for name in names) + "}"
    return [form % row for row in zip(*columns, strict=True)]


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


def rows_of(portion: RecordBatch) -> Rows:
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

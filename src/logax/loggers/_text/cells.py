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
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.rows import is_key_array
from logax._show import is_shown

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

"""Convert the config of a run and the facts of its machine to JSON and back.

JSON has what is needed for texts, numbers, lists and dictionaries. An array or a complex
number is the dictionary `{"$array": [type, further axes, shape, bytes in base64]}`; a dictionary
that has a key with `$` at its beginning is `{"$dict": [[key, value], ...]}`. What is none of these
is kept as what `repr` says of it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from logax._serialization.dtypes import kind_named, kind_of
from logax._support.arrays import is_key_array

_DEEPEST = 100


def as_json(value: Any) -> str:
    """A value as one line of JSON, whatever it is."""
    return json.dumps(_plain(value, 0), separators=(",", ":"))


def from_json(text: Any) -> Any:
    """The value again, or a ValueError."""
    try:
        return _value(json.loads(text))
    except (RecursionError, TypeError, LookupError, OverflowError, binascii.Error) as error:
        raise ValueError("a text in it is no JSON of ours") from error


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return repr(value)
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, Mapping):
        pairs = [(str(key), _plain(each, depth + 1)) for key, each in value.items()]
        if any(key.startswith("$") for key, _ in pairs):
            return {"$dict": [list(pair) for pair in pairs]}
        return dict(pairs)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array, complex)):
        return _plain_array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _plain({name: getattr(value, name) for name in names}, depth)
    if hasattr(value, "_asdict"):
        return _plain(value._asdict(), depth)
    return repr(value)


def _plain_array(value: Any) -> Any:
    if isinstance(value, jax.Array) and is_key_array(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    kind = kind_of(array)
    if kind is None:
        return repr(value)
    if array.ndim == 0 and type(array.item()) in (bool, int, float, str):
        return array.item()
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"$array": [kind.name, list(kind.more), list(array.shape), data]}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if "$array" in plain:
        return _array(*plain["$array"])
    if "$dict" in plain:
        return {key: _value(each) for key, each in plain["$dict"]}
    return {key: _value(each) for key, each in plain.items()}


def _array(name: str, more: list[int], shape: list[int], data: str) -> Any:
    kind = kind_named(name, tuple(more))
    found = base64.b64decode(data, validate=True)
    if kind.is_key or math.prod((*shape, *more)) * kind.stored.itemsize != len(found):
        raise ValueError("an array in a text has another size than it says")
    return kind.to_true(np.frombuffer(found, kind.stored), tuple(shape))

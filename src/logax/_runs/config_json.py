"""Convert the config of a run and the facts about its machine to JSON and back.

Strings, numbers, lists and dictionaries are themselves. An array or a complex number is the
dictionary `{"$array": [type, extra axes, shape, bytes in base64]}`, and a dictionary with a key
that begins with `$` is `{"$dict": [[key, value], ...]}`. All other values are stored as their
`repr`.
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

from logax._serialization.dtypes import parse_stored_type, stored_type_of
from logax._support.arrays import is_key_array

_MAX_DEPTH = 100


def as_json(value: Any) -> str:
    """Return any value as one line of JSON."""
    return json.dumps(_to_plain(value, 0), separators=(",", ":"))


def from_json(text: Any) -> Any:
    """Return the value that `as_json` was given; ValueError if the text is not valid."""
    try:
        return _from_plain(json.loads(text))
    except (RecursionError, TypeError, LookupError, OverflowError, binascii.Error) as error:
        raise ValueError("one of its texts is not valid JSON of logax") from error


def _to_plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return repr(value)
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, Mapping):
        pairs = [(str(key), _to_plain(each, depth + 1)) for key, each in value.items()]
        if any(key.startswith("$") for key, _ in pairs):
            return {"$dict": [list(pair) for pair in pairs]}
        return dict(pairs)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [_to_plain(each, depth + 1) for each in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array, complex)):
        return _array_to_plain(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _to_plain({name: getattr(value, name) for name in names}, depth)
    if hasattr(value, "_asdict"):
        return _to_plain(value._asdict(), depth)
    return repr(value)


def _array_to_plain(value: Any) -> Any:
    if isinstance(value, jax.Array) and is_key_array(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    kind = stored_type_of(array)
    if kind is None:
        return repr(value)
    if array.ndim == 0 and type(array.item()) in (bool, int, float, str):
        return array.item()
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"$array": [kind.name, list(kind.extra_axes), list(array.shape), data]}


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if "$array" in plain:
        return _array_from_plain(*plain["$array"])
    if "$dict" in plain:
        return {key: _from_plain(each) for key, each in plain["$dict"]}
    return {key: _from_plain(each) for key, each in plain.items()}


def _array_from_plain(name: str, extra_axes: list[int], shape: list[int], data: str) -> Any:
    kind = parse_stored_type(name, tuple(extra_axes))
    found = base64.b64decode(data, validate=True)
    if kind.is_key or math.prod((*shape, *extra_axes)) * kind.stored_dtype.itemsize != len(found):
        raise ValueError("an array in one of its texts has another size than it claims")
    return kind.decode(np.frombuffer(found, kind.stored_dtype), tuple(shape))

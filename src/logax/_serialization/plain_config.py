"""Validate the name of a run, and convert its config to plain values and to JSON.

| value | converted to |
| --- | --- |
| a mapping, a dataclass, a named tuple | a dictionary with strings as keys |
| a list, a tuple | the same |
| a member of an enumeration | its name; of one whose members are strings or numbers, the value |
| a path | a string |
| an array, a NumPy scalar | the same, unless it has fields or holds Python objects |
| an object with `__array__` or `__jax_array__` | an array |
| a string, a number, a boolean, None | the same |

In JSON, strings, numbers, lists and dictionaries are themselves. An array or a complex number is
the dictionary `{"$array": [type, extra axes, shape, bytes in base64]}`, and a dictionary with a key
that begins with `$` is `{"$dict": [[key, value], ...]}`. All other values are stored as their
`repr`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from logax._serialization.dtypes import parse_stored_type, stored_type_of
from logax._support.arrays import is_key_array
from logax._support.messages import describe_value

_MAX_DEPTH = 100


def plain_config(what: str, config: Any) -> dict[str, Any]:
    """Convert the config of a run to dictionaries, lists, strings, numbers and arrays.

    Arrays and tracers of JAX stay as they are.

    Args:
      what: Function that was given the config, for errors.
      config: A mapping or a dataclass; None is an empty one.

    Raises:
      TypeError: `config` is neither, or holds a value that is not in the table above.
      ValueError: It is nested too deep, or two keys of one mapping are the same as strings.
    """
    if config is None:
        return {}
    pairs = _pairs_of(config)
    if pairs is None:
        raise TypeError(
            f"`{what}` takes as `config` a mapping or a dataclass, and got "
            f"{describe_value(config)}. "
            f'Write `config={{"rate": 0.1}}`, or `config={_as_mapping("args", config)}`.'
        )
    return _Converter(what).dictionary(config, pairs, ())


def validate_run_name(what: str, name: Any) -> str | None:
    """Return the name of a run, or None.

    Raises:
      TypeError: `name` is not a string.
    """
    if name is None or isinstance(name, str):
        return name
    is_array = isinstance(name, (jax.Array, np.ndarray))
    advice = f" Write `{what}(key=...)`." if is_array and what.endswith(".run") else ""
    raise TypeError(
        f"`{what}` takes a `name` that is a string, and got {describe_value(name)}.{advice}"
    )


def flatten_run_config(
    config: Mapping[str, Any], *, lists: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested config by path: `{"model": {"layers": 2}}` has `model/layers`.

    An empty mapping is a value.

    Args:
      config: Config of a run.
      lists: Flatten lists and tuples too, by index: `sizes/0`. An empty one is a value.
    """

    def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping) and value:
            pairs: Iterable[tuple[Any, Any]] = value.items()
        elif lists and isinstance(value, (list, tuple)) and value:
            pairs = enumerate(value)
        else:
            yield path, value
            return
        for key, each in pairs:
            yield from leaves(each, f"{path}/{key}")

    for key, value in config.items():
        yield from leaves(value, str(key))


class _Converter:
    def __init__(self, what: str) -> None:
        self._what = what

    def dictionary(
        self, given: Any, pairs: Iterable[tuple[Any, Any]], path: tuple[Any, ...]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            name = self._name(key, path)
            if name in found:
                raise ValueError(
                    f"`{self._what}` got two keys that are {name!r} as a string, in "
                    f"{_format_path(path)}: {describe_value(given)}. Use strings as keys."
                )
            found[name] = self._value(value, (*path, name))
        return found

    def _name(self, key: Any, path: tuple[Any, ...]) -> str:
        plain = _member_value(key) if isinstance(key, enum.Enum) else key
        if isinstance(plain, (str, int, float, np.number)):
            return str(plain)
        raise TypeError(
            f"`{self._what}` takes strings and numbers as keys, and got {describe_value(key)} in "
            f"{_format_path(path)}. Write `str(key)`."
        )

    def _value(self, value: Any, path: tuple[Any, ...]) -> Any:
        if type(value) in _PLAIN or isinstance(value, jax.Array):
            return value
        if len(path) > _MAX_DEPTH:
            raise ValueError(
                f"`{self._what}` takes a config that is nested at most {_MAX_DEPTH} deep, and "
                f"{_format_path(path[:3])} goes deeper. Does it hold itself?"
            )
        if isinstance(value, enum.Enum):
            return _member_value(value)
        if isinstance(value, _PLAIN):
            return value
        if hasattr(type(value), "__jax_array__"):  # not of the object: a dictionary may invent it
            return value.__jax_array__()
        pairs = _pairs_of(value)
        if pairs is not None:
            return self.dictionary(value, pairs, path)
        if isinstance(value, (list, tuple)):
            items = [self._value(each, (*path, i)) for i, each in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        array = _array_of(value)
        if array is not None:
            return array
        raise TypeError(
            f"`{self._what}` takes strings, numbers and arrays, and lists, mappings and "
            f"dataclasses of them, and got {describe_value(value)} as {_format_path(path)}. Turn "
            f"it into one of these: {_advice(value)}."
        )


def _pairs_of(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the keys and values of a mapping, a dataclass or a named tuple, otherwise None."""
    if isinstance(value, type):
        return None
    if isinstance(value, Mapping):
        return value.items()
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if hasattr(type(value), "keys") and hasattr(
        type(value), "__getitem__"
    ):  # `dict(value)` takes it too
        return [(key, value[key]) for key in value.keys()]  # noqa: SIM118 - not a `Mapping`
    return None


def _array_of(value: Any) -> Any:
    """Return an array or an object with `__array__` as an array, otherwise None.

    Arrays with fields or of Python objects are None too, because files cannot hold them.
    """
    if not hasattr(type(value), "__array__"):
        return None
    array = value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)
    return None if stored_type_of(array) is None else array


def _member_value(member: enum.Enum) -> Any:
    return member.value if isinstance(member, (str, int, float)) else member.name


def _advice(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return "`value.decode()`, or `value.hex()`"
    if isinstance(value, (np.ndarray, np.generic)):  # with fields, or of Python objects
        return "`value.tolist()`"
    return f"`str(value)`, or `{_as_mapping('value', value)}`"


def _as_mapping(name: str, value: Any) -> str:
    """Return the expression that makes a dictionary of an object called `name`."""
    if hasattr(value, "model_dump"):  # of pydantic
        return f"{name}.model_dump()"
    return f"attrs.asdict({name})" if hasattr(value, "__attrs_attrs__") else f"vars({name})"


def _format_path(path: tuple[Any, ...]) -> str:
    return "`config" + "".join(f"[{part!r}]" for part in path) + "`"


_PLAIN = (str, bool, int, float, complex, type(None))


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

"""The config of a run, flat: for destinations that know hyperparameters but no nesting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax._support.arrays import shape_name
from logax.loggers._text.cells import cells

_MOST_ELEMENTS = 16  # of an array that is written out

Plain = str | bool | int | float


def flat_config(config: Mapping[str, Any]) -> dict[str, Plain]:
    """By name: strings, booleans and numbers; what is none of them as its text.

    A part of a dictionary is named `outer/inner`, an element of a list `outer/0`. A large array is
    written as its dtype and shape. What is None is left out.
    """
    flat: dict[str, Plain] = {}
    for name, value in _leaves("", config):
        while name in flat:
            name += "~"
        flat[name] = value
    return flat


def value_text(value: Any) -> str:
    """A value as text, a float in as few digits as 32 bits need, if it is a number of 32 bits.

    A number that was traced is one of 32 bits, though it comes as a float of Python's:
    0.009999999776482582 was 0.01.
    """
    text = str(value)
    if not isinstance(value, float) or not math.isfinite(value) or value.is_integer():
        return text
    with np.errstate(over="ignore", under="ignore"):
        short = np.float32(value)
    return min(str(short), text, key=len) if float(short) == value else text


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, Mapping):
        for key, own in value.items():
            yield from _leaves(f"{name}/{key}" if name else str(key), own)
    elif isinstance(value, (list, tuple)):
        for index, own in enumerate(value):
            yield from _leaves(f"{name}/{index}", own)
    elif isinstance(value, (str, bool, int, float)):
        yield name, value
    elif value is not None:
        yield name, _plain(value)


def _plain(value: Any) -> Plain:
    if not isinstance(value, (np.ndarray, np.generic)):
        return str(value)
    if value.ndim == 0:
        return _number(value)
    if value.size <= _MOST_ELEMENTS:
        return cells(np.asarray(value)[None])[0] if _is_float(value) else str(value.tolist())
    return shape_name(value.dtype, value.shape)


def _number(value: Any) -> Plain:
    item = value.item()
    if isinstance(item, (str, bool, int, float)):
        return item
    # A float of more than 64 bits is none of Python's.
    return float(value) if _is_float(value) else str(item)


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))

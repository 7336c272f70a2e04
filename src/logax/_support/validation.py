"""Validate options of public functions.

Each function returns the option in a standard form, or raises an error that names the option, the
value and the accepted values.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from logax._support.messages import describe_value, warn_user


def validate_names(option: str, names: Any, what: str = "") -> tuple[str, ...] | None:
    """Return one name or several names as a tuple, and None as None."""
    if names is None:
        return None
    given = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{_taking(option, what)} a string or strings, and got {names!r}.")
    return given


def warn_of_misspelling(what: str, names: Iterable[str], options: tuple[str, ...]) -> None:
    """Warn about user-defined names that look like misspelt options.

    Args:
      what: Call that got the names, for the warning.
      names: Names of steps or fields.
      options: Options of that call, or of a similar one.
    """
    for name in names:
        option = _misspelt(name, options)
        if option is not None:
            warn_user(
                f"{what} got `{name}`, which is not an option. Was `{option}` meant? Else choose "
                "a name that is less like it."
            )


@functools.lru_cache(maxsize=1024)
def _misspelt(name: str, options: tuple[str, ...]) -> str | None:
    """Return the option at one edit: a letter added, removed or changed, or two swapped."""
    return next((option for option in options if _is_one_edit(name, option)), None)


def _is_one_edit(one: str, two: str) -> bool:
    if len(one) == len(two):
        changed = sum(a != b for a, b in zip(one, two, strict=True))
        swaps = (one[:i] + one[i + 1] + one[i] + one[i + 2 :] for i in range(len(one) - 1))
        return changed == 1 or (changed == 2 and two in swaps)
    short, long = sorted((one, two), key=len)
    return len(long) == len(short) + 1 and any(
        long[:i] + long[i + 1 :] == short for i in range(len(long))
    )


def validate_string(option: str, text: Any, what: str = "") -> str:
    """Return an option that must be a string."""
    if not isinstance(text, str):
        raise TypeError(f"{_taking(option, what)} a string, and got {text!r}.")
    return text


def _taking(option: str, what: str) -> str:
    return f"{what} takes as `{option}`" if what else f"`{option}` takes"


def validate_choice(what: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return an option that must be one of `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(map(repr, choices[:-1]))
    raise ValueError(f"`{what}` takes `{name}` as {listed} or {choices[-1]!r}, and got {value!r}.")


def validate_minimum(minimum: int, what: str, name: str, value: Any) -> int:
    """Return an option that must be an integer of at least `minimum`."""
    number = whole(value, minimum)
    if number is None:
        raise ValueError(f"`{what}` takes `{name}` of {minimum} or more, and got {value!r}.")
    return number


def validate_positive(what: str, name: str, value: Any) -> int:
    """Return an option that must be a positive integer, limited to what programs can count."""
    return min(validate_minimum(1, what, name, value), _MAX_COUNT)


_MAX_COUNT = 2**31 - 1  # programs count with 32 bits


def whole(value: Any, minimum: int) -> int | None:
    """Return `value` as an int if it is an integer of at least `minimum`, otherwise None."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= minimum else None


def validate_boolean(what: str, answer: Any, advice: str) -> Any:
    """Return the answer of a predicate if it is one boolean, on the host or a device.

    Other values raise instead of counting as true.
    """
    if isinstance(answer, bool):
        return answer
    shape = answer.shape if getattr(answer, "dtype", None) == np.bool_ else None
    if shape == ():
        return answer
    got = describe_value(answer) if shape is None else f"shape {shape}"
    raise TypeError(f"{what} must answer with one boolean, and answered with {got}. {advice}")


def validate_file(what: str, file: Any) -> None:
    """Raise a TypeError unless `file` is None or has a method `write`."""
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"`{what}` takes a `file` to write to, and got {describe_value(file)}.")


def validate_seconds(what: str, name: str, value: Any, *, zero: bool = True) -> float:
    """Return an option that must be a finite number of seconds; `zero` allows 0."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and 0 <= value < math.inf and (zero or value > 0)):
        bound = "0 or more" if zero else "more than 0"
        raise ValueError(f"`{what}` takes `{name}` in seconds, {bound}, and got {value!r}.")
    return float(value)

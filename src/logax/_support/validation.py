"""Options as they are given, checked, or an error that says what to give."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from logax._support.messages import received, warn_user


def as_names(option: str, names: Any, what: str = "") -> tuple[str, ...] | None:
    """One name, or many, or None, given as an option of `what`."""
    if names is None:
        return None
    given = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{_taking(option, what)} a string or strings, and got {names!r}.")
    return given


def warn_of_misspelling(what: str, names: Iterable[str], options: tuple[str, ...]) -> None:
    """Warn of names that a user chose freely and that look like misspelt options.

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
    """Return the option that is one edit away: a letter more, less or changed, or two swapped."""
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


def as_text(option: str, text: Any, what: str = "") -> str:
    """A string, given as an option of `what`."""
    if not isinstance(text, str):
        raise TypeError(f"{_taking(option, what)} a string, and got {text!r}.")
    return text


def _taking(option: str, what: str) -> str:
    return f"{what} takes as `{option}`" if what else f"`{option}` takes"


def one_of(what: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """The choice that an option is, or an error."""
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(map(repr, choices[:-1]))
    raise ValueError(f"`{what}` takes `{name}` as {listed} or {choices[-1]!r}, and got {value!r}.")


def at_least(least: int, what: str, name: str, value: Any) -> int:
    """The number that an option asks for, or an error."""
    number = whole(value, least)
    if number is None:
        raise ValueError(f"`{what}` takes `{name}` of {least} or more, and got {value!r}.")
    return number


def at_least_one(what: str, name: str, value: Any) -> int:
    """The same for what a program counts."""
    return min(at_least(1, what, name, value), _COUNTABLE)


_COUNTABLE = 2**31 - 1  # programs count with 32 bits


def whole(value: Any, least: int) -> int | None:
    """`value` as an int if it is a whole number of at least `least`, else None."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= least else None


def one_boolean(what: str, answer: Any, advice: str) -> Any:
    """The answer to a question, on the device or not, or an error: a mistake must not mean yes."""
    if isinstance(answer, bool):
        return answer
    shape = answer.shape if getattr(answer, "dtype", None) == np.bool_ else None
    if shape == ():
        return answer
    got = received(answer) if shape is None else f"shape {shape}"
    raise TypeError(f"{what} must answer with one boolean, and answered with {got}. {advice}")


def check_file(what: str, file: Any) -> None:
    """Raise if `file` is neither None nor something to write to."""
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"`{what}` takes a `file` to write to, and got {received(file)}.")


def in_seconds(what: str, name: str, value: Any, *, zero: bool = True) -> float:
    """A span of time, or an error."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and 0 <= value < math.inf and (zero or value > 0)):
        least = "0 or more" if zero else "more than 0"
        raise ValueError(f"`{what}` takes `{name}` in seconds, {least}, and got {value!r}.")
    return float(value)

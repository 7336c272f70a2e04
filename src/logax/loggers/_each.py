"""What is done for each of several runs, of which one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from logax._errors import add_note, raise_together

T = TypeVar("T")


def for_each(
    name: str,
    several: Iterable[T],
    do: Callable[[T], object],
    until: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Do it for all of them, those after a failure too, and then raise what failed.

    Args:
      name: Of the logger, for errors.
      several: What it is done for.
      do: What is done.
      until: Errors after which no other is tried, since they would fare the same.
    """
    every, errors = list(several), list[BaseException]()
    for number, one in enumerate(every, 1):
        try:
            do(one)
        except Exception as error:  # noqa: BLE001 - the others must have theirs
            errors.append(error)
            if isinstance(error, until):
                if number < len(every):
                    add_note(error, f"{len(every) - number} more were not tried.")
                break
    raise_together(f"`{name}` could not write several runs", errors)

"""Keys that were asked for: each must be in some run, and some runs may lack one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from logax._command.errors import CommandError
from logax._runs.run import Run

T = TypeVar("T")


class Wanted(Generic[T]):
    """What names and globs choose in several runs.

    Args:
      choose: Gives what names choose in a run, or raises a `CommandError`.
    """

    def __init__(self, choose: Callable[[Run, Sequence[str]], list[T]]) -> None:
        self._choose = choose
        self._missing: dict[str, CommandError] = {}
        self._there: set[str] = set()

    def of(self, run: Run, name: str) -> list[T]:
        """What a name chooses in a run, which may be nothing."""
        try:
            found = self._choose(run, [name])
        except CommandError as error:
            self._missing.setdefault(name, error)
            return []
        self._there.add(name)
        return found

    def check(self) -> None:
        """Raise if there is a name that chose nothing in any run."""
        for name, error in self._missing.items():
            if name not in self._there:
                raise error

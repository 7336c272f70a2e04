"""What a destination is compared by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from logax._delivery.control import flush

Columns = dict[str, list[tuple[Any, Any]]]


@dataclasses.dataclass
class Seen:
    """What a destination holds of a run.

    Attributes:
      columns: By the flat name of each array the list of its records, each an x and a value.
      status: "finished" or "crashed", or None if the destination does not say.
      config: The config of the run, or None if the destination does not say.
      group: What it has in common with the other runs of one `init`, or None.
    """

    columns: Columns
    status: str | None = None
    config: Mapping[str, Any] | None = None
    group: str | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, and what a destination must hold after it.

    Attributes:
      name: What it shows.
      program: Runs with a logger, and gives what must be there: by name of the run, a `Seen`.
    """

    name: str
    program: Callable[[Any], dict[str, Seen]]

    def __str__(self) -> str:
        return self.name

    def check(
        self,
        logger: Any,
        read: Callable[[], Mapping[str, Seen]],
        *,
        numbers_only: bool = False,
        empty_runs: bool = True,
    ) -> None:
        """Run the program with a logger, close it, and compare what is read back.

        Args:
          logger: With `lanes="split"`, and nothing written yet.
          read: Gives what the destination holds, by the name of the run.
          numbers_only: Whether the destination holds single numbers: then arrays of up to 16
            elements are expected element by element, under `name/0`, `name/1,2`.
          empty_runs: Whether the destination shows runs without records.

        Raises:
          AssertionError: It holds something else.
        """
        expected = self.program(logger)
        if not empty_runs:
            expected = {name: run for name, run in expected.items() if run.columns}
        flush()
        logger.close()
        seen = dict(read())
        _same(f"runs of case {self.name!r}", sorted(seen), sorted(expected))
        for name, run in expected.items():
            columns = _elements(run.columns) if numbers_only else run.columns
            _same_columns(f"case {self.name!r}, run {name!r}", seen[name].columns, columns)
            if seen[name].status is not None:
                _same(f"status of {name!r}", seen[name].status, run.status or "finished")
            if seen[name].config is not None and run.config is not None:
                _same(f"config of {name!r}", dict(seen[name].config or {}), dict(run.config))


def _elements(columns: Columns) -> Columns:
    """Arrays as numbers of their own."""
    single: Columns = {}
    for name, records in columns.items():
        for x, value in records:
            array = np.asarray(value)
            for index in np.ndindex(array.shape):
                own = f"{name}/{','.join(map(str, index))}" if index else name
                single.setdefault(own, []).append((x, array[index]))
    return single


def _same_columns(where: str, seen: Columns, expected: Columns) -> None:
    _same(f"names in {where}", sorted(seen), sorted(expected))
    for name, records in expected.items():
        own = seen[name]
        _same(f"x of {name!r} in {where}", [x for x, _ in own], [x for x, _ in records])
        for (x, value), (_, wanted) in zip(own, records, strict=True):
            if not _equal(value, wanted):
                _same(f"{name!r} at {x} in {where}", value, wanted)


def _equal(seen: Any, expected: Any) -> bool:
    one, two = np.asarray(seen), np.asarray(expected)
    wide = np.result_type(one.dtype, two.dtype, np.float64)
    return one.shape == two.shape and np.array_equal(
        one.astype(wide), two.astype(wide), equal_nan=True
    )


def _same(what: str, seen: Any, expected: Any) -> None:
    if seen != expected:
        raise AssertionError(f"{what}: expected {_cut(expected)}, and there is {_cut(seen)}")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 500 else f"{text[:500]}..."

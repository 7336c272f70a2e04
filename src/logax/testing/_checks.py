"""Run a program with a logger, and compare the records that its destination holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from logax._delivery.control import flush

Columns = dict[str, list[tuple[Any, Any]]]


@dataclasses.dataclass
class Seen:
    """Contents of one run, as read back from a destination.

    Attributes:
      columns: Records of each array, by its flat name (`net/w/0`): a list of pairs `(x, value)`.
      status: "finished" or "crashed", or None if the destination does not store it.
      config: Config of the run, or None if the destination does not store it.
      group: Name that the runs of one `init` share, or None. `Case.check` does not compare it.
    """

    columns: Columns
    status: str | None = None
    config: Mapping[str, Any] | None = None
    group: str | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """A program that tests a logger, with the records that it must leave.

    Attributes:
      name: Name of the case; also its string, for `pytest.mark.parametrize(..., ids=str)`.
      program: Function that runs the program with a logger, and returns the expected contents: a
        dictionary from the name of each run to a `Seen`.
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
        """Run the program with a logger, close the logger, and compare the records read back.

        Args:
          logger: Logger with `lanes="split"` and an empty destination.
          read: Function that returns the contents of the destination: a mapping from the name of
            each run to a `Seen`.
          numbers_only: True if the destination stores single numbers only. The elements of arrays,
            which have at most 16 of them, are then expected as columns `name/0`, `name/1,2`.
          empty_runs: True if the destination lists runs without records.

        Raises:
          AssertionError: If the destination holds other runs or records. The message names the run
            and the array.
        """
        expected = self.program(logger)
        if not empty_runs:
            expected = {name: run for name, run in expected.items() if run.columns}
        flush()
        logger.close()
        seen = dict(read())
        _assert_equal(f"runs of case {self.name!r}", sorted(seen), sorted(expected))
        for name, run in expected.items():
            columns = _split_elements(run.columns) if numbers_only else run.columns
            _assert_equal_columns(f"case {self.name!r}, run {name!r}", seen[name].columns, columns)
            if seen[name].status is not None:
                _assert_equal(f"status of {name!r}", seen[name].status, run.status or "finished")
            if seen[name].config is not None and run.config is not None:
                _assert_equal(
                    f"config of {name!r}", dict(seen[name].config or {}), dict(run.config)
                )


def _split_elements(columns: Columns) -> Columns:
    """Return the elements of each array as separate columns."""
    single: Columns = {}
    for name, records in columns.items():
        for x, value in records:
            array = np.asarray(value)
            for index in np.ndindex(array.shape):
                own = f"{name}/{','.join(map(str, index))}" if index else name
                single.setdefault(own, []).append((x, array[index]))
    return single


def _assert_equal_columns(where: str, seen: Columns, expected: Columns) -> None:
    _assert_equal(f"names in {where}", sorted(seen), sorted(expected))
    for name, records in expected.items():
        own = seen[name]
        _assert_equal(f"x of {name!r} in {where}", [x for x, _ in own], [x for x, _ in records])
        for (x, value), (_, wanted) in zip(own, records, strict=True):
            if not _are_equal(value, wanted):
                _assert_equal(f"{name!r} at {x} in {where}", value, wanted)


def _are_equal(seen: Any, expected: Any) -> bool:
    one, two = np.asarray(seen), np.asarray(expected)
    wide = np.result_type(one.dtype, two.dtype, np.float64)
    return one.shape == two.shape and np.array_equal(
        one.astype(wide), two.astype(wide), equal_nan=True
    )


def _assert_equal(what: str, seen: Any, expected: Any) -> None:
    if seen != expected:
        raise AssertionError(
            f"{what}: expected {_truncate(expected)}, and there is {_truncate(seen)}"
        )


def _truncate(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 500 else f"{text[:500]}..."

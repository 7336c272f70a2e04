"""`logax.testing` reports every difference between a destination and the expected records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logax.testing import Case, MemoryLogger, Seen


def program(logger: Any) -> dict[str, Seen]:
    with logger.run(name="a", config={"rate": 0.5}) as state:
        for step in (0, 5):
            logger.log(state, {"x": np.full(2, step)}, step=step)
    return {"a": Seen({"x": [(0, [0, 0]), (5, [5, 5])]}, config={"rate": 0.5})}


RIGHT = Seen({"x": [(0, [0, 0]), (5, [5, 5])]}, "finished", {"rate": 0.5})
LONG = list(range(1000))


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ({}, "runs of case 'two': expected ['a'], and there is []"),
        ({"a": Seen({})}, "names in case 'two', run 'a': expected ['x'], and there is []"),
        (
            {"a": Seen({"x": [(0, [0, 0])]})},
            "x of 'x' in case 'two', run 'a': expected [0, 5], and there is [0]",
        ),
        (
            {"a": Seen({"x": [(0, [0, 0]), (5, [5, 6])]})},
            "'x' at 5 in case 'two', run 'a': expected [5, 5], and there is [5, 6]",
        ),
        (
            {"a": Seen({"x": [(0, [0, 0]), (5, LONG)]})},
            f"'x' at 5 in case 'two', run 'a': expected [5, 5], and there is {repr(LONG)[:500]}...",
        ),
        (
            {"a": Seen(RIGHT.columns, "crashed")},
            "status of 'a': expected 'finished', and there is 'crashed'",
        ),
        (
            {"a": Seen(RIGHT.columns, config={})},
            "config of 'a': expected {'rate': 0.5}, and there is {}",
        ),
    ],
)
def test_a_case_says_what_was_expected_and_what_there_is(read: dict[str, Seen], said: str) -> None:
    with pytest.raises(AssertionError) as caught:
        Case("two", program).check(MemoryLogger(), lambda: read)
    assert str(caught.value) == said


def test_a_case_says_nothing_where_all_is_there() -> None:
    Case("two", program).check(MemoryLogger(), lambda: {"a": RIGHT})
    alone = {f"x/{i}": [(0, 0), (5, 5)] for i in range(2)}
    Case("two", program).check(MemoryLogger(), lambda: {"a": Seen(alone)}, numbers_only=True)

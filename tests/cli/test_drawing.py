"""Curves in signs of braille, or in stars."""

import numpy as np

from logax._cli.show import draw_terminal_curve as curve
from logax._support.formatting import ASCII, UNICODE


def drawn(y: list[float], columns: int = 24, rows: int = 3, signs: object = UNICODE) -> list[str]:
    values = np.array(y)
    return curve("loss", np.arange(len(y)) * 1.0, values, "step", columns, rows, signs)  # type: ignore[arg-type]


def test_a_line_goes_from_corner_to_corner() -> None:
    assert drawn([0.0, 1.0]) == [
        "loss",
        " 1 ┤             ⢀⣀⡠⠤⠒⠒⠉",
        "   │      ⢀⣀⠤⠤⠒⠒⠉⠁",
        " 0 ┤⣀⠤⠤⠒⠊⠉⠁",
        "   └────────────────────",
        "    0       step       1",
    ]


def test_stars_stand_where_there_is_no_braille() -> None:
    assert drawn([0.0, 1.0, 0.0], columns=15, signs=ASCII) == [
        "loss",
        " 1 |    ***",
        "   |  **   **",
        " 0 |**       **",
        "   +-----------",
        "    0  step   2",
    ]


def test_what_is_not_finite_is_a_gap() -> None:
    assert drawn([0.0, np.nan, 0.0, np.inf, 2.0], columns=15, signs=ASCII) == [
        "loss",
        " 2 |          *",
        "   |",
        " 0 |*    *",
        "   +-----------",
        "    0  step   4",
    ]


def test_numbers_that_are_all_equal_are_a_line_in_the_middle() -> None:
    assert drawn([5.0, 5.0], columns=15, signs=ASCII)[1:4] == [
        " 5 |",
        "   |***********",
        " 5 |",
    ]


def test_one_point_is_drawn() -> None:
    lines = drawn([5.0], columns=15, signs=ASCII)
    assert [line.count("*") for line in lines] == [0, 0, 1, 0, 0, 0]
    assert lines[-1] == "    0 (step)"


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn([np.nan, np.inf]) == []
    assert drawn([]) == []


def test_the_largest_numbers_fit() -> None:
    top = np.finfo(np.float64).max
    lines = drawn([-top, top], columns=20, signs=ASCII)
    assert lines[1:4] == [
        "  1e+300 |       ***",
        "         |   ****",
        " -1e+300 |***",
    ]


def test_of_a_million_points_the_extremes_are_seen() -> None:
    y = np.zeros(1_000_000)
    y[123_456] = 1.0
    lines = drawn(list(y), columns=40, rows=5, signs=ASCII)
    assert lines[1].count("*") == 1

"""The first pages that anybody reads, run as notebooks: they show what the pages say they show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notebooks import run_notebook
from test_docs import ROOT, Block, blocks_of

_NUMBER = re.compile(r" *-?\b\d+(?:\.\d*)?(?:e[-+]?\d+)? *")
NUMBERS, WORDS = _NUMBER.findall, _NUMBER.split
FIRST = "import warnings; warnings.filterwarnings('error', module='logax|__main__')"


def cells_of(blocks: list[Block]) -> list[tuple[str, str]]:
    """Every program of a page, with the output that stands right behind it."""
    found: list[tuple[str, str]] = []
    for block in blocks:
        if block.language == "python":
            found.append((block.code, ""))
        elif block.language == "text":
            found[-1] = (found[-1][0], block.code)
    return found


def shown(programs: list[str], folder: Path) -> list[Any]:
    """What each cell of a notebook shows."""
    cells = run_notebook([FIRST, *programs], folder)["cells"]
    return [cell["outputs"] for cell in cells[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_a_notebook_of_the_page_shows_what_the_page_shows(page: str, tmp_path: Path) -> None:
    cells = cells_of(blocks_of((ROOT / page).read_text()))
    assert sum(bool(output) for _, output in cells) >= 2
    outputs = shown([code for code, _ in cells], tmp_path)
    for (code, wanted), got in zip(cells, outputs, strict=True):
        assert {(out["output_type"], out["name"]) for out in got} <= {("stream", "stdout")}, code
        compare("".join("".join(out["text"]) for out in got), wanted)


def compare(got: str, wanted: str) -> None:
    """The same words and whole numbers; other numbers as far as all machines have them alike."""
    assert WORDS(got) == WORDS(wanted)
    for one, other in zip(NUMBERS(got), NUMBERS(wanted), strict=True):
        if one.strip().lstrip("-").isdigit() and other.strip().lstrip("-").isdigit():
            assert int(one) == int(other)
        else:
            np.testing.assert_allclose(float(one), float(other), rtol=1e-2, atol=1e-4)

"""The first pages that anybody reads, run as notebooks: they show what the pages say they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notebooks import run_notebook
from test_docs import ROOT, assert_shown, programs_of

FIRST = "import warnings; warnings.filterwarnings('error', module='logax|__main__')"


def shown(programs: list[str], folder: Path) -> list[Any]:
    """What each cell of a notebook shows."""
    cells = run_notebook([FIRST, *programs], folder)["cells"]
    return [cell["outputs"] for cell in cells[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_a_notebook_of_the_page_shows_what_the_page_shows(page: str, tmp_path: Path) -> None:
    programs = programs_of(ROOT / page)
    assert sum(output is not None for _, output in programs) >= 2
    outputs = shown([block.code for block, _ in programs], tmp_path)
    for (block, wanted), got in zip(programs, outputs, strict=True):
        kinds = {(out["output_type"], out["name"]) for out in got}
        assert kinds <= {("stream", "stdout")}, block.code
        assert_shown("".join("".join(out["text"]) for out in got), wanted or "")

"""A thousand times opened and closed: after that a process takes what it took before."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cycles import fresh_functions, measure
from soak.processes import Footprint, answer

EARLY, LATE = 600, 1_400  # caches of JAX and Python fill up before
# What stays of a run that has ended: its number, its id and its name, which its state can be asked
# for as long as there is the logger. The cycles of "runs" have two of them.
BLOCKS = {"runs": 12, "loops": 6}
OF_ALL = 400  # blocks: less than one in two cycles
FLAT = 3 * 2**20  # bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["runs", "loggers", "several", "callbacks", "trajectories", "loops"]
)
def test_a_thousand_cycles_leave_nothing_behind(kind: str, tmp_path: Path) -> None:
    early, late = (Footprint(*each) for each in answer(measure, kind, tmp_path, [EARLY, LATE]))
    assert late.files == early.files
    assert late.threads == early.threads
    assert late.blocks - early.blocks < OF_ALL + BLOCKS.get(kind, 0) * (LATE - EARLY)
    assert late.resident - early.resident < FLAT


@pytest.mark.slow
def test_functions_and_callbacks_that_were_used_once_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(fresh_functions, 40) == [0, 0]

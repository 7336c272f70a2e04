"""Children that are forked while the parent streams: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import logax
from soak.forks import CHILDREN, OWN, fork_under_load, fork_while_locked
from soak.processes import answer


@pytest.mark.slow
def test_children_that_end_log_and_exit_take_nothing_from_the_parent(tmp_path: Path) -> None:
    told = answer(fork_under_load, tmp_path)
    assert told["codes"] == list(range(CHILDREN))
    number, steps = told["number"], [float(step) for step in range(OWN)]
    assert told["seen"]

    runs = logax.load(tmp_path / "runs")
    names = [run.name for run in runs.values()]
    own = [f"child {i}" for i in range(2, CHILDREN, 4)]
    own += [f"loop {i}" for i in range(3, CHILDREN, 4)]
    assert sorted(names) == sorted(["parent", *own])
    assert {run.status for run in runs.values()} == {"finished"}
    parent = runs.find("parent")
    assert parent["x"].tolist() == list(range(number))
    assert parent["of a child"].tolist() == list(range(1, CHILDREN, 4))
    for name in own:
        assert runs.find(name)["x"].tolist() == steps

    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    values = [line["x"] for line in lines if "x" in line]
    assert sorted(values) == sorted([*map(float, range(number)), *steps * len(own)])
    assert sum("of a child" in line for line in lines) == CHILDREN // 4
    for event in ("open", "close"):
        runs_of_it = [line["run"] for line in lines if line.get("event") == event]
        assert sorted(runs_of_it) == sorted(run.id for run in runs.values())

    for i in range(3, CHILDREN, 4):
        folder = tmp_path / f"loop {i}"
        assert len((folder / "python.log").read_text().splitlines()) == OWN
        assert len((folder / "printed").read_text().splitlines()) == OWN
        assert (folder / "called").read_text().split()[::2] == [str(step) for step in range(OWN)]
        assert f"{OWN}/{OWN}" in (folder / "bar").read_text()


@pytest.mark.slow
def test_a_child_that_is_forked_while_lines_are_added_does_not_keep_the_file_locked(
    tmp_path: Path,
) -> None:
    assert answer(fork_while_locked, tmp_path / "lines.jsonl") == "free"

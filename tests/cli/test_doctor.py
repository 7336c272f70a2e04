"""`logax doctor` says what is here, what works, and how to fix what does not."""

import importlib.util
import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import logax
from logax._cli import doctor as checks

Call = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_is_well_here(call: Call, here: Path) -> None:
    ended = call("doctor", "--json")
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["ok"] is True
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["logax"]["found"] == logax.__version__
    assert by_name["Python"]["found"] == platform.python_version()
    assert by_name["JAX"]["found"] == jax.__version__
    assert by_name["NumPy"]["found"] == np.__version__
    assert by_name["cpu"]["found"] == "8 x cpu"
    for name in ("tap", "spool", "runs in this folder", "runs in the temporary folder"):
        assert by_name[name]["status"] == "ok"
        assert by_name[name]["found"] == "works"
    assert os.listdir(here) == []


def test_the_text_has_a_heading_for_each_kind_and_a_verdict(call: Call, here: Path) -> None:
    lines = call("doctor").lines
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "versions",
        "devices",
        "extras",
        "works here",
        "Logging works here.",
    ]
    assert f"  ok     JAX     {jax.__version__}" in lines
    assert "  ok     tap                           works" in lines


def test_every_extra_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*checks.EXTRAS, "all"} == set(project["optional-dependencies"])


def test_a_missing_extra_is_shown_with_its_pip_line(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name)
    )
    ended = call("doctor")
    assert ended.status == 0
    line = '  -      parquet      pip install "logax[parquet]"  for `logax export --to parquet`'
    assert line in ended.lines


def test_an_extra_may_come_in_another_package_or_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely.py").write_text("")
    (tmp_path / "slim.py").write_text("")
    facts = tmp_path / "slim_skinny-1.2.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: slim-skinny\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checks, "EXTRAS", {"a": ("lonely", "one"), "b": ("slim", "two")})
    assert checks.check_extras() == [
        ("extras", "a", "ok", "installed  for one", ""),
        ("extras", "b", "ok", "1.2  for two", ""),
    ]


def test_records_that_come_back_different_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(number: int) -> float:
        logax.log({"x": 1.0}, step=0)
        return 3.0

    monkeypatch.setattr(checks, "_program", program)
    assert checks.check_tap() == (
        "works here",
        "tap",
        "fails",
        "ValueError: (3.0, [(0, 1.0)]) came back in place of "
        "(3.0, [(0, 0.0), (1, 1.0), (2, 2.0)]).",
        "Programs can still be harvested with `logax.spool`, if that works.",
    )


@pytest.mark.parametrize(
    ("version", "status", "fix"),
    [
        ("0.7.2", "fails", 'Write `pip install -U "jax>=0.8"`.'),
        ("0.8.0", "ok", ""),
        ("0.12.9", "ok", ""),
        (
            "0.13.0.dev20",
            "note",
            "It is newer than those that logax is tested with, 0.8 to 0.12; it may well work.",
        ),
    ],
)
def test_versions_of_jax_that_are_not_tested_are_told(version: str, status: str, fix: str) -> None:
    assert checks.check_jax_version(version) == ("versions", "JAX", status, version, fix)


def test_where_no_runs_can_be_written_it_fails(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here / "nowhere"))
    ended = call("doctor", "--json")
    assert ended.status == 0  # the working folder is enough
    here_check, there_check = json.loads(ended.out)["checks"][-2:]
    assert (here_check["status"], there_check["status"]) == ("ok", "note")
    assert there_check["found"].startswith("FileNotFoundError: ")
    monkeypatch.setattr("os.curdir", str(here / "nowhere"))
    ended = call("doctor")
    assert ended.status == 1
    assert ended.lines[-1] == "Logging does not work here: runs in this folder."
    fix = "Give `SaveLogger` a folder that may be written to, on a disk with room."
    assert f"runs in this folder: {fix}" in ended.lines


@pytest.mark.slow
def test_devices_that_do_not_start_are_told_without_traceback(start: Start) -> None:
    program = start("doctor", "--json", JAX_PLATFORMS="nonesuch")
    out, _ = program.communicate(timeout=120)
    found = json.loads(out)
    assert (program.returncode, found["ok"]) == (1, False)
    device = next(check for check in found["checks"] if check["name"] == "devices")
    assert device["status"] == "fails"
    assert device["fix"] == ("Write `JAX_PLATFORMS=cpu logax doctor` to see whether the CPU works.")

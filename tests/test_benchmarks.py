"""The benchmark program runs, its report is complete, and the docs quote what was measured."""

import dataclasses
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import quote_results

ROOT = Path(__file__).resolve().parent.parent
ROW = "jit(spool(f)): scan of 1,000 steps, 1 scalar"
SURROUNDINGS = ("date", "jax", "jaxlib", "numpy", "python", "platform", "device", "cpus")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.__main__")


def table_rows(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_a_run_prints_a_table_and_writes_the_same_to_a_file(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    program.main(["--quick", "--only", ROW, "--json", str(file)])
    printed = capsys.readouterr().out

    report: dict[str, Any] = json.loads(file.read_text())
    assert all(report[name] for name in SURROUNDINGS)
    assert report["quick"] is True
    (kept,) = report["rows"]
    assert kept["repetitions"] == 3
    assert kept["by_hand"] > 0
    assert kept["logax"] > 0

    (row,) = table_rows(printed)
    assert row["what"] == "`jit(spool(f))`"
    assert row["program"] == "scan of 1,000 steps, 1 scalar"
    assert row["ratio"] == f"{kept['ratio']:.3f}"
    assert row["goal"] == "1.10"
    assert row["met"] == ("yes" if kept["ratio"] <= 1.1 else "no")

    program.main(["--show", str(file)])
    assert capsys.readouterr().out == printed


def test_programs_that_return_different_arrays_are_not_compared(program: ModuleType) -> None:
    case = importlib.import_module("benchmarks.case")
    calls = importlib.import_module("benchmarks.calls")
    timing = importlib.import_module("benchmarks.timing")
    by_hand, _ = calls.tiny()
    _, logged = calls.training_step()
    unlike = case.Case("a group", "an unequal pair", None, lambda: (by_hand, logged))
    with pytest.raises(RuntimeError, match=r"an unequal pair: by hand .*, with logax"):
        unlike.run(timing.QUICK)


def test_runs_of_many_seeds_take_little_more_on_disk_than_their_values(
    program: ModuleType,
) -> None:
    runs = importlib.import_module("benchmarks.runs")
    assert 1 < runs.bytes_on_disk(seeds=64) <= 1.3


def test_what_a_row_reads_back_from_disk_is_what_was_logged(program: ModuleType) -> None:
    runs = importlib.import_module("benchmarks.runs")
    timing = importlib.import_module("benchmarks.timing")
    case = next(case for case in runs.CASES if "buffer=64, delivery time" in case.name)
    assert case.run(timing.QUICK).by_hand == pytest.approx(0.03)

    allowed, saved = case.make()
    wrong = dataclasses.replace(allowed, expected=[values + 1 for values in allowed.expected])
    with pytest.raises(AssertionError, match="delivery time"):
        dataclasses.replace(case, make=lambda: (wrong, saved)).run(timing.QUICK)


@pytest.mark.slow
def test_a_curve_has_every_form_at_every_size_and_is_drawn(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    growth = importlib.import_module("benchmarks.growth")
    timing = importlib.import_module("benchmarks.timing")
    curves = [
        growth.Curve("records", (1, 10), growth._records, 10, most=1),
        growth.Curve("depth", (1, 2), growth._depth, 2),
        growth.Curve("sites, to compile", (1, 2), growth._sites, 2, builds=True),
    ]
    grown = [curve.run(timing.QUICK) for curve in curves]
    assert [curve["sizes"] for curve in grown] == [[1, 10], [1, 2], [1, 2]]
    for curve in grown:
        for name in (growth.BY_HAND, growth.SPOOL, growth.TAP):
            assert all(seconds > 0 for seconds in curve["seconds"][name])
    assert grown[0]["seconds"][growth.CALLBACK][1] is None

    report = {**program.surroundings(), "rows": [], "curves": grown}
    program.show(report, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    rows = table_rows(capsys.readouterr().out)
    assert [(row["what grows"], row["to"]) for row in rows[:2]] == [
        ("records", "1"),
        ("records", "10"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4])
def test_what_grows_is_the_same_by_hand_and_spooled(program: ModuleType, number: int) -> None:
    growth = importlib.import_module("benchmarks.growth")
    timing = importlib.import_module("benchmarks.timing")
    for curve in growth.CURVES:
        if not curve.builds:
            dataclasses.replace(curve, judged=4 * number).case().run(timing.QUICK)


def test_text_that_is_in_no_row_is_an_error_that_says_how_to_see_them(
    program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program.main(["--only", "no such row"])
    assert "no row has 'no such row' in it; `--list` shows them" in capsys.readouterr().err


def test_the_tables_of_the_docs_are_those_of_files_in_results(program: ModuleType) -> None:
    page = quote_results.PAGE.read_text()
    named = [Path(comment[2]) for comment in quote_results.COMMENT.finditer(page)]
    assert named
    assert all(json.loads((ROOT / path).read_text())["quick"] is False for path in named)
    assert quote_results.quoted(page) == page


def test_what_is_quoted_wrongly_is_quoted_anew(program: ModuleType) -> None:
    page = quote_results.PAGE.read_text()
    for old, new in (
        (" goals met.", " goals met, nearly."),
        ("Peak memory while", "Peak memory as"),
        ("| 1.10 | no |", "| 1.10 | yes |"),
        ("| records in a call | 10 |", "| records in a call | 11 |"),
    ):
        assert old in page
        assert quote_results.quoted(page.replace(old, new)) == page

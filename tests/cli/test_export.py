"""`logax export` writes what other programs read."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jax
import numpy as np
import pandas as pd
import pytest

import logax
from logax._logdict.logdict import missing_step
from logax.loggers import SaveLogger
from terminals import Terminal

Call = Callable[..., Any]


def test_csv_goes_to_the_output(call: Call, store: Path) -> None:
    ended = call("export", "first", "--to", "csv", "--path", store)
    assert ended.status == 0
    assert ended.err == ""
    assert ended.lines == [
        "step,epoch,loss,hits,val/loss",
        "0,,2.0,0,",
        "1,,1.5,1,",
        "2,,1.0,4,",
        "3,,0.5,9,",
        ",1,,,1.0",
    ]


def test_records_of_equal_steps_share_a_row_of_csv(call: Call, logged: Callable[..., Path]) -> None:
    path = logged(
        ({"a": 0}, {"step": 0}),
        ({"b": 0}, {"step": 0}),
        ({"a": 1}, {"step": 1}),
        ({"a": 2}, {"step": 2}),
        ({"b": 20}, {"step": 2}),
        ({"a": 99}, {"step": 2}),
    )
    ended = call("export", "last", "--to", "csv", "--path", path)
    assert ended.lines == ["step,a,b", "0,0,0", "1,1,", "2,2,20", "2,99,"]


def test_jsonl_has_a_line_for_each_record(
    call: Call, store: Path, ids: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "first.jsonl"
    ended = call("export", "first", "--to", "jsonl", "-o", file, "--path", store, "loss", "hits")
    assert ended == (0, "", "")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"run": ids["first"], "step": step, "loss": 0.5 * (4 - step), "hits": step**2}
        for step in range(4)
    ]


def test_text_keeps_what_is_not_finite_and_every_name(
    call: Call, saved: Callable[..., Path]
) -> None:
    keys = ['a,"b"', "größe", "\n", "run", "../x"]
    path = saved({key: np.array([np.nan, -np.inf]) for key in keys})
    rows = pd.read_csv(io.StringIO(call("export", "last", "--to", "csv", "--path", path).out))
    assert list(rows) == ['a,"b"', "größe", "\n", "run_", "../x"]
    assert np.isnan(rows["größe"][0])
    assert rows["../x"][1] == -np.inf
    line = call("export", "last", "--to", "jsonl", "--path", path).lines[1]
    assert json.loads(line)["größe"] == -np.inf


def test_npz_holds_values_and_steps_by_name(call: Call, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "first.npz"
    assert call("export", "first", "--to", "npz", "-o", file, "--path", store) == (0, "", "")
    with np.load(file) as found:
        assert {name: found[name].tolist() for name in found} == {
            "loss": [2.0, 1.5, 1.0, 0.5],
            "loss@step": [0, 1, 2, 3],
            "hits": [0, 1, 4, 9],
            "hits@step": [0, 1, 2, 3],
            "val/loss": [1.0],
            "val/loss@epoch": [1],
        }


def test_npz_holds_lanes_and_how_many_records_each_has(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    logs = logax.logdict(
        {"x": np.array([[1, 2], [3, 4]])}, count={"x": np.array([2, 1])}, rank={"x": 0}
    )
    path = saved(logs, lanes="batch")
    call("export", "last", "--to", "npz", "-o", tmp_path / "x.npz", "--path", path)
    with np.load(tmp_path / "x.npz") as found:
        assert sorted(found) == ["x", "x#count"]
        assert found["x#count"].tolist() == [2, 1]
        assert found["x"][0].tolist() == [1, 2]
        assert found["x"][1, 0] == 3


def test_no_name_in_an_npz_file_leads_out_of_a_folder(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    keys = ["../../x", "/etc/x", "a//b", "..", "x@step", "x#count", "a\\b", "\x1b"]
    path = saved({key: np.full(1, at) for at, key in enumerate(keys)})
    call("export", "last", "--to", "npz", "-o", tmp_path / "x.npz", "--path", path)
    with np.load(tmp_path / "x.npz") as found:
        names = list(found)
        values = {unquote(name): int(found[name][0]) for name in found}
    assert names == [
        "%2E%2E/%2E%2E/x", "%/etc/x", "a/%/b", "%2E%2E", "x%40step", "x%23count", "a%5Cb", "%1B",
    ]  # fmt: skip
    assert values["../../x"] == 0
    assert values["x@step"] == 4


def test_a_name_too_long_for_npz_is_told(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    path = saved({"k" * 100_000: np.zeros(1)})
    ended = call("export", "last", "--to", "npz", "-o", tmp_path / "x.npz", "--path", path)
    cut = "k" * 26 + "…" + "k" * 13
    assert ended == (
        1,
        "",
        f"logax export: the name {cut} is too long for npz: `--to jsonl` takes all names.\n",
    )
    assert list(tmp_path.glob("*.npz")) == []


def test_every_kind_of_value_can_be_exported(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    logs = logax.spool(
        lambda: logax.log(
            {
                "matrix": np.ones((2, 2)),
                "z": 1 + 2j,
                "half": jax.numpy.bfloat16(1.5),
                "key": jax.random.key(3),
                "bins": logax.Histogram(np.arange(4.0), bins=2),
                "tree": {"a": True},
            },
            step=4,
        )
    )()[1]
    path = saved(logs)
    (line,) = call("export", "last", "--to", "jsonl", "--path", path).lines
    found = json.loads(line)
    del found["run"]
    assert found == {
        "step": 4,
        "matrix": [[1.0, 1.0], [1.0, 1.0]],
        "z": {"real": 1.0, "imag": 2.0},
        "half": 1.5,
        "key": [0, 3],
        "bins": {"counts": [2, 2], "edges": [0.0, 1.5, 3.0], "nonfinite": 0},
        "tree/a": True,
    }
    npz, parquet = tmp_path / "x.npz", tmp_path / "x.parquet"
    for file in (npz, parquet):
        ended = call("export", "last", "--to", file.suffix[1:], "-o", file, "--path", path)
        assert ended == (0, "", "")
    with np.load(npz) as arrays:
        assert arrays["half"].tolist() == [1.5]
        assert arrays["key"].tolist() == [[0, 3]]
        assert arrays["bins/counts"].tolist() == [[2, 2]]
        assert arrays["tree/a@step"].tolist() == [4]
    table = pd.read_parquet(parquet)
    assert table["step"].tolist() == [4]
    assert [row.tolist() for row in table["matrix"][0]] == [[1.0, 1.0], [1.0, 1.0]]
    assert table["z"][0] == {"real": 1.0, "imag": 2.0}
    assert table["half"].tolist() == [1.5]
    assert table["tree/a"].tolist() == [True]


def test_parquet_is_the_table_of_pandas(
    call: Call, store: Path, ids: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "first.parquet"
    call("export", "first", "loss", "hits", "--to", "parquet", "-o", file, "--path", store)
    expected = logax.load(store)[ids["first"]].logdict("loss", "hits").to_pandas()
    pd.testing.assert_frame_equal(pd.read_parquet(file), expected)
    whole = tmp_path / "whole.parquet"
    call("export", "first", "--to", "parquet", "-o", whole, "--path", store)
    table = pd.read_parquet(whole)
    assert table["step"].dropna().tolist() == [0, 1, 2, 3]
    assert table["val/loss"].dropna().tolist() == [1.0]


def test_a_key_that_changed_its_shape_is_exported_where_that_can_be(
    call: Call, logged: Callable[..., Path], tmp_path: Path
) -> None:
    where = ["--path", logged(({"x": 1.0}, {"step": 0}), ({"x": np.zeros(2)}, {"step": 1}))]
    lines = call("export", "last", "--to", "csv", *where).lines
    assert lines == ["step,x", "0,1.0", '1,"[0.0, 0.0]"']
    call("export", "last", "--to", "npz", "-o", tmp_path / "x.npz", *where)
    with np.load(tmp_path / "x.npz") as found:
        assert {name: found[name].tolist() for name in found} == {
            "x": [1.0],
            "x@step": [0],
            "x#2": [[0.0, 0.0]],
            "x#2@step": [1],
        }
    ended = call("export", "last", "--to", "parquet", "-o", tmp_path / "x.parquet", *where)
    assert ended == (
        1,
        "",
        "logax export: the records of 'x' changed their shape midway, and a column of parquet has "
        "one: choose other keys, or `--to jsonl`.\n",
    )


def test_what_a_record_lacks_is_missing_in_parquet(
    call: Call, logged: Callable[..., Path], tmp_path: Path
) -> None:
    path = logged(({"x": 1.0}, {"step": 0}), ({"y": np.array([1.0, 2.0])}, {"step": 1}))
    file = tmp_path / "x.parquet"
    assert call("export", "last", "--to", "parquet", "-o", file, "--path", path) == (0, "", "")
    table = pd.read_parquet(file)
    assert table["x"].isna().tolist() == [False, True]
    assert table["y"][0] is None
    assert table["y"][1].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([0.5, "high"], ["0.5", "high"]),
        ([True, 3], ["True", "3"]),
        ([2**70, 1], [str(2**70), "1"]),
        ([1, 0.5], [1.0, 0.5]),
    ],
)
def test_what_runs_were_given_is_text_in_parquet_where_its_types_differ(
    call: Call, saved: Callable[..., Path], tmp_path: Path, given: list[Any], read: list[Any]
) -> None:
    for rate in given:
        path = saved({"x": np.zeros(1)}, config={"rate": rate})
    file = tmp_path / "x.parquet"
    assert call("export", "all", "--to", "parquet", "-o", file, "--path", path) == (0, "", "")
    assert pd.read_parquet(file)["config/rate"].tolist() == read


def test_what_is_missing_stays_so_in_parquet_where_types_differ(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    first = {"x": np.array([True]), "y": np.zeros(2)}
    steps = {"step": {"x": np.array([0]), "y": np.array([0, 1])}}
    saved(logax.logdict(first, steps=steps))
    path = saved({"x": np.array([0.5])})
    file = tmp_path / "x.parquet"
    assert call("export", "all", "--to", "parquet", "-o", file, "--path", path) == (0, "", "")
    assert pd.read_parquet(file)["x"].fillna("none").tolist() == ["True", "none", "0.5"]


def test_a_key_of_another_shape_in_another_run_is_told_for_parquet(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    saved({"x": np.zeros(1)})
    path = saved({"x": np.zeros((1, 2))})
    file = tmp_path / "x.parquet"
    assert call("export", "all", "--to", "parquet", "-o", file, "--path", path) == (
        1,
        "",
        "logax export: 'x' is not of one shape and type in all records, and a column of parquet "
        "is: choose other keys, or `--to jsonl`.\n",
    )
    assert not file.exists()


def test_a_run_without_records_gives_files_without_rows(
    call: Call, saved: Callable[..., Path], tmp_path: Path
) -> None:
    path = saved({})
    assert call("export", "last", "--to", "csv", "--path", path)[:2] == (0, "\n")
    assert call("export", "last", "--to", "jsonl", "--path", path)[:2] == (0, "")
    for ending in ("npz", "parquet"):
        file = tmp_path / f"x.{ending}"
        assert call("export", "last", "--to", ending, "-o", file, "--path", path).status == 0
        assert file.exists()


def test_a_file_is_replaced_only_by_force(call: Call, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("mine")
    arguments = ["export", "first", "hits", "--to", "csv", "-o", file, "--path", store]
    said = f"logax export: {file} already exists: `--force` replaces it.\n"
    assert call(*arguments) == (1, "", said)
    assert file.read_text() == "mine"
    assert call(*arguments, "--force") == (0, "", "")
    assert file.read_text() == "step,hits\n0,0\n1,1\n2,4\n3,9\n"
    assert os.listdir(tmp_path) == ["x.csv"]


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_what_is_not_text_needs_a_file(call: Call, store: Path, form: str) -> None:
    ended = call("export", "first", "--to", form, "--path", store)
    said = f"logax export: {form} is not text: give a file with `-o FILE.{form}`.\n"
    assert ended == (1, "", said)


def test_a_place_that_cannot_be_written_is_told(call: Call, store: Path, tmp_path: Path) -> None:
    arguments = ["export", "first", "--to", "csv", "--path", store, "-o"]
    assert call(*arguments, tmp_path / "no" / "x.csv") == (
        1,
        "",
        f"logax export: `logax export` writes to {tmp_path}/no/x.csv, and there is no folder "
        f"{tmp_path}/no. Make it first.\n",
    )
    assert call(*arguments, tmp_path) == (
        1,
        "",
        f"logax export: `logax export` takes the path of a file, and {tmp_path} is a folder.\n",
    )


def test_what_the_system_refuses_is_told_with_the_file_that_was_asked_for(
    call: Call, store: Path, tmp_path: Path
) -> None:
    file = tmp_path / ("x" * 300)
    ended = call("export", "first", "--to", "csv", "--path", store, "-o", file)
    assert ended == (1, "", f"logax export: File name too long: {file}\n")
    assert os.listdir(tmp_path) == []


def test_a_kind_that_is_not_known_is_a_mistake_in_use(call: Call, store: Path) -> None:
    ended = call("export", "first", "--to", "xls", "--path", store)
    assert ended.status == 2
    assert "invalid choice: 'xls'" in ended.err
    assert call("export", "first", "--path", store).status == 2


def test_a_key_that_was_not_logged_leaves_no_file(call: Call, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    ended = call("export", "first", "hitz", "--to", "csv", "-o", file, "--path", store)
    said = "logax export: 'hitz' was not logged in run first. Did you mean hits?\n"
    assert ended == (1, "", said)
    assert not file.exists()


def test_a_missing_extra_is_told_with_its_pip_line(
    call: Call, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "x.parquet"
    assert call("export", "first", "--to", "parquet", "-o", file, "--path", store) == (
        1,
        "",
        "logax export: `logax export --to parquet` needs pyarrow, which is not installed. Write "
        '`pip install "logax[parquet]"`.\n',
    )


@pytest.mark.slow
def test_a_name_does_nothing_to_a_terminal_that_csv_is_printed_on(
    saved: Callable[..., Path],
) -> None:
    keys = ["\x1b[2Jkey", "\x9b2J", "\x1b]0;title\x07", "\u202ekey", "a\rb", "\b"]
    path = saved(dict.fromkeys(keys, np.ones(1)))
    command = [sys.executable, "-m", "logax", "export", "last", "--to", "csv", "--path", str(path)]
    with Terminal() as terminal:
        subprocess.run(command, stdout=terminal.file, check=True)
        assert terminal.screen() == [
            r'\x1b[2Jkey,\x9b2J,\x1b]0;title\x07,\u202ekey,"a\rb",\x08',
            "1.0,1.0,1.0,1.0,1.0,1.0",
        ]


def test_several_runs_are_one_table_with_a_column_for_the_run(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    lines = call("export", "seeds", "--to", "csv", "--path", store).lines
    assert lines == ["run,step,loss"] + [
        f"{ids[f'seeds-{seed}']},{step},{float(2 * seed + at)}"
        for seed in range(3)
        for at, step in enumerate((0, 5))
    ]
    lines = call("export", "*st", "--to", "csv", "val/*", "--path", store).lines
    assert lines == ["epoch,val/loss", "1,1.0"]
    lines = call("export", "all", "--to", "csv", "hits", "--path", store).lines
    assert lines[0] == "run,step,hits"
    assert [line.split(",")[0] for line in lines[1:]] == [ids["first"]] * 4 + [ids["second"]] * 4


def test_several_runs_are_lines_of_one_file_of_jsonl(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    lines = call("export", "seeds", "--to", "jsonl", "--path", store).lines
    assert [json.loads(line) for line in lines] == [
        {"run": ids[f"seeds-{seed}"], "step": step, "loss": float(2 * seed + at)}
        for seed in range(3)
        for at, step in enumerate((0, 5))
    ]


def test_parquet_of_several_runs_is_the_table_of_them(
    call: Call, store: Path, ids: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "x.parquet"
    assert call("export", "*s*", "--to", "parquet", "-o", file, "--path", store, "loss")[0] == 0
    found = pd.read_parquet(file)
    assert list(found) == [
        "run", "name", "config/rate", "config/model/width", "record", "step", "loss"
    ]  # fmt: skip
    assert found["run"].tolist() == [
        ids[name] for name in ("first", "second") for _ in range(4)
    ] + [ids[f"seeds-{seed}"] for seed in range(3) for _ in range(2)]
    assert found["config/rate"].tolist()[:5] == [0.5] * 4 + [0.25]
    assert found["config/rate"].isna().sum() == 6
    assert found["loss"].tolist()[-2:] == [4.0, 5.0]


def test_lone_surrogates_are_escaped_in_parquet_and_in_pandas(call: Call, tmp_path: Path) -> None:
    for number in range(2):
        logger = SaveLogger(tmp_path / "runs")
        config = {"c\ud800": f"\udc80{number}", "c\\ud800": 3}
        with logger.run(name=f"s\ud800{number}", config=config) as state:
            logger.log(state, {"k\ud800": 1.0, "k\\ud800": 7.0}, **{"s\udfff": number})
        logger.close()
    one = {"record": [0], "s\\udfff": [0], "k\\ud800": [1.0], "k\\ud800_": [7.0]}
    both = {
        "name": ["s\\ud8000", "s\\ud8001"],
        "config/c\\ud800": ["\\udc800", "\\udc801"],
        "config/c\\ud800_": [3, 3],
        "record": [0, 0],
        "s\\udfff": [0, 1],
        "k\\ud800": [1.0, 1.0],
        "k\\ud800_": [7.0, 7.0],
    }
    place = ("--path", tmp_path / "runs")
    file = tmp_path / "x.parquet"
    for name, columns in (("s\ud8000", one), ("s*", both)):
        ended = call("export", name, "--to", "parquet", "-o", file, "--force", *place)
        assert ended == (0, "", "")
        found = pd.read_parquet(file).to_dict("list")
        found.pop("run", None)
        assert found == columns
    lines = call("export", "s*", "--to", "csv", *place).lines
    assert lines[0] == r"run,s\udfff,k\ud800,k\ud800_"
    lines = call("export", "s*", "--to", "jsonl", *place).lines
    assert list(json.loads(lines[0]))[1:] == [r"s\udfff", r"k\ud800", r"k\ud800_"]


def test_no_name_in_csv_is_a_formula(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"=1+1": np.array([-1.5, 2]), "-x": np.array([[1, 2], [3, 4]])})
    lines = call("export", "last", "--to", "csv", "--path", path).lines
    assert lines == ["'=1+1,'-x", '-1.5,"[1, 2]"', '2.0,"[3, 4]"']


def test_npz_takes_one_run_at_a_time(
    call: Call, store: Path, ids: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "x.npz"
    assert call("export", "seeds", "--to", "npz", "-o", file, "--path", store) == (
        1,
        "",
        "logax export: npz takes one run at a time, and 3 are selected: name one of them, such as "
        f"seeds-2 ({ids['seeds-2']}), or write `--to csv`, jsonl or parquet.\n",
    )
    assert not file.exists()


def test_a_key_that_none_of_several_runs_has_is_told(call: Call, store: Path) -> None:
    ended = call("export", "all", "hitz", "--to", "csv", "--path", store)
    said = "logax export: 'hitz' was not logged in run first. Did you mean hits?\n"
    assert ended == (1, "", said)


def test_lanes_are_a_column_of_csv(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict({"x": np.arange(4).reshape(2, 1, 2)}, rank={"x": 0})
    path = saved(logs, lanes="batch")
    ended = call("export", "last", "--to", "csv", "--path", path)
    assert ended.lines == ["lane,x", '"[0, 0]",0', '"[1, 0]",2', '"[0, 0]",1', '"[1, 0]",3']


def test_keys_without_arrays_have_no_records(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict({"x": np.arange(2), "none": None}, count={"none": np.int32(2)})
    assert call("export", "last", "--to", "csv", "--path", saved(logs)).lines == ["x", "0", "1"]


def test_a_record_without_the_step_of_the_others_has_an_empty_cell(
    call: Call, saved: Callable[..., Path]
) -> None:
    steps = {"step": {"x": np.array([4, missing_step(np.int32)], np.int32)}}
    path = saved(logax.logdict({"x": np.arange(2)}, steps=steps))
    assert call("export", "last", "--to", "csv", "--path", path).lines == ["step,x", "4,0", ",1"]

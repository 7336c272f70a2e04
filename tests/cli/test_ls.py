"""`logax ls` lists the runs of a folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax._logdict.logdict import missing_step
from logax.loggers.save import SaveLogger

Call = Callable[..., Any]


def test_the_table_has_a_row_for_each_run_and_the_newest_is_last(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    ended = call("ls", store)
    assert (ended.status, ended.err) == (0, "")
    head, *rows = [line.split() for line in ended.lines]
    assert head == ["id", "name", "status", "began", "lasted", "records", "keys", "step", "group"]
    assert [row[1:3] for row in rows] == [
        ["first", "finished"],
        ["second", "finished"],
        ["broken", "crashed"],
        ["seeds-0", "finished"],
        ["seeds-1", "finished"],
        ["seeds-2", "finished"],
    ]
    assert [row[7:] for row in rows] == [
        ["5", "3", "3"],
        ["5", "3", "3"],
        ["1", "1", "7"],
        ["2", "1", "5", "seeds"],
        ["2", "1", "5", "seeds"],
        ["2", "1", "5", "seeds"],
    ]


def test_the_ids_of_the_table_mean_their_runs(call: Call, store: Path, ids: dict[str, str]) -> None:
    shown = [line.split()[0] for line in call("ls", store).lines[1:]]
    found = [json.loads(call("show", each, "--path", store, "--json").out)["id"] for each in shown]
    assert found == list(ids.values())
    assert all(whole.startswith(short) for whole, short in zip(found, shown, strict=True))


def test_an_id_is_as_short_as_it_may_be(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"x": np.zeros(1)})
    (only,) = logax.load(path)
    day, time, *_ = only.split("-")
    assert call("ls", path).lines[1].split()[0] == f"{day}-{time}"


def test_json_has_all_that_is_known(call: Call, store: Path, ids: dict[str, str]) -> None:
    found = json.loads(call("ls", store, "--json").out)
    run = logax.load(store)[ids["first"]]
    assert found[0] == {
        "id": run.id,
        "name": "first",
        "status": "finished",
        "began": run.began,
        "ended": run.ended,
        "duration": run.ended - run.began,
        "group": None,
        "lane": [],
        "lanes": None,
        "records": 5,
        "keys": ["loss", "hits", "val/loss"],
        "steps": {"step": 3, "epoch": 1},
    }
    assert [each["name"] for each in found] == list(ids)
    assert found[-1]["lane"] == [2]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--status", "crashed"], ["broken"]),
        (["--name", "se*"], ["second", "seeds-0", "seeds-1", "seeds-2"]),
        (["--limit", "2"], ["seeds-1", "seeds-2"]),
        (["--limit", "99", "--name", "first"], ["first"]),
        (["--name", "s*", "--limit", "1", "--status", "finished"], ["seeds-2"]),
    ],
)
def test_options_choose(call: Call, store: Path, options: list[str], names: list[str]) -> None:
    found = json.loads(call("ls", store, *options, "--json").out)
    assert [each["name"] for each in found] == names


def test_where_no_run_is_wanted_it_says_so(call: Call, store: Path) -> None:
    ended = call("ls", store, "--name", "none*")
    assert ended == (
        1,
        "",
        f"logax ls: none of the 6 runs in {store} is as --status, --name and --limit say.\n",
    )
    assert call("ls", store, "--limit", "0", "--json").out == "[]\n"


def test_the_folder_may_be_an_option_as_it_is_elsewhere(call: Call, store: Path) -> None:
    assert call("ls", "--path", store) == call("ls", store)


def test_an_empty_folder_has_no_runs_yet(call: Call, tmp_path: Path) -> None:
    said = f"logax ls: there are no runs in {tmp_path} yet. `SaveLogger('{tmp_path}')` writes them."
    assert call("ls", tmp_path) == (1, "", f"{said}\n")


def test_a_folder_that_is_not_there_is_told(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("ls") == (
        1,
        "",
        "logax ls: there is no folder runs. Give the folder of `SaveLogger`: "
        "`logax ls PATH`, and `--path PATH` for every command.\n",
    )


def test_a_file_that_holds_no_runs_is_told_without_traceback(call: Call, tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("no database")
    ended = call("ls", tmp_path / "x.sqlite")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"logax ls: {tmp_path / 'x.sqlite'} ")
    assert "Traceback" not in ended.err


def test_a_damaged_file_beside_others_is_a_warning(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"x": np.zeros(1)}, name="good")
    (path / "bad.sqlite").write_text("no database")
    ended = call("ls", path)
    assert (ended.status, len(ended.lines)) == (0, 2)
    assert ended.err.startswith(f"logax ls: warning: {path / 'bad.sqlite'} ")


@pytest.mark.parametrize("number", ["-1", "two", "1.5"])
def test_a_limit_that_is_none_is_a_mistake_in_use(call: Call, store: Path, number: str) -> None:
    ended = call("ls", store, f"--limit={number}")
    assert (ended.status, ended.out) == (2, "")
    assert f"argument --limit: '{number}' is not an integer of 0 or more" in ended.err


def test_keys_that_were_logged_together_are_one_record_whichever_came_first(
    call: Call, logged: Callable[..., Path]
) -> None:
    path = logged(({"a": 0}, {"step": 0}), ({"b": 1, "a": 1}, {"step": 1}))
    (row,) = json.loads(call("ls", path, "--json").out)
    assert (row["records"], row["keys"], row["steps"]) == (2, ["a", "b"], {"step": 1})


def test_the_last_step_is_the_last_that_was_told(call: Call, saved: Callable[..., Path]) -> None:
    none = missing_step(np.int32)
    told = {"x": np.array([3, 4, none], np.int32), "y": np.array([none], np.int32)}
    steps = {"step": {"x": told["x"]}, "epoch": {"y": told["y"]}}
    path = saved(logax.logdict({"x": np.arange(3), "y": np.zeros(1)}, steps=steps))
    (row,) = json.loads(call("ls", path, "--json").out)
    assert (row["records"], row["steps"]) == (4, {"step": 4})


def test_a_run_that_goes_on_is_running(call: Call, tmp_path: Path) -> None:
    logger = SaveLogger(tmp_path)
    with logger.run(name="now") as state:
        logger.log(state, {"x": 1.0}, epoch=2)
        logax.flush()
        (row,) = json.loads(call("ls", tmp_path, "--json").out)
        assert (row["status"], row["ended"], row["duration"]) == ("running", None, None)
        line = call("ls", tmp_path).lines[1].split()
        assert line[1:3] == ["now", "running"]
        assert line[-2:] == ["epoch", "2"]
    logger.close()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\nb\r", r"a\nb\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("größe 損失", "größe 損失"),
        ("\ud800", r"\ud800"),
    ],
)
def test_names_do_nothing_to_the_terminal(
    call: Call, saved: Callable[..., Path], name: str, shown: str
) -> None:
    path = saved({"x": np.zeros(1)}, name=name)
    ended = call("ls", path)
    assert len(ended.lines) == 2
    assert f"  {shown}  finished" in ended.lines[1]
    out = call("ls", path, "--json").out
    assert out.isascii()
    assert json.loads(out)[0]["name"] == name

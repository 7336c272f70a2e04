"""`logax show` says what a run is and has."""

import io
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import logax
from logax._support.formatting import format_duration, format_time

Call = Callable[..., Any]


def test_it_shows_a_run_its_keys_and_a_curve(call: Call, store: Path, ids: dict[str, str]) -> None:
    run = logax.load(store)[ids["first"]]
    ended = call("show", "first", "--path", store)
    facts = run.machine
    assert (ended.status, ended.err) == (0, "")
    assert ended.lines == [
        f"run                 first  ({run.id})",
        "status              finished",
        f"began               {format_time(run.began)}",
        f"lasted              {format_duration(run.ended - run.began)}",
        "config rate         0.5",
        "config model/width  8",
        "machine             " + ", ".join(f"{name} {value}" for name, value in facts.items()),
        "",
        "key       records  last  min  max",
        "loss            4   0.5  0.5    2  █▆▃▁",
        "hits            4     9    0    9  ▁▂▄█",
        "val/loss        1     1    1    1",
        "",
        "loss",
        "   2 ┤⠉⠒⠢⢄⣀",
        "     │     ⠉⠑⠒⠤⢄⡀",
        "     │          ⠈⠉⠒⠢⠤⣀",
        "     │                ⠉⠑⠒⠤⢄⡀",
        "     │                     ⠈⠉⠒⠢⢄⣀",
        "     │                           ⠉⠑⠢⠤⣀⡀",
        "     │                                ⠈⠑⠒⠤⢄⣀",
        "     │                                      ⠉⠒⠢⠤⣀⡀",
        "     │                                           ⠈⠉⠒⠤⢄⣀",
        " 0.5 ┤                                                 ⠉⠑⠢⠤⣀",
        "     └──────────────────────────────────────────────────────",
        "      0                        step                        3",
    ]


def test_json_has_the_last_least_and_greatest_of_each_key(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    found = json.loads(call("show", "first", "--path", store, "--json").out)
    run = logax.load(store)[ids["first"]]
    assert found.pop("machine") == run.machine
    assert (found["id"], found["began"], found["ended"]) == (run.id, run.began, run.ended)
    assert found["config"] == {"rate": 0.5, "model": {"width": 8}}
    plain = {"lanes": [], "nonfinite": 0}
    assert found["keys"] == {
        "loss": {**plain, "kind": "float64", "records": 4, "last": 0.5, "low": 0.5, "high": 2.0,
                 "steps": {"step": 3}},
        "hits": {**plain, "kind": "int64", "records": 4, "last": 9, "low": 0.0, "high": 9.0,
                 "steps": {"step": 3}},
        "val/loss": {**plain, "kind": "float64", "records": 1, "last": 1.0, "low": 1.0,
                     "high": 1.0, "steps": {"epoch": 1}},
    }  # fmt: skip


def test_keys_choose_what_is_shown_and_drawn(call: Call, store: Path) -> None:
    ended = call("show", "first", "hits", "*loss", "--path", store)
    rows = [line.split()[0] for line in ended.lines if line.endswith(tuple("▁▂▃▄▅▆▇█"))]
    titles = [line for line in ended.lines if line in ("hits", "loss", "val/loss")]
    assert rows == ["hits", "loss"]
    assert titles == ["hits", "loss", "val/loss"]
    without = call("show", "first", "--no-plot", "--path", store)
    assert without.lines[-1].split() == ["val/loss", "1", "1", "1", "1"]


def test_a_run_is_found_by_id_beginning_name_or_last(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    def shown(text: str) -> str:
        return str(json.loads(call("show", text, "--path", store, "--json").out)["name"])

    assert shown(ids["second"]) == "second"
    assert shown("second") == "second"
    assert shown(ids["seeds-1"]) == "seeds-1"
    assert shown("last") == "seeds-2"


def test_a_run_that_is_not_there_lists_those_that_are(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    ended = call("show", "third", "--path", store)
    rows = "".join(f"  {each}  {name}\n" for name, each in ids.items())
    assert ended == (
        1,
        "",
        f"logax show: 'third' means no run in {store}. Give an id, the beginning of one, or a name "
        f"that only one has, or `last` for the newest, of:\n{rows}",
    )


def test_an_ambiguous_beginning_lists_the_candidates(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    stem = ids["seeds-0"].removesuffix("-0")
    ended = call("show", stem, "--path", store)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(
        f"logax show: '{stem}' means a sweep of 3 runs in {store}, and not "
    )
    assert [line.split()[1] for line in ended.err.splitlines()[1:]] == [
        "seeds-0",
        "seeds-1",
        "seeds-2",
    ]


def test_the_last_of_no_runs_is_none(call: Call, tmp_path: Path) -> None:
    said = f"logax show: there are no runs in {tmp_path} yet, so none is the last.\n"
    assert call("show", "last", "--path", tmp_path) == (1, "", said)


def test_a_run_that_is_called_last_is_meant_by_its_name(call: Call, tmp_path: Path) -> None:
    for name in ("last", "later"):
        logax.save({"x": np.zeros(1)}, tmp_path, name=name)
    found = json.loads(call("show", "last", "--path", tmp_path, "--json").out)
    assert found["name"] == "last"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("los", "'los' was not logged in run first. Did you mean loss?"),
        ("zzz", "'zzz' was not logged in run first. There is loss, hits, val/loss."),
        ("z\x1b*", r"'z\\x1b*' was not logged in run first. There is loss, hits, val/loss."),
    ],
)
def test_a_key_that_was_not_logged_is_told(call: Call, store: Path, key: str, said: str) -> None:
    ended = call("show", "first", key, "--path", store)
    assert ended == (1, "", f"logax show: {said}\n")


def test_a_run_without_records_says_so(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({}, name="empty")
    assert call("show", "last", "--path", path).lines[-1] == "Nothing is logged yet."
    ended = call("show", "last", "loss", "--path", path)
    assert ended == (
        1,
        "",
        "logax show: nothing was logged in run empty, and so not 'loss'.\n",
    )


def test_values_that_are_not_finite_are_counted_and_left_out(
    call: Call, saved: Callable[..., Path]
) -> None:
    path = saved({"x": np.array([1.0, np.nan, np.inf, 3.0, -np.inf]), "gone": np.array([np.nan])})
    ended = call("show", "last", "--no-plot", "--path", path)
    assert ended.lines[-3:] == [
        "key   records  last  min  max  nonfinite",
        "x           5  -inf    1    3          3  ▁!!█!",
        "gone        1   nan                    1",
    ]
    keys = json.loads(call("show", "last", "--path", path, "--json").out)["keys"]
    assert (keys["x"]["last"], keys["x"]["nonfinite"]) == (-np.inf, 3)
    assert (keys["gone"]["low"], keys["gone"]["high"]) == (None, None)


def test_everything_that_can_be_logged_can_be_shown(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.spool(
        lambda: logax.log(
            {
                "vector": np.arange(8.0),
                "matrix": np.ones((2, 2)),
                "flag": True,
                "z": 1 + 2j,
                "half": jax.numpy.bfloat16(1.5),
                "key": jax.random.key(0),
                "bins": logax.Histogram(np.arange(5.0), bins=4),
                "image": logax.Image(np.zeros((2, 3))),
                "tree": {"a": 1, "b": [2.0, 3.0]},
                "void": np.zeros((0,)),
            }
        )
    )()[1]
    path = saved(logs)
    rows = [line.split() for line in call("show", "last", "--no-plot", "--path", path).lines]
    assert rows[rows.index(["key", "records", "last", "min", "max"]) + 1 :] == [
        ["vector", "1", "[0,", "1,", "2,", "3,", "4,", "5,", "...]", "0", "7"],
        ["matrix", "1", "float32[2,2]", "1", "1"],
        ["flag", "1", "true", "1", "1"],
        ["z", "1", "1+2j", "2.236", "2.236"],
        ["half", "1", "1.5", "1.5", "1.5"],
        ["key", "1", "key"],
        ["bins", "1", "4", "bins", "0", "4"],
        ["image", "1", "image", "2x3"],
        ["tree/a", "1", "1", "1", "1"],
        ["tree/b/0", "1", "2", "2", "2"],
        ["tree/b/1", "1", "3", "3", "3"],
        ["void", "1", "[]"],
    ]
    leaf = call("show", "last", "tree/b/1", "--no-plot", "--path", path)
    assert leaf.lines[-1].split() == ["tree/b/1", "1", "3", "3", "3"]


def test_lanes_that_agree_are_not_said_to_spread(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict({"x": np.full((3, 2), 0.1)}, rank={"x": 0})
    ended = call("show", "last", "x", "--path", saved(logs, lanes="batch"))
    row = next(line for line in ended.lines if line.startswith("x "))
    assert row.split()[:7] == ["x", "3", "lanes:", "6", "0.1", "±", "0"]


def test_lanes_of_one_run_are_taken_together(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict({"x": np.array([[1.0, 2.0], [3.0, 6.0]])}, rank={"x": 0})
    path = saved(logs, lanes="batch")
    ended = call("show", "last", "x", "--path", path)
    row = next(line for line in ended.lines if line.startswith("x "))
    assert row == "x    2 lanes: 4  4 ± 2    1    6  ▁█"
    assert "x (mean of lanes)" in ended.lines
    keys = json.loads(call("show", "last", "--path", path, "--json").out)["keys"]
    assert keys["x"]["lanes"] == [2]
    assert keys["x"]["last"] == [2.0, 6.0]


def test_a_key_that_changed_its_shape_has_a_row_for_each(
    call: Call, logged: Callable[..., Path]
) -> None:
    path = logged(({"x": 1.0, "y": 5.0}, {"step": 0}), ({"x": np.zeros(2)}, {"step": 1}))
    ended = call("show", "last", "--no-plot", "--path", path)
    assert ended.err == ""
    assert [line.split() for line in ended.lines[-3:]] == [
        ["x", "1", "1", "1", "1"],
        ["x", "1", "[0,", "0]", "0", "0"],
        ["y", "1", "5", "5", "5"],
    ]


def test_plain_signs_where_the_encoding_has_no_others(
    call: Call, saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved({"größe": np.arange(4.0)}, name="ü")
    out = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    call("show", "last", "--path", path)
    lines = out.buffer.getvalue().decode("ascii").splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith(r"run      \xfc  (")
    row = next(line for line in lines if line.startswith(r"gr\xf6\xdfe  "))
    assert row.split()[1:] == ["4", "3", "0", "3", "_-*#"]
    assert sum("**" in line for line in lines) == 10


def test_keys_and_configs_do_nothing_to_the_terminal(
    call: Call, saved: Callable[..., Path]
) -> None:
    path = saved({"\x1b[31mred\n": np.zeros(2)}, config={"bell\x07": "\x1b[2J\u2028"})
    out = call("show", "last", "--path", path).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert r"config bell\x07  \x1b[2J\u2028" in out.splitlines()
    assert r"\x1b[31mred\n        2     0    0    0  ▅▅" in out.splitlines()


def test_a_name_of_a_megabyte_is_cut(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"k" * 1_000_000: np.zeros(2)}, name="n" * 1_000_000)
    for command in (["show", "last"], ["ls", path]):
        more = [] if path in command else ["--path", path]
        assert max(map(len, call(*command, *more).lines)) < 200


def test_numbers_that_were_given_have_all_their_digits(
    call: Call, saved: Callable[..., Path]
) -> None:
    config = {"rate": 0.1234567890123, "tiny": 1e-300, "number": 3, "yes": True}
    path = saved({"x": np.ones(1)}, config=config)
    lines = call("show", "last", "--no-plot", "--path", path).lines
    given = {line.split()[1]: line.split()[2] for line in lines if line.startswith("config")}
    assert given == {"rate": "0.1234567890123", "tiny": "1e-300", "number": "3", "yes": "true"}


def test_keys_of_all_kinds_have_a_line(call: Call, saved: Callable[..., Path]) -> None:
    nan = np.nan
    logs = logax.logdict(
        {
            "lanes": np.array([[1.0, nan], [2.0, nan]]),
            "keys": jax.random.split(jax.random.key(0), (2, 1)),
            "e\u0301": np.ones((2, 1)),
        },
        rank={"lanes": 0, "keys": 0, "e\u0301": 0},
    )
    path = saved(logs, lanes="batch")
    assert call("show", "last", "--no-plot", "--path", path).lines[-4:] == [
        "key       records   last  min  max  nonfinite",
        "lanes  2 lanes: 4    nan    1    2          2  ▅!",
        "keys   2 lanes: 2",
        "e\u0301      2 lanes: 2  1 ± 0    1    1             ▅",
    ]


def test_a_key_without_records_has_a_line(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"none": np.zeros(0), "x": np.ones(2)})
    rows = [line.split()[:3] for line in call("show", "last", "--path", path).lines]
    assert ["none", "0"] in rows
    assert ["x", "2", "1"] in rows


def test_a_key_of_lanes_without_records_has_a_line(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict(
        {"none": np.zeros((3, 0)), "vectors": np.zeros((3, 0, 2)), "x": np.ones((3, 2))},
        steps={"step": {"none": np.zeros((3, 0), np.int32)}},
        rank={"none": 0, "vectors": 1, "x": 0},
    )
    path = saved(logs, lanes="batch")
    assert call("show", "last", "--no-plot", "--path", path).lines[-4:] == [
        "key         records   last  min  max",
        "none     3 lanes: 0",
        "vectors  3 lanes: 0",
        "x        3 lanes: 6  1 ± 0    1    1  ▅▅",
    ]
    drawn = call("show", "last", "none", "vectors", "--path", path)
    assert (drawn.status, drawn.err) == (0, "")
    assert drawn.lines[-2:] == ["none     3 lanes: 0", "vectors  3 lanes: 0"]
    keys = json.loads(call("show", "last", "--path", path, "--json").out)["keys"]
    assert {key: (own["records"], own["last"]) for key, own in keys.items()} == {
        "none": (0, None),
        "vectors": (0, None),
        "x": (6, [1.0, 1.0, 1.0]),
    }


def test_a_key_of_vectors_without_records_has_a_line(
    call: Call, saved: Callable[..., Path]
) -> None:
    path = saved({"none": np.zeros((0, 2)), "void": np.zeros((1, 0))})
    assert call("show", "last", "--no-plot", "--path", path).lines[-2:] == [
        "none        0",
        "void        1    []",
    ]


def test_a_damaged_portion_is_told(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"x": np.zeros(10_000)})
    (file,) = path.iterdir()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DELETE FROM blobs")
    ended = call("show", "last", "--path", path)
    assert ended.status == 1
    assert f"{file} is damaged: row 1 of its blobs is missing. Records 0 to 9999 of " in ended.err
    assert "All records of 'x' of run " in ended.err

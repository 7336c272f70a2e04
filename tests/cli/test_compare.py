"""`logax compare` shows runs side by side."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax

Call = Callable[..., Any]


def test_two_runs_stand_side_by_side(
    call: Call, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = call("compare", "first", "second", "--path", store)
    assert (ended.status, ended.err) == (0, "")
    assert ended.lines == [
        "key       first last  first min  second last  second min",
        "loss             0.5        0.5         0.25        0.25",
        "hits               9          0            9           0",
        "val/loss           1          1          0.5         0.5",
        "",
        "config  first  second",
        "rate    0.5    0.25",
        "",
        "1 more in `config` is the same in all.",
    ]


def test_many_runs_stand_one_below_the_other(call: Call, store: Path) -> None:
    ended = call("compare", "seeds", "broken", "--keys", "loss", "--path", store)
    assert ended.lines == [
        "run      loss last  loss min",
        "seeds-0          1         0",
        "seeds-1          3         2",
        "seeds-2          5         4",
        "broken         nan",
    ]


def test_json_has_all_keys_of_all_runs(call: Call, store: Path, ids: dict[str, str]) -> None:
    found = json.loads(call("compare", "first", "broken", "--path", store, "--json").out)
    assert [run["id"] for run in found["runs"]] == [ids["first"], ids["broken"]]
    assert list(found["keys"]) == ["loss", "hits", "val/loss"]
    assert found["keys"]["loss"][0]["last"] == 0.5
    assert np.isnan(found["keys"]["loss"][1]["last"])
    assert found["keys"]["hits"][1] is None
    assert found["config"] == {"rate": [0.5, None], "model/width": [8, None]}


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["f*", "sec*"], ["first", "second"]),
        (["seeds"], ["seeds-0", "seeds-1", "seeds-2"]),
        (["last"], ["seeds-0", "seeds-1", "seeds-2"]),
        (["last", "seeds-1"], ["seeds-0", "seeds-1", "seeds-2"]),
        (["all"], ["first", "second", "broken", "seeds-0", "seeds-1", "seeds-2"]),
        (["seeds-2", "first"], ["seeds-2", "first"]),
    ],
)
def test_runs_are_chosen_by_what_they_have_in_common(
    call: Call, store: Path, texts: list[str], names: list[str]
) -> None:
    found = json.loads(call("compare", *texts, "--path", store, "--json").out)
    assert [run["name"] for run in found["runs"]] == names


def test_the_beginning_of_ids_means_all_of_them(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    stem = ids["seeds-0"].removesuffix("-0")
    found = json.loads(call("compare", stem, "--path", store, "--json").out)
    assert [run["name"] for run in found["runs"]] == ["seeds-0", "seeds-1", "seeds-2"]


def test_runs_of_one_name_are_told_apart_by_their_ids(call: Call, tmp_path: Path) -> None:
    ids = [logax.save({"x": np.full(1, at)}, tmp_path, name="same") for at in range(2)]
    ended = call("compare", "same", "--path", tmp_path)
    head, *rows = [line.split() for line in ended.lines]
    assert head == ["run", "x", "last", "x", "min"]
    assert [row[1:] for row in rows] == [["0", "0"], ["1", "1"]]
    labels = [row[0] for row in rows]  # cut, where the runs did not begin in the same second
    assert all(str(whole).startswith(short) for whole, short in zip(ids, labels, strict=True))
    assert labels[0] != labels[1]


def test_one_run_is_not_enough(call: Call, store: Path) -> None:
    assert call("compare", "first", "--path", store) == (
        1,
        "",
        "logax compare: two runs or more are needed, and first selects one: first. Give "
        "another, or a glob of names such as 'lr-*'.\n",
    )


def test_a_run_that_is_not_there_is_told(call: Call, store: Path) -> None:
    ended = call("compare", "first", "third", "--path", store)
    assert ended.status == 1
    assert ended.err.startswith(f"logax compare: 'third' means no run in {store}. Give an id")


def test_a_key_that_none_has_is_told(call: Call, store: Path) -> None:
    ended = call("compare", "first", "second", "--keys", "lost", "--path", store)
    said = "logax compare: 'lost' was not logged in run first. Did you mean loss?\n"
    assert ended == (1, "", said)
    also = call("compare", "first", "second", "--keys", "hits", "lost", "--path", store)
    assert also == (1, "", said)
    some = call("compare", "broken", "first", "--keys", "hits", "--path", store)
    assert some.status == 0
    assert some.lines[:2] == ["key   first last  first min", "hits           9          0"]


def test_what_was_given_does_nothing_to_the_terminal(call: Call, tmp_path: Path) -> None:
    for value in ("\x1b[2J", "\x07"):
        logax.save({"x": np.zeros(1)}, tmp_path, name=f"n{value}", config={"k\n": value})
    out = call("compare", "all", "--path", tmp_path).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert r"k\n     \x1b[2J   \x07" in out.splitlines()


def swept(path: Path, keys: int) -> None:
    for at in range(12):
        numbers = {f"k{key}": np.array([at + key, at]) for key in range(keys)}
        logax.save(numbers, path, name=f"mlp-{at}", config={"rate": 0.5**at, "model": {"width": 8}})


def test_many_runs_have_a_row_each_with_what_was_given_first(call: Call, tmp_path: Path) -> None:
    swept(tmp_path, 2)
    ended = call(
        "compare", "mlp-1[01]", "mlp-3", *(f"mlp-{at}" for at in (5, 2)), "--path", tmp_path
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.lines == [
        "run     rate       k0 last  k0 min  k1 last  k1 min",
        "mlp-10  0.0009766       10      10       10      10",
        "mlp-11  0.0004883       11      11       11      11",
        "mlp-3   0.125            3       3        3       3",
        "mlp-5   0.03125          5       5        5       5",
        "mlp-2   0.25             2       2        2       2",
        "",
        "1 more in `config` is the same in all.",
    ]


def test_columns_that_do_not_fit_are_counted(call: Call, tmp_path: Path) -> None:
    swept(tmp_path, 9)
    ended = call("compare", "mlp-*", "--path", tmp_path)
    head, *rows = ended.lines[:13]
    assert head == "run     rate       k0 last  k1 last  k2 last  k3 last"
    assert [row.split()[0] for row in rows] == [f"mlp-{at}" for at in range(12)]
    assert max(map(len, ended.lines[:13])) <= 60
    assert ended.lines[13:15] == [
        "",
        "5 more columns are not shown: choose keys with `--keys`, or take `--json`.",
    ]
    found = json.loads(call("compare", "mlp-*", "--path", tmp_path, "--json").out)
    assert len(found["keys"]) == 9


def test_runs_that_have_logged_nothing_say_so(call: Call, tmp_path: Path) -> None:
    logger = logax.loggers.SaveLogger(tmp_path)
    for name, rate in (("a", 1), ("b", 2)):
        with logger.run(name=name, config={"rate": rate, "layers": [8, rate]}):
            pass
    logger.close()
    ended = call("compare", "a", "b", "--path", tmp_path)
    assert ended.lines == [
        "Nothing is logged in any of them.",
        "",
        "config  a       b",
        "rate    1       2",
        "layers  [8, 1]  [8, 2]",
    ]

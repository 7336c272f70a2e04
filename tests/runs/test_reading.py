"""Reading runs: alone and together, while they are written, joined, ragged, changed, resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
import logax.storage
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._runs.search import find_one_run
from logax.loggers.save import SaveSink


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    made = SaveSink(tmp_path)
    yield made
    made.end()


def opened(sink: SaveSink, *names: str, **more: Any) -> list[RunInfo]:
    runs = [RunInfo(name, f"{name}-name", began=time.time(), **more) for name in names]
    sink.open(runs)
    return runs


def test_each_access_shows_what_is_flushed_then(tmp_path: Path, sink: SaveSink) -> None:
    runs = logax.load(tmp_path)
    assert (len(runs), list(runs), repr(runs)) == (0, [], f"No runs in {tmp_path}.")
    (info,) = opened(sink, "a")
    runs.refresh()
    assert list(runs) == []
    sink.flush()
    assert list(runs) == []
    runs.refresh()
    assert list(runs) == ["a"]
    run = runs["a"]
    assert (run.status, run.ended, run.updated, list(run)) == ("running", None, None, [])
    for number in range(1, 4):
        sink.write(RecordBatch.of([info], {"x": np.full((1, 2), number)}, step=np.ones((1, 2))))
        assert len(run["x"] if number > 1 else []) == 2 * (number - 1)
        sink.flush()
        assert run["x"].tolist() == [i for i in range(1, number + 1) for _ in range(2)]
    sink.write(RecordBatch.of([info], {"late": np.ones((1, 1, 3))}))
    sink.close([info], "crashed")
    sink.flush()
    assert list(run) == ["x", "late"]
    assert run.status == "crashed"
    assert run.began <= run.updated <= run.ended <= time.time()
    sink.end()
    assert run["late"].shape == (1, 3)
    assert [each.suffix for each in tmp_path.iterdir()] == [".sqlite"]


def test_a_run_that_nobody_ended_counts_as_crashed(tmp_path: Path, sink: SaveSink) -> None:
    opened(sink, "a")
    sink.flush()
    runs = logax.load(tmp_path)
    assert runs["a"].status == "running"
    sink.end()
    assert runs["a"].status == "crashed"
    assert runs["a"].ended is None


def test_runs_come_in_the_order_in_which_they_began(tmp_path: Path, sink: SaveSink) -> None:
    other = SaveSink(tmp_path)
    for at, (each, name) in enumerate([(sink, "z"), (other, "m"), (sink, "a"), (other, "b")]):
        each.open([RunInfo(name, name, began=float(at))])
    sink.flush()
    other.end()
    runs = logax.load(tmp_path)
    assert list(runs) == ["z", "m", "a", "b"]
    assert [run.id for run in runs.values()] == list(runs)
    assert {name: run.id for name, run in runs.items()} == {name: name for name in runs}
    files = sorted(tmp_path.glob("*.sqlite"))
    assert sorted(name for file in files for name in logax.load(file)) == ["a", "b", "m", "z"]


def test_a_key_of_all_runs_is_one_array_padded_with_nan(tmp_path: Path, sink: SaveSink) -> None:
    a, b, c, d = opened(sink, "a", "b", "c", "d")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    sink.write(RecordBatch.of([a, b, c], {"x": x, "n": x.astype(np.int16)}))
    sink.write(RecordBatch.of([c, b], {"x": x[:2] + 10, "flag": x[:2] > 0}))
    other = SaveSink(tmp_path)
    other.open([d])
    other.write(RecordBatch.of([d], {"x": np.full((1, 1), 7, np.float32)}))
    other.end()
    sink.flush()
    runs = logax.load(tmp_path)
    nan = np.nan
    expected = [[0, 1, nan, nan], [2, 3, 12, 13], [4, 5, 10, 11], [7, nan, nan, nan]]
    np.testing.assert_array_equal(runs["x"], np.float32(expected))
    assert runs["x"].dtype == np.float32
    least = np.iinfo(np.int16).min
    assert runs["n"].tolist() == [[0, 1], [2, 3], [4, 5], [least, least]]
    assert runs["flag"].tolist() == [[False] * 2, [True, True], [False, True], [False] * 2]
    assert runs.logged() == ["x", "n", "flag"]


def test_lanes_come_first_and_lanes_that_differ_have_counts(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    lanes = [Stream(run, lane) for lane in np.ndindex(2, 3)]
    order = np.broadcast_to(np.arange(4), (6, 4))
    x = np.arange(24.0).reshape(6, 4)
    real = np.array([[i % 4 >= j or i == 5 for j in range(4)] for i in range(6)])
    steps = {"t": np.broadcast_to(np.arange(4), (6, 4))}
    sink.write(RecordBatch(tuple(lanes), {"x": x, "full": x}, steps, order))
    sink.write(RecordBatch(tuple(lanes), {"x": x + 100}, steps, order, real, "train.py:3"))
    plain = RecordBatch((Stream(run),), {"plain": x[0][None]}, {}, order[:1])
    shards = RecordBatch(
        tuple(Stream(run, (i,), j) for i in range(2) for j in range(2)),
        {"sharded": x[:4]},
        {},
        order[:4],
    )
    sink.write(plain)
    sink.write(shards)
    sink.flush()
    found = logax.load(tmp_path)["a"]
    assert found["full"].tolist() == x.reshape(2, 3, 4).tolist()
    assert found["plain"].tolist() == x[0].tolist()
    assert found["sharded"].tolist() == x[:4].reshape(2, 2, 4).tolist()
    logs = found.logs
    assert logs.count["x"].tolist() == (4 + real.sum(1)).reshape(2, 3).tolist()
    assert logs.site["x"] == ("train.py:3",)
    for at, lane in enumerate(np.ndindex(2, 3)):
        expected = [*x[at], *(x[at] + 100)[real[at]]]
        assert found["x"][lane][: len(expected)].tolist() == expected
        assert np.isnan(found["x"][lane][len(expected) :]).all()
        rows = [*range(4), *np.flatnonzero(real[at])]
        assert logs.t["x"][lane][: len(rows)].tolist() == rows
    assert len(found.to_pandas("x")) == 24 + real.sum()
    assert found.to_xarray("full")["full"].shape == (2, 3, 4)


def test_steps_that_some_records_lack_are_missing_there(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    two = np.zeros((1, 2))
    sink.write(RecordBatch.of([run], {"x": two, "y": two}, step=np.array([[1, 2]])))
    sink.write(RecordBatch.of([run], {"x": two}))
    sink.write(RecordBatch.of([run], {"x": two}, epoch=np.array([[0.5, 1.5]])))
    sink.write(RecordBatch.of([run], {"x": two}, step=np.array([[3, 4]], np.int16)))
    sink.flush()
    found = logax.load(tmp_path)["a"]
    no = np.iinfo(np.int64).min
    assert found.steps["step"]["x"].tolist() == [1, 2, no, no, no, no, 3, 4]
    np.testing.assert_array_equal(
        found.steps["epoch"]["x"], [np.nan] * 4 + [0.5, 1.5] + [np.nan] * 2
    )
    assert {name: list(keys) for name, keys in found.steps.items()} == {
        "step": ["x", "y"],
        "epoch": ["x"],
    }
    assert found.logs.step["y"].tolist() == [1, 2]
    table = found.to_pandas("x")
    assert table["step"].isna().tolist() == [False, False, True, True, True, True, False, False]
    with pytest.raises(KeyError, match=r"'y' has no step 'epoch'; the keys that have it: 'x'"):
        found.steps["epoch"]["y"]
    with pytest.raises(KeyError, match="is not a step of run a, which has 'step', 'epoch'"):
        found.steps["update"]


def test_keys_of_one_call_share_their_steps(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    for _ in range(3):
        x = np.ones((1, 2))
        sink.write(RecordBatch.of([run], {"x": x, "y": x}, step=x))
    sink.flush()
    steps = logax.load(tmp_path)["a"].logs.steps["step"]
    assert steps["x"] is steps["y"]


def test_records_whose_shape_changed_are_told_and_can_be_had_in_parts(
    tmp_path: Path, sink: SaveSink
) -> None:
    run, other = opened(sink, "a", "b")
    sink.write(RecordBatch.of([run], {"x": np.zeros((1, 2, 3)), "y": np.zeros((1, 2))}))
    sink.write(RecordBatch.of([run], {"x": np.ones((1, 1, 4), np.int32), "y": np.ones((1, 1))}))
    sink.write(RecordBatch.of([run], {"x": {"w": np.ones((1, 5, 4))}}))
    sink.write(RecordBatch.of([run, other], {"z": np.ones((2, 1))}))
    sink.write(RecordBatch.of([other], {"y": np.ones((1, 1, 2))}))
    lanes = tuple(Stream(other, (i,)) for i in range(2))
    sink.write(RecordBatch.of([other], {"w": np.zeros((1, 2))}))
    sink.write(RecordBatch(lanes, {"w": np.ones((2, 3))}, {}, np.ones((2, 3))))
    sink.flush()
    runs = logax.load(tmp_path)
    found = runs["a"]
    told = (
        "The records of 'x' cannot be one array, because they changed midway: float64[3], then "
        "int32[4], then {w: float64[4]}. Write `run.parts('x')` for a list of logdicts, "
        "one for each form."
    )
    for read in (lambda: found["x"], lambda: found.logdict("x"), lambda: found.to_pandas("x")):
        with pytest.raises(ValueError, match=re.escape(told)):
            read()
    assert [part.count["x"] for part in found.parts("x")] == [2, 1, 5]
    assert found.parts("x")[2]["x"]["w"].shape == (5, 4)
    assert found["y"].tolist() == [0, 0, 1]
    with pytest.warns(UserWarning, match=r"`run\.logs` leaves it out"):
        logs = found.logs
    assert list(logs) == ["y", "z"]
    with pytest.raises(ValueError, match=r"If the runs differ, write `runs\[id\]\['y'\]`"):
        runs["y"]
    assert runs["z"].tolist() == [[1], [1]]
    with pytest.raises(ValueError, match="midway: float64, then float64 with 1 axes of lanes"):
        runs["b"]["w"]
    assert [part["w"].tolist() for part in runs["b"].parts("w")] == [[0, 0], [[1] * 3] * 2]


def test_numbers_of_one_sort_join_in_the_wider_type(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    for one, two in ((np.float32, np.float64), (np.int64, np.int8), (np.float16, np.float32)):
        name = f"{one.__name__}"
        sink.write(RecordBatch.of([run], {name: np.full((1, 2), 0.1).astype(one)}))
        sink.write(RecordBatch.of([run], {name: np.full((1, 1), 0.2).astype(two)}))
    sink.write(RecordBatch.of([run], {"mixed": np.zeros((1, 2), int)}))
    sink.write(RecordBatch.of([run], {"mixed": np.zeros((1, 2))}))
    sink.flush()
    found = logax.load(tmp_path)["a"]
    assert found["float32"].tolist() == [np.float32(0.1)] * 2 + [0.2]
    assert found["int64"].dtype == np.int64
    assert found["float16"].dtype == np.float32
    with pytest.raises(ValueError, match="changed midway: int64, then float64"):
        found["mixed"]


def test_a_resumed_run_is_one_run(tmp_path: Path) -> None:
    first = RunInfo("a", "named", {"rate": 1, "old": 2}, 100.0, {"host": "one"})
    again = RunInfo("a", "a", {"rate": 3}, 200.0, {"host": "two"}, resumed=True)
    values = iter(range(10))
    for info, status in ((first, "crashed"), (again, "finished")):
        sink = SaveSink(tmp_path)
        sink.open([info])
        sink.write(
            RecordBatch.of([info], {"x": np.full((1, 2), next(values))}, step=np.ones((1, 2)))
        )
        sink.close([info], status)
        if info is again:  # once more, in the same file
            more = dataclasses.replace(again, config={"new": 4})
            sink.open([more])
            sink.write(
                RecordBatch.of([more], {"x": np.full((1, 1), next(values)), "y": np.ones((1, 1))})
            )
            sink.flush()
            runs = logax.load(tmp_path)
            assert runs["a"].status == "running"
            sink.close([more], "finished")
        sink.end()
    assert list(runs) == ["a"]
    run = runs["a"]
    assert (run.name, run.began, run.status, run.resumed) == ("named", 100.0, "finished", 2)
    assert run.config == {"rate": 3, "old": 2, "new": 4}
    assert run.machine == {"host": "two"}
    assert run["x"].tolist() == [0, 0, 1, 1, 2]
    assert list(run) == ["x", "y"]
    assert runs["x"].tolist() == [[0, 0, 1, 1, 2]]
    assert SaveSink(tmp_path).known_runs().names == {"a": "named"}


def test_a_run_is_found_by_its_id_the_beginning_of_it_or_its_name(
    tmp_path: Path, sink: SaveSink
) -> None:
    first = opened(sink, "abc", "abd", "x")
    pairs = (("abdominal", "abc"), ("y", "x-name"))
    later = [RunInfo(name, text, began=3e9) for name, text in pairs]
    sink.open(later)
    sink.close([*first, *later], "finished")
    sink.flush()
    runs = logax.load(tmp_path)
    found = {"abc": "abc", "abdo": "abdominal", "abd-name": "abd", "abd": "abd", "y": "y"}
    assert {text: runs.find(text).id for text in found} == found
    for text, message in {
        "ab": r"'ab' means 3 runs in .*of:\n  abc  abc-name\n  abd  abd-name\n  abdominal  abc$",
        "x-name": r"'x-name' means 2 runs in .*\n  x  x-name\n  y  x-name$",
        "no": r"'no' means no run in .* Give an id, the beginning of one, or a name .*\n  abc  abc",
        "": r"'' means no run",
    }.items():
        with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
            runs.find(text)
    new = SaveSink(tmp_path / "new").known_runs()
    assert new == (str(tmp_path / "new"), {}, set())
    with pytest.raises(
        ValueError, match=r"'x' means no run in .*new\. .*of:\n  \(there are none\)$"
    ):
        find_one_run("x", new.names, new.where)


def test_a_name_that_is_nothing_is_told_with_what_there_is(tmp_path: Path, sink: SaveSink) -> None:
    runs = logax.load(tmp_path)
    with pytest.raises(
        KeyError,
        match=r"'x' is not a run, and none of the 0 .*`logax.flush\(\)`.*`runs.refresh\(\)`",
    ):
        runs["x"]
    (run,) = opened(sink, "a")
    sink.write(RecordBatch.of([run], {"grad": {"w": np.ones((1, 2))}, "loss": np.ones((1, 2))}))
    sink.flush()
    runs.refresh()
    with pytest.raises(
        KeyError, match="'x' is neither the id of one of the 1 runs nor one of their keys"
    ):
        runs["x"]
    with pytest.raises(KeyError, match="'x' was not logged in run a, which has 'grad', 'loss'"):
        runs["a"]["x"]
    with pytest.raises(KeyError, match=r"'grad/w' is a leaf: write `run\['grad'\]`"):
        runs["a"]["grad/w"]
    assert ("a" in runs, "loss" in runs, "loss" in runs["a"], "x" in runs["a"]) == (
        True,
        False,
        True,
        False,
    )


def test_runs_print_as_short_tables(tmp_path: Path, sink: SaveSink) -> None:
    began = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    runs = [RunInfo(f"run-{i}", f"seed {i}" if i else "run-0", began=began) for i in range(30)]
    sink.open(runs)
    values = {"loss": np.ones((30, 2), np.float32), "g": [np.ones((30, 2, 3))]}
    bins = logax.HistogramBins(
        np.ones((30, 2, 4), np.int32), np.zeros((30, 2, 5)), np.ones((30, 2))
    )
    sink.write(RecordBatch.of(runs, {**values, "h": bins}))
    sink.close(runs[:1], "finished")
    sink.flush()
    text = repr(logax.load(tmp_path)).splitlines()
    assert text[0] == f"30 runs in {tmp_path}"
    assert text[1].split() == ["id", "name", "status", "began", "lasted"]
    assert text[2].split()[:2] == ["run-0", "finished"]
    assert text[3] == "  run-1   seed 1   running   2026-03-04 05:06:07"
    assert text[12] == "... 10 more"
    assert (len(text), text[-1].split()[0]) == (23, "run-29")
    assert repr(logax.load(tmp_path)["run-1"]).splitlines() == [
        "run run-1 seed 1: running, began 2026-03-04 05:06:07",
        "  loss: float32",
        "  g: (float64[3])",
        "  h: histogram of int32[4]",
    ]


def test_paths_that_hold_no_runs_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"`logax\.load` got .*/none, which does not exist"):
        logax.load(tmp_path / "none")
    with pytest.raises(TypeError, match=r"`logax\.load` takes a path as `path`, and got 3"):
        logax.load(3)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("x")
    for path in ("file", "file/inside"):
        with pytest.raises(NotADirectoryError, match="`SaveLogger` takes the path of a folder"):
            SaveSink(tmp_path / path)
    SaveSink(tmp_path / "deep" / "er")
    assert (tmp_path / "deep" / "er").is_dir()
    runs = logax.load(tmp_path / "deep")
    os.rmdir(tmp_path / "deep" / "er")
    os.rmdir(tmp_path / "deep")
    with pytest.raises(logax.RunsError, match="no longer exists: it was removed"):
        runs.refresh()


def test_reading_needs_none_of_the_extras(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    sink.write(RecordBatch.of([run], {"x": np.arange(3)[None]}))
    sink.flush()
    program = (
        "import sys, logax; runs = logax.load(sys.argv[1]); print(runs['x'], runs['a'].status);"
        "print({'h5py', 'pandas', 'xarray'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert said == "[[0 1 2]] running\nset()\n"


def test_last_is_the_newest_run(tmp_path: Path) -> None:
    runs = logax.load(tmp_path)
    said = f"^there are no runs in {re.escape(str(tmp_path))} yet, so none is the last"
    with pytest.raises(ValueError, match=said):
        runs.find("last")
    logax.save({"x": np.zeros(1)}, tmp_path, name="same")
    newest = logax.save({"x": np.ones(1)}, tmp_path, name="same")
    runs.refresh()
    assert runs.find("last").id == newest
    with pytest.raises(ValueError, match=r"'same' means 2 runs .* or `last` for the newest, of:"):
        runs.find("same")
    called = logax.save({"x": np.ones(1)}, tmp_path, name="last")
    logax.save({"x": np.ones(1)}, tmp_path, name="newer")
    runs.refresh()
    assert runs.find("last").id == called


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    identity = logax.save({"x": np.zeros(1)}, tmp_path)
    run = logax.load(tmp_path).find("last")
    assert repr(run.steps) == f"<no steps of run {identity}>"


def test_all_runs_are_one_table(tmp_path: Path) -> None:
    steps = {"step": {"loss": np.array([0, 10])}}
    given: list[dict[str, Any]] = [
        {"rate": 0.5, "model": {"layers": 2, "kind": "mlp"}, "on": True, "shape": np.ones(3)},
        {"rate": 0.25, "model": {"layers": 3}, "list": [1]},
        {"on": False},
    ]
    ids = [
        logax.save(
            logax.logdict({"loss": np.float32([at, at + 0.5])}, steps=steps),
            tmp_path,
            name="s",
            config=config,
        )
        for at, config in enumerate(given)
    ]
    logax.save({"count": np.array([7, 8]), "run": np.ones(2)}, tmp_path, name="other")
    runs = logax.load(tmp_path)
    table = runs.to_pandas("loss")
    names = ["run", "name", "config/rate", "config/model/layers", "config/model/kind", "config/on"]
    assert list(table) == [*names, "record", "step", "loss"]
    assert table["run"].tolist() == [identity for identity in ids for _ in range(2)]
    assert table["name"].tolist() == ["s"] * 6
    assert table["config/rate"].tolist()[:4] == [0.5, 0.5, 0.25, 0.25]
    assert table["config/rate"].isna().tolist() == [False] * 4 + [True] * 2
    assert str(table["config/model/layers"].dtype) == "Int64"
    assert table["config/model/layers"].tolist()[:3] == [2, 2, 3]
    assert table["config/on"].isna().tolist() == [False] * 2 + [True] * 2 + [False] * 2
    assert table["step"].tolist() == [0, 10] * 3
    assert (table["loss"].dtype, table["loss"].tolist()) == ("float32", [0, 0.5, 1, 1.5, 2, 2.5])
    whole = runs.to_pandas()
    assert list(whole) == ["run_", *names[1:], "record", "step", "loss", "count", "run"]
    assert whole["count"].isna().tolist() == [True] * 6 + [False] * 2
    assert whole["count"].tolist()[6:] == [7, 8]
    assert str(whole["count"].dtype) == "Int64"
    assert len(logax.load(tmp_path).to_pandas("count")) == 2


def test_a_table_of_a_key_that_no_run_has_is_told(tmp_path: Path) -> None:
    logax.save({"x": np.ones(1)}, tmp_path)
    with pytest.raises(
        KeyError, match="'y' is neither the id of one of the 1 runs nor one of their keys"
    ):
        logax.load(tmp_path).to_pandas("y")


def test_a_table_of_no_runs_is_empty(tmp_path: Path) -> None:
    assert logax.load(tmp_path).to_pandas().shape == (0, 2)


def test_runs_and_collections_are_told_apart_by_where_they_are(tmp_path: Path) -> None:
    a = logax.save({"x": np.ones(1)}, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = (logax.load(tmp_path / place) for place in ("one", "two"))
    assert one == logax.load(tmp_path / "one")
    assert one != two
    assert len({one, logax.load(tmp_path / "one"), two}) == 2
    assert one[a] == logax.load(tmp_path / "one")[a]
    assert one[a] != two[a]
    assert one[a] != a
    assert len({one[a], logax.load(tmp_path / "one")[a], two[a]}) == 2


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def check_is_gone(runs: logax.Runs, run: logax.Run, file: Path) -> None:
    """Check that all that reads a run raises, since another or no file has the name of its file."""
    told = (
        f"The run {run.id} is no longer in {runs._shown_path}: its file was removed or replaced. "
    )
    told += "Call `runs.refresh()` to list the current runs."
    for read in (lambda: run["x"], lambda: run.status, lambda: run.config, runs.statuses):
        with pytest.raises(logax.RunsError, match=f"^{re.escape(told)}$"):
            read()
    told = f"{file} was removed or replaced since its runs were listed. Call `runs.refresh()` to "
    told += "list them again."
    for read in (lambda: runs["x"], runs.logged):
        with pytest.raises(logax.RunsError, match=f"^{re.escape(told)}$"):
            read()


def test_a_run_whose_file_was_removed_is_told(tmp_path: Path) -> None:
    identity = logax.save({"x": np.ones(1)}, tmp_path)
    file = only_file(tmp_path)
    runs, alone = logax.load(tmp_path), logax.load(file)
    run = runs[identity]
    file.unlink()
    check_is_gone(runs, run, file)
    check_is_gone(alone, alone[identity], file)
    runs.refresh()
    assert len(runs) == 0
    with pytest.raises(logax.RunsError, match=f"The run {identity} is no longer in "):
        run["x"]
    with pytest.raises(logax.RunsError, match="no longer exists: it was removed"):
        alone.refresh()


@pytest.mark.parametrize("put", [os.replace, shutil.copyfile], ids=["replaced", "overwritten"])
@pytest.mark.parametrize("other", [[7, 8, 9], [0.5]], ids=["alike", "another shape"])
def test_a_run_whose_file_was_replaced_is_told(
    tmp_path: Path, put: Callable[[Path, Path], Any], other: list[Any]
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    first = logax.save({"x": np.array([1, 2, 3])}, a, name="one")
    second = logax.save({"x": np.array(other)}, b, name="two")
    file = only_file(a)
    runs, alone = logax.load(a), logax.load(file)
    run = runs.find("one")
    assert (run["x"].tolist(), runs["x"].tolist()) == ([1, 2, 3], [[1, 2, 3]])
    put(only_file(b), file)
    check_is_gone(runs, run, file)
    check_is_gone(alone, alone[first], file)
    for listed in (runs, alone):
        listed.refresh()
        assert (listed.names(), listed.statuses()) == ({second: "two"}, {second: "finished"})
        assert (listed["x"].tolist(), listed[second]["x"].tolist()) == ([other], other)
    with pytest.raises(logax.RunsError, match=f"The run {first} is no longer in "):
        run["x"]


def test_a_newer_copy_of_a_file_is_the_same_file(tmp_path: Path) -> None:
    made = SaveSink(tmp_path / "made")
    (info,) = opened(made, "a")
    copy = tmp_path / "copy.sqlite"
    for number in (1, 2):
        made.write(RecordBatch.of([info], {"x": np.full((1, 1), number)}))
        made.flush()
        (file,) = (tmp_path / "made").glob("*.sqlite")
        with (
            contextlib.closing(sqlite3.connect(file)) as source,
            contextlib.closing(sqlite3.connect(tmp_path / "new")) as target,
        ):
            source.backup(target)
        os.replace(tmp_path / "new", copy)
        if number == 1:
            runs = logax.load(copy)
        assert runs["a"]["x"].tolist() == [1, 2][:number]
        assert runs["x"].tolist() == [[1, 2][:number]]
    made.end()


def test_a_run_that_goes_on_in_another_file_is_whole_after_a_refresh(tmp_path: Path) -> None:
    first, second = SaveSink(tmp_path), SaveSink(tmp_path)
    first.open([RunInfo("a", "a")])
    first.end()
    runs = logax.load(tmp_path)
    run = runs["a"]
    second.open([RunInfo("a", "a", resumed=True)])
    second.flush()
    assert (run.status, run.resumed) == ("crashed", 0)
    runs.refresh()
    assert (run.status, run.resumed) == ("running", 1)
    second.end()
    assert run.status == "crashed"


_COUNT_OPENINGS = """
import contextlib
import io
import json
import sys

import logax
from logax._cli import main

opened = 0


def note(event, _):
    global opened
    opened += event in ("open", "os.scandir", "sqlite3.connect")


def facts(runs):
    every = [*runs.values(), *(runs[name] for name in runs)]
    return [(run.name, run.status, run.began, run.ended, run.group, run.lane) for run in every]


def counts(path):
    runs = logax.load(path)
    assert len(facts(runs)) == 2 * len(runs) > 0
    for work in (
        lambda: logax.load(path),
        lambda: facts(runs),
        runs.refresh,
        lambda: main(["ls", path]),
        lambda: main(["show", "last", "--path", path]),
    ):
        before = opened
        with contextlib.redirect_stdout(io.StringIO()):
            work()
        yield opened - before


sys.addaudithook(note)
list(counts(sys.argv[1]))  # imports what is imported later
print(json.dumps([list(counts(path)) for path in sys.argv[1:]]))
"""
"""Prints how often each work opens something, for each folder. An audit hook cannot be removed."""


def test_files_are_opened_in_proportion_to_their_number(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in (4, 8, 16)]
    for path in paths:
        for _ in range(int(path.name)):
            logax.save({"x": np.zeros(1)}, path)
    command = [sys.executable, "-c", _COUNT_OPENINGS, *paths]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stderr == ""
    counts = json.loads(told.stdout)
    for four, eight, sixteen in zip(*counts, strict=True):
        assert sixteen - eight == 2 * (eight - four)
    # A command looks at each file for its runs, and `ls` for their records.
    load, _, _, ls, show = counts[-1]
    assert load >= 16
    assert ls <= load + 16 + 4
    assert show <= load + 8


def test_steps_of_a_run_are_counted_and_shown(tmp_path: Path) -> None:
    steps = {"step": {"x": np.arange(2)}, "t": {"x": np.arange(2.0)}}
    identity = logax.save(logax.logdict({"x": np.ones(2), "y": np.ones(2)}, steps=steps), tmp_path)
    found = logax.load(tmp_path)[identity].steps
    assert (len(found), len(found["t"]), list(found["t"])) == (2, 1, ["x"])
    assert repr(found["t"]) == f"<the step 't' of 'x' of run {identity}>"


def test_few_of_many_runs_are_read_by_themselves(tmp_path: Path, sink: SaveSink) -> None:
    runs = opened(sink, *(f"r{i}" for i in range(200)))
    x = np.arange(400.0).reshape(200, 2)
    sink.write(RecordBatch.of(runs, {"x": x}))
    lanes = [Stream(runs[0 if i in (0, 150) else 1], (i,)) for i in range(151)]
    sink.write(RecordBatch(tuple(lanes), {"far": x[:151]}, {}, np.zeros((151, 2))))
    for at, run in enumerate(runs):  # a family of each run's own
        sink.write(RecordBatch.of([run], {"own": x[at : at + 1]}))
    sink.flush()
    found = logax.load(tmp_path)
    assert found["r0"]["far"].tolist()[0] == [0, 1]
    assert found["r0"]["far"].tolist()[-1] == [300, 301]
    np.testing.assert_array_equal(found["own"], x)


def test_a_run_of_very_many_keys_shows_some(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a", config={})
    sink.write(RecordBatch.of([run], {"i": logax.ImagePixels(np.ones((1, 1, 4, 4), np.uint8))}))
    sink.write(
        RecordBatch.of([run], {f"k{i}": {"a": np.ones((1, 1)), "b": None} for i in range(32)})
    )
    sink.flush()
    text = repr(logax.load(tmp_path)["a"]).splitlines()
    assert text[1:3] == ["  i: image of uint8[4,4]", "  k0: {a: float64, b: None}"]
    assert (len(text), text[-1]) == (32, "  ... and 3 keys more")


def test_types_without_a_common_one_are_told(tmp_path: Path, sink: SaveSink) -> None:
    (run,) = opened(sink, "a")
    narrow, wider = np.ones((1, 1), "float8_e4m3fn"), np.ones((1, 1), "float8_e5m2")
    for key, (one, two) in {
        "narrow": (narrow, wider),
        "wide": (np.ones((1, 1), np.float16), np.full((1, 1), 3, "bfloat16")),
    }.items():
        sink.write(RecordBatch.of([run], {key: one}))
        sink.write(RecordBatch.of([run], {key: two}))
    sink.flush()
    found = logax.load(tmp_path)["a"]
    with pytest.raises(ValueError, match="changed midway: float8_e4m3fn, then float8_e5m2"):
        found["narrow"]
    assert (found["wide"].dtype, found["wide"].tolist()) == (np.float32, [1, 3])


def test_a_time_that_is_none_is_shown_as_such(tmp_path: Path, sink: SaveSink) -> None:
    sink.open([RunInfo("a", "a", began=1e300)])
    sink.flush()
    assert repr(logax.load(tmp_path)["a"]) == "run a: running, began ?"


def test_a_table_has_nothing_where_a_run_has_no_such_column(tmp_path: Path) -> None:
    logax.save(
        {"text": np.array([b"x"]), "v": np.ones((1, 2)), "when": np.zeros(1, "M8[s]")}, tmp_path
    )
    logax.save({"n": np.ones(1)}, tmp_path)
    whole = logax.load(tmp_path).to_pandas()
    for name in ("text", "v", "when"):
        assert whole[name].isna().tolist() == [False, True], name


def test_a_table_keeps_whole_numbers_that_a_run_has_for_some_records_only(
    tmp_path: Path, sink: SaveSink
) -> None:
    one, two = opened(sink, "a", "b")
    steps = np.array([[0, 1]])
    sink.write(RecordBatch.of([one, two], {"x": np.ones((2, 2))}, step=np.repeat(steps, 2, axis=0)))
    some = {"n": np.array([[7]]), "is": np.array([[True]])}
    sink.write(RecordBatch.of([one], some, step=steps[:, :1]))
    sink.flush()
    whole = logax.load(tmp_path).to_pandas()
    assert {name: str(whole[name].dtype) for name in some} == {"n": "Int64", "is": "boolean"}
    assert whole["n"].fillna(-1).tolist() == [7, -1, -1, -1]
    assert whole["is"].fillna(False).tolist() == [True, False, False, False]


def test_many_records_of_nothing_with_very_long_axes_are_told(
    tmp_path: Path, sink: SaveSink
) -> None:
    (run,) = opened(sink, "a")
    sink.write(RecordBatch.of([run], {"x": np.zeros((1, 2048, 0, 2**46), np.float32)}))
    sink.flush()
    with pytest.raises(logax.RunsError) as told:
        logax.load(tmp_path)["a"]["x"]
    assert str(told.value) == (
        "'x' of run a would be an array of shape (1, 2048, 0, 70368744177664), which NumPy refuses."
    )


def test_lanes_that_are_too_far_apart_are_told_with_their_key_and_run(
    tmp_path: Path, sink: SaveSink
) -> None:
    (run,) = opened(sink, "a")
    far = RecordBatch.of([run, run], {"x": np.zeros((2, 1))})
    sink.write(dataclasses.replace(far, streams=(Stream(run, (0,)), Stream(run, (2**21,)))))
    sink.flush()
    said = r"^'x' of run a cannot be read as one array: it would need 2097153 rows and use 2,"
    with pytest.raises(logax.RunsError, match=said):
        logax.load(tmp_path)["a"]["x"]


def test_errors_are_shown_by_their_public_names() -> None:
    errors = [logax.RunsError("why"), logax.storage.StorageError("why")]
    assert [traceback.format_exception_only(error) for error in errors] == [
        ["logax.RunsError: why\n"],
        ["logax.storage.StorageError: why\n"],
    ]

"""`logax verify`: what is damaged, and the exit status."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from logax.storage import HDF5StorageWriter, WriterGroupConfig
from run_crafting import write_damaged_batch, write_runs

Call = Callable[..., Any]


def test_whole_files_are_said_to_be_whole(call: Call, store: Path) -> None:
    files = len(list(store.glob("*.sqlite")))
    ended = call("verify", store)
    assert ended == (0, f"{files} files checked, none is damaged.\n", "")


def test_damage_is_said_with_file_run_key_and_records(
    call: Call, saved: Callable[..., Path]
) -> None:
    path = saved({"x": np.zeros(10_000), "y": np.zeros(10_000)})
    (file,) = path.iterdir()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DELETE FROM blobs WHERE number = 2")
        (identity,) = connection.execute("SELECT json_extract(content, '$.id') FROM runs")
    ended = call("verify", path)
    assert ended.status == 1
    assert ended.lines[0] == (
        f"{file} is damaged: row 2 of its blobs is missing. Records 0 to 9999 of 'y' of run "
        f"{identity[0]} are left out."
    )
    assert ended.lines[-1] == "1 of 1 file damaged."
    found = json.loads(call("verify", path, "--json").out)
    assert found["ok"] is False
    assert found["files"] == [str(file)]
    (own,) = (each for each in found["problems"] if each["key"] == "y" and each["last"])
    assert (own["runs"], own["first"], own["last"]) == ([identity[0]], 0, 9999)


def test_trajectories_in_the_folder_are_checked(call: Call, tmp_path: Path) -> None:
    x = jnp.arange(1000.0)
    config = {"rows": WriterGroupConfig(lambda x: {"x": x})}
    with HDF5StorageWriter(tmp_path / "run.h5", config, x) as writer:
        for step in range(50):
            writer.log(x + step, step)
    assert call("verify", tmp_path) == (0, "1 file checked, none is damaged.\n", "")
    data = bytearray((tmp_path / "run.h5").read_bytes())
    at = data.index(np.asarray(x + 7).tobytes()[:64])
    data[at + 8] ^= 1
    (tmp_path / "run.h5").write_bytes(data)
    ended = call("verify", tmp_path / "run.h5")
    assert ended.status == 1
    assert ended.lines[0].startswith(f"{tmp_path}/run.h5 is damaged: ")


def test_files_of_others_and_missing_paths_are_told(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"x" * 1000)
    ended = call("verify", tmp_path)
    assert (ended.status, ended.lines[-1]) == (1, "1 of 1 file damaged.")
    assert "a.sqlite cannot be read as a file of runs: " in ended.lines[0]
    ended = call("verify", tmp_path / "none")
    assert (ended.status, ended.out) == (1, "")
    assert "Give a folder or a file: `logax verify PATH`." in ended.err


def test_intact_keys_of_a_run_with_a_damaged_key_are_shown_and_exported(
    call: Call, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    file = write_damaged_batch(folder)
    warning = (
        f"warning: {file} is damaged: the bytes of a batch differ from their checksum. Records 0 "
        "to 9999 of 'w' of run m-3 are left out.\n"
    )
    ended = call("show", "m-3", "--path", folder, "--json")
    assert (ended.status, ended.err) == (0, f"logax show: {warning}")
    keys = json.loads(ended.out)["keys"]
    assert {key: own["records"] for key, own in keys.items()} == {"v": 10_005}
    ended = call("show", "m-3", "v", "w", "--path", folder)
    assert (ended.status, ended.err) == (0, f"logax show: {warning}")
    ended = call("show", "m-3", "w", "--path", folder)
    assert ended == (
        1, "", f"logax show: {warning}logax show: All records of 'w' of run m-3 are damaged.\n"
    )  # fmt: skip
    for form in ("npz", "jsonl", "csv", "parquet"):
        ended = call("export", "m-3", "--path", folder, "--to", form, "-o", tmp_path / form)
        assert ended == (0, "", f"logax export: {warning}")
    with np.load(tmp_path / "npz") as arrays:
        assert [(name, len(array)) for name, array in arrays.items()] == [("v", 10_005)]
    assert len((tmp_path / "jsonl").read_text().splitlines()) == 10_005


def test_one_file_is_counted_once_under_the_path_that_was_given(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    name = write_damaged_batch(tmp_path / "runs").name
    monkeypatch.chdir(tmp_path)
    why = "the bytes of a batch differ from their checksum. Records 0 to 9999 of"
    ended = call("verify", "runs", tmp_path / "runs" / name)
    assert (ended.status, ended.lines) == (
        1,
        [
            f"runs/{name} is damaged: {why} 'v' of run m-2 are left out.",
            f"runs/{name} is damaged: {why} 'w' of run m-3 are left out.",
            "1 of 1 file damaged.",
        ],
    )
    found = json.loads(call("verify", "runs", "--json").out)
    assert found["files"] == [f"runs/{name}"]
    assert [each["file"] for each in found["problems"]] == [f"runs/{name}"] * 2


def test_a_damaged_layout_is_one_problem(call: Call, tmp_path: Path) -> None:
    write_runs(tmp_path, "bad", end=True)
    (file,) = tmp_path.glob("*.sqlite")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE layouts SET crc = 0 WHERE number = 1")
    assert call("verify", tmp_path).lines == [
        f"{file} is damaged: row 1 of its layouts differs from its checksum, and the batches that "
        "need it are left out.",
        "1 of 1 file damaged.",
    ]


def test_a_file_that_was_copied_without_its_log_is_damaged(call: Call, tmp_path: Path) -> None:
    live, only = tmp_path / "live", tmp_path / "only"
    live.mkdir()
    only.mkdir()
    sink = write_runs(live, "bad", end=False)
    (file,) = live.glob("*.sqlite")
    shutil.copy(file, only)
    sink.end()
    why = (
        f"{only / file.name} is damaged: it has no runs. Its process was killed before it wrote "
        f"any, or its log, {file.name}-wal, was not copied with it."
    )
    assert call("verify", only) == (1, f"{why}\n1 of 1 file damaged.\n", "")
    assert call("ls", only) == (
        1,
        "",
        f"logax ls: warning: {why}\nlogax ls: no run in {only} can be read, because its files are "
        f"damaged: `logax verify {only}` lists the damage.\n",
    )

"""`logax verify`: what is damaged, and the exit status."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax.storage import HDF5StorageWriter, WriterGroupConfig

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

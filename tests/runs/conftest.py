"""Fixtures of the tests of the run store."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from run_crafting import write_runs


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with something of everything."""
    folder = tmp_path_factory.mktemp("original")
    write_runs(folder, "bad", end=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """A folder with a file of version 1."""
    folder = tmp_path / "old"
    folder.mkdir()
    script = Path(__file__).with_name("version_1.sql").read_text()
    with contextlib.closing(sqlite3.connect(folder / "old.sqlite")) as connection:
        connection.executescript(script)
    return folder

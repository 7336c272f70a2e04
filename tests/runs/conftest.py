"""Fixtures of the tests of the run store."""

from __future__ import annotations

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

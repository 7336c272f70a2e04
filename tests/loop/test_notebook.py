"""Loggers in a notebook, run by a real kernel."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A process of its own: what runs notebooks leaves sockets to the garbage collector.
NOTEBOOK = """
import json, pathlib, sys
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

folder = pathlib.Path.cwd()
place = folder / "kernels" / "here"
place.mkdir(parents=True)
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
spec = {"argv": command, "display_name": "here", "language": "python"}
(place / "kernel.json").write_text(json.dumps(spec))
manager = AsyncKernelManager(kernel_name="here")
manager.kernel_spec_manager.kernel_dirs = [str(folder / "kernels")]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.stdin.read())])
NotebookClient(notebook, km=manager, timeout=120).execute()
nbformat.write(notebook, "done.ipynb")
"""

CELL = """
import jax, jax.numpy as jnp
from logax.loop import CompositeLogger, PlotLogger, TqdmLogger

step = jax.jit(lambda x: x * 0.9, donate_argnums=0)
x = jnp.float32(1)
plot = PlotLogger(lambda x: {"x": x}, 1, seconds_between=0.01)
with CompositeLogger(TqdmLogger(50, lambda x: {"x": x}), plot) as logger:
    for i in range(50):
        x = step(x)
        logger.log(x, i)
"""


def run_notebook(cell: str, folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """What a cell shows in the end, and the widgets that there are."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    paths = [source, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=cell,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert done.returncode == 0, done.stderr
    notebook = json.loads((folder / "done.ipynb").read_text())
    widgets = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    return notebook["cells"][0]["outputs"], widgets


@pytest.mark.slow
def test_bar_and_plot_are_shown_in_place_and_no_file_is_written(tmp_path: Path) -> None:
    outputs, widgets = run_notebook(CELL, tmp_path)
    shown = [out["data"] for out in outputs if out["output_type"] == "display_data"]
    assert len(shown) == len(outputs) == 2
    (picture,) = [data["image/png"] for data in shown if "image/png" in data]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    texts = [widget["state"].get("value") for widget in widgets.values()]
    assert any("50/50" in text and "x=0.005154" in text for text in texts if isinstance(text, str))
    assert "plot.png" not in os.listdir(tmp_path)

"""Notebooks, run by a real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# A process of its own: what runs notebooks leaves sockets to the garbage collector.
_RUN = """
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
cells = [nbformat.v4.new_code_cell(code) for code in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, km=manager, timeout=250).execute()
nbformat.write(notebook, "done.ipynb")
"""


def run_notebook(cells: list[str], folder: Path) -> dict[str, Any]:
    """Run a notebook of these cells in a folder; what it is then, its outputs included."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(cells),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    notebook: dict[str, Any] = json.loads((folder / "done.ipynb").read_text())
    return notebook

"""Loggers in a notebook, run by a real kernel."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from notebooks import run_notebook

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


@pytest.mark.slow
def test_bar_and_plot_are_shown_in_place_and_no_file_is_written(tmp_path: Path) -> None:
    notebook = run_notebook([CELL], tmp_path)
    outputs = notebook["cells"][0]["outputs"]
    widgets = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    shown = [out["data"] for out in outputs if out["output_type"] == "display_data"]
    assert len(shown) == len(outputs) == 2
    (picture,) = [data["image/png"] for data in shown if "image/png" in data]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    texts = [widget["state"].get("value") for widget in widgets.values()]
    assert any("50/50" in text and "x=0.005154" in text for text in texts if isinstance(text, str))
    assert "plot.png" not in os.listdir(tmp_path)

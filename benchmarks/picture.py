"""The picture of how cost grows: a panel for each curve, from the results of a run."""

from __future__ import annotations

import pathlib
from typing import Any

from benchmarks.growth import BY_HAND, CALLBACK, SPOOL, TAP

_LINES: dict[str, dict[str, Any]] = {
    BY_HAND: {"color": "0.55", "linewidth": 4, "alpha": 0.6},
    SPOOL: {"color": "tab:blue", "marker": "o", "markersize": 3},
    TAP: {"color": "tab:green", "marker": "s", "markersize": 3},
    CALLBACK: {"color": "tab:red", "marker": "^", "markersize": 3, "linestyle": "--"},
}


def draw(report: dict[str, Any], path: pathlib.Path) -> None:
    """Write it to a file."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only who draws needs it

    curves = report["curves"]
    columns = 4
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.9 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, curve in zip(axes, curves, strict=False):
        for name, options in _LINES.items():
            seconds = curve["seconds"].get(name)
            if seconds:
                axis.plot(curve["sizes"], [x or float("nan") for x in seconds], **options)
        axis.set(xscale="log", yscale="log", xlabel=curve["title"], ylabel="seconds")
        axis.grid(alpha=0.25)
    spare = axes[len(curves) :]
    for axis in spare:
        axis.set_axis_off()
    handles = [axes[0].plot([], [], label=name, **own)[0] for name, own in _LINES.items()]
    where, loc = (spare[0], "center") if spare else (axes[0], "best")
    where.legend(handles=handles, loc=loc, frameon=False)
    figure.suptitle(
        f"{report['device']}, JAX {report['jax']}, {report['date'][:10]}", fontsize="medium"
    )
    figure.savefig(path, dpi=110)

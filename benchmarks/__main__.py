"""Print one table of what logax costs: `python -m benchmarks`, `--help` for what it takes.

Each row compares a program with logax to the same program written by hand. What both give is
compared first, as far as `benchmarks/README.md` says, which also says how to read the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import pathlib
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from benchmarks import (
    building,
    calls,
    columns,
    growth,
    imports,
    iterations,
    loops,
    peers,
    runs,
    stores,
    streams,
    sustained,
    trackers,
    trajectories,
)
from benchmarks.case import Case
from benchmarks.picture import draw
from benchmarks.timing import QUICK, Comparison, Effort

CASES: list[Case] = [
    *columns.CASES,
    *stores.CASES,
    *calls.CASES,
    *building.CASES,
    *growth.CASES,
    *streams.CASES,
    *sustained.CASES,
    *peers.CASES,
    *iterations.CASES,
    *loops.CASES,
    *trajectories.CASES,
    *runs.CASES,
    *trackers.CASES,
    *imports.CASES,
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows that are asked for, and show them."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.show:
        show(json.loads(options.show.read_text()), options.plot)
        return
    chosen = [case for case in CASES if options.only in f"{case.group}: {case.name}"]
    curves = [curve for curve in growth.CURVES if options.only in f"growth: {curve.title}"]
    if not chosen + curves:
        parser.error(f"no row has {options.only!r} in it; `--list` shows them")
    if options.list:
        print("\n".join(f"{case.group}: {case.name}" for case in chosen))
        print("\n".join(f"growth: {curve.title}" for curve in curves))
        return
    report = measured(chosen, curves, options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this text in them")
    parser.add_argument("--quick", action="store_true", help="three repetitions: does it run?")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for a row (6)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write results there")
    parser.add_argument("--plot", type=pathlib.Path, metavar="PNG", help="draw the curves there")
    parser.add_argument("--show", type=pathlib.Path, metavar="FILE", help="its table, run nothing")
    parser.add_argument("--list", action="store_true", help="show the rows, run nothing")
    return parser


def measured(
    chosen: Sequence[Case], curves: Sequence[growth.Curve], options: argparse.Namespace
) -> dict[str, Any]:
    """Run rows and curves: all that goes to the tables and to the file."""
    without = (peers, loops, trajectories, trackers)
    for library in [name for module in without for name in module.missing()]:
        print(f"{library} is not installed: no rows that need it", file=sys.stderr)
    # First, while the process has not taken the memory that is measured.
    remarks = [] if options.quick or options.only else [*trajectories.remarks(), *runs.remarks()]
    effort = QUICK if options.quick else Effort(total_seconds=options.seconds)
    rows = []
    for case in chosen:
        print(f"{case.group}: {case.name} ...", file=sys.stderr, end=" ", flush=True)
        rows.append(as_row(case, case.run(effort)))
        print(f"{rows[-1]['ratio']:.3f}", file=sys.stderr, flush=True)
    grown = []
    for curve in curves:
        print(f"growth: {curve.title} ...", file=sys.stderr, flush=True)
        grown.append(curve.run(effort))
    return {
        **surroundings(),
        "quick": options.quick,
        "rows": rows,
        "remarks": remarks,
        "curves": grown,
    }


def show(report: dict[str, Any], picture: pathlib.Path | None) -> None:
    """Print the tables, and draw the curves if there is a place for them."""
    parts = [table(report)] if report["rows"] else []
    parts += [grown_table(report)] if report.get("curves") else []
    print("\n\n".join(parts))
    if picture and report.get("curves"):
        draw(report, picture)
        print(f"\nThe curves are in {picture}.")


def as_row(case: Case, comparison: Comparison) -> dict[str, Any]:
    """One result as it goes to the table and to the file."""
    met = None if case.goal is None else comparison.ratio <= case.goal
    numbers = dataclasses.asdict(comparison)
    return {"group": case.group, "name": case.name, **numbers, "goal": case.goal, "met": met}


def surroundings() -> dict[str, Any]:
    """What the numbers depend on."""
    device = jax.devices()[0]
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": device.platform,
        "device": device.device_kind,
        "cpus": os.cpu_count(),
    }


def table(report: dict[str, Any]) -> str:
    """The rows as Markdown, under a line that says where they come from."""
    lines = [
        f"{report['date'][:10]}, JAX {report['jax']}, jaxlib {report['jaxlib']}, NumPy "
        f"{report['numpy']}, Python {report['python']}, {report['platform']} ({report['device']}), "
        f"{report['cpus']} CPUs",
        "",
        "| what | program | by hand | logax | ratio | of the fastest | goal | met |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in report["rows"]:
        cells = (
            f"`{row['group']}`" if "(" in row["group"] else row["group"],
            row["name"],
            duration(row["by_hand"]),
            duration(row["logax"]),
            f"{row['ratio']:.3f}",
            f"{row['ratio_of_fastest']:.3f}",
            "" if row["goal"] is None else f"{row['goal']:.{2 if row['goal'] >= 0.1 else 3}f}",
            {True: "yes", False: "no", None: ""}[row["met"]],
        )
        lines.append(f"| {' | '.join(cells)} |")
    judged = [row["met"] for row in report["rows"] if row["met"] is not None]
    remarks = [line for remark in report.get("remarks", []) for line in ("", remark)]
    return "\n".join([*lines, *remarks, "", f"{sum(judged)} of {len(judged)} goals met."])


def grown_table(report: dict[str, Any]) -> str:
    """How cost grows, as Markdown."""
    names = list(dict.fromkeys(name for curve in report["curves"] for name in curve["seconds"]))
    lines = [
        f"| what grows | to | {' | '.join(names)} | spool to by hand |",
        f"| --- | ---: |{' ---: |' * (len(names) + 1)}",
    ]
    for curve in report["curves"]:
        columns = [curve["seconds"].get(name, [None] * len(curve["sizes"])) for name in names]
        for at, size in enumerate(curve["sizes"]):
            own = [column[at] for column in columns]
            ratio = curve["seconds"][growth.SPOOL][at] / curve["seconds"][growth.BY_HAND][at]
            times = ["" if seconds is None else duration(seconds) for seconds in own]
            lines.append(f"| {' | '.join([curve['title'], f'{size:,}', *times, f'{ratio:.2f}'])} |")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Three digits in the unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


if __name__ == "__main__":
    main()

"""Draw what a `ProfileLogger` has recorded: docs/images/trace.png.

    python tools/draw_trace.py

Three steps of the gas in examples/simulation.py are traced, several times, and the quietest trace
is drawn. Above is the time: the steps of the loop, and the operations of the compiled program on
each thread of the device. Below is what `report()` says.
Needs logax and matplotlib.
"""

from __future__ import annotations

import runpy
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from matplotlib.figure import Figure

from logax.loop import ProfileLogger, ProfileReport, run_loop

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "images" / "trace.png"
STEPS, FIRST, LAST = 30, 20, 22
TRIES = 10
NAMED = 6
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OTHER = "#bbbbbb"
SHADES = ("#8c959f", "#d0d7de")


class Span(NamedTuple):
    """An event of the trace: on which row, what, and from when to when in microseconds."""

    row: str
    name: str
    start: float
    length: float


class Trace(NamedTuple):
    """The marks of the steps, the operations, and the report."""

    marks: list[Span]
    operations: list[Span]
    report: ProfileReport


def recorded() -> Trace:
    """Run some steps of the simulation, some of them traced."""
    simulation = runpy.run_path(str(ROOT / "examples" / "simulation.py"))
    gas = simulation["start"](jax.random.key(0))
    with tempfile.TemporaryDirectory() as folder:
        profile = ProfileLogger(folder, FIRST, LAST)
        run_loop(simulation["advance"], gas, STEPS, logger=profile)
        report = profile.report()
        with warnings.catch_warnings():
            # From the types that JAX's reader makes when it is first used.
            warnings.filterwarnings("ignore", "builtin type .* has no __module__")
            events = list(events_of(str(profile.trace_path)))
    marks = [span for span, stats in events if span.name == "step" and "last_step" in stats]
    operations = [
        span._replace(name=f"{stats['hlo_module']}/{span.name}")
        for span, stats in events
        if "hlo_op" in stats and "hlo_module" in stats
    ]
    return Trace(marks, operations, report)


def events_of(path: str) -> Iterator[tuple[Span, dict[str, Any]]]:
    """All events of a trace, with what else is known of each."""
    for plane in jax.profiler.ProfileData.from_file(path).planes:
        for line in plane.lines:
            for event in line.events:
                span = Span(line.name, event.name, event.start_ns / 1e3, event.duration_ns / 1e3)
                yield span, dict(event.stats)


def draw(trace: Trace) -> Figure:
    """Draw the timeline, and the report below it."""
    marks, operations, report = trace
    figure = Figure(figsize=(9, 5.2), layout="constrained", facecolor="white")
    timeline, table = figure.subplots(2, 1, height_ratios=[3, 2])
    begin = min(mark.start for mark in marks)
    costly = [operation.name for operation in report.operations[:NAMED]]
    colours = dict(zip(costly, COLOURS, strict=False))
    threads = list(dict.fromkeys(span.row for span in sorted(operations, key=lambda s: s.start)))
    # What holds others, a loop, is longer than they are: drawn first, it lies behind them.
    for span in sorted(operations, key=lambda span: -span.length):
        colour = colours.get(span.name, OTHER)
        draw_bar(timeline, span, begin, threads.index(span.row) + 1, colour)
    for number, mark in zip(report.steps, sorted(marks, key=lambda m: m.start), strict=True):
        draw_bar(timeline, mark, begin, 0, SHADES[number % 2])
        middle = mark.start - begin + mark.length / 2
        timeline.text(middle, -0.45, str(number), horizontalalignment="center")
    end = max(span.start + span.length for span in (*marks, *operations))
    timeline.set(xlim=(0, end - begin), ylim=(len(threads) + 0.5, -0.8), xlabel="microseconds")
    names = ["the loop, by step", *(f"thread {i} of the device" for i in range(len(threads)))]
    timeline.set_yticks(range(len(names)), names)
    timeline.spines[["top", "right"]].set_visible(False)

    table.axis("off")
    heading, columns, *lines = str(report).splitlines()[: NAMED + 2]
    table.text(0, 1, heading, verticalalignment="top", transform=table.transAxes, fontsize=10)
    for place, line in enumerate([columns, *lines]):
        colour = "black" if place == 0 else COLOURS[place - 1]
        table.text(
            0,
            0.84 - 0.135 * place,
            line,
            color=colour,
            family="monospace",
            verticalalignment="top",
            transform=table.transAxes,
            fontsize=10,
        )
    return figure


def draw_bar(axes: Any, span: Span, begin: float, row: int, colour: str) -> None:
    """Draw one event."""
    where = (row - 0.38, 0.76)
    axes.broken_barh([(span.start - begin, span.length)], where, color=colour, linewidth=0)


def main() -> None:
    """Draw it."""
    traces = [recorded() for _ in range(TRIES)]
    quietest = min(traces, key=lambda trace: trace.report.seconds_per_step)
    draw(quietest).savefig(OUTPUT, dpi=120)
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()

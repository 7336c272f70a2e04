"""Draw what the walker does to a program: docs/images/walk.svg.

    python tools/draw_walk.py

A small program logs in a `scan`, in a `cond` and in a `while_loop`. It is traced with its logs on,
and once more under `spool`. Where the boxes stand is fixed here. What is written into them, the
types of what each construct returns and carries in addition, is read from the two programs.
Needs logax.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import logax
from logax import _compat
from logax._log import enable_logs

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "walk.svg"
LENGTH, CAPACITY, LANES = 100, 8, 64

INK, FAINT, PAPER, PANEL = "#1f2328", "#59636e", "#ffffff", "#f3f5f8"
BLOCK, STORE, FLAG = "#bc4c00", "#0550ae", "#6e40c9"
CODE = "Menlo, Consolas, DejaVu Sans Mono, monospace"
PROSE = "Helvetica Neue, Segoe UI, DejaVu Sans, sans-serif"
SHORT = {"float32": "f32", "int32": "i32", "bool": "bool"}


def program(x: Any) -> Any:
    """The program that is drawn."""

    def step(x: Any, i: Any) -> Any:
        logax.log({"loss": x**2}, step=i)
        x = lax.cond(x > 1.0, clip, lambda x: x, x)
        return lax.while_loop(lambda y: y > 0.1, halve, x), None

    def clip(x: Any) -> Any:
        logax.log({"clipped": x})
        return jnp.ones_like(x)

    def halve(y: Any) -> Any:
        logax.log({"residual": y})
        return 0.5 * y

    return lax.scan(step, x, jnp.arange(LENGTH))[0]


class Facts(NamedTuple):
    """What the two programs say, each as types in words."""

    own: str
    """What the loop carried before."""
    loss: str
    branch: str
    stacked_loss: str
    stacked_clipped: str
    store: str
    flag: str
    rows: dict[str, list[str]]
    """For each key its values, how many are real, and the same under `vmap`."""


def facts() -> Facts:
    """Trace both programs and read them."""
    with enable_logs():
        before = jax.make_jaxpr(program)(1.0)
    harvested = logax.spool(program, capacity={"residual": CAPACITY})
    after = jax.make_jaxpr(harvested)(1.0)
    scans = [_only(jaxpr, "scan") for jaxpr in (before, after)]
    old, new = (scan.params["jaxpr"] for scan in scans)
    carried = _compat.scan_operand_counts(scans[1].params)[1]
    results, stacked = scans[1].outvars[:carried], scans[1].outvars[carried:]
    body_results = _compat.jaxpr_and_consts(new)[0].outvars[carried:]
    conds, whiles = ([_only(jaxpr, name) for jaxpr in (old, new)] for name in ("cond", "while"))
    branch = conds[1].outvars[len(conds[0].outvars) :]
    (*store, flag) = whiles[1].outvars[len(whiles[0].outvars) :]
    if _types(store) != _types(results[len(scans[0].outvars) :]):
        raise ValueError("The store that goes through the scan is not the one of the while loop.")
    number = len(branch)
    logs = jax.eval_shape(harvested, 1.0)[1]
    lanes = jax.eval_shape(jax.vmap(harvested), jnp.ones(LANES))[1]
    return Facts(
        own=_types(scans[0].outvars),
        loss=_types(body_results[number:]),
        branch=_types(branch),
        stacked_loss=_types(stacked[number:]),
        stacked_clipped=_types(stacked[:number]),
        store=_types(store),
        flag=_types([flag]),
        rows={
            key: [_type(x) for x in (logs[key], logs.count[key], lanes[key], lanes.count[key])]
            for key in logs
        },
    )


def _only(jaxpr: Any, name: str) -> Any:
    (found,) = [e for e in _compat.jaxpr_and_consts(jaxpr)[0].eqns if e.primitive.name == name]
    return found


def _type(shaped: Any) -> str:
    if isinstance(shaped, int | np.integer):  # known before the program runs
        return str(shaped)
    return f"{SHORT[shaped.dtype.name]}[{','.join(map(str, shaped.shape))}]"


def _types(variables: Any) -> str:
    return ", ".join(_type(variable.aval) for variable in variables)


class Drawing:
    """Shapes of an SVG, one a line."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, title: str, fill: str = PAPER) -> None:
        """A construct of the program."""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" '
            f'stroke="{FAINT}"/>'
        )
        self.text(x + 12, y + 21, title, bold=True)

    def text(
        self,
        x: int,
        y: int,
        words: str,
        colour: str = INK,
        *,
        bold: bool = False,
        code: bool = True,
    ) -> None:
        """A line of text."""
        family = CODE if code else PROSE
        weight = ' font-weight="bold"' if bold else ""
        self.shapes.append(
            f'<text x="{x}" y="{y}" fill="{colour}" font-family="{family}" font-size="13"{weight}>'
            f"{escape(words)}</text>"
        )

    def line(self, colour: str, *points: tuple[int, int], arrow: bool = True) -> None:
        """A way that something travels."""
        path = " L".join(f"{x} {y}" for x, y in points)
        end = f' marker-end="url(#{_name_of(colour)})"' if arrow else ""
        self.shapes.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-linejoin="round"{end}/>'
        )

    def dot(self, x: int, y: int, colour: str) -> None:
        """A log."""
        self.shapes.append(f'<circle cx="{x}" cy="{y}" r="4.5" fill="{colour}"/>')

    def svg(self, width: int, height: int, title: str) -> str:
        """All of it as a file."""
        markers = "\n".join(
            f'<marker id="{_name_of(colour)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 Z" fill="{colour}"/></marker>'
            for colour in (BLOCK, STORE, FLAG, FAINT)
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" role="img">',
                f"<title>{escape(title)}</title>",
                f"<defs>{markers}</defs>",
                f'<rect width="{width}" height="{height}" rx="10" fill="{PANEL}"/>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def _name_of(colour: str) -> str:
    return f"arrow{colour[1:]}"


def draw_before(drawing: Drawing, known: Facts) -> None:
    """The program as it is traced, with a dot for each log."""
    drawing.text(24, 34, "in: the program with its logs", bold=True, code=False)
    drawing.box(24, 50, 250, 376, f"scan, {LENGTH} iterations")
    drawing.text(36, 92, f"carries {known.own}", FAINT)
    drawing.dot(46, 122, BLOCK)
    drawing.text(58, 126, "log loss, step")
    drawing.box(40, 148, 218, 136, "cond", PANEL)
    drawing.box(54, 180, 190, 40, "")
    drawing.text(66, 204, "x ≤ 1", FAINT)
    drawing.box(54, 232, 190, 40, "")
    drawing.text(66, 256, "x > 1", FAINT)
    drawing.dot(126, 252, BLOCK)
    drawing.text(138, 256, "log clipped")
    drawing.box(40, 302, 218, 104, "while", PANEL)
    drawing.text(52, 345, "nobody knows how often", FAINT, code=False)
    drawing.dot(62, 374, STORE)
    drawing.text(74, 378, "log residual")
    drawing.line(FAINT, (286, 230), (340, 230))
    drawing.text(292, 220, "walk", FAINT, code=False)


def draw_after(drawing: Drawing, known: Facts) -> None:
    """The program that is compiled, and the ways of the records."""
    drawing.text(390, 34, "out: the program that is compiled", bold=True, code=False)
    drawing.box(390, 50, 326, 376, f"scan, {LENGTH} iterations")
    drawing.text(402, 92, f"carries {known.own}", FAINT)
    drawing.text(516, 92, f"+ {known.store}", STORE)

    drawing.dot(440, 122, BLOCK)
    drawing.line(BLOCK, (440, 122), (915, 122), (915, 474))
    drawing.text(452, 140, f"loss {known.loss}", BLOCK)
    drawing.text(726, 114, known.stacked_loss, BLOCK)

    drawing.box(428, 148, 276, 136, "cond", PANEL)
    drawing.box(442, 180, 226, 40, "")
    drawing.text(454, 204, f"{known.branch}: not real", BLOCK)
    drawing.box(442, 232, 226, 40, "")
    drawing.dot(456, 252, BLOCK)
    drawing.text(468, 256, f"{known.branch}: real", BLOCK)
    drawing.line(BLOCK, (668, 200), (686, 200), (686, 252), (668, 252), arrow=False)
    drawing.line(BLOCK, (686, 226), (815, 226), (815, 474))
    for y, stacked in zip((218, 246), known.stacked_clipped.split(", "), strict=True):
        drawing.text(726, y, stacked, BLOCK)

    drawing.box(428, 302, 276, 104, "while", PANEL)
    drawing.text(486, 323, f"carries {known.own}", FAINT)
    drawing.text(440, 347, f"+ {known.store}", STORE)
    drawing.text(570, 347, f"+ valid {known.flag}", FLAG)
    drawing.dot(452, 374, STORE)
    drawing.text(464, 378, "residual: a row of the ring", STORE)
    drawing.line(STORE, (372, 76), (372, 106), (408, 106), (408, 342), (426, 342))
    drawing.line(STORE, (428, 374), (408, 374), (408, 446), (590, 446), (590, 474))
    drawing.text(352, 66, "ring", STORE, code=False)


def draw_logs(drawing: Drawing, known: Facts) -> None:
    """What comes out at the end."""
    drawing.box(390, 476, 594, 124, "logdict")
    labels = ("values", "how many are real", f"{LANES} lanes: values", "how many are real")
    for row, label in enumerate(labels):
        drawing.text(402, 524 + 20 * row, label, FAINT, code=False)
    columns = {"residual": (560, STORE), "clipped": (780, BLOCK), "loss": (886, BLOCK)}
    for key, (x, colour) in columns.items():
        drawing.text(x, 500, key, colour, bold=True)
        for row, words in enumerate(known.rows[key]):
            drawing.text(x, 524 + 20 * row, words, colour)


def draw_meanings(drawing: Drawing) -> None:
    """What the colours mean."""
    y = 456
    for colour, name, lines in MEANINGS:
        drawing.dot(30, y - 4, colour)
        drawing.text(42, y, name, colour, bold=True)
        for line in lines:
            drawing.text(94, y, line, code=False)
            y += 17
        y += 4


MEANINGS = (
    (
        BLOCK,
        "block",
        (
            "The program fixes how many: they are",
            "extra results, which a loop stacks.",
            "Branches return room for the most.",
        ),
    ),
    (
        STORE,
        "store",
        ("Nobody knows how many: a ring, or a", "fold, is carried through all loops."),
    ),
    (
        FLAG,
        "valid",
        ("Does this part really run? It is data:", "under vmap each lane has its own."),
    ),
)


def main() -> None:
    """Draw it."""
    known = facts()
    drawing = Drawing()
    draw_before(drawing, known)
    draw_after(drawing, known)
    draw_logs(drawing, known)
    draw_meanings(drawing)
    title = "How records leave a program: blocks as results, stores through the carry of loops"
    OUTPUT.write_text(drawing.svg(1004, 620, title), encoding="utf-8")
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()

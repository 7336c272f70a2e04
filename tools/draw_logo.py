"""Draw the logo of the documentation: a curve seen through a window in a closed box.

    python3 tools/draw_logo.py

Writes docs/assets/logo.svg, white for the header of the site, and docs/assets/favicon.svg.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"
SIZE = 64
WINDOW = (12.0, 14.0, 52.0, 50.0)  # left, top, right, bottom


def loss(x: float) -> float:
    """Return the height of a loss curve with some noise, both between 0 and 1."""
    return math.exp(-3.2 * x) + 0.09 * math.sin(19 * x) * (1 - x)


def curve() -> str:
    """Return the points of the curve inside the window."""
    left, top, right, bottom = WINDOW
    points = []
    for number in range(41):
        x = number / 40
        y = min(max(loss(x), 0.02), 0.98)
        across = left + 3 + x * (right - left - 6)
        points.append(f"{across:.1f},{bottom - 4 - y * (bottom - top - 8):.1f}")
    return " ".join(points)


def drawing(box: str, window: str, line: str) -> str:
    """Return the logo in three colours."""
    left, top, right, bottom = WINDOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}">\n'
        f'  <rect x="3" y="3" width="58" height="58" rx="13" fill="{box}"/>\n'
        f'  <rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="5" '
        f'fill="{window}"/>\n'
        f'  <polyline points="{curve()}" fill="none" stroke="{line}" stroke-width="4" '
        'stroke-linecap="round" stroke-linejoin="round"/>\n'
        "</svg>\n"
    )


def main() -> int:
    """Write both files."""
    (ASSETS / "logo.svg").write_text(drawing("#ffffff", "#3f51b5", "#ffffff"))
    (ASSETS / "favicon.svg").write_text(drawing("#3f51b5", "#ffffff", "#e8590c"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

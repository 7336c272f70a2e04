"""Write the tables of docs/performance.md anew, from the results that the page names.

    python tools/quote_results.py

A comment in the page, `<!-- benchmarks/results/FILE -->` or `<!-- growth in benchmarks/results/FILE
-->`, says which table of which file stands below it. Needs what the benchmarks need.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
COMMENT = re.compile(r"<!-- (growth in )?(benchmarks/results/\S+\.json) -->\n\n")
ROWS = re.compile(r"(?:\S.*\n|\n(?=\||Peak memory|Bytes on disk|\d+ of \d+ goals met))+")


def quoted(page: str) -> str:
    """Return the text of a page with the tables that it is to have."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    program = importlib.import_module("benchmarks.__main__")
    done, at = "", 0
    for comment in COMMENT.finditer(page):
        old = ROWS.match(page, comment.end())
        report: dict[str, Any] = json.loads((ROOT / comment[2]).read_text())
        text = program.grown_table(report) if comment[1] else program.table(report)
        done += f"{page[at : comment.end()]}{text}\n"
        at = old.end() if old else comment.end()
    return done + page[at:]


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(quoted(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

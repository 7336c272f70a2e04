"""Open the built site from its folder in a real browser: does search answer, does every page fit?

    python3 tools/browse_site.py site

Needs Chromium: the program that the environment variable CHROMIUM names, or `chromium` on the PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

QUERY, ANSWER = "first_nonfinite", "logdict.html"
WIDTH_PIXELS = 400
TIMEOUT_SECONDS = 300
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--allow-file-access-from-files",
    "--virtual-time-budget=120000",
    "--dump-dom",
]

MEASURING = """<!doctype html><pre id="widths"></pre><script>
const widths = {};
async function measure(address) {
  const frame = document.createElement("iframe");
  frame.style.width = "%dpx";
  frame.src = address;
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; });
  widths[address] = frame.contentDocument.documentElement.scrollWidth;
  frame.remove();
}
async function all(addresses) {
  for (const each of addresses) await measure(each);
  document.getElementById("widths").textContent = JSON.stringify(widths);
}
all(%s);
</script>"""


def content_of(address: str) -> str:
    """Return the content of a page as a browser shows it, after its scripts have run."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        sys.exit("Chromium is not installed: set CHROMIUM, or install the package `chromium`.")
    with tempfile.TemporaryDirectory() as profile:
        command = [program, *OPTIONS, f"--user-data-dir={profile}", address]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
        )
    return done.stdout


def search_problems(site: Path) -> list[str]:
    """Search the site for a word that one page explains."""
    content = content_of(f"{(site / 'index.html').as_uri()}?q={QUERY}")
    answers = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', content)
    if any(ANSWER in each for each in answers):
        return []
    return [f"a search for {QUERY!r} finds {answers or 'nothing'}, and not {ANSWER}"]


def width_problems(site: Path) -> list[str]:
    """Measure every page in a narrow window."""
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    file = site / "widths.tmp.html"
    file.write_text(MEASURING % (WIDTH_PIXELS, json.dumps(pages)))
    try:
        content = content_of(file.as_uri())
    finally:
        file.unlink()
    measured = re.search(r'<pre id="widths">(\{.*\})</pre>', content)
    widths = json.loads(measured[1]) if measured else {}
    problems = [f"{page} was not measured" for page in pages if page not in widths]
    return problems + [
        f"{page} is {width} pixels wide in a window of {WIDTH_PIXELS}"
        for page, width in widths.items()
        if width > WIDTH_PIXELS
    ]


def main(site: str) -> int:
    """Report problems, and return the exit status."""
    folder = Path(site).resolve()
    problems = search_problems(folder) + width_problems(folder)
    print("\n".join(problems) or f"{site}/ can be searched, and fits {WIDTH_PIXELS} pixels")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

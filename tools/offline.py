"""Fail if a page of the built site loads a script, a style, a font or a picture from elsewhere.

    python3 tools/offline.py site

Links that a reader may follow are free to lead anywhere.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

OUTSIDE = re.compile(r"\s*(?:https?:)?//")
LOADED_BY_STYLE = re.compile(r"(?:url\(\s*|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)")


class Loads(HTMLParser):
    """Collect the addresses that a browser would fetch on its own to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag makes a browser fetch; an `a` fetches nothing by itself."""
        attributes = {name: value or "" for name, value in attrs}
        if tag != "a":
            self.addresses += [attributes.get(name, "") for name in ("src", "srcset", "data")]
        if tag == "link" and attributes.get("rel") != "canonical":
            self.addresses.append(attributes.get("href", ""))
        self.addresses += LOADED_BY_STYLE.findall(attributes.get("style", ""))


def loaded_from_outside(file: Path) -> list[str]:
    """Return the outside addresses that a page or a style sheet loads."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".css":
        return LOADED_BY_STYLE.findall(text)
    loads = Loads()
    loads.feed(text)
    return [address for address in loads.addresses if OUTSIDE.match(address)]


def main(site: str) -> int:
    """Report every page that is not self-contained, and return the exit status."""
    files = [path for path in Path(site).rglob("*") if path.suffix in {".html", ".css"}]
    found = [f"{path}: {address}" for path in files for address in loaded_from_outside(path)]
    print("\n".join(found) or f"{len(files)} files of {site}/ load nothing from outside")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Show CONTRIBUTING.md and CHANGELOG.md, which stand at the root of the repository, on the site.

A hook of MkDocs. The pages are read from where they are, so that there is one copy of each; links
that lead from the root into docs/ are made to start in docs/.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    for source, page in PAGES.items():
        content = (ROOT / source).read_text().replace("](docs/", "](")
        for other, its_page in PAGES.items():
            content = content.replace(f"]({other}", f"]({its_page}")
        files.append(File.generated(config, page, content=content))
    return files

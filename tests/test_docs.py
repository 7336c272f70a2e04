"""The documentation is true: its programs run, its links lead somewhere, nothing is left out.

Every block of Python in README.md and docs/ runs, the blocks of one page in order and in one
namespace, in an empty working directory, and prints what a block of text right behind it shows.
Only a comment right before a block keeps it from running: `<!-- not run: the reason -->`. A page
that uses services (W&B, MLflow, Trackio), or a library that changes the process it is imported in,
runs in a process of its own, which is told to keep all of it in that directory.
"""

import inspect
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import logax
import logax.iterations
import logax.loggers
import logax.loop
import logax.storage
import logax.testing

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*GUIDES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NOT_RUN = 2
"""How many blocks are marked as not run. It grows only with a block that cannot run here."""

REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
WITH_SERVICES = {"docs/destinations.md"}
WITH_FRIENDS = {"docs/kups.md", "docs/nlsq.md"}
"""Pages on libraries that are in the environments with Python 3.13 and newer, there in all."""

OUTPUT_DIFFERS = {
    "docs/how-it-works.md",  # jaxprs look different in each version of JAX
    "docs/iterations.md",  # has times
    "docs/loop.md",  # has bars and times
    "docs/progress.md",  # has bars
    "docs/runs.md",  # has dates
}
"""Pages that show what is not the same each time."""

_NUMBER = re.compile(r" *-?\b\d+(?:\.\d*)?(?:e[-+]?\d+)? *")
NUMBERS, WORDS = _NUMBER.findall, _NUMBER.split

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    code: str
    reason: str | None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(text: str) -> list[Block]:
    blocks = []
    lines = iter(enumerate(text.splitlines(), start=1))
    before = ""
    for number, line in lines:
        if opening := FENCE.match(line):
            indent, fence = len(opening["indent"]), opening["fence"]
            body = []
            for _, inner in lines:
                if inner.strip() == fence:
                    break
                body.append(inner[indent:])
            reason = re.fullmatch(r"<!-- not run: (.+) -->", before)
            language = (opening["info"].split() or [""])[0]
            code = "\n".join(body) + "\n"
            blocks.append(Block(number, language, code, reason[1] if reason else None))
        before = line.strip()
    return blocks


def without_blocks(text: str) -> str:
    """Keep the prose: what stands in a fenced block or in backticks is neither heading nor link."""
    kept, fence = [], None
    for line in text.splitlines():
        marker = FENCE.match(line)
        if fence is None and marker:
            fence = marker["fence"]
        elif fence is not None:
            fence = None if line.strip() == fence else fence
        else:
            kept.append(line)
    return "\n".join(kept)


def anchors_of(page: Path) -> set[str]:
    prose = without_blocks(page.read_text())
    headings = re.findall(r"^#{1,6} +(.+?) *#*$", prose, re.MULTILINE)
    anchors: set[str] = set(re.findall(r"""<a (?:id|name)=["']([^"']+)["']""", prose))
    anchors.update(re.findall(r"\{ *#([\w-]+) *\}", prose))
    anchors.update(re.findall(r"^::: ([\w.]+)", prose, re.MULTILINE))
    for heading in headings:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
        anchors.add(slug)
        # MkDocs folds what is left of removed signs; GitHub does not.
        anchors.add(re.sub(r"-+", "-", slug))
    return anchors


def links_of(page: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", without_blocks(page.read_text()))
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose)
    links += re.findall(r"^\[[^\]]+\]: (\S+)", prose, re.MULTILINE)
    links += re.findall(r"""(?:src|href)=["']([^"']+)["']""", prose)
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def programs_of(page: Path) -> list[tuple[Block, str | None]]:
    """The programs of a page that run, each with the output that is shown right behind it."""
    blocks = blocks_of(page.read_text())
    found: list[tuple[Block, str | None]] = []
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        if block.language in {"python", "py"} and block.reason is None:
            behind = block.line + len(block.code.splitlines()) + 3  # two fences, an empty line
            is_output = after and (after.language, after.line) == ("text", behind)
            found.append((block, after.code if is_output else None))
    return found


def program_of(page: Path) -> str:
    """All programs of a page as one. Its line numbers are those of the page."""
    lines: list[str] = []
    for block, _ in programs_of(page):
        lines += [""] * (block.line - len(lines)) + block.code.splitlines()
    return "\n".join(lines)


def assert_shown(got: str, wanted: str) -> None:
    """The same words and whole numbers; other numbers as far as all machines have them alike."""
    assert WORDS(got) == WORDS(wanted)
    for one, other in zip(NUMBERS(got), NUMBERS(wanted), strict=True):
        if one.strip().lstrip("-").isdigit() and other.strip().lstrip("-").isdigit():
            assert int(one) == int(other)
        else:
            np.testing.assert_allclose(float(one), float(other), rtol=1e-2, atol=1e-4)


def run_by_itself(name: str, tmp_path: Path) -> None:
    """Run the programs of a page in a process of their own."""
    program = tmp_path / "page.py"
    program.write_text(program_of(ROOT / name))
    known = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(program)],
        cwd=tmp_path,
        env={
            **known,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": str(tmp_path),
            "TRACKIO_DIR": str(tmp_path / "trackio"),
            "WANDB_ERROR_REPORTING": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WITH_SERVICES))
def test_every_program_of_a_page_with_services_runs(name: str, tmp_path: Path) -> None:
    run_by_itself(name, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 13), reason="needs Python 3.13")
@pytest.mark.parametrize("name", sorted(WITH_FRIENDS))
def test_every_program_of_a_page_with_friends_runs(name: str, tmp_path: Path) -> None:
    run_by_itself(name, tmp_path)


QUICK = {"README.md", "docs/index.md", "docs/iterations.md", "docs/layout.md"}
"""Pages whose programs run in the fast suite. Those of others take too long to compile."""

IN_PROCESS = [
    pytest.param(page, marks=[] if name_of(page) in QUICK else [pytest.mark.slow], id=name_of(page))
    for page in GUIDES
    if name_of(page) not in WITH_SERVICES | WITH_FRIENDS
]


@pytest.mark.parametrize("page", IN_PROCESS)
def test_every_program_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # So that a program which a page starts finds what the tests find.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    module = ModuleType("page_" + page.stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block, output in programs_of(page):
        # The line numbers of an error, and of a log's site, are those of the page.
        program = "\n" * block.line + block.code
        exec(compile(program, str(page), "exec"), module.__dict__)
        printed = capsys.readouterr().out
        if output is not None and name_of(page) not in OUTPUT_DIFFERS:
            assert_shown(printed, output)


def test_every_block_says_its_language() -> None:
    silent = [
        f"{name_of(page)}:{block.line}"
        for page in PAGES
        for block in blocks_of(page.read_text())
        if not block.language
    ]
    assert silent == []


def test_the_blocks_that_do_not_run_are_counted() -> None:
    marked = [
        f"{name_of(page)}:{block.line}: {block.reason}"
        for page in GUIDES
        for block in blocks_of(page.read_text())
        if block.reason is not None
    ]
    assert len(marked) == NOT_RUN, marked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_our_own_pages_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links_of(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(link)
    assert broken == []


MODULES = (
    logax,
    logax.iterations,
    logax.loggers,
    logax.loop,
    logax.storage,
    logax.testing,
)
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if module is logax or name not in logax.__all__
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    value = PUBLIC[name]
    if inspect.isroutine(value) or inspect.isclass(value):
        assert inspect.getdoc(value), f"`{name}` has no docstring"
        assert value.__doc__, f"`{name}` only inherits a docstring"
    assert re.search(rf"^::: {re.escape(name)}$", REFERENCE, re.MULTILINE), (
        f"docs/reference/ has no `::: {name}`"
    )


def test_the_reference_has_public_names_only_and_each_once() -> None:
    assert sorted(re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)) == sorted(PUBLIC)


def code_in(page: Path) -> str:
    """What a page says in code: its programs, and what stands in backticks."""
    text = page.read_text()
    programs = [block.code for block in blocks_of(text) if block.language in {"python", "py"}]
    return "\n".join([*programs, *re.findall(r"`([^`\n]+)`", without_blocks(text))])


CODE = "\n".join(code_in(page) for page in GUIDES if page.parent.name != "reference")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_explained_in_a_guide(name: str) -> None:
    assert re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", CODE)


def test_the_table_of_files_has_all_of_them() -> None:
    table = (ROOT / "docs" / "how-it-works.md").read_text().partition("## Files")[2]
    paths = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)))
    told = {Path(path).name for path in paths}
    source = ROOT / "src" / "logax"
    files = {path.name for path in [*source.glob("*.py"), *source.glob("_harvest/*.py")]}
    folders = {path.parent.name for path in source.glob("*/__init__.py")}
    assert (files | folders) - {"_harvest", "loggers"} <= told

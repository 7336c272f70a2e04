"""The scripts behind the Makefile, as far as they decide whether something passes."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from campaign_results import write_results
from environments import newest_jax
from interpreters import KNOWN, NotFoundError, find, number
from offline import main as offline
from pins import ROWS

ROOT = Path(__file__).resolve().parent.parent


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


def test_a_missing_interpreter_is_an_error_that_says_what_was_searched() -> None:
    with pytest.raises(NotFoundError, match=r"Python 3\.99 was not found") as caught:
        find("3.99")
    assert "on the PATH" in str(caught.value)
    assert "under `pyenv root`" in str(caught.value)


def test_a_site_may_link_outside_but_not_load_from_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "page.html", '<a href="https://a.example">a</a><script src="a.js"></script>')
    write(tmp_path, "style.css", "body { background: url(a.png) }")
    assert offline(str(tmp_path)) == 0
    capsys.readouterr()

    write(tmp_path, "page.html", '<script src="https://b.example/b.js"></script>')
    write(tmp_path, "other.html", '<link rel="stylesheet" href="//c.example/c.css">')
    write(tmp_path, "style.css", "@import 'https://d.example/d.css';")
    assert offline(str(tmp_path)) == 1
    addresses = [line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert sorted(addresses) == [
        "//c.example/c.css",
        "https://b.example/b.js",
        "https://d.example/d.css",
    ]


def test_an_empty_site_does_not_pass(tmp_path: Path) -> None:
    assert offline(str(tmp_path)) == 1


def test_the_matrix_of_the_makefile_is_every_jax_that_there_are_versions_for() -> None:
    written = (ROOT / "Makefile").read_text().partition("MATRIX := ")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"jax-([\d.]+)-python-([\d.]+)", written))
    assert list(rows) == list(ROWS)
    assert all(number(rows[jax]) >= number(oldest) for jax, oldest in ROWS.items())
    assert {*rows.values()} == {*KNOWN}
    assert newest_jax(KNOWN[0]) == list(ROWS)[-1]
    assert ROWS[newest_jax(KNOWN[-1])] == KNOWN[-1]


def recipes_of(target: str) -> str:
    """What make would run for a target, in the newest row where it can choose."""
    newest = f"jax-{list(ROWS)[-1]}-python-{KNOWN[0]}"
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target, f"DEFAULT={newest}"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def test_older_rows_of_the_matrix_leave_out_files_that_exist() -> None:
    of_rows = re.findall(r"^\.envs/(\S+)/bin/python (.*?)&&", recipes_of("matrix"), re.M | re.S)
    ignored = {row: re.findall(r"--ignore=(\S+)", words) for row, words in of_rows}
    *older, newest = ignored
    assert ignored[newest] == []
    assert len(older) == len(ROWS) - 1
    for row in older:
        assert ignored[row] == ignored[older[0]] != []
    assert [path for path in ignored[older[0]] if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("target", "first", "last"),
    [
        ("test", 'echo "Running the tests on jax-', "echo 'A part of them: make test ARGS="),
        ("docs", 'echo "Building the documentation', 'echo "The documentation is in site/.'),
    ],
)
def test_a_target_says_what_it_does_and_where_the_result_is(
    target: str, first: str, last: str
) -> None:
    lines = [line for line in recipes_of(target).splitlines() if "tools/environments" not in line]
    said = [line for line in lines if line.startswith("echo ")]
    assert said[0].startswith(first)
    assert said[-1].startswith(last)
    assert lines[-1] == said[-1]


def test_the_results_of_campaigns_have_counts_and_versions(tmp_path: Path) -> None:
    campaigns = [
        {"campaign": "b", "outcome": "passed", "seconds": 2.0, "kills": 12},
        {"campaign": "a", "outcome": "failed", "seconds": 1.0, "outcomes": {"told": 3}},
    ]
    file = write_results(tmp_path, campaigns)
    found = json.loads(file.read_text())
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-campaigns-jax-{found['jax']}\.json", file.name)
    assert {"date", "jax", "jaxlib", "numpy", "python", "campaigns"} == set(found)
    assert found["campaigns"] == campaigns[::-1]


@pytest.mark.parametrize("jax", ROWS)
def test_what_the_environments_of_the_tests_are_made_of_has_a_version(jax: str) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pins = (ROOT / "requirements" / f"constraints-jax-{jax}.txt").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==", pins, re.MULTILINE))
    wanted = {
        re.split(r"[ ;\[<>=]", dependency)[0].lower()
        for group in ("test", "check", "friends", "demo")
        for dependency in groups[group]
    }
    assert {"jax", "numpy", "tqdm"} | wanted <= pinned

"""The scripts behind the Makefile, as far as they decide whether something passes."""

from pathlib import Path

import pytest

from interpreters import NotFoundError, find
from offline import main as offline


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

"""The page of the command is true: what it shows is what the command prints.

What differs from time to time (ids, times, the machine) is left out of the comparison, and so is
how far columns are apart because of it.
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "command.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = {
    r"\d{8}-\d{6}(-[0-9a-f]{8}(-\d+)*)?": "ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "WHEN",
    r"\d+\.\d s\b": "LASTED",
    r"(?m)^machine .*$": "MACHINE",
    r'"(began|ended|duration)": [\d.e-]+': "SECONDS",
    r" +": " ",
}


def compared(text: str) -> str:
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return text


def test_what_the_page_shows_is_what_the_command_prints(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    blocks = BLOCK.findall(PAGE.read_text())
    exec(compile(blocks[0][1], str(PAGE), "exec"), {"__name__": "page"})
    printed = None
    shown = 0
    for language, code in blocks[1:]:
        if language == "sh":
            ended = [call(*shlex.split(line)[1:]) for line in code.splitlines()]
            assert [each.status for each in ended] == [0] * len(ended)
            printed = "".join(each.out for each in ended)
        elif language in ("text", "json") and printed is not None:
            assert compared(printed) == compared(code)
            shown, printed = shown + 1, None
        else:
            printed = None
    assert shown == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fast.jsonl", "fast.npz", "fast.parquet", "runs", "sweep.csv", "sweep.svg", "two.png",
    ]  # fmt: skip


def test_every_command_has_a_chapter_and_an_example() -> None:
    text = PAGE.read_text()
    commands = ["ls", "show", "tail", "export", "compare", "plot", "verify", "doctor"]
    assert re.findall(r"^## `logax (\w+)`$", text, re.MULTILINE) == commands
    examples = "".join(code for language, code in BLOCK.findall(text) if language == "sh")
    used = {shlex.split(line)[1] for line in examples.splitlines()}
    assert used == set(commands)


def test_the_json_of_the_page_is_json() -> None:
    found = [code for language, code in BLOCK.findall(PAGE.read_text()) if language == "json"]
    assert [type(json.loads(code)) for code in found] == [list, dict]

"""The command as a whole: its help, how mistakes are told, and how it ends."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax

Call = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]
COMMANDS = ["ls", "show", "tail", "export", "compare", "plot", "verify", "doctor"]
ROOT = Path(__file__).resolve().parents[2]


def test_help_lists_the_commands(call: Call) -> None:
    ended = call("--help")
    assert (ended.status, ended.err) == (0, "")
    listed = [line.split()[0] for line in ended.lines if line.startswith("    ")]
    assert [name for name in listed if name in COMMANDS] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_shows_an_example(call: Call, command: str) -> None:
    ended = call(command, "--help")
    assert (ended.status, ended.err) == (0, "")
    examples = ended.out.partition("\nexample:\n")[2].splitlines()
    assert examples
    assert all(line.startswith(f"  logax {command}") for line in examples)


def test_it_says_its_version(call: Call) -> None:
    assert call("--version") == (0, f"logax {logax.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["list"], "invalid choice: 'list'"),
        (["show"], "the following arguments are required: RUN\n"),
        (["tail"], "the following arguments are required: RUN\n"),
        (["ls", "a", "b"], "unrecognized arguments: b"),
        (["show", "a", "--wat"], "unrecognized arguments: --wat"),
        (["plot", "a", "x"], "the following arguments are required: -o/--output"),
        (["plot", "a", "-o", "x.png"], "the following arguments are required: KEY"),
        (["plot", "a", "x", "-o", "x.png", "--band", "--lines"], "not allowed with argument"),
    ],
)
def test_a_mistake_in_use_ends_with_2(call: Call, arguments: list[str], said: str) -> None:
    ended = call(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("usage: logax")
    assert said in ended.err


def test_keys_may_stand_before_and_after_options(call: Call, store: Path) -> None:
    ended = call("export", "first", "loss", "--to", "csv", "--path", store, "hits")
    assert ended.lines[0] == "step,loss,hits"
    ended = call("show", "first", "--path", store, "--json", "hits")
    assert list(json.loads(ended.out)["keys"]) == ["hits"]


def test_the_project_installs_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["logax"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_it_runs_as_a_module(start: Start, store: Path, ids: dict[str, str]) -> None:
    program = start("ls", store, "--json")
    out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")
    assert [run["id"] for run in json.loads(out)] == list(ids.values())


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(start: Start, saved: Any) -> None:
    path = saved({"x": np.arange(50_000.0)})
    program = start("export", "last", "--to", "csv", "--path", path)
    assert program.stdout is not None
    assert program.stdout.readline() == "x\n"
    program.stdout.close()
    assert program.stderr is not None
    assert program.stderr.read() == ""
    assert program.wait(60) == 0


@pytest.mark.slow
def test_a_reader_that_is_gone_from_the_beginning_is_no_error(start: Start, store: Path) -> None:
    program = start("ls", store)
    assert program.stdout is not None
    program.stdout.close()
    assert program.stderr is not None
    assert program.stderr.read() == ""
    assert program.wait(60) == 0


def test_help_imports_neither_jax_nor_numpy() -> None:
    program = (
        "import sys\n"
        "from logax._cli import main\n"
        "main(['--help'])\n"
        "print('heavy', sorted({'jax', 'numpy'} & {*sys.modules}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "heavy []"


def test_to_read_starts_no_accelerator(store: Path) -> None:
    program = (
        "import sys, jax\n"
        "from logax._cli import main\n"
        f"sys.argv = ['logax', 'show', 'first', '--path', {str(store)!r}]\n"
        "main()\n"
        "print('platforms', jax.config.jax_platforms)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "platforms cpu"

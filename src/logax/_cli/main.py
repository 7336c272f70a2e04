"""The parser of the command, and how it ends.

| exit status | meaning |
| --- | --- |
| 0 | all is well, or whoever read the output has seen enough |
| 1 | nothing was found, or it could not be done: the standard error says what to do |
| 2 | the command was written wrongly |
| 130 | it was interrupted |
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import jax

import logax
from logax._cli import compare, doctor, export, ls, plot, show, tail, verify
from logax._cli.options import CommandError
from logax._cli.terminal import safe_lines
from logax._runs.errors import RunsError

_COMMANDS = (ls, show, tail, export, compare, plot, verify, doctor)
_ABOUT = "Look at the runs that `SaveLogger` and `logax.save` have written."
_RUNS = """\
a run is named by its id, the beginning of its id, or its name; `last` is the newest.
`logax COMMAND --help` says more, with an example.

example:
  logax ls
  logax show last loss
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status.

    Args:
      arguments: What stands after `logax`; None for what this process was started with.
    """
    try:
        options = _parsed(arguments)
    except SystemExit as end:  # after `--help`, or a mistake that was told
        return _flushed(end.code if isinstance(end.code, int) else 2)
    if arguments is None and options.command != "doctor":
        # To read needs no accelerator, whose memory a run may be using.
        jax.config.update("jax_platforms", "cpu")
    with _plain_warnings(options.command):
        return _ended(options)


def parser() -> argparse.ArgumentParser:
    """What the command understands."""
    whole = argparse.ArgumentParser(
        "logax",
        description=_ABOUT,
        epilog=_RUNS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"logax {logax.__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for each in _COMMANDS:
        each.add(commands).set_defaults(run=each.run)
    return whole


def _parsed(arguments: Sequence[str] | None) -> Any:
    """The options. Keys may stand before and after them, which `argparse` alone does not allow."""
    whole = parser()
    options, rest = whole.parse_known_args(arguments)
    if rest and (not hasattr(options, "keys") or any(text.startswith("-") for text in rest)):
        whole.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.keys = [*options.keys, *rest]
    return options


def _ended(options: Any) -> int:
    try:
        return _flushed(options.run(options))
    except BrokenPipeError:  # of `logax ... | head`
        return _let_go()
    except KeyboardInterrupt:
        return 130
    except (CommandError, RunsError, ImportError) as error:
        _tell(options.command, str(error))
    except OSError as error:
        _tell(options.command, _said_by_system(error))
    except MemoryError:
        _tell(options.command, "there is not enough memory for this. Name fewer runs or keys.")
    return 1


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _let_go()
    return status


def _let_go() -> int:
    """Have nothing more be written, not even when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 0


def _said_by_system(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    name = error.filename2 or error.filename  # the second is where it was to be
    return f"{error.strerror}: {name}" if name else error.strerror


def _tell(command: str, text: str) -> None:
    sys.stderr.write(safe_lines(f"logax {command}: {text}", sys.stderr) + "\n")


@contextmanager
def _plain_warnings(command: str) -> Iterator[None]:
    """Warnings as a line each, without the line of code that they point to."""

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        _tell(command, f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show_warning
        yield

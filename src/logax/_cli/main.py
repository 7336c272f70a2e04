"""Parse the command line, run the chosen command and return its exit status.

| exit status | meaning |
| --- | --- |
| 0 | success, or the reader of the output closed the pipe |
| 1 | nothing was found, or the command failed: the standard error says what to do |
| 2 | the command line is invalid |
| 130 | the command was interrupted |

Only the module of the chosen command is imported: `logax --help` needs neither JAX nor NumPy.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from logax._version import __version__

_COMMANDS = {
    "ls": "list the runs in a folder, newest last",
    "show": "show a run, its keys and their curves",
    "tail": "print records as they arrive, until the run ends",
    "export": "write runs to a file for other programs",
    "compare": "compare runs side by side",
    "plot": "draw curves of runs into a figure",
    "verify": "check files for damage",
    "doctor": "check that logging works on this machine",
}
_DESCRIPTION = "Inspect the runs that `SaveLogger` and `logax.save` have written."
_EPILOG = """\
a run is given by its id, the beginning of its id, or its name; `last` is the newest.
`logax COMMAND --help` describes a command and shows an example.

example:
  logax ls
  logax show last loss
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
      arguments: Arguments after `logax`; None for those of this process.
    """
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:  # after `--help`, or an error that argparse has printed
        return _flush(end.code if isinstance(end.code, int) else 2)
    if arguments is None and options.command != "doctor":
        # Reading needs no accelerator, and a run may be using its memory.
        importlib.import_module("jax").config.update("jax_platforms", "cpu")
    with _one_line_warnings(options.command):
        return _run(options)


def _build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser. Only the chosen command has its arguments."""
    parser = argparse.ArgumentParser(
        "logax",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"logax {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == command:
            module = importlib.import_module(f"logax._cli.{name}")
            subparser.epilog = f"example:\n{module.EXAMPLE}"
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _parse(arguments: Sequence[str]) -> Any:
    """Parse options. Keys may precede and follow options, which argparse alone does not allow."""
    command = next((text for text in arguments if not text.startswith("-")), None)
    parser = _build_parser(command)
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "keys") or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.keys = [*options.keys, *rest]
    return options


def _run(options: Any) -> int:
    # Imported here because both modules need JAX.
    from logax._cli.options import CommandError  # noqa: PLC0415
    from logax._runs.errors import RunsError  # noqa: PLC0415

    try:
        return _flush(options.run(options))
    except BrokenPipeError:  # of `logax ... | head`
        return _discard_output()
    except KeyboardInterrupt:
        return 130
    except (CommandError, RunsError, ImportError) as error:
        _print_error(options.command, str(error))
    except OSError as error:
        _print_error(options.command, _system_message(error))
    except MemoryError:
        _print_error(options.command, "there is not enough memory. Name fewer runs or keys.")
    return 1


def _flush(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    return status


def _discard_output() -> int:
    """Redirect the standard output to nowhere, so that Python does not fail to flush it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 0


def _system_message(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    name = error.filename2 or error.filename  # the second is the target of a rename
    return f"{error.strerror}: {name}" if name else error.strerror


def _print_error(command: str, text: str) -> None:
    from logax._cli.terminal import escape_lines  # noqa: PLC0415 - needs NumPy

    sys.stderr.write(escape_lines(f"logax {command}: {text}", sys.stderr) + "\n")


@contextmanager
def _one_line_warnings(command: str) -> Iterator[None]:
    """Print warnings without the source line that Python adds."""

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        _print_error(command, f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show_warning
        yield

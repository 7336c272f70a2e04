"""The options that several commands have."""

from __future__ import annotations

import argparse

STORE = "runs"
STORE_HELP = f"the folder that was given to `SaveLogger`, or a file in it (default: {STORE})"
RUN_HELP = "id, beginning of an id, or name of a run; `last` for the newest"
RUNS_HELP = (
    "as for one run, or what several have in common: a glob of names ('lr-*'), the beginning of "
    "ids, a name without the number of the seed, a group; `last` with all its seeds, or `all`"
)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    example: str,
) -> argparse.ArgumentParser:
    """A command, with an example in its help."""
    return commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_path(parser: argparse.ArgumentParser) -> None:
    """The option that says where the runs are."""
    parser.add_argument("--path", default=STORE, help=STORE_HELP)


def whole(text: str) -> int:
    """A number of 0 or more, as an option."""
    number = int(text) if text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return number

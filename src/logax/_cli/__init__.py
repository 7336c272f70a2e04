"""The command `logax`: inspect runs from a shell.

| file | contents |
| --- | --- |
| `main.py` | top-level parser, lazy import of the chosen command, exit status |
| `options.py` | shared options; find runs by id, name, glob or group; select keys |
| `terminal.py` | escaped text, tables and JSON on the standard output |
| `columns.py` | records of a run by key and leaf, and their summaries |
| `records.py` | records of a run one by one, in order |
| `ls.py` | `logax ls`: list runs |
| `show.py` | `logax show`: describe a run and draw curves in the terminal |
| `tail.py` | `logax tail`: print records as they arrive |
| `export.py` | `logax export`: write CSV, JSON lines, npz or parquet |
| `compare.py` | `logax compare`: compare runs in tables |
| `plot.py` | `logax plot`: draw curves into a figure |
| `verify.py` | `logax verify`: find damaged files |
| `doctor.py` | `logax doctor`: check the installation |

The module of a command defines `EXAMPLE`, `add_arguments(parser)` and `run(options)`, which returns
the exit status. A mistake of the user is a `CommandError`, printed to the standard error without a
traceback. All text of users is escaped before it is printed, so that a key cannot move the cursor
or change colours; the output of `--json` is ASCII.
"""

from logax._cli.main import main as main

__all__ = ["main"]

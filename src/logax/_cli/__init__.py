"""The command `logax`: look at runs from a shell.

    main               the parser, and how a mistake is told
    choice, census     which runs are meant; what all of them come to
    columns, records   what a run has logged: by key, and record by record
    summary            what a table says of a key
    page, drawing      text and curves for a terminal
    sides              how compared runs stand
    wide, arrays       records as a table in CSV; arrays as npz and parquet
    picture, lost      the panels of a plot; what they leave out
    checks             what `doctor` looks at
    errors             what is told to users
    ls, show, tail, export, compare, plot, doctor
                       one command each: `add` says how it is called, `run` does it

A command returns 0, or 1 where there is nothing to show. What a user did wrong is a `CommandError`,
told on the standard error without a traceback. All text of users is escaped before it is shown, so
that no name of a key can move the cursor or colour the screen; what `--json` prints is ASCII.
"""

from logax._cli.main import main as main

__all__ = ["main"]

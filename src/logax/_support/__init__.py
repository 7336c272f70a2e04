"""Shared helpers that know nothing about logging.

| file | contents |
| --- | --- |
| `arrays.py` | record and lane axes, missing steps, device copies, leaf names |
| `exit_functions.py` | functions that run when Python exits |
| `figures.py` | series of values, and figures of them |
| `files.py` | validate paths, create folders, replace files atomically |
| `formatting.py` | text for people: names, numbers, times, summaries, tables, sparklines |
| `imports.py` | import optional packages and public names on use |
| `messages.py` | describe values and errors, warn users, raise several errors |
| `processes.py` | file locks; objects that are reset in forked processes |
| `progress_bars.py` | progress bars on terminals, in notebooks and in files |
| `redaction.py` | remove credentials from text and errors |
| `validation.py` | validate options of public functions |
"""

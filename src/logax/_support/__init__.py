"""Shared helpers that know nothing about logging.

| file | contents |
| --- | --- |
| `arrays.py` | record and lane axes, missing steps, device copies, leaf names |
| `csv_text.py` | split and quote records of comma-separated values |
| `figures.py` | series of values, and figures of them |
| `files.py` | validate paths, create folders, replace files atomically |
| `forks.py` | reset objects with locks and threads in forked processes |
| `formatting.py` | text for people: names, numbers, times, tables, sparklines |
| `imports.py` | import optional packages on use |
| `lazy.py` | re-export public names lazily |
| `locks.py` | advisory file locks |
| `messages.py` | describe values and errors, warn users, raise several errors |
| `progress_bars.py` | progress bars on terminals, in notebooks and in files |
| `redaction.py` | remove credentials from text and errors |
| `summary.py` | summary statistics of one key |
| `validation.py` | validate options of public functions |
"""

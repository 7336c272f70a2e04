"""What `ConsoleLogger` writes where there is no terminal: the last line of each run."""

import itertools
import re

from logax.loggers._console.lines import MOST_KEYS
from logax.testing import Seen

_LINE = re.compile(r"run (?P<name>.*?): (?P<where>no records|\w+ \d+|\d+ records?)(?P<values>.*), "
                   r"(?P<status>\w+) in [\d:]+")  # fmt: skip
_VALUE = re.compile(r" (.+?)=(\S+) \([^)]*\)(?= |\Z)")


def read_console(text):
    """The last value of each key, of runs that end by themselves. No x belongs to it."""
    runs = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        values = _VALUE.findall(found["values"])
        columns = {_plain(name): [(None, float(value))] for name, value in values}
        runs[found["name"]] = Seen(columns, found["status"])
    return runs


def last_of(runs, most=MOST_KEYS):
    """What is left of runs in their last lines: the first keys only, unless they are chosen."""
    return {
        name: Seen(
            {
                key: [(None, records[-1][1])]
                for key, records in itertools.islice(run.columns.items(), most)
            },
            run.status,
        )
        for name, run in runs.items()
    }


def _plain(name):
    """What would move the cursor is escaped."""
    return re.sub(r"\\(?:n|t|u[0-9a-f]{4})", _letter, name)


def _letter(escaped):
    return escaped[0].encode().decode("unicode_escape")

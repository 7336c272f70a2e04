"""Read the last line of each run that `ConsoleLogger` writes without a terminal."""

import itertools
import re

from logax.loggers._console.console_sink import MAX_KEYS_PER_LINE
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


def last_of(runs, most=MAX_KEYS_PER_LINE):
    """Return the part of runs that their last lines show: the first keys, unless chosen."""
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
    """Undo the escapes of control characters."""
    return re.sub(r"\\(?:n|t|u[0-9a-f]{4})", _letter, name)


def _letter(escaped):
    return escaped[0].encode().decode("unicode_escape")

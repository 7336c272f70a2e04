"""Files of runs for tests: one with something of everything, and copies that were tampered with."""

from __future__ import annotations

import collections
import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import jax
import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._runs.format import COUNTED_TABLES, block_checksums, row_checksum
from logax.loggers.save import SaveSink

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"


def write_runs(folder: Path, name: str, *, end: bool) -> SaveSink:
    """Write a file with something of everything."""
    sink = SaveSink(folder)
    runs = [RunInfo(f"{name}-{i}", name, {"array": np.arange(3)}, 1.0, {"h": 1}) for i in range(3)]
    sink.open(runs)
    values = {
        "x": np.arange(30, dtype=np.float32).reshape(3, 10),
        "tree": {"w": np.ones((3, 10, 2)), "k": jax.random.split(jax.random.key(0), (3, 10))},
        "large": np.zeros((3, 10, 3000)),
    }
    real = np.arange(30).reshape(3, 10) % 4 > 0
    for mask in (None, real):
        sink.write(RecordBatch.of(runs, values, real=mask, step=np.ones((3, 10), np.int32)))
    lanes = tuple(Stream(runs[0], (i,)) for i in range(2))
    sink.write(RecordBatch(lanes, {"lanes": np.ones((2, 5))}, {}, np.ones((2, 5))))
    sink.close(runs[:2], "finished")
    sink.flush()
    if end:
        sink.end()
    return sink


def write_damaged_batch(folder: Path) -> Path:
    """Write a file of four runs that log side by side, and flip a byte of two of them.

    Run 2 lacks the first of its two batches of `v`, and run 3 all of its `w`.
    """
    sink = SaveSink(folder)
    runs = [RunInfo(f"m-{i}", f"m-{i}", {}, 1.0, {}) for i in range(4)]
    sink.open(runs)
    v = np.arange(40_000.0).reshape(4, 10_000)
    sink.write(RecordBatch.of(runs, {"v": v, "w": -v}))
    sink.write(RecordBatch.of(runs, {"v": v[:, :5] + 0.5}))
    sink.close(runs, "finished")
    sink.end()
    (file,) = folder.glob("*.sqlite")
    data = bytearray(file.read_bytes())
    for values in (v[2], -v[3]):
        data[data.index(values[5000:5004].tobytes())] ^= 1
    file.write_bytes(data)
    return file


def altered(original: Path, folder: Path, *statements: str, sealed: bool = False) -> Path:
    """Copy a file, change it, and with `sealed` make its checksums those of the new content."""
    bad = folder / "bad.sqlite"
    shutil.copy(original, bad)
    with closing(sqlite3.connect(bad, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)
        if sealed:
            seal(connection)
    return bad


def random_rewrites(original: Path, times: int, seed: int) -> list[str]:
    """Return statements that each change one number or text of a file, at random."""
    chance = random.Random(seed)
    cells = collections.defaultdict(list)
    with closing(sqlite3.connect(original)) as connection:
        connection.row_factory = sqlite3.Row
        for table in (*COUNTED_TABLES, "tally"):
            for row in connection.execute(f"SELECT * FROM {table}"):
                for column in row.keys():  # noqa: SIM118 - to iterate over a row gives its values
                    if column not in ("crc", "length") and isinstance(row[column], int | str):
                        cells[table, column].append((row["number"], row[column]))
    found = []
    for _ in range(times):
        (table, column), rows = chance.choice(list(cells.items()))
        number, value = chance.choice(rows)
        if column == "number":  # which must not be that of another row
            new = str(value + 2 ** chance.randrange(5, 60))
        elif isinstance(value, int):
            new = str(_another_number(value, chance))
        else:
            new = "'" + _another_text(value, chance).replace("'", "''") + "'"
        found.append(f"UPDATE {table} SET {column} = {new} WHERE number = {number}")
    return found


def _another_number(value: int, chance: random.Random) -> int:
    large = [2**31, 2**40, 2**62, 2**63 - 1, 1 - 2**63]
    near = [0, 1, -1, value + 1, value - 1, 2 * value, chance.randrange(100)]
    return chance.choice([*large, *near])


def _another_text(text: str, chance: random.Random) -> str:
    at, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    numbers = list(re.finditer("[0-9]+", text))
    words = list(re.finditer('"[^"]*"', text))
    kind = chance.choice(["number", "number", "word", "cut", "twice", "insert"])
    if kind in ("number", "word") and (matches := numbers if kind == "number" else words):
        match = chance.choice(matches)
        new = chance.choice(words).group() if kind == "word" else ""
        new = new or str(_another_number(int(match.group()), chance))
        return text[: match.start()] + new + text[match.end() :]
    if kind == "cut":
        return text[:at] + text[end:]
    if kind == "twice":
        return text[:end] + text[at:]
    return text[:at] + chance.choice('[]{}",:-0e') + text[at:]


def seal(connection: sqlite3.Connection) -> None:
    """Write the right checksum to each row, whatever is in it."""
    connection.execute("BEGIN")
    for table in ("portions", "blobs"):
        rows = connection.execute(f"SELECT number, data FROM {table}").fetchall()
        for number, data in rows:
            if isinstance(data, bytes):
                connection.execute(
                    f"UPDATE {table} SET length = ?, checks = ? WHERE number = ?",
                    (len(data), block_checksums(data), number),
                )
    connection.execute("UPDATE tally SET " + ", ".join(_count(table) for table in COUNTED_TABLES))
    for table in (*COUNTED_TABLES, "tally"):
        info = connection.execute(f"PRAGMA table_info({table})").fetchall()
        names = ", ".join(row[1] for row in info if row[1] not in ("crc", "data"))
        connection.text_factory = lambda data: data.decode(errors="surrogateescape")
        for row in connection.execute(f"SELECT {names} FROM {table}").fetchall():
            values = [_bytes(value) for value in row]
            crc = row_checksum(table, *values)
            connection.execute(f"UPDATE {table} SET crc = ? WHERE number = ?", (crc, row[0]))
        connection.text_factory = str
    connection.execute("COMMIT")


def _count(table: str) -> str:
    return f"{table} = (SELECT coalesce(max(number), 0) FROM {table})"


def _bytes(value: object) -> object:
    return value.encode(errors="surrogateescape") if isinstance(value, str) else value

"""Make the checksums and the tally of a file of runs those of its content, as an attacker would."""

from __future__ import annotations

import sqlite3

from logax._runs.checksums import block_checksums, row_checksum
from logax._runs.format import COUNTED


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
    connection.execute("UPDATE tally SET " + ", ".join(_count(table) for table in COUNTED))
    for table in (*COUNTED, "tally"):
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

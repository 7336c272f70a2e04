"""What stands in a file of runs. The version counts changes of it.

    texts     the configs of runs and the facts of their machines, as JSON; each once
    runs      one row for each time that a run was opened here: when, what it is (JSON: id, name,
              group, lane, lanes, began, resumed), and the texts of its config and its machine. One
              with `guest` was never opened in this process, which was forked from another.
    ends      when runs ended, and how: "finished" or "crashed"
    streams   families: the streams that log side by side, each with its place in the family, its
              run, its lane (JSON) and its shard
    layouts   what the records of one `log` call look like, as JSON (see `layouts`)
    portions  records: of which family and layout, how many streams and records, and their bytes
    blobs     the bytes of what is large

Rows are only ever added, and everything that refers to another row stands after it.

**The bytes of a portion** are arrays one after the other, all little-endian and without gaps, each
with the streams first and then the records:

    counts    if `ragged` is 1: how many of its records each stream has, uint32
    steps     in the order of the layout; one that is alike for all streams, which bit `i` of
              `alike` says of step `i`, stands there once, without the axis of streams
    leaves    in the order of the layout: of the first key, of the second, ...

A typed PRNG key is its numbers. An array of `LARGE` bytes or more stands alone: in rows of `blobs`
of `CHUNK` bytes each, of which the last may have less. Smaller ones share `data`, as long as that
does not exceed `CHUNK`; what does not fit stands alone too. Rows of `blobs` follow one another,
from the one that the portion calls `blob`.
"""

from __future__ import annotations

APPLICATION = 0x4C4F4758  # in the head of the file: "LOGX"
VERSION = 1
SUFFIX = ".sqlite"
LOCK = ".lock"

LARGE = 2**14
CHUNK = 2**20
PAGE = 2**13  # of SQLite: small enough for a commit of few numbers, large enough for many

FINISHED, CRASHED, RUNNING = "finished", "crashed", "running"

SCHEMA = (
    "CREATE TABLE texts (number INTEGER PRIMARY KEY, content TEXT NOT NULL)",
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, opened REAL NOT NULL, guest INTEGER NOT NULL, "
    "content TEXT NOT NULL, config INTEGER NOT NULL, machine INTEGER NOT NULL)",
    "CREATE TABLE ends (number INTEGER PRIMARY KEY, run INTEGER NOT NULL, ended REAL NOT NULL, "
    "status TEXT NOT NULL)",
    "CREATE TABLE streams (run INTEGER NOT NULL, family INTEGER NOT NULL, place INTEGER NOT NULL, "
    "lane TEXT NOT NULL, shard INTEGER, PRIMARY KEY (run, family, place)) WITHOUT ROWID",
    "CREATE TABLE layouts (number INTEGER PRIMARY KEY, content TEXT NOT NULL)",
    "CREATE TABLE portions (number INTEGER PRIMARY KEY, family INTEGER NOT NULL, "
    "layout INTEGER NOT NULL, streams INTEGER NOT NULL, records INTEGER NOT NULL, "
    "ragged INTEGER NOT NULL, alike INTEGER NOT NULL, blob INTEGER NOT NULL, "
    "written REAL NOT NULL, data BLOB NOT NULL)",
    "CREATE INDEX portions_of_family ON portions (family)",
    "CREATE TABLE blobs (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)

"""Files that no logger has written, or that something has damaged: one error, and nothing else."""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import sqlite3
import struct
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import logax
from logax._runs.format import PAGE
from logax.loggers.save import SaveSink
from logax.loggers.sink import Portion, RunInfo, Stream
from run_sealing import seal
from storage_processes import run


def write(folder: Path, name: str, *, end: bool) -> SaveSink:
    """A file with something of everything."""
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
        sink.write(Portion.of(runs, values, real=mask, step=np.ones((3, 10), np.int32)))
    lanes = tuple(Stream(runs[0], (i,)) for i in range(2))
    sink.write(Portion(lanes, {"lanes": np.ones((2, 5))}, {}, np.ones((2, 5))))
    sink.close(runs[:2], "finished")
    sink.flush()
    if end:
        sink.end()
    return sink


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    write(folder, "bad", end=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose writer was killed, with its log beside it."""
    folder, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("killed")
    sink = write(folder, "bad", end=False)
    for file in folder.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copy(file, copy / file.name)
    sink.end()
    (file,) = copy.glob("*.sqlite")
    return file


def read_all(path: Path) -> int:
    """Everything that can be read; how many runs there are."""
    runs = logax.load(path)
    repr(runs)
    for each in runs.values():
        _ = each.logs, each.config, each.machine, each.status, each.updated, repr(each)
    for key in runs.logged():
        _ = runs[key] if key in ("x", "tree") else None
    return len(runs)


def check_refused(folder: Path, bad: Path) -> str:
    """What is said of a bad file; those beside it can be read."""
    with pytest.raises(logax.RunsError) as told:
        read_all(bad)
    if not list(folder.glob("2*.sqlite")):
        write(folder, "good", end=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = logax.load(folder)
        assert runs["good-0"]["x"].shape == (17,)
        assert [name for name in runs if name.startswith("good")] == [f"good-{i}" for i in range(3)]
    assert len(caught) <= 1
    assert all("The other runs are read without it." in str(each.message) for each in caught)
    return str(told.value)


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


def test_the_file_that_is_damaged_here_is_whole(original: Path, unfinished: Path) -> None:
    assert read_all(original) == read_all(unfinished) == 3
    assert logax.load(unfinished)["bad-2"].status == "crashed"


# What is no file of runs.


def test_random_bytes_and_empty_files_are_told(tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    for content in (random.Random(0).randbytes(5000), b"SQLite format 3\0" * 100):
        bad.write_bytes(content)
        assert "bad.sqlite cannot be read as a file of runs: " in check_refused(tmp_path, bad)
    bad.write_bytes(b"x")
    assert check_refused(tmp_path, bad) == f"{bad} is no file of runs: 1 byte is all there is."
    bad.write_bytes(b"")
    assert check_refused(tmp_path, bad) == f"{bad} is no file of runs: 0 bytes are all there is."


def test_databases_of_others_are_told(tmp_path: Path, original: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    with closing(sqlite3.connect(bad)) as connection:
        connection.execute("CREATE TABLE runs (number INTEGER PRIMARY KEY)")
    assert "it is a database of another program" in check_refused(tmp_path, bad)
    bad = altered(original, tmp_path, "PRAGMA user_version = 3")
    told = check_refused(tmp_path, bad)
    assert "its format is version 3, and this logax reads up to 2; it takes a newer one." in told
    bad = altered(original, tmp_path, "PRAGMA user_version = 1")
    assert "its tables are not those of runs" in check_refused(tmp_path, bad)


def test_folders_links_and_pipes_called_like_files_are_told(tmp_path: Path, original: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.mkdir()
    with pytest.warns(UserWarning, match="bad.sqlite is no plain file"):
        assert list(logax.load(tmp_path)) == []
    assert list(logax.load(bad)) == []  # an empty folder
    bad.rmdir()
    os.mkfifo(bad)
    assert "bad.sqlite is no plain file" in check_refused(tmp_path, bad)
    bad.unlink()
    for target, said in (("none", "there is no such file"), ("bad.sqlite", "symbolic links")):
        bad.symlink_to(target)
        assert said in check_refused(tmp_path, bad)
        bad.unlink()
    bad.symlink_to(original)
    assert read_all(bad) == 3
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for beside in ("-wal", "-shm", "-journal"):
        shutil.copy(original, tmp_path / "b.sqlite")
        (tmp_path / f"b.sqlite{beside}").symlink_to(victim)
        with pytest.raises(logax.RunsError, match=f"b.sqlite{beside} is no plain file"):
            read_all(tmp_path / "b.sqlite")
        (tmp_path / f"b.sqlite{beside}").unlink()
    assert victim.read_text() == "mine"


# What a file must not make SQLite do.


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE other (x)",),
        ("DROP TABLE ends",),
        ("CREATE INDEX portions_of_family ON portions (family)",),
        ("DROP TABLE ends", f"CREATE VIEW ends AS {ENDLESS} x AS run, x AS ended FROM n"),
        ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",),
        ("ALTER TABLE runs ADD COLUMN y AS (zeroblob(1000000000))",),
        ("UPDATE sqlite_schema SET sql = 'CREATE TABLE runs (x, y)' WHERE name = 'runs'",),
    ],
)
def test_tables_that_are_not_ours_are_refused(
    tmp_path: Path, original: Path, statements: tuple[str, ...]
) -> None:
    told = check_refused(tmp_path, altered(original, tmp_path, *statements))
    assert "its tables are not those of runs" in told


# Rows that say something absurd.


def layout(**changes: Any) -> str:
    whole = {
        "keys": [["x", ["leaf"], [""], [["float32", [], []]]]],
        "steps": [["step", "int32", [], []]],
        "site": "",
        "tags": [],
    }
    text = json.dumps({**whole, **changes}).replace("'", "''")
    return f"UPDATE layouts SET content = '{text}'"


def array(*form: Any) -> str:
    return layout(keys=[["x", ["leaf"], [""], [list(form)]]])


ABSURD = [
    "UPDATE portions SET records = 1000000000000",
    "UPDATE portions SET records = -1",
    "UPDATE portions SET records = 'many'",
    "UPDATE portions SET streams = 1099511627776",
    "UPDATE portions SET streams = 0",
    "UPDATE portions SET streams = 1.5",
    "UPDATE portions SET layout = 99",
    "UPDATE portions SET ragged = 1000000000",
    "UPDATE portions SET ragged = 1 - ragged",
    "UPDATE portions SET alike = 9223372036854775807",
    "UPDATE portions SET blob = 77",
    "UPDATE portions SET blob = -1",
    "UPDATE portions SET data = zeroblob(10)",
    "UPDATE portions SET data = 3",
    "UPDATE portions SET data = zeroblob(length(data) + 1)",
    "UPDATE portions SET data = replace(hex(zeroblob(length(data) / 2)), '00', 'xx')",
    "UPDATE blobs SET data = zeroblob(10)",
    "UPDATE blobs SET data = 'text'",
    "DELETE FROM blobs",
    "DELETE FROM layouts",
    "DELETE FROM texts",
    "UPDATE texts SET content = '3'",
    "UPDATE texts SET content = '{'",
    "UPDATE texts SET content = x'ff00'",
    "UPDATE texts SET content = CAST(x'22ff22' AS TEXT)",
    'UPDATE texts SET content = \'{"a": {"$array": ["float32", [], [1000000000000], ""]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": ["float32", [], [0, 1e30], ""]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": ["O", [], [1], "AAAA"]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": 3}}\'',
    f"UPDATE texts SET content = '{'[' * 100_000}'",
    f"UPDATE texts SET content = '{'9' * 10_000}'",
    "UPDATE runs SET content = '{}'",
    "UPDATE runs SET content = '[1, 2]'",
    "UPDATE runs SET content = x'00'",
    "UPDATE runs SET content = replace(content, '\"lane\": []', '\"lane\": [null]')",
    "UPDATE runs SET opened = 'never'",
    "UPDATE runs SET config = 'x'",
    "UPDATE ends SET status = 'great'",
    "UPDATE ends SET ended = 'never'",
    "UPDATE streams SET place = place + 1000000",
    "UPDATE streams SET place = 'p' || place",
    "UPDATE streams SET lane = 'x'",
    "UPDATE streams SET lane = '[-1]'",
    "UPDATE streams SET lane = '[[1]]'",
    "UPDATE streams SET lane = '[4611686018427387903]'",
    "UPDATE streams SET lane = '[1000000, 1000000]'",
    "UPDATE streams SET shard = -1",
    f"UPDATE layouts SET content = '{'[' * 100_000}'",
    "UPDATE layouts SET content = '{}'",
    array("float32", [], [10**30]),
    array("float32", [], [-1]),
    array("float32", [], [1.5]),
    array("float32", [], "x"),
    array("float32", [], [2**40, 2**40]),
    array("float32", [], [0, 2**40, 2**40]),
    array("float32", [], [1] * 70),
    array("O", [], []),
    array("V8", [], []),
    array("S999999999", [], []),
    array("float32", [7], []),
    array("key<none>", [2], []),
    array("key<threefry2x32>", [2**30], []),
    array("key<threefry2x32>", [3], []),
    array(3, [], []),
    array("float32", []),
    layout(keys=3),
    layout(keys=[["x", ["leaf"], [], [["float32", [], []]]]]),
    layout(keys=[["x", ["import"], [""], [["float32", [], []]]]]),
    layout(keys=[["x", ["leaf"], ["picture"], [["float32", [], []]]]]),
    layout(keys=[["x", ["leaf"], [""], [["float32", [], []]]]] * 2),
    layout(keys=[[3, ["leaf"], [""], [["float32", [], []]]]]),
    layout(steps=[["step", "S4", [], []]]),
    layout(site=3),
    layout(tags="x"),
]
IN_CHILD = """
import json, logax, resource, sqlite3
from contextlib import closing
from pathlib import Path
from run_sealing import seal
original, statements = arguments

def read(path):
    runs = logax.load(path)
    repr(runs)
    for run in runs.values():
        run.config, run.machine, repr(run)
        for key in run:
            run[key]
    for key in runs.logged():
        runs[key]

warnings.simplefilter("error", logax.DamageWarning)
read(original)  # so that JAX has all its threads
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
for number, statement in enumerate(statements):
    bad = folder / f"{number}.sqlite"
    bad.write_bytes(Path(original).read_bytes())
    with closing(sqlite3.connect(bad, isolation_level=None)) as connection:
        connection.execute(statement)
        seal(connection)
    try:
        read(bad)
        print("read")
    except (logax.RunsError, logax.DamageWarning) as error:
        print(error)
    except Exception as error:
        print(type(error), error)
    bad.unlink()
"""


def test_rows_that_say_something_absurd_are_told_in_little_memory(
    tmp_path: Path, original: Path
) -> None:
    code, said, errors = run(IN_CHILD, tmp_path, str(original), ABSURD)
    assert (code, errors) == (0, ""), errors
    lines = said.splitlines()
    assert len(lines) == len(ABSURD)
    strange = [
        (statement[:100], line[:200])
        for statement, line in zip(ABSURD, lines, strict=True)
        if not (" cannot be read as a file of runs: " in line or "differ that much" in line)
        and "PRNG keys" not in line
        and " is damaged: " not in line
    ]
    assert strange == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE portions SET data = CAST(x'ffffff7f' || substr(data, 5) AS BLOB) WHERE ragged",
            "a portion of it has more records than it says.",
        ),
        (layout(steps=[["step", "|S4", [], []]]), "a layout has a step that is no number."),
        (array("<f7", [], []), "it has the unknown type '<f7'."),
        (
            "UPDATE layouts SET content = replace(content, 'threefry2x32', 'threefry2x99')",
            "The file holds PRNG keys of the kind 'key<threefry2x99>', which this JAX does not ",
        ),
    ],
    ids=["records", "step", "type", "keys"],
)
def test_what_is_wrong_is_said(tmp_path: Path, original: Path, statement: str, said: str) -> None:
    with pytest.raises(logax.RunsError) as told:
        logax.load(altered(original, tmp_path, statement, sealed=True))["bad-0"]["tree"]
    assert said in str(told.value)


def repeated(data: bytes, root: int) -> bytes:
    """A database, one table of which has its rows millions of times, in three pages more."""
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    last = pages[root - 1]
    for _ in range(3):
        pages.append(last)
        child = struct.pack(">I", len(pages))
        # A page of references, all of which are one: the last bytes of it.
        last = struct.pack(">BHHHB4s", 5, 0, 200, PAGE - 5, 0, child)
        last += struct.pack(">H", PAGE - 5) * 200
        last += bytes(PAGE - 5 - len(last)) + child + b"\1"
    pages[root - 1] = last
    head = bytearray(pages[0])
    head[28:32] = struct.pack(">I", len(pages))
    return b"".join([head, *pages[1:]])


def test_a_table_whose_rows_never_end_is_told(tmp_path: Path, original: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    with closing(sqlite3.connect(original)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'ends'"
        ).fetchone()
    bad.write_bytes(repeated(original.read_bytes(), root))
    assert "the rows of its ends are not in order." in check_refused(tmp_path, bad)


CRAFTED = {
    # A step that is alike for all streams, and values without bytes.
    "alike": [
        "UPDATE portions SET records = 1000000, alike = 1, ragged = 0, blob = 0, "
        "data = zeroblob(4000000), streams = 3 WHERE number = 1",
        "DELETE FROM portions WHERE number > 1",
        "WITH n(x) AS (SELECT 3 UNION ALL SELECT x + 1 FROM n LIMIT 50000) INSERT INTO streams "
        "SELECT x + 10, 1, 1, x, '[' || x || ']', NULL, 0 FROM n",
        "UPDATE portions SET streams = 50003",
        "UPDATE layouts SET content = replace(content, 'x', 'x')",
    ],
    "records": [
        "UPDATE portions SET records = 1 << 40, ragged = 0, alike = 0, blob = 0, data = x'' "
        "WHERE number = 1",
    ],
    "blobs": ["UPDATE portions SET blob = 1 WHERE blob > 0"],
    "nested": [
        "UPDATE layouts SET content = '{\"keys\":' || replace(hex(zeroblob(200000)), "
        "'00', '[') || '}'"
    ],
    "text": ["UPDATE texts SET content = replace(hex(zeroblob(500000)), '00', '[')"],
    "statistics": ["UPDATE portions SET statistics = replace(hex(zeroblob(500000)), '00', '[')"],
    "grid": ["UPDATE streams SET lane = '[' || 1000000000 * place || ']'"],
    "view": [
        "DROP TABLE tally",
        f"CREATE VIEW tally AS {ENDLESS} x AS number, zeroblob(1000000000) AS commits FROM n",
    ],
    "virtual": ["ALTER TABLE portions ADD COLUMN y AS (zeroblob(1000000000))"],
}
CRAFTED["alike"][4:5] = [
    layout(keys=[["x", ["leaf"], [""], [["float32", [], [0]]]]]) + " WHERE number = 1"
]
READ_CRAFTED = """
import logax, resource
from logax._command import main
from logax._runs.batches import batches_of

logax.load(arguments[1]).values()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
warnings.simplefilter("error", logax.DamageWarning)
try:
    for found in logax.load(arguments[0]).values():
        found.config, found.machine, list(batches_of(found))
        for key in found:
            found[key]
    print("read")
except (logax.RunsError, logax.DamageWarning) as error:
    print("told")
warnings.simplefilter("default")
print(main(["verify", arguments[0]]))
"""


@pytest.mark.parametrize("name", list(CRAFTED))
def test_a_crafted_file_is_refused_in_little_memory(
    tmp_path: Path, original: Path, name: str
) -> None:
    bad = altered(original, tmp_path, *CRAFTED[name], sealed=name not in ("view", "virtual"))
    code, said, errors = run(READ_CRAFTED, tmp_path, str(bad), str(original))
    first, *_, last = said.splitlines()
    assert (code, first, last) == (0, "told", "1"), (said, errors)
    assert "Traceback" not in errors


def test_what_one_key_has_lost_is_nothing_to_the_others(tmp_path: Path, original: Path) -> None:
    bad = altered(original, tmp_path, "DELETE FROM blobs WHERE number = 1")
    found = logax.load(bad)["bad-0"]
    assert found["x"].tolist()[:10] == [*range(10)]
    with pytest.warns(logax.DamageWarning) as told:
        rest = found["large"]
    assert [str(each.message) for each in told] == [
        f"{bad} is damaged: row 1 of its blobs is missing. Records 0 to 9 of 'large' of run bad-0 "
        "are left out."
    ]
    assert rest.shape == (7, 3000)
    assert found["x"].shape == (17,)


# Bytes that are not what they were.


def fuzz(files: list[Path], folder: Path, times: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    outcomes = {"read": 0, "told": 0}
    contents = {file: file.read_bytes() for file in files}
    for _ in range(times):
        victim = chance.choice(files)
        for file, content in contents.items():
            data = bytearray(content)
            if file is victim:
                damage(data, chance)
            suffix = file.name.partition(".sqlite")[2]
            (folder / f"bad.sqlite{suffix}").write_bytes(data)
        (folder / "bad.sqlite-shm").unlink(missing_ok=True)
        try:
            read_all(folder / "bad.sqlite")
            outcomes["read"] += 1
        except (logax.RunsError, KeyError) as error:  # a key may have become another one
            outcomes["told"] += isinstance(error, logax.RunsError)
        except ValueError as error:
            if "cannot be one array" not in str(error):
                raise
    return outcomes


def damage(data: bytearray, chance: random.Random) -> None:
    kind = chance.choice(["bits", "bits", "cut", "zeros", "swap", "longer"])
    at = chance.randrange(len(data))
    if kind == "bits":
        for _ in range(chance.choice([1, 10, 1000])):
            data[chance.choice([at, chance.randrange(len(data)), chance.randrange(200)])] = (
                chance.randrange(256)
            )
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    elif kind == "swap":
        other = chance.randrange(len(data))
        data[at : at + 512] = data[other : other + 512]
    else:
        data[at:at] = chance.randbytes(chance.choice([1, 8192]))


def check_fuzz(
    original: Path, unfinished: Path, folder: Path, times: int, seed: int
) -> dict[str, int]:
    """Damage files, read them, and count the outcomes."""
    total: collections.Counter[str] = collections.Counter()
    warnings.simplefilter("ignore")  # of keys that look as if they had changed
    with_log = [each for each in unfinished.parent.iterdir() if not each.name.endswith("-shm")]
    with_log = [each for each in with_log if ".sqlite" in each.name]
    for number, files in enumerate(([original], with_log)):
        (folder / str(number)).mkdir()
        outcomes = fuzz(files, folder / str(number), times, seed)
        # Of a damaged log SQLite takes what comes before the damage, and says nothing.
        assert outcomes["told"] > times // 5 or files is with_log
        total.update(outcomes)
    return dict(total)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_read_or_told(original: Path, unfinished: Path, tmp_path: Path) -> None:
    check_fuzz(original, unfinished, tmp_path, 100, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_more_damaged_files_are_read_or_told(
    original: Path, unfinished: Path, tmp_path: Path
) -> None:
    check_fuzz(original, unfinished, tmp_path, 200, 2)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3, 13))
def test_many_damaged_files_are_read_or_told(
    original: Path,
    unfinished: Path,
    tmp_path: Path,
    seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    outcomes = check_fuzz(original, unfinished, tmp_path, 200, seed)
    record_property("files", sum(outcomes.values()))
    record_property("outcomes", outcomes)

"""Files that no logger has written, or that something has damaged: one error, and nothing else."""

from __future__ import annotations

import collections
import os
import random
import shutil
import sqlite3
import struct
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import logax
from logax.loggers import RecordBatch, RunInfo
from logax.loggers.save import SaveSink
from run_crafting import ENDLESS, altered, write_damaged_batch, write_runs


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose writer was killed, with its log beside it."""
    folder, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("killed")
    sink = write_runs(folder, "bad", end=False)
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
        write_runs(folder, "good", end=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = logax.load(folder)
        assert runs["good-0"]["x"].shape == (17,)
        assert [name for name in runs if name.startswith("good")] == [f"good-{i}" for i in range(3)]
    assert len(caught) <= 1
    assert all("The other runs are read without it." in str(each.message) for each in caught)
    return str(told.value)


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
    assert check_refused(tmp_path, bad) == f"{bad} is not a file of runs: it has 1 byte."
    bad.write_bytes(b"")
    assert check_refused(tmp_path, bad) == f"{bad} is not a file of runs: it has 0 bytes."


def test_databases_of_others_are_told(tmp_path: Path, original: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    with closing(sqlite3.connect(bad)) as connection:
        connection.execute("CREATE TABLE runs (number INTEGER PRIMARY KEY)")
    assert "it is a database of another program" in check_refused(tmp_path, bad)
    bad = altered(original, tmp_path, "PRAGMA user_version = 3")
    told = check_refused(tmp_path, bad)
    assert "its format has version 3, and this logax reads up to 2; upgrade logax." in told
    bad = altered(original, tmp_path, "PRAGMA user_version = 1")
    assert "its tables are not those of a file of runs" in check_refused(tmp_path, bad)


def test_folders_links_and_pipes_called_like_files_are_told(tmp_path: Path, original: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.mkdir()
    with pytest.warns(UserWarning, match="bad.sqlite is not a regular file"):
        assert list(logax.load(tmp_path)) == []
    assert list(logax.load(bad)) == []  # an empty folder
    bad.rmdir()
    os.mkfifo(bad)
    assert "bad.sqlite is not a regular file" in check_refused(tmp_path, bad)
    bad.unlink()
    for target, said in (("none", "the file does not exist"), ("bad.sqlite", "symbolic links")):
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
        with pytest.raises(logax.RunsError, match=f"b.sqlite{beside} is not a regular file"):
            read_all(tmp_path / "b.sqlite")
        (tmp_path / f"b.sqlite{beside}").unlink()
    assert victim.read_text() == "mine"


# What a file must not make SQLite do.


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
    assert "its tables are not those of a file of runs" in told


def repeated(original: Path, table: str) -> bytes:
    """Return a database in which a table has its rows millions of times, in three pages more."""
    with closing(sqlite3.connect(original)) as connection:
        select = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (root,) = connection.execute(select, (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = original.read_bytes()
    pages = [data[at : at + size] for at in range(0, len(data), size)]
    last = pages[root - 1]
    kind, row = 5, b"\1"  # of a table with row numbers: the number of the last row below
    if last[0] == 10:  # of one without them: a row as it stands in the page, the last one there
        kind, row = 2, last[struct.unpack_from(">H", last, 8)[0] :]
    for _ in range(3):
        pages.append(last)
        child = struct.pack(">I", len(pages))
        # A page of references, all of which are one: the last bytes of it.
        at = size - len(child + row)
        last = struct.pack(">BHHHB4s", kind, 0, 200, at, 0, child) + struct.pack(">H", at) * 200
        last += bytes(at - len(last)) + child + row
    pages[root - 1] = last
    head = bytearray(pages[0])
    head[28:32] = struct.pack(">I", len(pages))
    return b"".join([head, *pages[1:]])


@pytest.mark.parametrize("table", ["runs", "ends", "streams", "layouts", "portions"])
def test_a_table_whose_rows_never_end_is_told(tmp_path: Path, original: Path, table: str) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(repeated(original, table))
    assert f"the rows of its {table} are not in order." in check_refused(tmp_path, bad)


@pytest.mark.slow
def test_a_table_without_row_numbers_whose_rows_never_end_is_told(
    tmp_path: Path, version_1: Path
) -> None:
    assert read_all(version_1) == 2
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(repeated(version_1 / "old.sqlite", "streams"))
    with pytest.raises(logax.RunsError, match=r"bad\.sqlite cannot be read .*: interrupted\. If "):
        read_all(bad)


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
    check_fuzz(original, unfinished, tmp_path, 30, 1)


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


# Damage in the bytes of one of several runs that log side by side.


@pytest.fixture
def side_by_side(tmp_path: Path) -> Path:
    return write_damaged_batch(tmp_path)


def test_damage_in_one_run_leaves_the_others_in_the_array_of_all(side_by_side: Path) -> None:
    runs = logax.load(side_by_side.parent)
    with pytest.warns(logax.DamageWarning) as told:
        whole = runs["v"]
    assert [str(each.message) for each in told] == [
        f"{side_by_side} is damaged: the bytes of a batch differ from their checksum. Records 0 to "
        "9999 of 'v' of run m-2 are left out."
    ]
    assert whole.shape == (4, 10_005)
    for at, each in enumerate(runs.values()):
        own = each["v"]
        assert own.shape == ((5,) if at == 2 else (10_005,))
        np.testing.assert_array_equal(whole[at, : len(own)], own)
        assert np.isnan(whole[at, len(own) :]).all()


def test_a_run_whose_records_of_a_key_are_all_damaged_has_no_rows(side_by_side: Path) -> None:
    runs = logax.load(side_by_side)
    with pytest.warns(logax.DamageWarning), pytest.raises(logax.RunsError) as told:
        _ = runs["m-3"]["w"]
    assert str(told.value) == "All records of 'w' of run m-3 are damaged."
    assert runs.to_pandas("w")["run"].unique().tolist() == ["m-0", "m-1", "m-2"]
    assert np.isnan(runs["w"][3]).all()


def test_a_key_of_which_nothing_is_left_is_an_error(tmp_path: Path, original: Path) -> None:
    bad = altered(original, tmp_path, "UPDATE blobs SET crc = 0")
    runs = logax.load(bad)
    said = r"^All records of 'large' in .* are damaged\.$"
    with pytest.warns(logax.DamageWarning), pytest.raises(logax.RunsError, match=said):
        _ = runs["large"]
    with pytest.warns(logax.DamageWarning), pytest.raises(logax.RunsError, match=said):
        runs.to_pandas("large")


def test_a_key_whose_layout_is_damaged_is_not_said_to_be_missing(
    tmp_path: Path, original: Path
) -> None:
    bad = altered(original, tmp_path, "UPDATE layouts SET crc = 0 WHERE number = 1")
    runs = logax.load(bad)
    with pytest.warns(logax.DamageWarning) as warned, pytest.raises(logax.RunsError) as told:
        _ = runs["bad-0"]["x"]
    assert [str(each.message) for each in warned] == [
        f"{bad} is damaged: row 1 of its layouts differs from its checksum, and the batches that "
        "need it are left out."
    ]
    assert str(told.value) == (
        "'x' was not found in run bad-0, but a layout that lists the keys of some of "
        "its records is damaged. The other keys are 'lanes'"
    )
    assert runs["bad-0"]["lanes"].shape == (2, 5)
    with pytest.raises(logax.RunsError, match=r"^'x' was not found in .*, but a layout "):
        _ = runs["x"]


# Files that were copied without the log beside them.


def test_a_file_whose_log_was_not_copied_is_reported(tmp_path: Path, unfinished: Path) -> None:
    only = shutil.copy(unfinished, tmp_path)
    with pytest.warns(logax.DamageWarning) as told:
        runs = logax.load(tmp_path)
    assert [str(each.message) for each in told] == [
        f"{only} is damaged: it has no runs. Its process was killed before it wrote any, or its "
        f"log, {unfinished.name}-wal, was not copied with it."
    ]
    assert list(runs) == []
    with pytest.raises(ValueError, match="because its files are damaged") as refused:
        runs.find("last")
    assert str(refused.value) == (
        f"no run in {tmp_path} can be read, because its files are damaged: "
        f"`logax verify {tmp_path}` lists the damage."
    )


def test_a_folder_whose_only_file_is_cut_off_is_damaged(tmp_path: Path, original: Path) -> None:
    (tmp_path / "cut.sqlite").write_bytes(original.read_bytes()[:6000])
    with pytest.warns(logax.DamageWarning, match=r"cut\.sqlite cannot be read as a file of runs"):
        assert list(logax.load(tmp_path)) == []


def test_damage_in_the_log_is_reported_with_its_place(tmp_path: Path, unfinished: Path) -> None:
    bad = tmp_path / unfinished.name
    shutil.copy(unfinished, bad)
    log = unfinished.with_name(f"{unfinished.name}-wal").read_bytes()
    (size,) = struct.unpack_from(">I", log, 8)
    frame = 32 + 3 * (24 + size) + 100  # a byte of the fourth
    damaged = log[:frame] + bytes([log[frame] ^ 1]) + log[frame + 1 :]
    for content, said in (
        (damaged, "its log is damaged from frame 4 on"),
        (log[:20], "the header of its log is cut off"),
        (bytes([log[0] ^ 1]) + log[1:], "the header of its log is damaged"),
    ):
        bad.with_name(f"{bad.name}-wal").write_bytes(content)
        bad.with_name(f"{bad.name}-shm").unlink(missing_ok=True)
        with pytest.warns(logax.DamageWarning) as told:
            logax.load(bad)
        assert str(told[-1].message) == (
            f"{bad} is damaged: {said}, and the newest records may be missing."
        )


@pytest.mark.slow
def test_a_killed_file_of_more_than_a_gibibyte_is_not_damaged(tmp_path: Path) -> None:
    """SQLite leaves out one page at the first gibibyte, so the log never has that page."""
    sink, run = SaveSink(tmp_path / "live"), RunInfo("a", "a")
    large = RecordBatch.of([run], {"x": np.ones((1, 2**21))})  # 16 MiB
    small = RecordBatch.of([run], {"x": np.ones((1, 2**19))})
    sink.open([run])
    for batch in (small, *62 * [large]):
        sink.write(batch)
        sink.flush()
    sizes = []
    for number in range(12):  # the log crosses the gibibyte before SQLite empties it
        sink.write(small)
        sink.write(RecordBatch.of([run], {"number": np.full((1, 1), number)}))
        sink.flush()
        copy = tmp_path / "killed"
        copy.mkdir()
        for file in (tmp_path / "live").iterdir():
            if not file.name.endswith(("-shm", ".lock")):
                os.link(file, copy / file.name)
        (file,) = copy.glob("*.sqlite")
        sizes.append(file.stat().st_size)
        loaded = logax.load(copy)["a"]
        assert loaded.status == "crashed"
        np.testing.assert_array_equal(loaded["number"], np.arange(number + 1))
        shutil.rmtree(copy)
    sink.end()
    assert sizes[0] < 2**30 < sizes[-1]

"""`CSVLogger` and `JSONLLogger`: what holds for text files of whatever form."""

import fcntl
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pandas as pd
import pytest

import logax
from logax import DeliveryError
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers._text.shared_files import FileChangedError
from logax.loggers.csv import CSVLogger, CSVSink
from logax.loggers.jsonl import JSONLLogger, JSONLSink
from loggers.sinks import write_runs
from loggers.text_children import add_records, fill_disk


class _Kind(NamedTuple):
    name: str
    logger: type
    sink: type
    table: Callable  # of the records of a file


def _table_of_lines(path):
    lines = map(json.loads, path.read_text("utf-8").split("\n")[:-1])
    return pd.DataFrame([line for line in lines if "event" not in line])


_KINDS = [
    _Kind("csv", CSVLogger, CSVSink, pd.read_csv),
    _Kind("jsonl", JSONLLogger, JSONLSink, _table_of_lines),
]


@pytest.fixture(params=_KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


_jsonl_is_fast = pytest.mark.parametrize(
    "kind",
    [_KINDS[1], pytest.param(_KINDS[0], marks=pytest.mark.slow)],
    indirect=True,
    ids=lambda kind: kind.name,
)


def _runs(number):
    return [RunInfo(f"run-{index}", f"name {index}") for index in range(number)]


@pytest.mark.parametrize("number", [1, 8, 256])
def test_every_record_of_every_run_is_there_once_and_in_order(tmp_path, kind, number):
    runs = _runs(number)
    x = np.arange(number * 5, dtype=np.float32).reshape(number, 5) / 7
    batches = [
        RecordBatch.of(
            runs, {"x": x[:, part]}, step=np.broadcast_to(np.arange(5), x.shape)[:, part]
        )
        for part in (slice(0, 2), slice(2, 5))
    ]
    write_runs(kind.sink(tmp_path / "a"), runs, *batches)
    table = kind.table(tmp_path / "a")
    assert len(table) == x.size
    for run, own in zip(runs, x, strict=True):
        mine = table[table["run"] == run.id]
        assert mine["step"].tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(mine["x"].to_numpy().astype(np.float32), own)


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
def test_floats_of_all_bits_come_back_exactly(tmp_path, kind, dtype):
    runs = _runs(1)
    size = np.dtype(dtype).itemsize
    x = np.random.default_rng(0).integers(0, 256, 2000 * size, np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):
        batch = RecordBatch.of(runs, {"x": x[None]}, i=np.arange(2000)[None])
        write_runs(kind.sink(tmp_path / "a"), runs, batch)
        found = kind.table(tmp_path / "a")["x"].to_numpy().astype(dtype)
        np.testing.assert_array_equal(found.astype(float), x.astype(float))


def test_a_step_has_its_plain_name_in_every_record(tmp_path, kind):
    logger = kind.logger(tmp_path / "a")
    with logger.run() as state:
        logger.log(state, {"step": 3.5, "a": 1.0}, step=1)
        logger.log(state, {"a": 2.0}, step=2)
        logger.log(state, {"step": 4.5, "step_": 7.0}, step=3)
    logger.close()
    table = kind.table(tmp_path / "a")
    assert table.columns.tolist() == ["run", "step", "step_", "a", "step__"]
    assert table["step"].tolist() == [1, 2, 3]
    assert table["step_"].dropna().to_dict() == {0: 3.5, 2: 4.5}
    assert table["a"].dropna().to_dict() == {0: 1.0, 1: 2.0}
    assert table["step__"].dropna().to_dict() == {2: 7.0}


@_jsonl_is_fast
def test_processes_share_a_file_and_nothing_is_lost(tmp_path, kind):
    spawn = multiprocessing.get_context("spawn")
    names, path = ["a", "b"], tmp_path / "f"
    others = [spawn.Process(target=add_records, args=(kind.name, path, name, 40)) for name in names]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0]
    table = kind.table(path)
    late = {name: [f"{name}{index}" for index in range(10)] for name in names}
    assert sorted(table.columns) == sorted(["run", "x", "v", *late["a"], *late["b"]])
    for name in names:
        own = table[table["run"] == name]
        expected = [index for index in range(40) for _ in range(3)]
        assert own["x"].tolist() == expected
        wide = own[late[name]]
        assert wide.bfill(axis=1).iloc[:, 0].tolist() == expected
        assert (wide.notna().sum(axis=1) == 1).all()
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_that_is_gone_raises_and_says_what_was_lost(tmp_path, kind):
    folder = tmp_path / "runs"
    folder.mkdir()
    runs = _runs(1)
    sink = kind.sink(folder / "a")
    sink.write(RecordBatch.of(runs, {"x": np.zeros((1, 3))}))
    sink.flush()
    shutil.rmtree(folder)
    sink.write(RecordBatch.of(runs, {"x": np.zeros((1, 7))}))
    expected = rf"`{kind.logger.__name__}` could not write 7 records to .*runs/a, and they are lost"
    with pytest.raises(FileNotFoundError, match=expected):
        sink.flush()
    folder.mkdir()
    sink.write(RecordBatch.of(runs, {"x": np.zeros((1, 2))}))
    with pytest.raises(
        FileChangedError, match="was deleted, moved or emptied by another program: the 3"
    ):
        sink.flush()
    assert kind.table(folder / "a").to_dict("list") == {"run": ["run-0"] * 2, "x": [0.0, 0.0]}


def _logged(kind, path, number, change):
    """Log so many records, have the file changed, and log as many again; what was told."""
    logger, told = kind.logger(path), []
    state = logger.init(jax.random.key(0), name="one")

    def tell(call):
        try:
            call()
        except DeliveryError as error:
            told.append(str(error))

    for step in range(number):
        logger.log(state, {"x": 0.5}, step=step)
    logax.flush()
    change(path)
    for step in range(number, 2 * number):
        logger.log(state, {"x": 0.5}, step=step)
    tell(logax.flush)
    logger.log(state, {"x": 0.25}, step=-1)
    tell(logax.flush)
    tell(lambda: logger.finish(state))
    return told


def test_a_file_that_was_deleted_is_told_and_begun_again(tmp_path, kind):
    path = tmp_path / "a"
    assert _logged(kind, path, 1000, os.remove) == [
        f"`{kind.logger.__name__}` could not flush its runs: FileChangedError: "
        f"`{kind.logger.__name__}` found that {path} was deleted, moved or emptied by another "
        "program: the 1000 records that it had written are gone, and a new file was started. "
        "The 1000 records since then were written."
    ]
    assert kind.table(path)["step"].tolist() == [*range(1000, 2000), -1]
    assert set(kind.sink(path).known_runs().names) == set(kind.table(path)["run"])


def test_a_file_that_was_emptied_is_told_and_begun_again(tmp_path, kind):
    path = tmp_path / "a"
    (told,) = _logged(kind, path, 10, lambda path: os.truncate(path, 0))
    assert f"{path} was deleted, moved or emptied by another program: the 10 records that" in told
    assert kind.table(path)["step"].tolist() == [*range(10, 20), -1]


def test_a_file_that_was_truncated_is_told_and_added_to(tmp_path, kind):
    path = tmp_path / "a"

    def shorten(path):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:5]))

    (told,) = _logged(kind, path, 10, shorten)
    assert (
        f"found that {path} was truncated by another program: some of the 10 records that it had "
        "written may be gone. The 10 records since then were written."
    ) in told
    assert kind.table(path)["step"].tolist() == [0, 1, 2, 3, *range(10, 20), -1]


def _replace(content):
    def replace(path):
        beside = path.with_name("beside")
        beside.write_bytes(content)
        os.replace(beside, path)

    return replace


_FOREIGN = {
    "text": b"my notes\n",
    "table": b"run,step,x\nother,0,0.5\n",
    "lines": b'{"run": "other", "event": "open", "name": "other"}\n',
    "half": b'{"run": "other',
}


@pytest.mark.parametrize("content", _FOREIGN.values(), ids=_FOREIGN)
@pytest.mark.parametrize("replace", [_replace, lambda x: lambda path: path.write_bytes(x)])
def test_nothing_is_added_to_a_file_that_took_the_place_of_ours(tmp_path, kind, content, replace):
    path = tmp_path / "a"
    told = _logged(kind, path, 10, replace(content))
    what = [f"10 records to {path}, and they are lost", f"1 records to {path}, and they are lost"]
    if kind.name == "jsonl":
        what.append(f"to {path}")  # that the run has ended
    assert len(told) == len(what)
    for one, expected in zip(told, what, strict=True):
        assert one.startswith(f"`{kind.logger.__name__}` could not ")
        assert (
            f"OSError: `{kind.logger.__name__}` could not write {expected}: another program "
            "replaced the file, and nothing was added to the replacement. Move it away to start "
            "a new file."
        ) in one
    assert path.read_bytes() == content


def test_a_logger_goes_on_when_the_other_file_is_moved_away(tmp_path, kind):
    path = tmp_path / "a"
    logger = kind.logger(path)
    with logger.run() as state:
        logger.log(state, {"x": 1}, step=0)
        logax.flush()
        _replace(_FOREIGN["text"])(path)
        logger.log(state, {"x": 1}, step=1)
        with pytest.raises(DeliveryError, match="could not write 1 records to"):
            logax.flush()
        os.remove(path)
        logger.log(state, {"x": 1}, step=2)
        with pytest.raises(
            DeliveryError, match="was deleted, moved or emptied by another program: the 1"
        ):
            logax.flush()
        logger.log(state, {"x": 1}, step=3)
    logger.close()
    assert kind.table(path)["step"].tolist() == [2, 3]


def test_a_foreign_file_that_comes_before_the_first_record_is_not_added_to(tmp_path, kind):
    path, runs = tmp_path / "a", _runs(1)
    sink = kind.sink(path)
    path.write_bytes(_FOREIGN["text"])
    sink.write(RecordBatch.of(runs, {"x": np.zeros((1, 3))}))
    with pytest.raises(ValueError, match=rf"`{kind.logger.__name__}` adds to \w+ that it wrote"):
        sink.flush()
    assert path.read_bytes() == _FOREIGN["text"]


@pytest.mark.parametrize("leave", [os.remove, lambda path: os.replace(path.with_name("b"), path)])
def test_a_file_that_is_another_when_its_lock_is_had_is_opened_anew(
    tmp_path, kind, leave, monkeypatch
):
    runs, path = _runs(1), tmp_path / "a"
    for name in ("a", "b"):
        write_runs(kind.sink(tmp_path / name), runs, RecordBatch.of(runs, {"x": np.array([[1]])}))
    expected = [1, 2] if leave is not os.remove else [2]
    flock, others = fcntl.flock, [leave]

    def after_another_process(fd, operation):
        while others:
            others.pop()(path)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", after_another_process)
    write_runs(kind.sink(path), runs, RecordBatch.of(runs, {"x": np.array([[2]])}))
    assert kind.table(path)["x"].tolist() == expected


@_jsonl_is_fast
def test_a_full_disk_raises_and_leaves_what_was_there(tmp_path, kind):
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    other = spawn.Process(target=fill_disk, args=(kind.name, tmp_path / "a", answers))
    other.start()
    other.join()
    assert other.exitcode == 0
    for _ in range(2):
        assert f"`{kind.logger.__name__}` could not write 1000 records to" in answers.get()
    table = kind.table(tmp_path / "a")
    assert table.to_dict("list") == {"run": ["run-0"] * 4, "x": [0, 1, 2, 0]}
    assert os.listdir(tmp_path) == ["a"]


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path, kind):
    name = kind.logger.__name__
    with pytest.raises(IsADirectoryError, match=rf"`{name}` takes the path of a file, and"):
        kind.logger(tmp_path)
    (tmp_path / "file").touch()
    expected = rf"`{name}` takes the path of a file in a folder, and .*/file is a file, or lies in"
    with pytest.raises(NotADirectoryError, match=expected):
        kind.logger(tmp_path / "file" / "a")
    with pytest.raises(TypeError, match=rf"`{name}` takes a path as `path`, and got 3"):
        kind.logger(3)


def test_folders_that_are_missing_are_made(tmp_path, kind):
    runs = _runs(1)
    path = tmp_path / "b" / "c" / "a"
    write_runs(kind.sink(path), runs, RecordBatch.of(runs, {"x": np.array([[1]])}))
    assert kind.table(path).to_dict("list") == {"run": ["run-0"], "x": [1]}

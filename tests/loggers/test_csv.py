"""`CSVLogger`: one table that pandas reads, whose columns may come late."""

import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import logax
from logax import HistogramBins
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._serialization.record_text import split_fields
from logax.loggers.csv import CSVLogger, CSVSink
from loggers.sinks import write_runs

_HOSTILE = ["../x", "a//b", "/", "naïve ☃ 𝄞", 'quote " and \\', '"', ",", "new\nline", "\r\n", " ",
            "100%s %d", "'; DROP TABLE runs; --", "=1+1", "#", ',,\n\n""', "m" * 2**20]  # fmt: skip


def _runs(number):
    return [RunInfo(f"run-{index}", f"name {index}") for index in range(number)]


def _write(path, runs, *batches, **options):
    write_runs(CSVSink(path), runs, *batches, **options)


def test_a_record_is_a_row_with_its_run_steps_and_leaves(tmp_path):
    (run,) = _runs(1)
    values = {"loss": np.array([[0.5, 0.1]], np.float32), "grad": {"w": np.array([[1, 2]])}}
    steps = {"step": np.array([[3, 4]]), "t": np.array([[0.5, 1.5]])}
    _write(tmp_path / "a", [run], RecordBatch.of([run], values, **steps))
    assert (tmp_path / "a").read_text() == (
        "run,step,t,loss,grad/w\nrun-0,3,0.5,0.5,1\nrun-0,4,1.5,0.1,2\n"
    )


def test_the_logger_writes_the_table_it_is_given(tmp_path):
    logger = CSVLogger(tmp_path / "a.csv")
    with logger.run(key=jax.random.key(0)) as state:
        logger.log(state, {"loss": 0.5}, step=1)
        logger.log(state, {"loss": 0.25}, step=2)
    logger.close()
    table = pd.read_csv(tmp_path / "a.csv")
    assert table.columns.tolist() == ["run", "step", "loss"]
    assert (table["step"].tolist(), table["loss"].tolist()) == ([1, 2], [0.5, 0.25])


def test_lanes_of_one_run_stand_in_a_column(tmp_path):
    def f(x):
        logax.log({"x": x})
        return x

    logger = CSVLogger(tmp_path / "a")
    with logger.run() as state:
        jax.vmap(logger.spool(f, state))(jnp.arange(8) * 10)
    logger.close()
    table = pd.read_csv(tmp_path / "a").sort_values("lane")
    assert table["run"].nunique() == 1
    assert table["lane"].tolist() == list(range(8))
    assert table["x"].tolist() == [10 * lane for lane in range(8)]


def test_records_of_several_log_calls_stand_in_the_order_of_the_program(tmp_path):
    (run,) = _runs(1)
    a = RecordBatch((Stream(run),), {"a": np.array([[0, 2]])}, {}, np.array([[0, 2]]))
    b = RecordBatch((Stream(run),), {"b": np.array([[1, 3]])}, {}, np.array([[1, 3]]))
    _write(tmp_path / "a", [run], a, b)
    assert (tmp_path / "a").read_text() == "run,a,b\nrun-0,0,\nrun-0,,1\nrun-0,2,\nrun-0,,3\n"


def test_late_keys_and_steps_widen_the_table_and_keep_its_rows(tmp_path):
    runs = _runs(1)
    one = np.array([[1]])
    batches = [
        RecordBatch.of(runs, {"a": one}, i=one),
        RecordBatch.of(runs, {"b": 2 * one}, i=2 * one, j=3 * one),
        RecordBatch.of(runs, {"a": 4 * one}),
    ]
    _write(tmp_path / "a", runs, *batches, flushes=True)
    assert (tmp_path / "a").read_text() == ("run,i,a,j,b\nrun-0,1,1,,\nrun-0,2,,3,2\nrun-0,,4,,\n")
    assert os.listdir(tmp_path) == ["a"]


def test_steps_stand_before_leaves(tmp_path):
    runs = _runs(1)
    one = np.array([[1]])
    batches = [RecordBatch.of(runs, {"a": one}, i=one), RecordBatch.of(runs, {"b": one}, j=one)]
    _write(tmp_path / "a", runs, *batches)
    assert (tmp_path / "a").read_text().splitlines()[0] == "run,i,j,a,b"


def test_only_real_records_are_written_and_lacking_steps_are_empty(tmp_path):
    runs = _runs(2)
    real = np.array([[True, False], [True, True]])
    missing = np.iinfo(np.int32).min
    steps = np.array([[0, 1], [missing, 1]], np.int32)
    _write(tmp_path / "a", runs, RecordBatch.of(runs, {"x": np.eye(2)}, real=real, i=steps))
    assert (tmp_path / "a").read_text() == "run,i,x\nrun-0,0,1.0\nrun-1,,0.0\nrun-1,1,1.0\n"


def test_no_records_make_no_file(tmp_path):
    runs = _runs(2)
    _write(tmp_path / "a", runs, RecordBatch.of(runs, {"x": np.zeros((2, 0))}))
    assert os.listdir(tmp_path) == []


def test_lanes_and_shards_have_columns_where_there_are_any(tmp_path):
    (run,) = _runs(1)
    streams = (Stream(run, (2,)), Stream(run, (1, 0), 2), Stream(run))
    batch = RecordBatch(streams, {"x": np.array([[1], [2], [3]])}, {}, np.zeros((3, 1), int))
    _write(tmp_path / "a", [run], batch)
    assert (tmp_path / "a").read_text() == (
        'run,lane,shard,x\nrun-0,2,,1\nrun-0,"[1, 0]",2,2\nrun-0,,,3\n'
    )


def test_arrays_and_other_values_are_json(tmp_path):
    runs = _runs(1)
    keys = jax.random.split(jax.random.key(0), 1)
    values = {
        "v": np.array([[[0.5, np.nan, -np.inf]]], np.float32),
        "z": np.array([[1 - 2j]]),
        "b": np.array([[True]]),
        "key": keys.reshape(1, 1),
        "bins": HistogramBins(np.array([[[1, 2]]]), np.array([[[0.0, 0.5, 1]]]), np.array([[3]])),
    }
    _write(tmp_path / "a", runs, RecordBatch.of(runs, values))
    row = pd.read_csv(tmp_path / "a").iloc[0]
    np.testing.assert_array_equal(json.loads(row["v"]), [0.5, np.nan, -np.inf])
    assert json.loads(row["z"]) == {"real": 1.0, "imag": -2.0}
    assert bool(row["b"]) is True
    assert json.loads(row["key"]) == np.asarray(jax.random.key_data(keys))[0].tolist()
    assert json.loads(row["bins"]) == {"counts": [1, 2], "edges": [0, 0.5, 1], "nonfinite": 3}


def test_integers_stay_integers(tmp_path):
    runs = _runs(1)
    x = np.array([[2**63 - 1, -(2**63), 0]])
    _write(tmp_path / "a", runs, RecordBatch.of(runs, {"x": x}))
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "a")["x"].to_numpy(), x[0])


def test_keys_may_be_any_text_also_when_the_table_is_widened(tmp_path):
    runs = _runs(1)
    batches = [
        RecordBatch.of(runs, {name: np.array([[index]])}, i=np.array([[index]]))
        for index, name in enumerate(_HOSTILE)
    ]
    _write(tmp_path / "a", runs, *batches, flushes=True)
    table = pd.read_csv(tmp_path / "a")
    formulas = ("\r\n", "=1+1")  # to a spreadsheet
    shown = [f"'{name}" if name in formulas else name for name in _HOSTILE]
    assert table.columns.tolist() == ["run", "i", *shown]
    assert table["i"].tolist() == list(range(len(_HOSTILE)))
    for index, name in enumerate(shown):
        assert table[name].dropna().to_dict() == {index: index}
    assert os.listdir(tmp_path) == ["a"]


def test_no_name_is_a_formula_and_a_table_of_such_names_is_added_to(tmp_path):
    runs = _runs(1)
    names = ["=1+1", "+x", "-x", "@x", "\tx", "'=1+1", "''-x", "'x", "x=1"]
    values = {name: np.array([[-1.5 - number]]) for number, name in enumerate(names)}
    for _ in range(2):  # the second time the header is read
        _write(tmp_path / "a", runs, RecordBatch.of(runs, values, **{"=step": np.array([[-3]])}))
    table = pd.read_csv(tmp_path / "a")
    shown = ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "''=1+1", "'" * 3 + "-x", "'x", "x=1"]
    assert table.columns.tolist() == ["run", "'=step", *shown]
    assert table["'=step"].tolist() == [-3, -3]  # numbers stay numbers
    for number, name in enumerate(shown):
        assert table[name].tolist() == [-1.5 - number] * 2


def test_names_that_are_taken_get_an_underscore(tmp_path):
    runs = _runs(1)
    one = np.array([[1]])
    values = {"run": one, "run_": 2 * one, "loss": 3 * one}
    _write(tmp_path / "a", runs, RecordBatch.of(runs, values, loss=4 * one))
    assert (tmp_path / "a").read_text() == "run,loss,run_,run__,loss_\nrun-0,4,1,2,3\n"


def test_a_table_of_an_earlier_process_is_added_to(tmp_path):
    path = tmp_path / "a"
    path.write_text('step,run,note\r\n1,old,"two\nlines"\r\n2,old,\r\n')
    path.chmod(0o640)
    runs = _runs(1)
    _write(path, runs, RecordBatch.of(runs, {"x": np.array([[5]])}, step=np.array([[3]])))
    table = pd.read_csv(path)
    assert table["step"].tolist() == [1, 2, 3]
    assert table["run"].tolist() == ["old", "old", "run-0"]
    assert table["note"].fillna("").tolist() == ["two\nlines", "", ""]
    assert table["x"].fillna(0).tolist() == [0, 0, 5]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("widens", [False, True])
def test_half_a_row_of_a_killed_process_is_removed(tmp_path, widens):
    path = tmp_path / "a"
    path.write_text("run,x\nold,1.25\nold,1.2")
    runs = _runs(1)
    values = {"x": np.array([[3.5]])} | ({"y": np.array([[1]])} if widens else {})
    _write(path, runs, RecordBatch.of(runs, values))
    assert pd.read_csv(path)["x"].tolist() == [1.25, 3.5]


def test_a_header_without_a_newline_is_mended(tmp_path):
    path = tmp_path / "a"
    path.write_text("run,x")
    runs = _runs(1)
    _write(path, runs, RecordBatch.of(runs, {"x": np.array([[3]])}))
    assert path.read_text() == "run,x\nrun-0,3\n"


def test_a_link_to_a_table_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    runs = _runs(1)
    _write(tmp_path / "link", runs, RecordBatch.of(runs, {"x": np.array([[3]])}))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "run,x\nrun-0,3\n"


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x89HDF\r\n\x1a\n\xff\xfe", b"\n"])
def test_a_file_that_is_no_table_of_ours_is_refused_at_once(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"`CSVLogger` adds to tables that it wrote, which have a column `run`, an"
    ):
        CSVLogger(path)
    assert path.read_bytes() == content


def test_the_runs_of_a_file_can_be_resumed(tmp_path):
    runs = [RunInfo("abc-1", "x"), RunInfo("abd-2", "y")]
    sink = CSVSink(tmp_path / "a")
    assert sink.known_runs()[:2] == (str(tmp_path / "a"), {})
    sink.write(RecordBatch.of(runs, {"x": np.zeros((2, 3, 2))}))
    sink.flush()
    assert sink.known_runs().names == {"abc-1": "abc-1", "abd-2": "abd-2"}
    (tmp_path / "b").write_text('x,run\n"1,2",abc\n')
    assert CSVSink(tmp_path / "b").known_runs().names == {"abc": "abc"}


@pytest.mark.parametrize("half", ["ab", 'abd,1,"[0, 1', "1"])
@pytest.mark.parametrize("header", ["run,x,v", "x,v,run"])
def test_half_a_row_of_a_killed_process_is_of_no_run(tmp_path, header, half):
    row = {"run": "abc", "x": "1", "v": '"[2,\n3]"'}
    whole = ",".join(row[name] for name in header.split(","))
    (tmp_path / "a").write_text(f"{header}\n{whole}\n{half}")
    assert CSVSink(tmp_path / "a").known_runs().names == {"abc": "abc"}


def test_a_row_that_is_too_short_is_of_no_run(tmp_path):
    (tmp_path / "a").write_text("x,run\n1\n2,abc\n")
    assert CSVSink(tmp_path / "a").known_runs().names == {"abc": "abc"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("", [""]),
        (",", ["", ""]),
        ("a,b", ["a", "b"]),
        (',"",a', ["", "", "a"]),
        ('"a,b","c\nd"\r\n', ["a,b", "c\nd"]),
        ('"a""b",""""', ['a"b', '"']),
        ('a"b,"c"d,"e', ['a"b', '"c"d', '"e']),  # of no program that we know
    ],
)
def test_the_fields_of_a_record_are_read_as_they_were_written(record, expected):
    assert split_fields(record.encode()) == expected

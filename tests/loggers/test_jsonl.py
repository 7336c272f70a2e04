"""`JSONLLogger`: lines of JSON that Python and pandas read, in order, each record once."""

import json
import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest

import logax
from logax import HistogramBins, ImagePixels
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax.loggers.jsonl import JSONLLogger, JSONLSink
from loggers.sinks import write_runs

_HOSTILE = ["../x", "a//b", "/", "naïve ☃ 𝄞", 'quote " and \\', "new\nline", "100%s %d %(x)s", " ",
            "'; DROP TABLE runs; --", "\x00", "=1+1"]  # fmt: skip


def _runs(number, **kwargs):
    return [RunInfo(f"run-{index}", f"name {index}", **kwargs) for index in range(number)]


def _read(path):
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def _records(path):
    return [line for line in _read(path) if "event" not in line]


def _written(path, runs, *batches):
    write_runs(JSONLSink(path), runs, *batches)
    return _read(path)


def test_a_run_is_an_opening_line_its_records_and_a_closing_line(tmp_path):
    run = RunInfo(
        "a-1",
        "first",
        config={
            "rate": np.float32(0.1),
            "sizes": (1, 2),
            "x": np.eye(2),
            "who": "né",
            "on": True,
            "raw": b"a",
        },
        began=12.5,
        machine={"host": "h"},
        group="g",
        lane=(3,),
        lanes=8,
        resumed=True,
    )
    values = {"loss": np.array([[0.5, 0.25]], np.float32)}
    assert _written(
        tmp_path / "a", [run], RecordBatch.of([run], values, step=np.array([[3, 4]]))
    ) == [
        {
            "run": "a-1",
            "event": "open",
            "name": "first",
            "config": {
                "rate": 0.1,
                "sizes": [1, 2],
                "x": [[1, 0], [0, 1]],
                "who": "né",
                "on": True,
                "raw": "b'a'",
            },
            "began": 12.5,
            "machine": {"host": "h"},
            "group": "g",
            "lane": [3],
            "lanes": 8,
            "resumed": True,
        },
        {"run": "a-1", "step": 3, "loss": 0.5},
        {"run": "a-1", "step": 4, "loss": 0.25},
        {"run": "a-1", "event": "close", "status": "finished"},
    ]


def test_the_logger_adds_to_the_file_it_is_given(tmp_path):
    logger = JSONLLogger(tmp_path / "a.jsonl")
    with logger.run(key=jax.random.key(0), name="first") as state:
        logger.log(state, {"loss": 0.5}, step=1)
        logger.log(state, {"loss": 0.25}, step=2)
    logger.close()
    opening, *records, closing = _read(tmp_path / "a.jsonl")
    assert (opening["event"], opening["name"], closing["status"]) == ("open", "first", "finished")
    own = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert records == [{"run": opening["run"], **record} for record in own]


def _train(x):
    def step(x, i):
        logax.log({"a": x}, step=i)
        logax.log({"b": 2 * x}, step=i)
        return x + 1, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


def test_seeds_of_one_compiled_call_are_runs_in_the_order_of_their_program(tmp_path):
    logger = JSONLLogger(tmp_path / "a")
    state = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
    jax.vmap(lambda state, x: logger.tap(_train, state)(x))(state, jnp.arange(8) * 10)
    logger.finish(state)
    logger.close()
    opened = [line["run"] for line in _read(tmp_path / "a") if line.get("event") == "open"]
    expected = [
        {"run": run, "step": step, key: times * (10 * seed + step)}
        for seed, run in enumerate(opened)
        for step in range(3)
        for key, times in (("a", 1), ("b", 2))
    ]
    assert sorted(_records(tmp_path / "a"), key=lambda line: opened.index(line["run"])) == expected


def test_records_of_several_log_calls_stand_in_the_order_of_the_program(tmp_path):
    (run,) = runs = _runs(1)
    streams = (Stream(run),)
    a = RecordBatch(streams, {"a": np.array([[0, 2, 5]])}, {}, np.array([[0, 2, 5]]))
    b = RecordBatch(streams, {"b": np.array([[1, 3, 4]])}, {}, np.array([[1, 3, 4]]))
    lines = _written(tmp_path / "a", runs, a, b)[1:-1]
    assert [next(iter(line.items() - {("run", "run-0")})) for line in lines] == [
        ("a", 0), ("b", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5)
    ]  # fmt: skip


def test_a_program_that_begins_anew_comes_after_the_one_before(tmp_path):
    runs = _runs(2)
    real = np.array([[True, False, False], [True, True, True]])
    calls = [
        RecordBatch.of(runs, {key: np.full((2, 3), call)}, real=real, i=np.array([[0, 1, 2]] * 2))
        for call in range(2)
        for key in "ab"
    ]
    _written(tmp_path / "a", runs, *calls)
    found = [(r["run"], r.get("a", r.get("b")), r["i"]) for r in _records(tmp_path / "a")]
    once = [(call, i) for call in range(2) for i in range(3) for _ in "ab"]
    assert found == [("run-0", call, 0) for call in range(2) for _ in "ab"] + [
        ("run-1", *where) for where in once
    ]


def test_only_real_records_are_written(tmp_path):
    runs = _runs(3)
    real = np.array([[True, True, False], [False, False, False], [True, False, True]])
    x = np.arange(9).reshape(3, 3)
    _written(tmp_path / "a", runs, RecordBatch.of(runs, {"x": x}, real=real))
    assert [(r["run"], r["x"]) for r in _records(tmp_path / "a")] == [
        ("run-0", 0), ("run-0", 1), ("run-2", 6), ("run-2", 8)
    ]  # fmt: skip


def test_no_records_make_no_lines(tmp_path):
    runs = _runs(2)
    batch = RecordBatch.of(runs, {"x": np.zeros((2, 0, 3))}, step=np.zeros((2, 0), int))
    lines = _written(tmp_path / "a", runs, batch)
    assert [line["event"] for line in lines] == ["open", "open", "close", "close"]


def test_lanes_and_shards_of_a_run_are_named(tmp_path):
    (run,) = _runs(1)
    streams = (Stream(run, (0, 1)), Stream(run, (1, 0), 2), Stream(run, (), 0))
    batch = RecordBatch(streams, {"x": np.array([[1], [2], [3]])}, {}, np.zeros((3, 1), int))
    assert _written(tmp_path / "a", [run], batch)[1:-1] == [
        {"run": "run-0", "lane": [0, 1], "x": 1},
        {"run": "run-0", "lane": [1, 0], "shard": 2, "x": 2},
        {"run": "run-0", "shard": 0, "x": 3},
    ]


def test_values_of_every_kind_are_json(tmp_path):
    runs = _runs(1)
    keys = jax.random.split(jax.random.key(0), 1)
    values = {
        "bool": np.array([[True]]),
        "int": np.array([[2**64 - 1]], np.uint64),
        "small": np.array([[-3]], ml_dtypes.int4),
        "float": np.array([[0.1]]),
        "complex": np.array([[1 - 2j]], np.complex64),
        "complexes": np.array([[[1 - 2j, 3j]]]),
        "tree": {"w": [np.array([[[1, 2], [3, 4]]]).reshape(1, 1, 2, 2)], "b": np.array([[5]])},
        "empty": np.zeros((1, 1, 0, 2)),
        "key": keys.reshape(1, 1),
        "bins": HistogramBins(np.array([[[1, 2]]]), np.array([[[0.0, 0.5, 1]]]), np.array([[3]])),
        "image": ImagePixels(np.array([[[[0, 255]]]], np.uint8)),
    }
    assert _written(tmp_path / "a", runs, RecordBatch.of(runs, values))[1] == {
        "run": "run-0",
        "bool": True,
        "int": 2**64 - 1,
        "small": -3,
        "float": 0.1,
        "complex": {"real": 1.0, "imag": -2.0},
        "complexes": {"real": [1.0, 0.0], "imag": [-2.0, 3.0]},
        "tree/b": 5,
        "tree/w/0": [[1, 2], [3, 4]],
        "empty": [],
        "key": np.asarray(jax.random.key_data(keys))[0].tolist(),
        "bins": {"counts": [1, 2], "edges": [0.0, 0.5, 1.0], "nonfinite": 3},
        "image": {"pixels": [[0, 255]]},
    }


def test_floats_have_few_digits(tmp_path):
    runs = _runs(1)
    _written(
        tmp_path / "a", runs, RecordBatch.of(runs, {"x": np.array([[0.1, 1e-30]], np.float32)})
    )
    assert (tmp_path / "a").read_text().splitlines()[1:-1] == [
        '{"run": "run-0", "x": 0.1}',
        '{"run": "run-0", "x": 1e-30}',
    ]


def test_not_finite_numbers_are_read_by_python_and_pandas(tmp_path):
    runs = _runs(1)
    x = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    _written(tmp_path / "a", runs, RecordBatch.of(runs, {"x": x, "v": np.stack([x, x], 2)}))
    found = _records(tmp_path / "a")
    np.testing.assert_array_equal([line["x"] for line in found], x[0])
    np.testing.assert_array_equal([line["v"] for line in found], np.stack([x, x], 2)[0])
    table = pd.read_json(tmp_path / "a", lines=True)
    np.testing.assert_array_equal(table[table["event"].isna()]["x"], x[0])


def test_keys_may_be_any_text(tmp_path):
    runs = _runs(1)
    names = [*_HOSTILE, "m" * 2**20]
    values = {name: np.array([[index]]) for index, name in enumerate(names)}
    values["tree"] = {"": np.array([[-1]])}
    _, record, _ = _written(tmp_path / "a", runs, RecordBatch.of(runs, values))
    assert record == {
        "run": "run-0",
        **{name: index for index, name in enumerate(names)},
        "tree/": -1,
    }
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path):
    run = RunInfo("a", "n\udc80", config={"\ud800": "\ud800"})
    opening, record, _ = _written(
        tmp_path / "a", [run], RecordBatch.of([run], {"x\ud800": np.array([[1]])})
    )
    assert (opening["name"], opening["config"]) == ("n\udc80", {"\ud800": "\ud800"})
    assert record == {"run": "a", "x\\ud800": 1}


def test_names_that_are_taken_get_an_underscore(tmp_path):
    runs = _runs(1)
    one = np.array([[1]])
    values = {"run": one, "run_": 2 * one, "lane": 3 * one, "loss": 4 * one, "a/b": 5 * one,
              "a": {"b": 6 * one}}  # fmt: skip
    _, record, _ = _written(
        tmp_path / "a", runs, RecordBatch.of(runs, values, loss=7 * one, event=8 * one)
    )
    assert record == {
        "run": "run-0", "run_": 1, "run__": 2, "lane_": 3, "loss_": 4, "a/b": 5, "a/b_": 6,
        "loss": 7, "event_": 8,
    }  # fmt: skip


def test_a_record_that_lacks_a_step_has_none(tmp_path):
    runs = _runs(1)
    missing = np.iinfo(np.int32).min
    steps = {"i": np.array([[1, missing]], np.int32), "t": np.array([[np.nan, 0.5]])}
    _written(tmp_path / "a", runs, RecordBatch.of(runs, {"x": np.array([[1, 2]])}, **steps))
    assert _records(tmp_path / "a") == [
        {"run": "run-0", "i": 1, "x": 1},
        {"run": "run-0", "t": 0.5, "x": 2},
    ]


def test_late_keys_are_just_there(tmp_path):
    runs = _runs(1)
    batches = [RecordBatch.of(runs, {key: np.array([[1]])}) for key in ("a", "b")]
    _written(tmp_path / "a", runs, *batches)
    assert _records(tmp_path / "a") == [{"run": "run-0", "a": 1}, {"run": "run-0", "b": 1}]


def test_half_a_line_of_a_killed_process_stays_one_bad_line(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b'{"run": "old", "x": 1}\n{"run": "old", "x"')
    runs = _runs(1)
    sink = JSONLSink(path)
    sink.open(runs)
    sink.flush()
    lines = path.read_bytes().splitlines()
    assert lines[:2] == [b'{"run": "old", "x": 1}', b'{"run": "old", "x"']
    assert [json.loads(line)["run"] for line in lines[2:]] == ["run-0"]
    assert list(sink.known_runs().names) == ["run-0"]


def test_the_runs_of_a_file_can_be_resumed(tmp_path):
    runs = [RunInfo("abc-1", "x"), RunInfo("abd-2", "y"), RunInfo("q-3", "y")]
    sink = JSONLSink(tmp_path / "a")
    assert sink.known_runs()[:2] == (str(tmp_path / "a"), {})
    sink.open(runs)
    sink.flush()
    assert list(sink.known_runs().names.items()) == [("abc-1", "x"), ("abd-2", "y"), ("q-3", "y")]


def test_only_whole_lines_that_open_a_run_are_searched_for_it(tmp_path):
    lines = [
        '{"run": "a-1", "event": "open", "name": "o',  # of a process that was killed
        '["event", {"event": "open"}]',
        '{"run": "b-2", "x": {"event": "open"}}',
        '{"run": "c-3", "event": "open", "name": "one"}',
    ]
    (tmp_path / "a").write_text("".join(line + "\n" for line in reversed(lines)))
    assert JSONLSink(tmp_path / "a").known_runs().names == {"c-3": "one"}


def test_a_run_that_goes_on_without_a_name_keeps_its_own(tmp_path):
    for step, given in enumerate([{"name": "one"}, *[{"resume": "one"}] * 3]):
        logger = JSONLLogger(tmp_path / "a")
        with logger.run(**given) as state:
            logger.log(state, {"x": step}, step=step)
        logger.close()
    opened = [line for line in _read(tmp_path / "a") if line.get("event") == "open"]
    assert [line.get("name") for line in opened] == ["one", None, None, None]
    assert len({line["run"] for line in _read(tmp_path / "a")}) == 1
    assert [record["x"] for record in _records(tmp_path / "a")] == [0, 1, 2, 3]


def test_an_opening_line_whose_name_is_the_id_hides_no_name(tmp_path):
    lines = [{"run": "a-1", "event": "open", "name": name} for name in ("one", "a-1")]
    (tmp_path / "a").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sink = JSONLSink(tmp_path / "a")
    assert sink.known_runs().names == {"a-1": "one"}
    sink.open([RunInfo("a-1", "two", resumed=True)])
    sink.flush()
    assert sink.known_runs().names == {"a-1": "two"}


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"\x89HDF\r\n\x1a\n\xff\xfe", b"\n", b'{"a": 1}\n', b"[]", b"3\n"]
)
def test_a_file_that_is_none_of_ours_is_refused_at_once(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=r"`JSONLLogger` adds to files that it wrote, whose lines are JSON objects with `run`"
        r", and .*/a begins with '.*'\. Give the path of another file\.",
    ):
        JSONLLogger(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"", b'{"run": "old", "x"', b'{"run": "old", "x"\n', b'{ "x": 1,"run":"old"}\n']
)
def test_a_file_of_ours_is_added_to_whatever_became_of_it(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    sink = JSONLSink(path)
    sink.open(_runs(1))
    sink.flush()
    assert path.read_bytes().startswith(content)
    assert json.loads(path.read_bytes().splitlines()[-1])["name"] == "name 0"

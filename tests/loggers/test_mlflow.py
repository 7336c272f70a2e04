"""`MLflowLogger`: what MLflow's own client reads from its database, and from a real server."""

import contextlib
import functools
import json
import posixpath
import sqlite3
import sys
import time

import jax
import numpy as np
import pytest

from destinations.mlflow_runs import MlflowClient, found_runs, get_tracking_uri
from logax import HistogramBins, ImagePixels
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.mlflow import (
    MLflowLogger,
    MLflowSink,
    check_reachable,
    mlflow_name,
    original_name,
    params_of,
)
from loggers.mlflow_server import mlflow_server
from loggers.sinks import write_runs

# MLflow uses what the SQLAlchemy of today calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

_HOSTILE = ["../x", "..", ".", "./a", "a/../b", "..a", "a//b", "/", "//", "a/", " ", "naïve ☃ 𝄞",
            "new\nline", "x\n", 'quote " \\', "100%", "'; DROP TABLE runs; --", ":", "::", "a:25:b",
            "a%b", "a/::/b", "\x00"]  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database of MLflow's: making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def sink(database, request):
    return MLflowSink(request.node.name, database)


def _runs(number, **kwargs):
    return [RunInfo(f"{time.time_ns()}-{index}", f"n{index}", **kwargs) for index in range(number)]


_send = functools.partial(write_runs, flushes=True)


def _found(uri, sink):
    """The runs of the sink's experiment by the id that is ours, as MLflow's client reads them."""
    client, runs = found_runs(uri, sink._name)
    return client, {run.data.tags.get("logax.id"): run for run in runs}


def _history(client, run, key):
    history = client.get_metric_history(run.info.run_id, key)
    return sorted((metric.step, metric.value) for metric in history)


def test_a_run_has_its_name_parameters_metrics_and_status(database, sink):
    config = {
        "rate": np.float32(0.1),
        "config": {"sizes": [1, 2], "deep": {"on": True}},
        "note": "",
    }
    runs = _runs(1, config=config, began=12.5, machine={"host": "h"}, lanes=8)
    values = {"loss": np.array([[0.5, 0.25]], np.float32), "grad": {"w": np.array([[1, 2]])}}
    _send(sink, runs, RecordBatch.of(runs, values, step=np.array([[3, 7]])))
    client, found = _found(database, sink)
    run = found[runs[0].id]
    assert (run.info.run_name, run.info.status, run.info.start_time) == ("n0", "FINISHED", 12500)
    assert run.data.params == {
        "rate": "0.1", "config/sizes": "[1, 2]", "config/deep/on": "true", "note": ""
    }  # fmt: skip
    assert json.loads(run.data.tags["logax.machine.0"]) == {"host": "h"}
    assert run.data.tags["logax.lanes"] == "8"
    assert _history(client, run, "loss") == [(3, 0.5), (7, 0.25)]
    assert _history(client, run, "grad/w") == [(3, 1.0), (7, 2.0)]


def test_the_logger_sends_what_it_is_given(database, request):
    logger = MLflowLogger(experiment=request.node.name, tracking_uri=database)
    before = get_tracking_uri()
    with logger.run(key=jax.random.key(0), name="first", config={"rate": 0.5}) as state:
        logger.log(state, {"loss": 0.5}, step=1)
        logger.log(state, {"loss": 0.25}, step=2)
    logger.close()
    client = MlflowClient(database)
    experiment = client.get_experiment_by_name(request.node.name)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert _history(client, run, "loss") == [(1, 0.5), (2, 0.25)]
    assert get_tracking_uri() == before


@pytest.mark.parametrize("number", [1, 8, pytest.param(256, marks=pytest.mark.slow)])
def test_every_record_of_every_run_is_there_once(database, sink, number):
    runs = _runs(number)
    x = np.arange(number * 3, dtype=np.float32).reshape(number, 3) / 7
    _send(sink, runs, RecordBatch.of(runs, {"x": x}, step=np.broadcast_to(np.arange(3), x.shape)))
    client, found = _found(database, sink)
    assert len(found) == number
    for index in {0, number // 2, number - 1}:
        own = [(step, float(value)) for step, value in enumerate(x[index])]
        assert _history(client, found[runs[index].id], "x") == own
    assert all(run.data.metrics["x"] == float(x[i, 2]) for i, run in _in_order(found, runs))


def _in_order(found, runs):
    return [(index, found[run.id]) for index, run in enumerate(runs)]


def test_more_metrics_than_fit_in_a_request_are_all_sent(database, sink):
    runs = _runs(1)
    x = np.arange(2500)[None]
    _send(sink, runs, RecordBatch.of(runs, {"x": x}, step=x))
    client, found = _found(database, sink)
    assert _history(client, found[runs[0].id], "x") == [(i, float(i)) for i in range(2500)]


def test_equal_records_of_the_same_step_are_all_kept(database, sink):
    runs = _runs(1)
    x = np.full((1, 50), 0.5)
    batch = RecordBatch.of(runs, {"x": x, "nan": np.nan * x}, step=np.zeros((1, 50), int))
    _send(sink, runs, batch, batch)
    client, found = _found(database, sink)
    assert _history(client, found[runs[0].id], "x") == [(0, 0.5)] * 100
    nans = [value for _, value in _history(client, found[runs[0].id], "nan")]
    np.testing.assert_array_equal(nans, [np.nan] * 100)


def test_late_keys_ragged_counts_and_records_without_steps(database, sink):
    runs = _runs(2)
    real = np.array([[True, False], [True, True]])
    ragged = RecordBatch.of(runs, {"a": np.array([[1, 2], [3, 4]])}, real=real)
    late = RecordBatch.of(runs, {"b": np.array([[5], [6]])}, epoch=np.array([[9], [9]]))
    _send(sink, runs, ragged, late, ragged)
    client, found = _found(database, sink)
    first, second = (run for _, run in _in_order(found, runs))
    assert _history(client, first, "a") == [(0, 1.0), (1, 1.0)]
    assert _history(client, second, "a") == [(0, 3.0), (1, 4.0), (2, 3.0), (3, 4.0)]
    assert _history(client, second, "b") == [(9, 6.0)]


def test_a_step_that_is_not_whole_is_a_metric(database, sink):
    runs = _runs(1)
    _send(sink, runs, RecordBatch.of(runs, {"x": np.array([[1, 2]])}, t=np.array([[0.5, 1.5]])))
    client, found = _found(database, sink)
    assert _history(client, found[runs[0].id], "x") == [(0, 1.0), (1, 2.0)]
    assert _history(client, found[runs[0].id], "t") == [(0, 0.5), (1, 1.5)]


def test_nan_stays_and_infinities_become_the_greatest_floats(database, sink):
    runs = _runs(1)
    x = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    _send(sink, runs, RecordBatch.of(runs, {"x": x}, step=np.arange(3)[None]))
    client, found = _found(database, sink)
    greatest = np.finfo(np.float64).max
    values = [value for _, value in _history(client, found[runs[0].id], "x")]
    np.testing.assert_array_equal(values, [np.nan, greatest, -greatest])


def test_a_run_without_records_is_there(database, sink):
    runs = _runs(1)
    _send(sink, runs, RecordBatch.of(runs, {"x": np.zeros((1, 0))}), status="crashed")
    run = _found(database, sink)[1][runs[0].id]
    assert (run.info.status, run.data.metrics) == ("FAILED", {})


def test_keys_may_be_any_text(database, sink):
    runs = _runs(1)
    long = ["m" * 2**20, "m" * 2**20 + "n", "☃" * 100]
    names = [*_HOSTILE, *long]
    values = {name: np.array([[index]]) for index, name in enumerate(names)}
    _send(sink, runs, RecordBatch.of(runs, values, step=np.array([[1]])))
    run = _found(database, sink)[1][runs[0].id]
    assert len(run.data.metrics) == len(names)
    shown = {original_name(name): value for name, value in run.data.metrics.items()}
    for index, name in enumerate(_HOSTILE):
        assert shown[name] == index
    for index, name in enumerate(long, len(_HOSTILE)):
        own = mlflow_name(name)
        assert run.data.metrics[own] == index
        assert name.startswith(run.data.tags[f"logax.name.{own[-64:]}"])


def test_names_are_plain_paths_that_can_be_turned_round():
    assert mlflow_name("grad/layers/0/w_1-a.b c") == "grad/layers/0/w_1-a.b c"
    assert [mlflow_name(name) for name in ("loss%", "a//b", "../x", "a:b", "..x")] == [
        "loss:25:", "a/::/b", ":2e::2e:/x", "a:3a:b", ":2e:.x"
    ]  # fmt: skip
    for name in [*_HOSTILE, "".join(map(chr, range(1, 300)))[:60]]:
        plain = mlflow_name(name)
        assert original_name(plain) == name
        assert posixpath.normpath(plain) == plain
        assert not plain.startswith(("..", "/"))
    assert len({mlflow_name(name) for name in _HOSTILE}) == len(_HOSTILE)


def test_long_parameters_are_cut_and_whole_in_the_tags(database, sink):
    config = {"long": "é" * 13000, "many": {f"p{index}": index for index in range(150)}}
    runs = _runs(1, config=config)
    _send(sink, runs)
    run = _found(database, sink)[1][runs[0].id]
    assert run.data.params["long"] == "é" * 5999 + "…"
    assert run.data.params["many/p149"] == "149"
    pieces = {tag: text for tag, text in run.data.tags.items() if tag.startswith("logax.config.")}
    assert sorted(pieces) == ["logax.config.0", "logax.config.1", "logax.config.2"]
    assert json.loads("".join(pieces[tag] for tag in sorted(pieces))) == config
    assert params_of({"short": "x" * 6000}) == ({"short": "x" * 6000}, {})
    assert params_of({}) == ({}, {})
    assert params_of({"a": {}, "b": None}) == ({"a": "{}", "b": "null"}, {})


def test_the_tags_of_a_config_hold_all_of_it_after_each_resume(database, sink):
    """Shorter and longer configs, each merged into what the tags held."""
    expected = {"long": "é" * 13000, "rate": 0.5, "net": {"a": 1}}
    (run,) = _runs(1, config=dict(expected))
    _send(sink, [run])

    def resumed(config):
        _send(MLflowSink(sink._name, database), [RunInfo(run.id, "n0", config, resumed=True)])
        found = _found(database, sink)[1][run.id].data
        assert found.params["rate"] == "0.5"
        tags = [found.tags.get(f"logax.config.{number}", "") for number in range(5)]
        return json.loads("".join(tags)), [bool(text) for text in tags].count(True)

    for config, number in (
        ({}, 3),
        ({"rate": 0.25}, 3),
        ({"long": "☃", "net": {"b": 2}}, 1),
        ({"rate": 0.5}, 1),  # what the parameter is, and the tags are not
        ({"long": "é" * 7000}, 2),  # as it is: escaped it would need nine
    ):
        expected |= config
        assert resumed(config) == (expected, number)


@pytest.mark.parametrize("text", ["{", "3"])
def test_tags_of_a_config_that_a_user_has_edited_are_replaced(database, sink, text):
    (run,) = _runs(1, config={"rate": 0.5})
    _send(sink, [run])
    client, found = _found(database, sink)
    client.set_tag(found[run.id].info.run_id, "logax.config.0", text)
    _send(MLflowSink(sink._name, database), [RunInfo(run.id, "n0", {"rate": 1}, resumed=True)])
    assert _found(database, sink)[1][run.id].data.tags["logax.config.0"] == '{"rate": 1}'


def test_more_tags_than_fit_in_a_request_are_all_set(database, sink):
    config = {"long": "x" * 510_000}
    runs = _runs(1, config=config)
    _send(sink, runs)
    tags = _found(database, sink)[1][runs[0].id].data.tags
    pieces = [tags[f"logax.config.{number}"] for number in range(103)]
    assert json.loads("".join(pieces)) == config
    assert tags["logax.id"] == runs[0].id


def test_runs_of_a_group_are_nested_in_a_run_that_ends_with_the_last(database, sink):
    runs = _runs(2, group="all")
    sink.open(runs)
    sink.close(runs[:1], "crashed")
    _, found = _found(database, sink)
    parent = found.pop(None)
    assert (parent.info.run_name, parent.info.status) == ("all", "RUNNING")
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    sink.close(runs[1:], "finished")
    assert _found(database, sink)[1][None].info.status == "FAILED"
    late = _runs(1, group="all")
    sink.open(late)
    _, found = _found(database, sink)
    assert found[None].info.status == "RUNNING"
    assert found[late[0].id].data.tags["mlflow.parentRunId"] == parent.info.run_id
    sink.close(late, "finished")
    assert _found(database, sink)[1][None].info.status == "FAILED"  # as one of its runs has


def test_a_group_ends_without_the_run_that_could_not_be_opened(database, sink):
    bad, good = (RunInfo(f"{time.time_ns()}", name, group="all") for name in ("\ud800", "good"))
    with pytest.raises(RuntimeError, match=r"`MLflowLogger` could not open the run '.ud800': "):
        sink.open([bad, good])
    sink.write(RecordBatch.of([good], {"x": np.array([[1]])}))
    sink.close([bad, good], "finished")
    _, found = _found(database, sink)
    assert {run.info.run_name: run.info.status for run in found.values()} == {
        "all": "FINISHED",
        "good": "FINISHED",
    }


def test_histograms_and_images_are_left_out_and_named(database, sink):
    runs = _runs(1)
    bins = HistogramBins(np.array([[[1, 2]]]), np.array([[[0.0, 0.5, 1]]]), np.array([[3]]))
    image = ImagePixels(np.zeros((1, 1, 2, 2), np.uint8))
    _send(sink, runs, RecordBatch.of(runs, {"h": bins, "i": image, "x": np.array([[1]])}))
    run = _found(database, sink)[1][runs[0].id]
    assert run.data.tags["logax.left_out"] == "h, i"
    assert run.data.metrics == {"x": 1}


def _histogram(name, runs):
    shape = (len(runs), 1)
    bins = HistogramBins(np.ones((*shape, 2)), np.ones((*shape, 3)), np.zeros(shape, int))
    return RecordBatch.of(runs, {name: bins})


def test_all_that_was_left_out_is_named_also_in_a_run_that_goes_on(database, sink):
    runs = _runs(1)
    _send(sink, runs, *(_histogram(name, runs) for name in ("b", "a", "b")))
    again = [RunInfo(runs[0].id, "n0", resumed=True)]
    _send(MLflowSink(sink._name, database), again, _histogram("c", again))
    run = _found(database, sink)[1][runs[0].id]
    assert run.data.tags["logax.left_out"] == "b, a, c"


def test_a_run_that_mlflow_refuses_keeps_nothing_from_the_others(database, sink):
    runs = _runs(3)
    sink.open(runs)
    client, found = _found(database, sink)
    client.delete_run(found[runs[0].id].info.run_id)
    sink.write(RecordBatch.of(runs, {"x": np.arange(6).reshape(3, 2)}, step=np.array([[0, 1]] * 3)))
    with pytest.raises(
        RuntimeError, match="`MLflowLogger` could not send 2 metrics, which are lost: "
    ):
        sink.flush()
    with pytest.raises(RuntimeError, match="`MLflowLogger` could not close the run 'n0': "):
        sink.close(runs, "finished")
    client, found = _found(database, sink)
    assert sorted(found) == [run.id for run in runs[1:]]
    for number, run in enumerate(runs[1:], 1):
        assert found[run.id].info.status == "FINISHED"
        own = [(0, 2.0 * number), (1, 2.0 * number + 1)]
        assert _history(client, found[run.id], "x") == own


def test_a_tag_that_could_not_be_set_is_set_later(database, sink):
    runs = _runs(1)
    sink.open(runs)
    client, found = _found(database, sink)
    own = found[runs[0].id].info.run_id
    client.delete_run(own)
    sink.write(_histogram("h", runs))
    with pytest.raises(RuntimeError, match=r"could not set the tag logax\.left_out: "):
        sink.flush()
    client.restore_run(own)
    sink.write(_histogram("h", runs))
    sink.close(runs, "finished")
    assert client.get_run(own).data.tags["logax.left_out"] == "h"


def test_the_records_of_a_run_that_could_not_be_opened_are_told_and_those_of_others_are_there(
    database, sink
):
    runs = _runs(1)
    sink.open(runs)
    missing = _runs(1)
    with pytest.raises(RuntimeError, match="could not open the run 'n0': its records are lost"):
        sink.write(RecordBatch.of([*missing, *runs], {"x": np.array([[1], [2]])}))
    sink.close([*missing, *runs], "finished")
    client, found = _found(database, sink)
    assert _history(client, found[runs[0].id], "x") == [(0, 2.0)]


def test_what_keeps_mlflow_from_looking_for_a_run_is_told(database, sink):
    with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as connection:
        connection.execute("ALTER TABLE runs RENAME TO elsewhere")
        try:
            with pytest.raises(RuntimeError, match="`MLflowLogger` could not list the runs of the"):
                sink.known_runs()
        finally:
            connection.execute("ALTER TABLE elsewhere RENAME TO runs")


def test_a_run_is_found_and_goes_on(database, sink):
    (run,) = _runs(1, config={"rate": 0.5})
    _send(sink, [run], RecordBatch.of([run], {"x": np.array([[1]])}, step=np.array([[0]])))
    other = MLflowSink(sink._name, database)
    assert other.known_runs()[:2] == (f"the experiment {sink._name!r}", {run.id: "n0"})
    config = {"rate": 0.25, "more": 1}
    again = RunInfo(run.id, "other", config=config, resumed=True)
    other.open([again])
    assert _found(database, sink)[1][run.id].info.status == "RUNNING"
    other.write(RecordBatch.of([again], {"x": np.array([[2]])}, step=np.array([[1]])))
    other.close([again], "finished")
    client, found = _found(database, sink)
    assert list(found) == [run.id]
    assert found[run.id].info.status == "FINISHED"
    assert found[run.id].data.params == {"rate": "0.5", "more": "1"}
    assert json.loads(found[run.id].data.tags["logax.config.0"]) == config
    assert _history(client, found[run.id], "x") == [(0, 1.0), (1, 2.0)]


def test_a_run_that_goes_on_and_is_not_there_is_made(database, sink):
    again = RunInfo("gone-1", "n0", config={"rate": 0.5}, resumed=True)
    _send(sink, [again], RecordBatch.of([again], {"x": np.array([[2]])}, step=np.array([[1]])))
    client, found = _found(database, sink)
    run = found["gone-1"]
    assert (run.info.run_name, run.data.params) == ("n0", {"rate": "0.5"})
    assert _history(client, run, "x") == [(1, 2.0)]


def test_a_run_that_goes_on_without_a_name_keeps_its_own(database, sink):
    for step, given in enumerate([{"name": "one"}, *[{"resume": "one"}] * 2]):
        logger = MLflowLogger(experiment=sink._name, tracking_uri=database)
        with logger.run(**given) as state:
            logger.log(state, {"x": step}, step=step)
        logger.close()
    client, found = _found(database, sink)
    (run,) = found.values()
    assert run.info.run_name == "one"
    assert _history(client, run, "x") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_the_experiment_that_is_not_given_is_that_of_mlflows_variable(database, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the variable")
    assert MLflowSink(tracking_uri=database)._name == "of the variable"
    assert MLflowSink("given", database)._name == "given"
    number = MlflowClient(database).create_experiment("of the number")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    assert MLflowSink(tracking_uri=database)._name == "of the number"
    assert MLflowSink("given", database)._name == "given"


def test_an_experiment_that_another_process_makes_first_is_used(database, monkeypatch):
    class Slow(MlflowClient):
        """Looks for an experiment just before another process makes it."""

        def get_experiment_by_name(self, name):
            found = super().get_experiment_by_name(name)
            if found is None:
                super().create_experiment(name)
            return found

    monkeypatch.setattr("mlflow.MlflowClient", Slow)
    sink = MLflowSink("made by another", database)
    made = MlflowClient(database).get_experiment_by_name("made by another")
    assert (sink._experiment, sink._name) == (made.experiment_id, made.name)


def test_mlflow_that_is_missing_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r'`MLflowLogger` needs mlflow.*"logax\[mlflow\]"`'):
        MLflowLogger()


def test_arguments_that_mlflow_does_not_take_are_refused_at_once(database):
    with pytest.raises(TypeError, match="`MLflowLogger` takes a string as `experiment`, and got 3"):
        MLflowLogger(experiment=3)
    with pytest.raises(
        ValueError, match="`MLflowLogger` got arguments that MLflow does not accept: "
    ):
        MLflowLogger(tracking_uri="nonsense://x")
    with pytest.raises(
        ValueError, match=r"`MLflowLogger` got arguments that MLflow does not accept: .*length"
    ):
        MLflowLogger(experiment="x" * 1000, tracking_uri=database)
    client = MlflowClient(database)
    number = client.create_experiment("gone")
    client.delete_experiment(number)
    with pytest.raises(ValueError, match=f"deleted. Restore it with .*--experiment-id {number}`"):
        MLflowLogger(experiment="gone", tracking_uri=database)


def test_a_server_that_is_not_there_is_an_error_at_once():
    with pytest.raises(
        ConnectionError, match=r"cannot reach the MLflow server at http://127.0.0.1:9 .*Start it wi"
    ):
        MLflowLogger(tracking_uri="http://127.0.0.1:9")


def test_behind_a_proxy_nobody_knows_whether_a_server_is_there(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    check_reachable("http://mlflow.invalid:5000")
    with pytest.raises(
        ConnectionError, match=r"cannot reach the MLflow server at http://127\.0\.0"
    ):
        check_reachable("http://127.0.0.1:9")


@pytest.mark.parametrize(("number", "notes"), [(1, []), (3, ["2 more were not tried."])])
def test_after_a_server_that_is_gone_no_other_run_is_tried(database, sink, number, notes):
    runs = _runs(number)
    sink.open(runs)
    sink.write(RecordBatch.of(runs, {"x": np.zeros((number, 2))}))
    sink.uri = "http://127.0.0.1:9"  # where nobody listens
    with pytest.raises(ConnectionError, match="could not send 2 metrics, which are lost") as caught:
        sink.flush()
    assert getattr(caught.value, "__notes__", []) == notes


@pytest.mark.slow
def test_a_real_server_takes_everything_and_its_end_is_an_error_that_says_what_is_lost(tmp_path):
    with mlflow_server(tmp_path) as (address, kill):
        sink = MLflowSink("served", address)
        runs = _runs(8, config={"rate": 0.1}, group="g")
        x = np.arange(8 * 300, dtype=np.float32).reshape(8, 300) / 7
        x[0, :3] = np.nan, np.inf, -np.inf
        values = dict.fromkeys(("x", "../x", "naïve ☃", "m" * 2**20, "a//b"), x)
        steps = np.broadcast_to(np.arange(300), x.shape)
        sink.open(runs)
        sink.write(RecordBatch.of(runs, values, step=steps))
        sink.flush()
        sink.close(runs[:4], "finished")
        client, found = _found(address, sink)
        greatest = np.finfo(np.float64).max
        for index, run in _in_order(found, runs):
            assert run.info.status == ("FINISHED" if index < 4 else "RUNNING")
            assert run.data.params == {"rate": "0.1"}
            assert run.data.tags["mlflow.parentRunId"] == found[None].info.run_id
            own = np.clip(x[index].astype(np.float64), -greatest, greatest)
            for name in values:
                history = _history(client, run, mlflow_name(name))
                np.testing.assert_array_equal([value for _, value in history], own)
        kill()
        sink.write(RecordBatch.of(runs[4:], {"x": x[4:]}, step=steps[4:]))
        with pytest.raises(
            ConnectionError, match=r"could not send 300 metrics, which are lost: .*reach"
        ) as caught:
            sink.flush()
        assert caught.value.__notes__ == ["3 more were not tried."]
        sink.flush()  # nothing is left

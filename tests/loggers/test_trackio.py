"""`TrackioLogger`: what Trackio's own API reads from its database."""

import functools
import gc
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import weakref

import jax
import numpy as np
import pytest
import trackio
from trackio import context_vars

from destinations.trackio_project import read_rows
from logax import HistogramBins, ImagePixels
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.trackio import TrackioLogger, TrackioSink
from loggers.sinks import write_runs

_HOSTILE = ["../x", "a//b", "/", " ", "naïve ☃ 𝄞", "new\nline", 'quote " \\', "\x00", "a.b",
            "'; DROP TABLE metrics; --", "m" * 2**20]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Folder of the databases. Trackio reads the variable for it once, when it is imported."""
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    return tmp_path / "trackio"


def _runs(number, **kwargs):
    return [RunInfo(f"id-{index}", f"n{index}", **kwargs) for index in range(number)]


_write = functools.partial(write_runs, flushes=True)


def test_a_run_has_its_name_config_group_and_rows():
    config = {"rate": np.float32(0.5), "net": {"sizes": (1, 2)}, "_mine": "x"}
    runs = _runs(1, config=config, began=0.0, group="g", machine={"host": "h"})
    values = {"loss": np.array([[0.5, 0.25]], np.float32), "grad": {"w": np.array([[1, 2]])}}
    _write(
        TrackioSink("p", config={"all": 1}),
        runs,
        RecordBatch.of(runs, values, step=np.array([[3, 7]])),
    )
    (run,) = trackio.Api().runs("p")
    assert (run.id, run.name) == ("id-0", "n0")
    assert run.config == {
        "all": 1,
        "rate": 0.5,
        "net": {"sizes": [1, 2]},
        "logax/_mine": "x",
        "logax/machine": {"host": "h"},
        "_Username": None,
        "_Created": "1970-01-01T00:00:00+00:00",
        "_Group": "g",
    }
    assert read_rows("p") == {
        "id-0": [
            {"step": 3, "loss": 0.5, "grad/w": 1},
            {"step": 7, "loss": 0.25, "grad/w": 2},
        ]
    }


def test_the_logger_leaves_the_run_of_the_process_alone_and_starts_nothing(monkeypatch):
    def refuse(*_):
        raise AssertionError("something was sent")

    before = _threads_of_trackio()
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    logger = TrackioLogger("p")
    with logger.run(key=jax.random.key(0), name="first", config={"rate": 0.5}) as state:
        logger.log(state, {"loss": 0.5}, step=1)
        logger.log(state, {"loss": 0.25}, step=2)
    logger.close()
    (rows,) = read_rows("p").values()
    assert rows == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert context_vars.current_run.get() is None
    assert _threads_of_trackio() == before


def _threads_of_trackio():
    return [thread for thread in threading.enumerate() if "trackio" in thread.name]


@pytest.mark.parametrize("number", [1, 8, pytest.param(256, marks=pytest.mark.slow)])
def test_every_record_of_every_run_is_there_once_and_in_order(number):
    runs = _runs(number)
    x = np.arange(number * 5, dtype=np.float32).reshape(number, 5) / 7
    _write(
        TrackioSink("p"),
        runs,
        RecordBatch.of(runs, {"x": x}, step=np.broadcast_to(np.arange(5), x.shape)),
    )
    found = read_rows("p")
    assert len(found) == number
    for run, own in zip(runs, x, strict=True):
        assert found[run.id] == [{"step": i, "x": float(value)} for i, value in enumerate(own)]


def test_late_keys_ragged_counts_and_records_without_steps():
    runs = _runs(2)
    real = np.array([[True, False], [True, True]])
    ragged = RecordBatch.of(runs, {"a": np.array([[1, 2], [3, 4]])}, real=real)
    late = RecordBatch.of(runs, {"b": np.array([[5], [6]])}, epoch=np.array([[9], [9]]))
    _write(TrackioSink("p"), runs, ragged, late, ragged)
    assert read_rows("p") == {
        "id-0": [{"step": 0, "a": 1}, {"step": 9, "epoch": 9, "b": 5}, {"step": 1, "a": 1}],
        "id-1": [
            {"step": 0, "a": 3},
            {"step": 1, "a": 4},
            {"step": 9, "epoch": 9, "b": 6},
            {"step": 2, "a": 3},
            {"step": 3, "a": 4},
        ],
    }


def test_a_step_that_is_not_whole_is_a_metric():
    runs = _runs(1)
    _write(
        TrackioSink("p"),
        runs,
        RecordBatch.of(runs, {"x": np.array([[1, 2]])}, t=np.array([[0.5, 1.5]])),
    )
    assert read_rows("p") == {
        "id-0": [{"step": 0, "x": 1, "t": 0.5}, {"step": 1, "x": 2, "t": 1.5}]
    }


def test_nan_and_infinities_stay():
    runs = _runs(1)
    x = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    _write(TrackioSink("p"), runs, RecordBatch.of(runs, {"x": x}, step=np.arange(3)[None]))
    np.testing.assert_array_equal([row["x"] for row in read_rows("p")["id-0"]], x[0])


def test_no_records_make_no_run():
    runs = _runs(1)
    _write(TrackioSink("p"), runs, RecordBatch.of(runs, {"x": np.zeros((1, 0))}))
    assert read_rows("p") == {}


def test_keys_may_be_any_text():
    runs = _runs(1)
    values = {name: np.array([[index]]) for index, name in enumerate(_HOSTILE)}
    values["tree"] = {"": np.array([[-1]])}
    values["x\ud800"] = np.array([[-2]])
    _write(TrackioSink("p"), runs, RecordBatch.of(runs, values, step=np.array([[1]])))
    expected = {name: index for index, name in enumerate(_HOSTILE)}
    assert read_rows("p") == {"id-0": [{"step": 1, **expected, "tree/": -1, "x\\ud800": -2}]}


def test_names_that_trackio_has_for_itself_get_two_underscores():
    runs = _runs(1)
    names = ["step", "run", "time", "timestamp", "metrics", "project", "__x", "_y"]
    values = {name: np.array([[index]]) for index, name in enumerate(names)}
    _write(TrackioSink("p"), runs, RecordBatch.of(runs, values, i=np.array([[5]])))
    (row,) = read_rows("p")["id-0"]
    assert row == {
        "step": 5, "i": 5, "__step": 0, "__run": 1, "__time": 2, "__timestamp": 3, "__metrics": 4,
        "__project": 5, "____x": 6, "_y": 7,
    }  # fmt: skip


def test_a_histogram_is_trackios_own_and_images_are_left_out_and_named():
    runs = _runs(1)
    bins = HistogramBins(np.array([[[1, 2]]]), np.array([[[0.0, 0.5, 1]]]), np.array([[3]]))
    image = ImagePixels(np.zeros((1, 1, 2, 2), np.uint8))
    _write(
        TrackioSink("p"),
        runs,
        RecordBatch.of(runs, {"h": bins, "i": image, "x": np.array([[1]])}, step=np.array([[4]])),
        RecordBatch.of(runs, {"i": image}, step=np.array([[5]])),
    )
    own = trackio.Histogram(np_histogram=([1, 2], [0.0, 0.5, 1.0]))._to_dict()
    assert read_rows("p")["id-0"] == [{"step": 4, "x": 1}, {"step": 4, "h": own, "h/nonfinite": 3}]
    (run,) = trackio.Api().runs("p")
    assert run.config["logax/left_out"] == ["i"]


def test_a_run_is_found_and_goes_on_with_its_config():
    (run,) = _runs(1, config={"rate": 0.5, "kept": 2})
    _write(
        TrackioSink("p"), [run], RecordBatch.of([run], {"x": np.array([[1]])}, step=np.array([[0]]))
    )
    sink = TrackioSink("p")
    assert sink.known_runs()[:2] == ("the project 'p'", {"id-0": "n0"})
    again = RunInfo("id-0", "n0", config={"rate": 0.25, "more": 1}, resumed=True)
    _write(sink, [again], RecordBatch.of([again], {"x": np.array([[2]])}, step=np.array([[1]])))
    assert read_rows("p") == {"id-0": [{"step": 0, "x": 1}, {"step": 1, "x": 2}]}
    (found,) = trackio.Api().runs("p")
    assert [found.config[name] for name in ("rate", "kept", "more")] == [0.25, 2, 1]


def test_a_run_that_goes_on_and_is_not_there_begins_with_its_config():
    again = RunInfo("id-9", "n9", config={"rate": 0.5}, resumed=True)
    batch = RecordBatch.of([again], {"x": np.array([[2]])}, step=np.array([[1]]))
    _write(TrackioSink("p"), [again], batch)
    assert read_rows("p") == {"id-9": [{"step": 1, "x": 2}]}
    (found,) = trackio.Api().runs("p")
    assert (found.name, found.config["rate"]) == ("n9", 0.5)


def test_a_run_that_goes_on_without_a_name_keeps_its_own():
    for step, given in enumerate([{"name": "one"}, *[{"resume": "one"}] * 2]):
        logger = TrackioLogger("p")
        with logger.run(**given) as state:
            logger.log(state, {"x": step}, step=step)
        logger.close()
    (found,) = trackio.Api().runs("p")
    assert found.name == "one"
    assert list(read_rows("p").values()) == [[{"step": step, "x": step} for step in range(3)]]


def test_a_folder_that_is_gone_raises_and_says_what_was_lost(folder):
    runs = _runs(2)
    sink = TrackioSink("p")
    sink.open(runs)
    shutil.rmtree(folder)
    folder.write_text("no folder")
    sink.write(RecordBatch.of(runs, {"x": np.zeros((2, 7))}))
    with pytest.raises(
        OSError, match=r"`TrackioLogger` could not write 14 rows to the project 'p'"
    ):
        sink.flush()
    folder.unlink()
    sink.write(RecordBatch.of(runs, {"x": np.ones((2, 1))}))
    sink.flush()
    assert read_rows("p") == {run.id: [{"step": 7, "x": 1.0}] for run in runs}


def test_a_run_that_could_not_be_written_to_its_end_is_let_go(folder):
    (run,) = _runs(1)
    gone = weakref.ref(run)
    sink = TrackioSink("p")
    sink.open([run])
    sink.write(RecordBatch.of([run], {"x": np.zeros((1, 7))}))
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(OSError, match=r"`TrackioLogger` could not write 7 rows"):
        sink.close([run], "finished")
    del run
    gc.collect()
    assert gone() is None


_FILL = """
import os, resource, sys
import numpy as np
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.trackio import TrackioSink
sink, runs = TrackioSink("p"), [RunInfo("id-0", "n0")]
sink.open(runs)
sink.write(RecordBatch.of(runs, {"x": np.arange(3)[None]}))
sink.flush()
size = max(entry.stat().st_size for entry in os.scandir(os.environ["TRACKIO_DIR"])) + 20000
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
sink.write(RecordBatch.of(runs, {"x": np.arange(5000)[None]}))
try:
    sink.flush()
except OSError as error:
    sys.exit(f"{error}")
"""


@pytest.mark.slow
def test_a_full_disk_raises_and_keeps_what_was_written(folder):
    environment = {**os.environ, "TRACKIO_DIR": str(folder)}
    answer = subprocess.run(
        [sys.executable, "-c", _FILL], env=environment, capture_output=True, text=True, check=False
    )
    assert "`TrackioLogger` could not write 5000 rows to the project 'p', and" in answer.stderr
    with sqlite3.connect(folder / "p.db") as connection:
        assert connection.execute("SELECT step FROM metrics").fetchall() == [(0,), (1,), (2,)]
    connection.close()


def test_a_place_that_cannot_be_written_is_refused_at_once(folder):
    folder.write_text("no folder")
    with pytest.raises(
        OSError, match=r"`TrackioLogger` cannot write Trackio's database for 'p': .*"
    ):
        TrackioLogger("p")


def test_options_that_mean_nothing_here_are_refused_at_once():
    with pytest.raises(
        TypeError, match=r"machine only, and got `space_id`\. Write `trackio.sync\("
    ):
        TrackioLogger("p", space_id="a/b")
    with pytest.raises(TypeError, match=r"takes `config`, `group` and `lanes`, and got `nonsense`"):
        TrackioLogger("p", nonsense=1)
    with pytest.raises(TypeError, match="`TrackioLogger` takes the name of a project, and got 3"):
        TrackioLogger(3)
    with pytest.raises(TypeError, match="`TrackioLogger` takes as `config` a mapping or a data"):
        TrackioLogger("p", config=3)


def test_trackio_that_is_missing_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio.sqlite_storage", None)
    with pytest.raises(ImportError, match=r'`TrackioLogger` needs trackio.*"logax\[trackio\]"`'):
        TrackioLogger("p")

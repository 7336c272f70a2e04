"""`TensorBoardLogger`, with its files read back by TensorBoard itself."""

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from tensorboard import context
from tensorboard.backend.event_processing import data_provider
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.backend.event_processing.plugin_event_multiplexer import (
    EventMultiplexer as PluginMultiplexer,
)
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import backend_context

import logax
from destinations.tensorboard_files import read_events, read_scalars, read_session
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.tensorboard import TensorBoardLogger, TensorBoardSink
from loggers.sinks import write_runs


def _run(name="a", number=0, **more):
    return RunInfo(f"{number:08}-0000-4000-8000-000000000000", name, **more)


def _folders(log_dir):
    return sorted(path.name for path in log_dir.iterdir())


def test_scalars_are_read_back_with_their_steps(tmp_path):
    run = _run()
    values = {"loss": np.float32([[0.5, 0.25]]), "net": {"w": np.array([[[1, 2], [3, 4]]])}}
    batch = RecordBatch.of([run], values, step=np.array([[10, 20]]), episode=np.array([[1, 2]]))
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    assert read_scalars(tmp_path / "a") == {
        "loss": [(10, 0.5), (20, 0.25)],
        "net/w/0": [(10, 1.0), (20, 3.0)],
        "net/w/1": [(10, 2.0), (20, 4.0)],
        "episode": [(10, 1.0), (20, 2.0)],
    }


def test_the_time_of_an_event_is_that_of_its_arrival(tmp_path):
    run, before = _run(), time.time()
    write_runs(TensorBoardSink(tmp_path), [run], RecordBatch.of([run], {"a": np.zeros((1, 1))}))
    (event,) = read_events(tmp_path / "a").Scalars("a")
    assert before <= event.wall_time <= time.time()


def test_each_run_has_its_folder_and_its_records(tmp_path):
    runs = [_run(f"seed {i}", i) for i in range(3)]
    batch = RecordBatch.of(runs, {"a": np.arange(6.0).reshape(3, 2)}, step=np.array([[0, 1]] * 3))
    write_runs(TensorBoardSink(tmp_path), runs, batch)
    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert {
        run: [(event.step, event.value) for event in read.Scalars(run, "a")] for run in read.Runs()
    } == {f"seed {i}": [(0, 2.0 * i), (1, 2.0 * i + 1)] for i in range(3)}


def test_records_without_steps_are_counted_across_batches(tmp_path):
    run = _run()
    batches = [RecordBatch.of([run], {"a": np.array([[float(i)]])}) for i in range(3)]
    write_runs(TensorBoardSink(tmp_path), [run], *batches)
    assert read_scalars(tmp_path / "a") == {"a": [(0, 0.0), (1, 1.0), (2, 2.0)]}


def test_ragged_records_and_late_keys_are_all_there(tmp_path):
    runs = [_run("a", 1), _run("b", 2)]
    real = np.array([[True, True], [False, True]])
    first = RecordBatch.of(
        runs, {"x": np.arange(4.0).reshape(2, 2)}, real=real, step=np.ones((2, 2))
    )
    late = RecordBatch.of(runs, {"y": np.zeros((2, 1))}, step=np.full((2, 1), 9))
    write_runs(TensorBoardSink(tmp_path), runs, first, late)
    assert read_scalars(tmp_path / "a") == {"x": [(1, 0.0), (1, 1.0)], "y": [(9, 0.0)]}
    assert read_scalars(tmp_path / "b") == {"x": [(1, 3.0)], "y": [(9, 0.0)]}


def test_a_key_may_go_back_in_its_steps(tmp_path):
    run = _run()
    batches = [
        RecordBatch.of([run], {"a": np.zeros((1, 1))}, step=np.array([[step]]))
        for step in (5, 3, -1)
    ]
    write_runs(TensorBoardSink(tmp_path), [run], *batches)
    assert read_scalars(tmp_path / "a") == {"a": [(5, 0.0), (3, 0.0), (-1, 0.0)]}


def test_numbers_that_are_not_finite_are_kept(tmp_path):
    run = _run()
    batch = RecordBatch.of([run], {"a": np.array([[np.nan, np.inf, -np.inf, 1e300]])})
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    values = [value for _, value in read_scalars(tmp_path / "a")["a"]]
    np.testing.assert_array_equal(values, [np.nan, np.inf, -np.inf, np.inf])


def test_a_step_that_is_not_whole_stands_beside_the_count(tmp_path):
    run = _run()
    batch = RecordBatch.of([run], {"a": np.zeros((1, 2))}, step=np.array([[0.5, 1.0]]))
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    assert read_scalars(tmp_path / "a") == {
        "a": [(0, 0.0), (1, 0.0)],
        "step": [(0, 0.5), (1, 1.0)],
    }


_HOSTILE = ["../x", "/etc/x", "a//b/", "Größe ∇ 🎲", "'; DROP TABLE x; --", "a\0b\n", "\ud800", " "]


def test_hostile_keys_are_tags_like_any_other(tmp_path):
    run, long = _run(), "k" * 2**20
    keys = [*_HOSTILE, long]
    batch = RecordBatch.of([run], {key: np.array([[float(i)]]) for i, key in enumerate(keys)})
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    told = ["\\ud800" if key == "\ud800" else key for key in keys]
    assert read_scalars(tmp_path / "a") == {key: [(0, float(i))] for i, key in enumerate(told)}


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "..", ".hidden", "", "a\0b", "C:\\x", "n" * 5000, "ü" * 200, " . "]
)
def test_no_name_leaves_the_folder(tmp_path, name):
    place = tmp_path / "outer" / "logs"
    run = _run(name, group="../../g")
    write_runs(TensorBoardSink(place), [run], RecordBatch.of([run], {"a": np.ones((1, 1))}))
    (group,) = place.iterdir()
    (folder,) = group.iterdir()
    assert read_scalars(folder) == {"a": [(0, 1.0)]}
    assert not folder.name.startswith(".")
    assert [*tmp_path.iterdir(), *(tmp_path / "outer").iterdir()] == [tmp_path / "outer", place]


def test_a_usual_name_is_the_name_of_its_folder(tmp_path):
    run = _run("PPO lr=3e-4, größer (2)")
    write_runs(TensorBoardSink(tmp_path), [run])
    assert _folders(tmp_path) == ["PPO lr=3e-4, größer (2)"]


def test_runs_of_one_name_have_different_folders(tmp_path):
    runs = [RunInfo("11111111-a", "a"), RunInfo("22222222-b", "a"), RunInfo("22222222-c", "a")]
    sink = TensorBoardSink(tmp_path)
    write_runs(sink, runs, RecordBatch.of(runs, {"x": np.array([[1.0], [2.0], [3.0]])}))
    assert _folders(tmp_path) == ["a", "a-22222222", "a-22222222-c"]
    assert read_scalars(tmp_path / "a-22222222-c") == {"x": [(0, 3.0)]}


def test_a_run_whose_folders_are_all_taken_is_told(tmp_path):
    run = _run("a", 7)
    for taken in ("a", f"a-{run.id[:8]}", f"a-{run.id}"):
        (tmp_path / taken).mkdir()
    with pytest.raises(FileExistsError) as caught:
        TensorBoardSink(tmp_path).open([run])
    assert caught.value.strerror == (
        "`TensorBoardLogger` could not write run 'a': There is a run of this name and id already"
    )
    assert caught.value.filename == str(tmp_path / f"a-{run.id}")


def test_the_runs_of_a_group_share_a_folder(tmp_path):
    runs = [_run("seed-0", 0, group="g"), _run("seed-1", 1, group="g")]
    write_runs(TensorBoardSink(tmp_path), runs, RecordBatch.of(runs, {"x": np.ones((2, 1))}))
    assert _folders(tmp_path) == ["g"]
    assert _folders(tmp_path / "g") == ["seed-0", "seed-1"]


def test_histograms_are_read_back(tmp_path):
    run = _run()
    bins = logax.HistogramBins(
        np.array([[[1, 3], [0, 2]]]), np.array([[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]]),
        np.array([[0, 5]]),
    )  # fmt: skip
    batch = RecordBatch.of([run], {"grad": {"w": bins}}, step=np.array([[3, 4]]))
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    first, second = read_events(tmp_path / "a").Histograms("grad/w")
    value = first.histogram_value
    assert (first.step, value.bucket, value.bucket_limit) == (3, [1, 3], [1.0, 2.0])
    assert (value.min, value.max, value.num, value.sum) == (0.0, 2.0, 4.0, 5.0)
    assert (second.step, second.histogram_value.bucket) == (4, [0, 2])
    assert read_scalars(tmp_path / "a") == {"grad/w/nonfinite": [(4, 5.0)]}


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.array([[0.0, 1.0, 2.0, np.nan]]), [[0, 255, 255, 0]]),
        (np.array([[0, 255, 300, -1]]), [[0, 255, 255, 0]]),
        (np.array([[True, False]]), [[255, 0]]),
        (np.uint8([[[1], [2]]]), [[1, 2]]),
        (np.uint8([[[1, 2, 3], [4, 5, 6]]]), [[[1, 2, 3], [4, 5, 6]]]),
        (np.uint8([[[1, 2, 3, 4]]]), [[[1, 2, 3, 4]]]),
    ],
)
def test_images_are_read_back_pixel_by_pixel(tmp_path, pixels, expected):
    run = _run()
    batch = RecordBatch.of(
        [run], {"i": logax.ImagePixels(pixels[None, None])}, step=np.array([[7]])
    )
    write_runs(TensorBoardSink(tmp_path), [run], batch)
    (event,) = read_events(tmp_path / "a").Images("i")
    assert (event.step, event.height, event.width) == (7, *pixels.shape[:2])
    with Image.open(io.BytesIO(event.encoded_image_string)) as image:
        np.testing.assert_array_equal(np.asarray(image), expected)


def test_the_config_is_there_as_hyperparameters_and_as_text(tmp_path):
    config = {
        "rate": 0.1, "layers": [64, 32], "opt": {"name": "adam|w", "nesterov": True}, "none": None,
        "seed": np.int32(3), "scale": np.float32(0.5), "x": np.zeros(100), "big": 10**400,
        "small": np.arange(3), "opt/name": "sgd", "bytes": b"ab", "wide": np.longdouble(0.25),
        "z": np.complex64(1 + 2j), "id": "mine",
    }  # fmt: skip
    run = _run(config=config, began=1234.5)
    write_runs(TensorBoardSink(tmp_path), [run])
    start = read_session(tmp_path / "a", "start")
    plain = {
        name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
    }
    assert plain == {
        "rate": 0.1, "layers/0": 64.0, "layers/1": 32.0, "opt/name": "adam|w",
        "opt/nesterov": True, "seed": 3.0, "scale": 0.5, "x": "float64[100]", "big": np.inf,
        "small": "[0, 1, 2]", "opt/name~": "sgd", "bytes": "b'ab'", "wide": 0.25, "z": "(1+2j)",
        "id": "mine",
    }  # fmt: skip
    assert start.start_time_secs == 1234.5
    (text,) = read_events(tmp_path / "a").Tensors("logax/config/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert f"| id | {run.id} |" in lines
    assert "| id | mine |" in lines
    assert "| opt/name | adam\\|w |" in lines


def test_numbers_of_32_bits_have_few_digits_in_texts_and_stay_numbers(tmp_path):
    traced = float(np.float32(0.01))
    run = _run(config={"rate": traced, "double": 0.1 + 0.2, "sizes": np.float32([0.1, 0.2])})
    write_runs(TensorBoardSink(tmp_path), [run])
    (text,) = read_events(tmp_path / "a").Tensors("logax/config/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert lines[-3:] == [
        "| rate | 0.01 |", "| double | 0.30000000000000004 |", "| sizes | [0.1, 0.2] |"
    ]  # fmt: skip
    start = read_session(tmp_path / "a", "start")
    assert start.hparams["rate"].number_value == traced


def test_the_page_of_hyperparameters_has_the_runs_and_finds_the_metrics(tmp_path):
    runs = [_run(f"r{i}", i, config={"rate": 0.1 * i, "opt": "adam"}) for i in range(3)]
    write_runs(TensorBoardSink(tmp_path), runs, RecordBatch.of(runs, {"loss": np.ones((3, 1))}))
    events = PluginMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = data_provider.MultiplexerDataProvider(events, str(tmp_path))
    page = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    metadata = page.hparams_metadata(request, "")
    found = page.experiment_from_metadata(request, "", True, metadata, [])
    assert sorted(info.name for info in found.hparam_infos) == ["opt", "rate"]
    assert [info.name.tag for info in found.metric_infos] == ["loss"]


@pytest.mark.parametrize(("status", "number"), [("finished", 1), ("crashed", 2)])
def test_how_a_run_ended_is_there(tmp_path, status, number):
    run = _run()
    write_runs(TensorBoardSink(tmp_path), [run], status=status)
    assert read_session(tmp_path / "a", "end").status == number


def test_a_run_without_records_can_beread_events(tmp_path):
    run = _run()
    write_runs(TensorBoardSink(tmp_path), [run], RecordBatch.of([run], {"a": np.zeros((1, 0))}))
    assert read_scalars(tmp_path / "a") == {}


def test_a_run_that_goes_on_does_so_in_its_folder(tmp_path):
    first, other = _run("a", 1), _run("a", 2, group="g")
    for run in (first, other):
        batch = RecordBatch.of([run], {"x": np.ones((1, 1))}, step=np.array([[1]]))
        write_runs(TensorBoardSink(tmp_path), [run], batch)
    sink = TensorBoardSink(tmp_path)
    for run in (first, other):
        assert run.id in sink.known_runs().names
    again = RunInfo(other.id, "another name", resumed=True)
    batch = RecordBatch.of([again], {"x": np.ones((1, 1))}, step=np.array([[2]]))
    write_runs(sink, [again], batch)
    assert _folders(tmp_path) == ["a", "g"]
    assert read_scalars(tmp_path / "g" / "a") == {"x": [(1, 1.0), (2, 1.0)]}


def test_a_run_that_goes_on_without_its_folder_has_a_new_one(tmp_path):
    other, again = _run("a", 1), _run("a", 2, resumed=True)
    write_runs(TensorBoardSink(tmp_path), [other])
    batch = RecordBatch.of([again], {"x": np.ones((1, 1))}, step=np.array([[2]]))
    write_runs(TensorBoardSink(tmp_path), [again], batch)
    assert _folders(tmp_path) == ["a", f"a-{again.id[:8]}"]
    assert read_scalars(tmp_path / f"a-{again.id[:8]}") == {"x": [(2, 1.0)]}


def test_the_runs_of_a_folder_can_be_resumed_the_oldest_first(tmp_path):
    runs = [RunInfo("abc-1", "one", began=1.0), RunInfo("abd-2", "two"), RunInfo("x-3", "one")]
    sink = TensorBoardSink(tmp_path)
    write_runs(sink, runs)
    deep = tmp_path / "not ours" / "neither" / "nor this"
    deep.mkdir(parents=True)
    (deep / "logax-run.json").write_text(json.dumps({"id": "nine", "name": "nine", "began": 0}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "logax-run.json").write_text("{")
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "logax-run.json").write_text(json.dumps({"id": 3}))
    where, names, _ = sink.known_runs()
    assert where == str(tmp_path)
    assert list(names.items()) == [("x-3", "one"), ("abd-2", "two"), ("abc-1", "one")]


def test_256_runs_need_few_descriptors(tmp_path):
    runs = [_run(f"r{i}", i) for i in range(256)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limits[1]))
    try:
        batch = RecordBatch.of(runs, {"a": np.arange(512.0).reshape(256, 2)})
        write_runs(TensorBoardSink(tmp_path), runs, batch, batch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_scalars(tmp_path / "r255")["a"] == [(0, 510.0), (1, 511.0), (2, 510.0), (3, 511.0)]
    assert len(_folders(tmp_path)) == 256


def test_a_folder_that_was_removed_is_told_and_the_other_runs_go_on(tmp_path):
    runs = [_run("a", 1), _run("b", 2)]
    sink = TensorBoardSink(tmp_path)
    sink.open(runs)
    batch = RecordBatch.of(runs, {"x": np.ones((2, 1))})
    sink.write(batch)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="`TensorBoardLogger` could not write run 'a': No"):
        sink.write(batch)
    with pytest.raises(FileNotFoundError, match="could not write run 'a'"):
        sink.close(runs, "finished")
    assert read_scalars(tmp_path / "b") == {"x": [(0, 1.0), (1, 1.0)]}
    assert not (tmp_path / "a").exists()


def _foreign(file):
    file.unlink()
    file.write_bytes(b"my notes" * 1000)


def _shorter(file):
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_foreign, "Another program replaced the file, and nothing was added to it"),
        (_shorter, "Another program truncated the file, and nothing was added to it"),
    ],
)
def test_nothing_is_added_to_a_file_that_another_program_changed(tmp_path, change, told):
    logger = TensorBoardLogger(tmp_path)
    states = [logger.init(jax.random.key(0), name=name) for name in "ab"]
    for step in range(2):
        for state in states:
            logger.log(state, {"x": 1.0}, step=step)
        if not step:
            logax.flush()
            (file,) = (tmp_path / "a").glob("events*")
            change(file)
            content = file.read_bytes()
    with pytest.raises(logax.DeliveryError) as caught:
        logax.flush()
    assert f"`TensorBoardLogger` could not write run 'a': {told}: '{file}'" in str(caught.value)
    assert "1 records may be lost" in str(caught.value)
    assert file.read_bytes() == content
    with pytest.raises(logax.DeliveryError, match="could not write run 'a'"):
        logger.close()
    assert read_scalars(tmp_path / "b") == {"x": [(0, 1.0), (1, 1.0)]}


def test_several_failures_are_told_together(tmp_path):
    runs = [_run("a", 1), _run("b", 2)]
    sink = TensorBoardSink(tmp_path / "logs")
    sink.open(runs)
    shutil.rmtree(tmp_path / "logs")
    with pytest.raises(ExceptionGroup, match="`TensorBoardLogger` could not write several runs"):
        sink.write(RecordBatch.of(runs, {"x": np.ones((2, 1))}))


def test_a_run_that_could_not_begin_begins_when_it_can(tmp_path):
    run, silent = _run(), _run("b", 1)
    sink = TensorBoardSink(tmp_path / "logs")
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").write_text("in the way")
    for each in (run, silent):
        with pytest.raises(OSError, match=f"`TensorBoardLogger` could not write run '{each.name}'"):
            sink.open([each])
    (tmp_path / "logs").unlink()
    sink.write(RecordBatch.of([run], {"x": np.ones((1, 1))}))
    sink.close([run, silent], "finished")
    assert _folders(tmp_path / "logs") == ["a"]
    assert read_scalars(tmp_path / "logs" / "a") == {"x": [(0, 1.0)]}


def test_the_logger_writes_a_run_that_could_not_begin_when_it_can(tmp_path):
    folder = tmp_path / "logs"
    logger = TensorBoardLogger(folder)
    folder.rmdir()
    folder.write_text("in the way")
    state = logger.init(jax.random.key(0), name="a")
    with pytest.raises(logax.DeliveryError, match="could not write run 'a'"):
        logax.flush()
    folder.unlink()
    logger.log(state, {"x": 0.5}, step=3)
    logger.close()
    assert read_scalars(folder / "a") == {"x": [(3, 0.5)]}


@pytest.mark.slow
def test_a_full_disk_is_told_and_what_was_written_stays_readable(tmp_path):
    program = """
        import resource, sys
        import numpy as np
        from logax._delivery.record_batch import RecordBatch, RunInfo
        from logax.loggers.tensorboard import TensorBoardSink

        run, sink = RunInfo("id", "a"), TensorBoardSink(sys.argv[1])
        sink.open([run])
        small = RecordBatch.of([run], {"x": np.ones((1, 1))})
        large = RecordBatch.of([run], {"x" * 100: np.ones((1, 1000))})
        sink.write(small)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            sink.write(large)
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sink.write(small)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "`TensorBoardLogger` could not write run 'a': File too large" in done.stdout
    assert read_scalars(tmp_path / "a") == {"x": [(0, 1.0), (1, 1.0)]}


def test_a_reader_sees_records_after_flush(tmp_path):
    run, sink = _run(), TensorBoardSink(tmp_path)
    sink.open([run])
    sink.write(RecordBatch.of([run], {"x": np.ones((1, 1))}))
    sink.flush()
    events = read_events(tmp_path / "a")
    assert len(events.Scalars("x")) == 1
    sink.write(RecordBatch.of([run], {"x": np.ones((1, 1))}))
    sink.flush()
    events.Reload()
    assert len(events.Scalars("x")) == 2


def _train(x):
    def body(carry, i):
        logax.log({"x": carry, "h": logax.Histogram(carry * jnp.arange(3.0), bins=2)}, step=i)
        return carry + 1, None

    return jax.lax.scan(body, x, jnp.arange(4))[0]


def test_each_seed_of_a_compiled_program_is_a_folder(tmp_path):
    logger = TensorBoardLogger(tmp_path)

    def one(key, x):
        state = logger.init(key, name="seed", config={"start": x})
        out = logger.tap(_train, state)(x)
        logger.finish(state)
        return out

    jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 8), jnp.arange(8.0))
    logger.close()
    found = sorted(read_scalars(path)["x"] for path in tmp_path.iterdir())
    assert found == [[(i, float(seed + i)) for i in range(4)] for seed in range(8)]
    starts = [
        read_session(path, "start").hparams["start"].number_value for path in tmp_path.iterdir()
    ]
    assert sorted(starts) == list(range(8))


def test_seeds_taken_together_are_one_folder(tmp_path):
    logger = TensorBoardLogger(tmp_path, lanes="aggregate")
    state = jax.vmap(lambda key: logger.init(key, name="all"))(
        jax.random.split(jax.random.key(0), 2)
    )
    jax.vmap(lambda state, x: logger.spool(_train, state)(x))(state, jnp.array([0.0, 4.0]))
    logger.close()
    assert read_scalars(tmp_path / "all") == {
        "x/mean": [(i, 2.0 + i) for i in range(4)],
        "x/min": [(i, 0.0 + i) for i in range(4)],
        "x/max": [(i, 4.0 + i) for i in range(4)],
    }
    assert len(read_events(tmp_path / "all").Histograms("h")) == 4


def test_a_run_that_is_resumed_by_name_goes_on_in_its_folder(tmp_path):
    for start, given in enumerate([{"name": "one"}, *[{"resume": "one"}] * 2]):
        logger = TensorBoardLogger(tmp_path)
        with logger.run(**given) as state:
            logger.log(state, {"x": float(start)}, step=start)
        logger.close()
    assert _folders(tmp_path) == ["one"]
    assert read_scalars(tmp_path / "one") == {"x": [(0, 0.0), (1, 1.0), (2, 2.0)]}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"takes the path of a folder as `log_dir`, and"):
        TensorBoardLogger(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="is a file, or lies in one"):
        TensorBoardLogger(tmp_path / "file" / "logs")


def test_what_is_no_path_is_refused():
    with pytest.raises(TypeError, match="`TensorBoardLogger` takes a path as `log_dir`, and got 3"):
        TensorBoardLogger(3)


def test_without_tensorboardx_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    expected = (
        r'`TensorBoardLogger` needs tensorboardX.* Write `pip install "logax\[tensorboard\]"`'
    )
    with pytest.raises(ImportError, match=expected):
        TensorBoardLogger(tmp_path)

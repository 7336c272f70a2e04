"""`WandbLogger`, with its records read back from the offline files of W&B.

They are read with W&B's own reader. Its service is one process for the whole file.
"""

import itertools
import os
import pty
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wandb
from PIL import Image

import logax
from destinations.wandb_files import environment, own_service, wandb_files
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.wandb import WandbLogger, WandbSink
from loggers.sinks import write_runs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")  # its own business


@pytest.fixture(scope="module", autouse=True)
def _own_service(tmp_path_factory):
    with own_service(tmp_path_factory.mktemp("wandb")):
        yield


def _run(number=0, **more):
    return RunInfo(**{"id": f"id-{number}", "name": f"run {number}", **more})


def _sink(folder, **init):
    return WandbSink({"project": "p", "mode": "offline", "dir": str(folder), **init})


def _read(folder, number="0"):
    (file,) = wandb_files(folder, number)
    return file


def test_records_are_rows_over_our_step(tmp_path):
    run = _run(config={"rate": 0.1, "net": {"layers": np.array([64, 32])}})
    values = {"loss": np.float32([[0.5, 0.25]]), "net": {"w": np.array([[[1, 2], [3, 4]]])}}
    batch = RecordBatch.of([run], values, step=np.array([[10, 5]]), episode=np.array([[1, 2]]))
    write_runs(_sink(tmp_path, config={"fixed": True}, tags=["t"]), [run], batch)
    read = _read(tmp_path)
    assert read.rows == [
        {"step": 10, "loss": 0.5, "net/w/0": 1, "net/w/1": 2, "episode": 1},
        {"step": 5, "loss": 0.25, "net/w/0": 3, "net/w/1": 4, "episode": 2},
    ]
    assert (read.metrics["step"], read.metrics["*"]) == ("", "step")
    assert (read.run.display_name, read.run.run_id, read.run.project) == ("run 0", "id-0", "p")
    assert list(read.run.tags) == ["t"]
    own = {name: value for name, value in read.config.items() if name != "_wandb"}
    assert own == {"fixed": True, "rate": 0.1, "net": {"layers": [64, 32]}}
    assert read.exit_code == 0


def test_keys_with_different_steps_have_different_x_axes(tmp_path):
    run = _run()
    write_runs(
        _sink(tmp_path),
        [run],
        RecordBatch.of([run], {"loss": np.zeros((1, 1))}, step=np.array([[3]])),
        RecordBatch.of([run], {"return": np.ones((1, 1))}, episode=np.array([[7]])),
        RecordBatch.of([run], {"free": np.ones((1, 2))}),
        RecordBatch.of([run], {"fine": np.ones((1, 1))}, time=np.array([[0.5]])),
    )
    read = _read(tmp_path)
    assert read.rows == [
        {"step": 3, "loss": 0.0},
        {"episode": 7, "return": 1.0},
        {"records": 0, "free": 1.0},
        {"records": 1, "free": 1.0},
        {"time": 0.5, "fine": 1.0},
    ]
    expected = {"*": "step", "return": "episode", "free": "records", "fine": "time"}
    assert {name: read.metrics[name] for name in expected} == expected


def test_what_has_the_same_x_is_one_row(tmp_path):
    run = _run()
    first = RecordBatch.of([run], {"a": np.array([[1.0, 2.0]])}, step=np.array([[0, 1]]))
    second = RecordBatch.of([run], {"b": np.array([[3.0, 4.0]])}, step=np.array([[1, 0]]))
    again = RecordBatch.of([run], {"a": np.array([[5.0]])}, step=np.array([[1]]))
    write_runs(_sink(tmp_path), [run], first, second, again)
    assert _read(tmp_path).rows == [
        {"step": 0, "a": 1.0, "b": 4.0},
        {"step": 1, "a": 2.0, "b": 3.0},
        {"step": 1, "a": 5.0},
    ]


def test_many_rows_do_not_wait_for_what_has_the_same_x(tmp_path):
    run, steps = _run(), np.arange(1001)[None]
    first = RecordBatch.of([run], {"a": steps / 2}, step=steps)
    second = RecordBatch.of([run], {"b": np.array([[3.0]])}, step=np.array([[1000]]))
    write_runs(_sink(tmp_path), [run], first, second)
    rows = _read(tmp_path).rows
    assert rows[:-1] == [{"step": step, "a": step / 2} for step in range(1001)]
    assert rows[-1] == {"step": 1000, "b": 3.0}


def test_histograms_and_images_are_those_of_wandb(tmp_path):
    run = _run()
    bins = logax.HistogramBins(
        np.array([[[1, 3]]]), np.array([[[0.0, 1.0, 2.0]]]), np.array([[2]])
    )  # fmt: skip
    wide = logax.HistogramBins(
        np.ones((1, 1, 1000), int), np.arange(1001.0)[None, None], np.array([[0]])
    )
    pixels = np.uint8([[[1, 2, 3], [4, 5, 6]]])
    values = {
        "h": bins,
        "wide": wide,
        "i": logax.ImagePixels(pixels[None, None]),
        "grey": logax.ImagePixels(np.array([[0.0], [1.0]])[None, None]),
    }
    batch = RecordBatch.of([run], values, step=np.array([[4]]))
    write_runs(_sink(tmp_path), [run], batch)
    read = _read(tmp_path)
    (row,) = read.rows
    assert (row["step"], row["h/_type"], row["h/nonfinite"]) == (4, "histogram", 2)
    assert (row["h/values"], row["h/bins"]) == ([1, 3], [0.0, 1.0, 2.0])
    assert (row["wide/values"], row["wide/bins"]) == ([2] * 500, list(range(0, 1001, 2)))
    for name, expected in (("i", pixels), ("grey", [[0], [255]])):
        with Image.open(read.folder / "files" / row[f"{name}/path"]) as image:
            np.testing.assert_array_equal(np.asarray(image), expected)


def test_ragged_late_and_not_finite_records_are_all_there(tmp_path):
    run = _run()
    real = np.array([[True, False, True, True]])
    values = {"a": np.array([[np.nan, 0.0, np.inf, -np.inf]])}
    steps = np.array([[0, 1, 2, 3]])
    late = RecordBatch.of([run], {"b": np.zeros((1, 1))}, step=np.array([[9]]))
    empty = RecordBatch.of([run], {"c": np.zeros((1, 0))})
    write_runs(
        _sink(tmp_path), [run], RecordBatch.of([run], values, real=real, step=steps), late, empty
    )
    rows = _read(tmp_path).rows
    assert [row["step"] for row in rows] == [0, 2, 3, 9]
    np.testing.assert_array_equal([row["a"] for row in rows[:-1]], [np.nan, np.inf, -np.inf])
    assert rows[-1]["b"] == 0.0


_HOSTILE = [
    "../x",
    "/etc/x",
    "a//b/",
    "a.b",
    "Größe 🎲",
    "'; DROP TABLE x; --",
    "a\0b\n",
    " ",
    "x*",
]


def test_hostile_keys_are_names_like_any_other(tmp_path):
    run, keys = _run(), [*_HOSTILE, "k" * 2**20, "\ud800", "_step", "_wandb"]
    first = {key: np.array([[float(i)]]) for i, key in enumerate(keys)}
    later = {key: np.array([[i]]) for i, key in enumerate(keys)}
    write_runs(
        _sink(tmp_path),
        [run],
        RecordBatch.of([run], first, step=np.array([[0]])),
        RecordBatch.of([run], later, episode=np.array([[3]])),
    )
    named = [*keys[:-3], "\\ud800", "key/_step", "key/_wandb"]
    assert _read(tmp_path).rows == [
        {"step": 0, **{key: float(i) for i, key in enumerate(named)}},
        {"episode": 3, **{key: i for i, key in enumerate(named)}},
    ]


def test_eight_runs_are_open_side_by_side_in_one_group(tmp_path):
    runs = [_run(i, group="seeds") for i in range(8)]
    values = {"a": np.arange(16.0).reshape(8, 2)}
    write_runs(_sink(tmp_path), runs, RecordBatch.of(runs, values, step=np.array([[0, 1]] * 8)))
    assert wandb.run is None
    for i in range(8):
        read = _read(tmp_path, i)
        assert read.rows == [{"step": 0, "a": 2.0 * i}, {"step": 1, "a": 2.0 * i + 1}]
        assert read.run.run_group == "seeds"


def test_a_run_that_crashed_is_one_for_wandb_too(tmp_path):
    run = _run()
    write_runs(_sink(tmp_path), [run], status="crashed")
    read = _read(tmp_path)
    assert (read.exit_code, read.rows) == (1, [])


def test_a_run_that_goes_on_offline_says_how_to_send_it(tmp_path):
    run = RunInfo("id-0", "id-0", resumed=True)
    sink = _sink(tmp_path)
    with pytest.warns(UserWarning, match="continues run id-0 offline, .* `wandb sync --append`"):
        sink.open([run])
    sink.write(RecordBatch.of([run], {"a": np.ones((1, 1))}, step=np.array([[5]])))
    sink.close([run], "finished")
    read = _read(tmp_path)
    assert read.rows == [{"step": 5, "a": 1.0}]
    assert read.run.display_name == ""  # so that it keeps the name that it has


_TWO_RUNS_EACH = """
    import sys
    from logax.loggers import WandbLogger

    for settings in ({}, {"silent": False}):
        logger = WandbLogger(project="p", mode="offline", dir=sys.argv[1], settings=settings)
        for number in range(2):
            print(f"{settings} {number}", file=sys.stderr, flush=True)
            with logger.run() as state:
                logger.log(state, {"a": 1.0})
        logger.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "spoken"),
    [({}, [False, False, True, True]), ({"WANDB_SILENT": "false"}, [True] * 4)],
    ids=str,
)
def test_no_run_prints_anything_unless_that_is_asked_for(tmp_path, variables, spoken):
    known = {name: x for name, x in environment(tmp_path).items() if name != "WANDB_SILENT"}
    program = [sys.executable, "-c", textwrap.dedent(_TWO_RUNS_EACH), str(tmp_path)]
    done = subprocess.run(
        program, env={**known, **variables}, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    said = [lines[a + 1 : b] for a, b in itertools.pairwise([*starts, len(lines)])]
    assert [any("wandb sync" in line for line in each) for each in said] == spoken
    assert [bool(each) for each in said] == spoken
    assert done.stdout == ""


def test_a_run_that_ended_by_itself_is_told_and_the_others_go_on(tmp_path):
    runs, sink = [_run(0), _run(1)], _sink(tmp_path)
    sink.open(runs)
    sink.write(RecordBatch.of(runs, {"a": np.ones((2, 3))}, step=np.array([[0, 1, 2]] * 2)))
    sink._runs[runs[0]].run.finish()
    with pytest.raises(wandb.errors.UsageError, match="is finished") as caught:
        sink.flush()
    assert caught.value.__notes__ == ["3 rows of the W&B run 'run 0' were lost."]
    sink.close(runs, "finished")
    assert len(_read(tmp_path, 1).rows) == 3


def test_records_of_a_run_that_could_not_begin_are_told(tmp_path):
    sink, run = _sink(tmp_path), _run()
    with pytest.raises(RuntimeError, match="could not open run 'run 0': its records are lost"):
        sink.write(RecordBatch.of([run], {"a": np.ones((1, 1))}))
    sink.close([run], "finished")
    assert wandb_files(tmp_path) == []


def test_without_login_the_run_goes_on_offline_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match="`WandbLogger` found no login for W&B, and keeps"):
        sink = WandbSink({"project": "p", "dir": str(tmp_path)})
    run = _run()
    write_runs(sink, [run], RecordBatch.of([run], {"a": np.ones((1, 1))}))
    assert _read(tmp_path).rows == [{"records": 0, "a": 1.0}]


def test_where_a_login_is_asked_for_there_must_be_one():
    with pytest.raises(RuntimeError, match=r"`WandbLogger\(force=True\)` found no login for W&B"):
        WandbSink({"force": True})


def test_offline_by_choice_warns_of_nothing(tmp_path, monkeypatch):
    _sink(tmp_path)
    WandbSink({"settings": {"mode": "offline"}})
    WandbSink({"settings": wandb.Settings(mode="offline")})
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()  # it reads the environment once
    WandbSink({})
    wandb.teardown()


def test_a_key_of_the_environment_is_a_login(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert "mode" not in WandbSink({})._init


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ({"name": "x"}, "`WandbLogger` takes no `name`: pass it to `init` or `run`"),
        ({"id": "x"}, "`WandbLogger` takes no `id`: each run has a unique one"),
        ({"projct": "x"}, "`wandb.init`, which has no option `projct`"),
        ({"config": "x"}, "takes as `config` a mapping or a dataclass, and got 'x'"),
        ({"settings": 3}, "takes `settings` as W&B does, and got 3"),
    ],
)
def test_options_that_are_wrong_are_refused_at_once(init, message):
    with pytest.raises(TypeError, match=message):
        WandbLogger(mode="offline", **init)


def test_without_wandb_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r'needs wandb.* Write `pip install "logax\[wandb\]"`'):
        WandbLogger()


def test_seeds_are_one_run_unless_they_are_to_be_more(tmp_path):
    logger = WandbLogger(project="p", mode="offline", dir=str(tmp_path))

    def one(key, x):
        state = logger.init(key, name="all", config={"start": x})
        return logger.tap(lambda x: logax.log({"x": x}, step=0), state)(x)

    jax.vmap(one)(jax.random.split(jax.random.key(0), 2), jnp.array([0.0, 4.0]))
    logger.close()
    read = _read(tmp_path, "*")
    assert read.rows == [{"step": 0, "x/mean": 2.0, "x/min": 0.0, "x/max": 4.0}]
    assert read.run.display_name == "all"


@pytest.mark.slow
def test_256_runs_are_open_side_by_side(tmp_path):
    runs = [_run(i) for i in range(256)]
    values = {"a": np.arange(512.0).reshape(256, 2)}
    write_runs(_sink(tmp_path), runs, RecordBatch.of(runs, values, step=np.array([[0, 1]] * 256)))
    for i in range(256):
        assert _read(tmp_path, f"id-{i}").rows == [
            {"step": 0, "a": 2.0 * i},
            {"step": 1, "a": 2.0 * i + 1},
        ]


@pytest.mark.slow
def test_where_wandb_cannot_be_reached_the_run_goes_on_offline(tmp_path):
    settings = {"base_url": "http://127.0.0.1:9", "api_key": "0" * 40, "init_timeout": 2}
    sink, run = WandbSink({"project": "p", "dir": str(tmp_path), "settings": settings}), _run()
    with pytest.warns(UserWarning, match="`WandbLogger` cannot reach W&B, and keeps its runs"):
        sink.open([run])
    sink.write(RecordBatch.of([run], {"a": np.ones((1, 1))}))
    sink.close([run], "finished")
    assert _read(tmp_path, "id-0-offline").rows == [{"records": 0, "a": 1.0}]


@pytest.mark.slow
def test_the_end_of_wandbs_own_process_is_told_and_nothing_hangs(tmp_path):
    program = """
        import os, pathlib, signal, sys
        import numpy as np
        from logax._delivery.record_batch import RecordBatch, RunInfo
        from logax.loggers.wandb import WandbSink

        run = RunInfo("id-0", "run 0")
        sink = WandbSink({"project": "p", "mode": "offline", "dir": sys.argv[1]})
        sink.open([run])
        for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = entry.read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(rest.split()[1]) == os.getpid() and "wandb-core" in name:
                os.kill(int(entry.parent.name), signal.SIGKILL)
                os.waitpid(int(entry.parent.name), 0)
        batch = RecordBatch.of([run], {"a": np.ones((1, 10_000))}, step=np.arange(10_000)[None])
        try:
            sink.write(batch)
            sink.flush()
        except ConnectionError as error:
            print("records:", error)
        try:
            sink.close([run], "finished")
        except ConnectionError as error:
            print("end:", error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment(tmp_path), timeout=100,
    )  # fmt: skip
    assert done.stdout == "records: Connection lost\nend: Connection lost\n"


@pytest.mark.slow
def test_on_a_terminal_nobody_is_asked_for_a_login(tmp_path):
    program = """
        import sys
        from logax.loggers.wandb import WandbLogger

        with WandbLogger(project="p", dir=sys.argv[1]).run(name="one") as state:
            pass
        print("through")
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment(tmp_path),
    ) as child:  # fmt: skip
        os.close(theirs)
        shown = _all_of(ours)
        assert child.wait(100) == 0
    assert "found no login for W&B, and keeps its runs offline" in shown
    assert "through" in shown
    assert "choice" not in shown


def _all_of(terminal):
    """Return the terminal output of a program."""
    shown = b""
    try:
        while more := os.read(terminal, 4096):
            shown += more
    except OSError:  # how a terminal says that nobody is there any more
        pass
    finally:
        os.close(terminal)
    return shown.decode()


@pytest.mark.slow
def test_all_is_written_where_nobody_closes_the_logger(tmp_path):
    program = """
        import sys
        import jax, logax
        from logax.loggers.wandb import WandbLogger

        def f(x):
            def body(c, i):
                logax.log({"c": c}, step=i)
                return c + 1, None
            return jax.lax.scan(body, x, jax.numpy.arange(5))[0]

        logger = WandbLogger(project="p", mode="offline", dir=sys.argv[1])
        state = logger.init(jax.random.key(0), name="one")
        logger.tap(f, state)(0.0)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment(tmp_path), timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    read = _read(tmp_path, "*")
    assert read.rows == [{"step": i, "c": float(i)} for i in range(5)]

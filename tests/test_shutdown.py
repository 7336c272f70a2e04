"""How a process ends: by SIGTERM with all records safe, and with errors that nobody was told of."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import logax
from delivery_processes import finish, start
from logax._delivery.shutdown import describe_callable
from logax._delivery.worker import Worker
from logax.storage import HDF5StorageReader

# SIGTERM.

# A program that streams without end. `arrived` is the number of records that have left it.
_STREAM = """
import mmap
from logax._delivery.worker import worker
from logax.loggers import JSONLLogger, MultiLogger, SaveLogger

with open("arrived", "wb") as file:
    file.write(bytes(8))
with open("arrived", "r+b") as file:
    arrived = np.frombuffer(mmap.mmap(file.fileno(), 8), np.int64)
add = worker.add

def counted(size, run, item, records=1, kind=None):
    took = add(size, run, item, records, kind)
    before = arrived[0]
    arrived[0] += records
    if before < 3000 <= arrived[0]:
        print("streams", flush=True)
    return took

worker.add = counted
logger = MultiLogger(SaveLogger("runs"), JSONLLogger("records.jsonl"))

def endless(x):
    def body(x):
        logax.log({"x": x * 2}, step=x)
        return x + 1
    return lax.while_loop(lambda x: x >= 0, body, x)

with logger.run(name="long") as state:
    logger.tap(endless, state)(jnp.int32(0)).block_until_ready()
"""


def _arrived(folder: Path) -> int:
    return int(np.fromfile(folder / "arrived", np.int64)[0])


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _errors_of_terminated(program: str, folder: Path, line: str) -> str:
    """Terminate a program when it has printed a line; return what it printed as errors."""
    process = start(program, folder)
    assert _line_of(process) == line
    process.terminate()
    code, _, err = finish(process)
    assert code == -signal.SIGTERM
    return err


def _terminate_stream(folder: Path) -> tuple[int, int]:
    """Terminate a stream within its program; return how many had left it, and how many are kept."""
    process = start(_STREAM, folder)
    assert _line_of(process) == "streams"
    arrived = _arrived(folder)
    process.terminate()
    assert finish(process) == (-signal.SIGTERM, "", "")
    run = logax.load(folder / "runs").find("long")
    assert run.status == "crashed"
    stored = run.logs.steps["step"]["x"].tolist()
    assert stored == list(range(len(stored)))
    np.testing.assert_array_equal(run.logs["x"], 2 * np.arange(len(stored)))
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "event" not in line] == stored
    assert [line.get("status") for line in lines if "event" in line] == [None, "crashed"]
    return arrived, len(stored)


@pytest.mark.slow
def test_sigterm_within_a_compiled_program_loses_no_record_that_has_left_it(tmp_path: Path) -> None:
    arrived, stored = _terminate_stream(tmp_path)
    assert stored >= arrived >= 3000


@pytest.mark.campaign
def test_many_streams_are_terminated_without_loss(
    tmp_path: Path, record_property: Callable[[str, int], None]
) -> None:
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        arrived, stored = _terminate_stream(folder)
        assert stored >= arrived >= 3000
    record_property("terminations", 30)


def test_the_handler_comes_with_the_first_delivery_and_leaves_a_forked_process(
    tmp_path: Path,
) -> None:
    """It is not there after the import, and a child that delivers nothing ends at once."""
    program = """
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        logax.tap(lambda x: count(x, 3), into("few"))(0)
        logax.flush()
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        assert wakeup >= 0
        pid = os.fork()
        if not pid:
            found = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
            if found != (signal.SIG_DFL, -1):
                os._exit(7)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == handler
        logax.configure(sigterm_seconds=0)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        logax.configure(sigterm_seconds=1)
        assert signal.getsignal(signal.SIGTERM) == handler
        print("ready", flush=True)
        threading.Event().wait()
    """
    process = start(
        "import warnings; warnings.simplefilter('ignore')\n" + dedent(program), tmp_path
    )
    assert _line_of(process) == "ready"
    process.terminate()
    assert finish(process) == (-signal.SIGTERM, "", "")


@pytest.mark.slow
def test_a_handler_of_the_user_stays_whether_it_came_before_or_after(tmp_path: Path) -> None:
    program = """
        def handler(*_):
            print("mine", flush=True)
            got.set()

        got = threading.Event()
        signal.signal(signal.SIGTERM, handler)
        logax.tap(lambda x: count(x, 3), into("few"))(0)
        logax.flush()
        assert signal.getsignal(signal.SIGTERM) is handler
        os.kill(os.getpid(), signal.SIGTERM)
        got.wait()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        logax.configure(sigterm_seconds=2)
        ours = signal.signal(signal.SIGTERM, handler)
        assert ours is not signal.SIG_DFL
        got.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        got.wait()
        signal.signal(signal.SIGTERM, lambda *x: (print("chained", flush=True), ours(*x)))
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()
    """
    code, out, err = finish(start(program, tmp_path))
    assert (code, out.split(), err) == (-signal.SIGTERM, ["mine", "mine", "chained"], "")


@pytest.mark.slow
def test_the_wakeup_descriptor_of_another_stays_its_own(tmp_path: Path) -> None:
    program = """
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        logax.tap(lambda x: count(x, 3), into("few"))(0)
        assert signal.set_wakeup_fd(write) == write
        print("ready", flush=True)
        assert os.read(read, 1) == bytes([signal.SIGTERM])
        threading.Event().wait()
    """
    process = start(program, tmp_path)
    assert _line_of(process) == "ready"
    process.terminate()
    assert finish(process) == (-signal.SIGTERM, "", "")
    assert (tmp_path / "few").read_text().split() == ["0", "1", "2"]


@pytest.mark.slow
def test_sigterm_waits_no_longer_than_its_limit_and_says_what_is_lost(tmp_path: Path) -> None:
    program = """
        def stuck(one):
            print("stuck", flush=True)
            threading.Event().wait()

        logax.configure(sigterm_seconds=0.2)
        logax.tap(lambda x: count(x, 3), stuck)(0).block_until_ready()
        threading.Event().wait()
    """
    err = _errors_of_terminated(program, tmp_path, "stuck")
    assert re.fullmatch(
        r"logax: SIGTERM ends the process after 0\.2 s waiting for the callback `stuck` "
        r"\(<string>:\d+\), with up to 3 records to deliver, which are lost\.\n",
        err,
    )


@pytest.mark.slow
def test_sigterm_tells_of_an_error_that_nobody_was_told_of(tmp_path: Path) -> None:
    program = """
        def callback(one):
            raise KeyError("http://user:hunter2@host")

        logax.tap(lambda x: count(x, 3), callback)(0).block_until_ready()
        print("ready", flush=True)
        threading.Event().wait()
    """
    err = _errors_of_terminated(program, tmp_path, "ready")
    assert err.startswith("logax: SIGTERM ends the process, and delivery had failed before:\nTrace")
    assert "The callback `callback` raised KeyError: 'http://***@host'." in err
    assert "It raised for 2 more records after that one." in err
    assert "hunter2" not in err


@pytest.mark.slow
def test_sigterm_commits_the_rows_of_a_trajectory(tmp_path: Path) -> None:
    program = """
        from logax.storage import HDF5StorageWriter, WriterGroupConfig
        config = {"rows": WriterGroupConfig(lambda state: {"x": state}, 1)}
        writer = HDF5StorageWriter("run.h5", config, jnp.zeros(3), flush_seconds=1000)
        with writer as logger:
            for step in range(500):
                logger.log(jnp.full(3, step, jnp.float32), step)
            print("ready", flush=True)
            threading.Event().wait()
    """
    process = start(program, tmp_path)
    assert _line_of(process) == "ready"
    process.terminate()
    code, _, err = finish(process)
    assert (code, err) == (-signal.SIGTERM, "")
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        rows = reader.focus_group("rows")[:]["x"]
    np.testing.assert_array_equal(rows, np.broadcast_to(np.arange(500.0)[:, None], (500, 3)))


# Exit.


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 120),
        pytest.param("sys.exit(3)", 120, marks=pytest.mark.slow),
        pytest.param("raise KeyError('of the program')", 1, marks=pytest.mark.slow),
    ],
)
def test_an_error_that_nobody_was_told_of_fails_the_exit_and_keeps_nothing_from_it(
    tmp_path: Path, end: str, status: int
) -> None:
    """All that was registered before and after ours runs, and may print."""
    program = f"""
        import atexit
        atexit.register(lambda: print("after", file=sys.stderr, flush=True))

        def callback(one):
            raise KeyError("of the callback")

        logax.tap(lambda x: count(x, 3), callback)(0)
        print("printed")
        {end}
    """
    before = (
        "import atexit, sys; atexit.register(lambda: print('before', file=sys.stderr, flush=1))\n"
    )
    code, out, err = finish(start(dedent(program), tmp_path, before))
    assert (code, out) == (status, "printed\n")
    lines = err.splitlines()
    told = lines.index(
        "logax: delivery failed, and nothing had raised that before the exit. Call `logax.flush()` "
        "at the end of the program to handle it there."
        + (" The exit status is 120." if status == 120 else "")
    )
    assert lines.index("after") < told < lines.index("before") == len(lines) - 1
    assert "DeliveryError: The callback `callback` raised KeyError: 'of the callback'." in err


@pytest.mark.slow
def test_a_sink_that_fails_at_the_exit_fails_the_exit(tmp_path: Path) -> None:
    program = """
        from logax.loggers import Logger, Sink

        class Bad(Sink):
            def close(self, runs, status):
                raise OSError("The disk is gone")

        logger = Logger(Bad())
        logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    """
    code, _, err = finish(start(program, tmp_path))
    assert code == 120
    assert "`Logger` could not close its runs: OSError: The disk is gone." in err
    assert err.count("logax: delivery failed, and nothing had raised that") == 1
    silent = dedent(program) + "sys.stderr = None"
    assert finish(start(silent, tmp_path)) == (120, "", "")


@pytest.mark.slow
def test_an_exit_that_waits_says_for_what_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    program = """
        from logax._delivery import shutdown
        from logax.loggers import JSONLLogger
        signal.signal(signal.SIGINT, signal.default_int_handler)  # where it came ignored
        shutdown.NOTICE_SECONDS = 0.05

        def stuck(one):
            threading.Event().wait()

        loggers = [JSONLLogger(f"{number}.jsonl") for number in range(3)]
        states = [logger.init(jax.random.key(0)) for logger in loggers]  # each ends at exit
        logax.tap(lambda x: count(x, 10), stuck)(0).block_until_ready()
    """
    process = start(program, tmp_path)
    assert process.stderr is not None
    for _ in range(2):
        assert re.fullmatch(
            r"logax: the exit is waiting for the callback `stuck` \(<string>:\d+\), with up to 10 "
            r"records to deliver\. Ctrl-C ends the wait, and they are lost\.",
            process.stderr.readline().rstrip("\n"),
        )
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 120
    lines = [line for line in err.splitlines() if "the exit is waiting" not in line]
    assert lines == [
        "logax: the exit was interrupted, and up to 10 records were not delivered. "
        "The exit status is 120."
    ]


class _Called:
    def __call__(self, one: object) -> None:
        pass


def test_what_is_waited_for_is_named_with_its_place() -> None:
    def callback(one: object) -> None:
        pass

    here = f"{__file__}:{callback.__code__.co_firstlineno}"
    name = "test_what_is_waited_for_is_named_with_its_place.<locals>.callback"
    assert describe_callable(("the callback", callback)) == f"the callback `{name}` ({here})"
    assert (
        describe_callable(("the callback", functools.partial(callback)))
        == f"the callback `{name}` ({here})"
    )
    line = _Called.__call__.__code__.co_firstlineno
    assert describe_callable(("the callback", _Called())) == (
        f"the callback `_Called.__call__` ({__file__}:{line})"
    )
    assert describe_callable(("the callback", [].append)) == "the callback `list.append`"


def test_sigterm_seconds_that_are_wrong_are_refused() -> None:
    with pytest.raises(
        ValueError, match="`configure` takes `sigterm_seconds` in seconds, 0 or mor"
    ):
        logax.configure(sigterm_seconds=-1)


def test_a_job_that_is_reached_is_done_with_all_before_it() -> None:
    own, done = Worker("logax-test"), []
    assert own.drain_queued(0.0)  # nothing is queued
    for number in range(100):
        own.put(0, done.append, number)
    assert own.drain_queued(time.monotonic() + threading.TIMEOUT_MAX / 2)
    assert done == list(range(100))
    own.stop(waits=True)

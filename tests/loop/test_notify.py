"""`NotifyLogger` against real servers: contents and times of posts, and failures."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import logax
from gates import pending
from interrupts import interrupts
from logax import DeliveryError, EveryNStep
from logax._delivery.worker import Worker, worker
from logax._support.processes import _registered
from logax.loop import CompositeLogger, NotifyLogger, RingBufferLogger, _webhook
from logax.loop import _webhook as _outbox
from loops import Particles, held_state, run
from storage_processes import run as run_program

LONG = 60.0  # seconds
SECRET = "T0/hidden"


class Server:
    """A webhook: keeps what it is posted, and answers as it is told."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.taken.append(self.headers["Content-Type"])
                server.bodies.append(json.loads(body, parse_constant=pytest.fail))
                code, headers = next(server.answers, (200, {}))
                server.arrived.put(len(server.bodies))
                server.gate.wait(LONG)
                with contextlib.suppress(OSError):  # who asked may be gone
                    self.send_response(code, SECRET)
                    for name, value in {"Content-Length": "0", **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()

            def do_GET(self) -> None:
                server.bodies.append({"event": "GET", "step": None, "skipped": 0})

            def log_message(self, *_: Any) -> None:
                pass

        self.bodies: list[dict[str, Any]] = []
        self.taken: list[str] = []
        self.answers: Iterator[tuple[int, dict[str, str]]] = iter(())
        self.arrived: queue.Queue[int] = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.host = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.host}/{SECRET}?key=hidden"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()

    @property
    def told(self) -> list[tuple[str, Any, int]]:
        return [(body["event"], body["step"], body["skipped"]) for body in self.bodies]


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outbox, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
    threads = [thread for thread in threading.enumerate() if thread.name == _outbox.THREAD_NAME]
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)


def energy(state: Particles) -> Any:
    return {"energy": state.energy}


def arrival(server: Server) -> Callable[[int], None]:
    """Has a loop wait after each step until it was posted."""

    def at(step: int) -> None:
        assert server.arrived.get(timeout=LONG) == step + 1

    return at


@contextlib.contextmanager
def one_warning(server: Server, *texts: str) -> Iterator[None]:
    with pytest.warns(UserWarning, match="`NotifyLogger` could not post to") as caught:
        yield
    (warning,) = caught
    message = str(warning.message)
    for text in (*texts, server.host):
        assert text in message
    assert "hidden" not in message
    assert warning.filename.endswith(("test_notify.py", "loops.py"))


# Contents of the posts.


def test_each_due_step_is_posted_in_order_and_then_the_end(server: Server) -> None:
    before = datetime.now(UTC)
    state = run(NotifyLogger(server.url, 1, energy, seconds_between=0), steps=3, at=arrival(server))
    assert float(state.energy) == 3
    times = [datetime.fromisoformat(body.pop("time")) for body in server.bodies]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= datetime.now(UTC)
    assert server.bodies == [
        {
            "text": f"step {step}: energy={step + 1}",
            "event": "step",
            "step": step,
            "values": {"energy": float(step + 1)},
            "skipped": 0,
        }
        for step in range(3)
    ] + [
        {"text": "finished after step 2", "event": "finished", "step": 2, "values": {}}
        | {"skipped": 0}
    ]
    assert server.taken == ["application/json"] * 4


def test_without_a_schedule_only_the_end_is_posted(server: Server) -> None:
    run(NotifyLogger(server.url), steps=5)
    assert server.told == [("finished", 4, 0)]


def test_without_ends_only_steps_are(server: Server) -> None:
    run(NotifyLogger(server.url, EveryNStep(4), ends=False), steps=4)
    assert server.told == [("step", 0, 0)]
    assert server.bodies[0]["text"] == "step 0"
    assert server.bodies[0]["values"] == {}


def test_a_loop_without_steps_says_so(server: Server) -> None:
    run(NotifyLogger(server.url), steps=0)
    assert server.told == [("finished", None, 0)]
    assert server.bodies[0]["text"] == "finished before the first step"


def test_values_of_all_kinds_become_json(server: Server) -> None:
    values = {
        "nan": jnp.array([1.0, jnp.nan, -jnp.inf]),
        "inf": float("inf"),
        "half": jnp.bfloat16(1.5),
        "numpy": np.arange(4).reshape(2, 2),
        "four": np.array([3, -1], ml_dtypes.int4),
        "many": 10**30,
        "flag": True,
        "flags": jnp.array([True, False]),
        "complex": 1 + 2j,
        "text": "ok\nso",
        "none": None,
        "nested": [jnp.int32(7), {"key": jax.random.key(1)}],
    }
    with NotifyLogger(server.url, 1, lambda state: values, ends=False) as logger:
        logger.log(None, 0)
    (body,) = server.bodies
    assert body["values"] == {
        "nan": [1.0, "nan", "-inf"],
        "inf": "inf",
        "half": 1.5,
        "numpy": [[0, 1], [2, 3]],
        "four": [3, -1],
        "many": 10**30,
        "flag": True,
        "flags": [True, False],
        "complex": "(1+2j)",
        "text": "ok\nso",
        "nested/0": 7,
        "nested/1/key": [0, 1],
    }
    assert "\n" not in body["text"]
    assert "inf=inf" in body["text"]
    assert "numpy=1.5" in body["text"]


def test_a_value_that_is_no_pytree_of_names_is_called_value(server: Server) -> None:
    run(NotifyLogger(server.url, 1, lambda state: state.energy, ends=False), steps=1)
    assert server.bodies[0]["values"] == {"value": 1.0}


@pytest.mark.parametrize(
    "error", [ValueError("energy\nexploded"), KeyboardInterrupt(), SystemExit(3)], ids=repr
)
def test_what_ends_the_loop_is_posted_and_comes_out_as_it_is(
    server: Server, error: BaseException
) -> None:
    def at(step: int) -> None:
        if step == 2:
            raise error

    with pytest.raises(type(error)) as caught:
        run(NotifyLogger(server.url, EveryNStep(10)), at=at)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert server.told == [("step", 0, 0), ("failed", 2, 0)]
    said = server.bodies[1]["error"]
    assert said.startswith(type(error).__name__)
    assert str(error) in said
    assert server.bodies[1]["text"] == " ".join(f"failed after step 2: {said}".split())


def test_a_very_long_error_makes_a_line_of_bounded_length(server: Server) -> None:
    error = ValueError("long " * 10_000)
    with pytest.raises(ValueError, match="long"), NotifyLogger(server.url):
        raise error
    assert len(server.bodies[0]["text"]) == _outbox.MAX_TEXT_CHARACTERS
    assert str(error).strip() in server.bodies[0]["error"]


# Times of the posts.


def test_a_slow_server_costs_steps_that_are_not_posted_and_no_time(server: Server) -> None:
    server.gate.clear()

    def at(step: int) -> None:
        if step == 0:
            server.arrived.get(timeout=LONG)
        if step == 499:
            assert server.told == [("step", 0, 0)]
            assert len(logger._outbox._worker._jobs) == 1
            server.gate.set()

    logger = NotifyLogger(server.url, 1, energy, seconds_between=0, timeout=LONG)
    run(logger, steps=500, at=at)
    assert server.told == [("step", 0, 0), ("step", 499, 498), ("finished", 499, 0)]
    assert server.bodies[1]["values"] == {"energy": 500.0}


def test_steps_that_come_too_fast_are_counted_and_the_last_is_posted(server: Server) -> None:
    def at(step: int) -> None:
        if step == 0:
            server.arrived.get(timeout=LONG)

    run(NotifyLogger(server.url, 2, energy, seconds_between=3600), at=at)
    assert server.told == [("step", 0, 0), ("step", 8, 3), ("finished", 9, 0)]


def test_log_does_not_wait_for_the_device(server: Server) -> None:
    with NotifyLogger(server.url, 1, energy, ends=False) as logger, held_state() as state:
        logger.log(state, 0)
        assert server.bodies == []
    assert server.bodies[0]["values"] == {"energy": 0.0}


def test_a_hundred_runs_leave_no_thread(server: Server) -> None:
    before = threading.active_count()
    logger = NotifyLogger(server.url, 1, timeout=LONG)
    for _ in range(100):
        with logger:
            logger.log(None, 0)
    assert server.told == [("step", 0, 0), ("finished", 0, 0)] * 100
    for thread in threading.enumerate():
        if thread.name == _outbox.THREAD_NAME or "process_request" in thread.name:
            thread.join(LONG)
    assert threading.active_count() <= before


def test_records_do_not_wait_for_it_and_the_interpreter_switches_as_usual(server: Server) -> None:
    usual = sys.getswitchinterval()
    server.gate.clear()
    with NotifyLogger(server.url, 1, timeout=LONG) as logger:
        logger.log(None, 0)
        server.arrived.get(timeout=LONG)
        assert sys.getswitchinterval() == usual
        assert worker.drain(None)
        server.gate.set()


# Failures.


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_server_that_refuses_for_now_is_asked_again(server: Server, code: int) -> None:
    server.answers = iter([(code, {"Retry-After": "0"})] * 3)
    run(NotifyLogger(server.url), steps=1)
    assert server.told == [("finished", 0, 0)] * 4


def test_a_long_wait_that_the_server_asks_for_ends_with_the_loop(server: Server) -> None:
    waits = threading.Event()

    class Watched(threading.Condition):
        def wait_for(self, predicate: Any, timeout: float | None = None) -> Any:
            if timeout == _outbox.MAX_RETRY_AFTER_SECONDS:
                waits.set()
            return super().wait_for(predicate, timeout)

    server.answers = iter([(429, {"Retry-After": "100"})])
    with NotifyLogger(server.url, 2, ends=False) as logger:
        logger._outbox._changed = Watched()
        logger.log(None, 0)
        assert waits.wait(LONG)
        logger.log(None, 2)
    assert server.told == [("step", 0, 0), ("step", 0, 0), ("step", 2, 0)]


def test_one_that_is_longer_than_the_exit_waits_is_not_begun(server: Server) -> None:
    late = "Fri, 31 Dec 9999 23:59:59 GMT"
    server.answers = iter([(503, {"Retry-After": late})])
    with one_warning(server, "it answered with 503", "1 post failed"):
        run(NotifyLogger(server.url, timeout=10), steps=1)
    assert server.told == [("finished", 0, 0)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("7", 7.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None), ("-1", None)],
)
def test_what_servers_ask_for_is_read(text: str, seconds: float | None) -> None:
    assert _webhook._retry_after({"Retry-After": text}) == seconds
    assert _webhook._retry_after({}) is None


@pytest.mark.parametrize("code", [400, 404, 410])
def test_a_server_that_refuses_for_good_is_not_asked_again(server: Server, code: int) -> None:
    server.answers = iter([(code, {})])
    with one_warning(server, f"it answered with {code}", "1 post failed"):
        run(NotifyLogger(server.url), steps=1)
    assert len(server.bodies) == 1


def test_retries_end(server: Server) -> None:
    server.answers = iter([(500, {})] * 3)
    with one_warning(server, "it answered with 500", "1 post failed"):
        run(NotifyLogger(server.url, retries=2), steps=1)
    assert len(server.bodies) == 3


def test_it_posts_again_where_a_redirect_says_so(server: Server) -> None:
    server.answers = iter([(308, {"Location": "/elsewhere"})])
    run(NotifyLogger(server.url), steps=1)
    assert server.told == [("finished", 0, 0)] * 2


@pytest.mark.parametrize("code", [307, 308])
@pytest.mark.parametrize("same", ["host", "port"])
def test_no_other_server_gets_the_values(server: Server, code: int, same: str) -> None:
    """Neither another port of this host nor another name of it."""
    other = Server()
    try:
        location = other.url if same == "host" else server.url.replace("127.0.0.1", "localhost")
        server.answers = iter([(code, {"Location": location})])
        with one_warning(
            server, f"it answered with {code}, which redirects to another host, port or scheme, "
            "and the values are not posted there; use the URL that it redirects to, if you trust it"
        ):  # fmt: skip
            run(NotifyLogger(server.url), steps=1)
        assert (len(server.bodies), other.bodies) == (1, [])
    finally:
        other.close()


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1/elsewhere",
        "//127.0.0.1:1/elsewhere",
        "http://user@{host}/elsewhere",
        "file:///etc/hostname",
    ],
)
def test_a_redirect_to_another_scheme_or_with_a_user_is_refused(
    server: Server, location: str
) -> None:
    host = server.host.removeprefix("http://")
    server.answers = iter([(308, {"Location": location.format(host=host)})])
    with one_warning(server, "it answered with 308, which redirects to another host, port or"):
        run(NotifyLogger(server.url), steps=1)
    assert len(server.bodies) == 1


def test_a_redirect_that_drops_the_values_is_refused(server: Server) -> None:
    server.answers = iter([(302, {"Location": "/elsewhere"})])
    with one_warning(server, "it answered with 302, which is a redirect that drops the values; us"):
        run(NotifyLogger(server.url), steps=1)
    assert len(server.bodies) == 1


def test_redirects_in_a_circle_end(server: Server) -> None:
    server.answers = iter([(307, {"Location": "/again"})] * 20)
    with one_warning(server, "it answered with 307, which redirects again and again"):
        run(NotifyLogger(server.url), steps=1)


def test_a_server_that_dies_costs_one_warning_and_the_run_goes_on(server: Server) -> None:
    def at(step: int) -> None:
        if step == 0:
            assert server.arrived.get(timeout=LONG) == 1
        if step == 3:
            server.close()

    with one_warning(server, "Connection refused", " failed"):
        state = run(NotifyLogger(server.url, 3, energy, seconds_between=0, retries=1), at=at)
    np.testing.assert_array_equal(state.position, np.full((4, 2), 10))
    assert float(state.energy) == 10
    assert server.told[0] == ("step", 0, 0)


def test_the_warning_comes_out_of_the_next_due_step(server: Server) -> None:
    server.answers = iter([(404, {})])
    with NotifyLogger(server.url, 2, seconds_between=0) as logger:
        logger.log(None, 0)
        assert logger._outbox._worker.drain(None)
        logger.log(None, 1)
        with one_warning(server, "it answered with 404", "1 post failed"):
            logger.log(None, 2)
    assert server.told == [("step", 0, 0), ("step", 2, 0), ("finished", 2, 0)]


def test_a_port_where_nobody_listens_costs_one_warning(server: Server) -> None:
    server.close()
    with one_warning(server, "ConnectionRefusedError", "Connection refused"):
        run(NotifyLogger(server.url, 1, energy, seconds_between=0))


def test_a_server_that_never_answers_does_not_hold_up_the_exit(server: Server) -> None:
    server.gate.clear()
    with one_warning(server, "it did not answer within 0.1 s", "2 posts failed"):
        run(NotifyLogger(server.url, 1, timeout=0.1, retries=0), steps=1)


def test_nor_does_one_that_is_asked_again_and_again(server: Server) -> None:
    server.gate.clear()
    with one_warning(server, "posts failed"):
        run(NotifyLogger(server.url, 1, timeout=0.1, retries=10**9), steps=1)


def test_a_server_that_talks_something_else_is_told_of(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(b"SSH-2.0-hidden\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        server.host = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with one_warning(server, "no HTTP (BadStatusLine)"):
            run(NotifyLogger(f"{server.host}/{SECRET}", retries=0), steps=1)
        thread.join()


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt("mine")], ids=repr)
def test_where_warnings_are_errors_the_error_of_the_loop_stays(
    server: Server, error: BaseException
) -> None:
    server.close()
    with pytest.raises(type(error), match="mine") as caught, NotifyLogger(server.url, retries=0):
        raise error
    (note,) = caught.value.__notes__
    assert note.startswith(f"`NotifyLogger` could not post to {server.host}: ")
    with pytest.raises(UserWarning, match="`NotifyLogger` could not post"):
        run(NotifyLogger(server.url, retries=0), steps=1)


def test_an_interrupt_ends_the_wait_at_the_exit(server: Server) -> None:
    server.gate.clear()
    with interrupts() as interrupt:
        thread = threading.Thread(target=lambda: (server.arrived.get(), interrupt()))
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                run(NotifyLogger(server.url, timeout=LONG), steps=1)
        finally:
            thread.join()


# Invalid views.


def test_what_a_view_raises_comes_out_of_log_and_names_the_logger(server: Server) -> None:
    with pytest.raises(AttributeError, match="energie") as caught:
        run(NotifyLogger(server.url, 1, lambda state: state.energie), steps=3)
    assert caught.value.__notes__ == ["`NotifyLogger` was calling its view on step 0."]
    assert server.told == [("failed", 0, 0)]


@pytest.mark.parametrize("value", [object(), b"bytes", np.datetime64("now"), np.array([None])])
def test_a_value_that_json_lacks_comes_out_of_log(server: Server, value: Any) -> None:
    text = r"`NotifyLogger` posts numbers, arrays and strings, and its view gave .* for `a/0`"
    with pytest.raises(TypeError, match=text):
        run(NotifyLogger(server.url, 1, lambda state: {"a": [value]}, ends=False), steps=1)
    assert server.bodies == []


def test_a_view_inside_a_traced_function_is_refused(server: Server) -> None:
    logger = NotifyLogger(server.url, 1, lambda x: x, ends=False)
    with logger, pytest.raises(TypeError, match="inside a function that JAX traces"):
        jax.jit(lambda x: logger.log(x, 0))(1.0)


def test_values_that_could_not_be_computed_are_a_warning(server: Server) -> None:
    def fail(x: Any) -> Any:
        raise ValueError("on the device")

    gate = threading.Event()
    logger = NotifyLogger(server.url, 1, lambda x: x, ends=False)
    with one_warning(server, "values of step 0 could not be computed: ", "on the device"), logger:
        logger.log(pending(gate, fail), 0)
        gate.set()


def test_it_works_next_to_others(server: Server) -> None:
    second = NotifyLogger(server.url, ends=True)
    run(CompositeLogger(NotifyLogger(server.url, 10, ends=False), second), steps=2)
    assert sorted(server.told) == [("finished", 1, 0), ("step", 0, 0)]


# Invalid options.


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("file:///etc/hidden",), {}, "begins with `file:`. It posts to http and https only"),
        (("ftp://host/hidden",), {}, "begins with `ftp:`"),
        (("hooks.example.org/hidden",), {}, "one without `https:`"),
        (("https:///hidden",), {}, "one without a host"),
        (("https://me:hidden@host/",), {}, "one with a user before the host"),
        (("https://host:hidden/",), {}, "whose host or port cannot be read"),
        (("https://[hidden/",), {}, "whose host or port cannot be read"),
        (("https://host/hidden hidden",), {}, "characters that must be quoted"),
        (("https://host/hiddené",), {}, "characters that must be quoted"),
        ((b"https://host/hidden",), {}, "something of type `bytes`"),
        (("http://h", 0), {}, "whole number of 1 or more"),
        (("http://h", None, lambda x: x), {}, "a view, which needs steps"),
        (("http://h",), {"ends": False}, "`ends=False`, which leaves nothing"),
        (("http://h",), {"ends": 1}, "`ends` as True or False, and got 1"),
        (("http://h",), {"timeout": 0}, "`timeout` in seconds, more than 0, and got 0"),
        (("http://h",), {"timeout": None}, "`timeout` in seconds, more than 0, and got None"),
        (("http://h",), {"seconds_between": -1}, "`seconds_between` in seconds, 0 or more"),
        (("http://h",), {"seconds_between": float("nan")}, "0 or more, and got nan"),
        (("http://h",), {"retries": 1.5}, "`retries` of 0 or more, and got 1.5"),
    ],
)
def test_wrong_options_are_refused_and_the_url_is_not_shown(
    arguments: Any, options: Any, text: str
) -> None:
    with pytest.raises(ValueError, match="`NotifyLogger`") as caught:
        NotifyLogger(*arguments, **options)
    assert text in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_view_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="`NotifyLogger` takes a view, a function of the state"):
        NotifyLogger("http://h", 1, "energy")  # type: ignore[arg-type]


# The thread.


def test_a_worker_that_is_stopped_does_its_jobs_ends_and_begins_again() -> None:
    done: list[int] = []
    gate = threading.Event()
    own = Worker("own", short_turns=False)
    own.stop()  # there is no thread yet
    for round_ in range(2):
        gate.clear()
        own.put(0, gate.wait, LONG)
        own.put(0, done.append, round_)
        (thread,) = [each for each in threading.enumerate() if each.name == "own"]
        own.stop()
        own.put(0, done.append, round_)
        gate.set()
        thread.join(LONG)
        assert not thread.is_alive()
        assert own.is_done()
    assert done == [0, 0, 1, 1]


def test_a_thread_that_dies_is_told_and_costs_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    own, done, faults = Worker("own", short_turns=False), list[int](), [MemoryError("no room")]

    def due() -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr(own, "_pop_due_job", due)
    own.put(0, done.append, 0)
    assert own.drain(None)
    own.put(0, faults.append, MemoryError("none again"))  # and the thread dies
    own.put(0, done.append, 1)
    assert own.drain(None)
    own.put(0, done.append, 2)  # which starts another one
    assert own.drain(None)
    own.stop(waits=True)
    assert done == [0, 1, 2]
    with pytest.raises(DeliveryError, match="Delivery failed: MemoryError: no room"):
        logax.flush()


def test_a_forked_child_has_workers_that_work(tmp_path: Path) -> None:
    program = """
from logax._delivery.worker import Worker
warnings.simplefilter("ignore")  # of threads and forks
own, done, gate = Worker("own"), threading.Event(), threading.Event()
own.put(0, gate.wait, 60)
pid = os.fork()
if pid == 0:
    own.put(0, done.set)
    os._exit(7 if done.wait(60) and len(own._jobs) == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
gate.set()
own.stop()
"""
    assert run_program(program, tmp_path) == (0, "7\n", "")


def test_steps_of_numpy_and_jax_are_posted_as_numbers(server: Server) -> None:
    for steps in (np.arange(3), jnp.arange(3)):
        with NotifyLogger(server.url) as logger:
            for step in steps:
                logger.log(0.0, step)
    assert server.told == [("finished", 2, 0)] * 2


def test_what_others_say_of_a_failure_is_in_the_message(server: Server, tmp_path: Path) -> None:
    def fail(step: int) -> None:
        raise ValueError("energy exploded")

    ring = RingBufferLogger(2, dump=tmp_path / "x.npz")
    with pytest.raises(ValueError, match="energy exploded"):
        run(CompositeLogger(NotifyLogger(server.url), ring), at=fail)
    assert server.bodies[0]["text"] == (
        "failed after step 0: ValueError: energy exploded. `RingBufferLogger` wrote the state of "
        f"step 0 to {tmp_path / 'x.npz'}."
    )


def test_a_large_array_is_refused(server: Server) -> None:
    logger = NotifyLogger(server.url, 1, jnp.asarray, ends=False)
    with (
        logger,
        pytest.raises(ValueError, match="1000 numbers at most, and its view gave 1001 for"),
    ):
        logger.log(np.zeros(1001), 0)


def test_a_child_that_is_forked_while_a_post_is_made_can_leave(server: Server) -> None:
    with NotifyLogger(server.url, 1) as logger:
        outbox = logger._outbox
        assert outbox in _registered  # so that a fork does what follows
        # As in a forked child: a lock held by a thread that does not exist there.
        with outbox._changed:
            outbox._reset()
            outbox._worker._reset()
            logger.log(Particles.at_rest(), 0)
    assert server.told == [("step", 0, 0), ("finished", 0, 0)]

"""From the program to the callback: how often it is called, in which order, and through faults.

Programs that end, fork, are interrupted or might hang run in processes of their own. Programs on
several devices are the ones that return before they have run.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import logax
from delivery_processes import finish, start
from logax._delivery import calls
from logax._delivery.errors import delivery_errors
from logax._delivery.worker import (
    JOBS_PER_WINDOW,
    MAX_EARLY_RATE,
    QUEUE_SECONDS,
    RATE_SECONDS,
    Worker,
    worker,
)
from logax.loggers import Logger, RecordBatch, RunInfo, Sink
from logax.testing import MemoryLogger
from slow_cases import slow

LONG = 60.0  # seconds
COMPILED: list[str] = []


def note_compilation(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(note_compilation)


def await_callbacks() -> None:
    """Wait until all records were given to callbacks, without asking for errors."""
    jax.effects_barrier()
    await_delivery()


def await_delivery() -> None:
    """Wait until those were that have left their programs."""
    with worker._changed:
        done = worker._changed.wait_for(worker.is_done, LONG)
    assert done


def count(x: Any, length: int = 3) -> Any:
    """Logs x, x+1, x+2, ..."""

    def body(carry: Any, i: Any) -> Any:
        logax.log({"x": carry}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(length))[0]


def counting(length: int) -> Callable[[Any], Any]:
    return lambda x: count(x, length)


def once(x: Any) -> Any:
    logax.log({"x": x})
    return x + 1


def into(values: list[Any]) -> Callable[[logax.record], None]:
    """A callback that collects the values of `x`."""
    return lambda one: values.append(float(one["x"]))


# How many transfers there are.


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each transfer from now on."""
    sizes: list[int] = []
    add = worker.add

    def counted(size: int, job: Any, *arguments: Any) -> bool:
        if job is calls._receive_all:
            sizes.append(size)
        return add(size, job, *arguments)

    monkeypatch.setattr(calls.worker, "add", counted)
    return sizes


def in_while_loop(x: Any) -> Any:
    def body(state: Any) -> Any:
        i, x = state
        logax.log({"x": x}, step=i)
        return i + 1, x + 1

    return lax.while_loop(lambda state: state[0] < 10_000, body, (0, x))[1]


def in_nested_scans(x: Any) -> Any:
    return lax.scan(lambda x, _: (count(x, 5), None), x, None, length=2_000)[0]


@pytest.mark.parametrize(
    "function",
    [counting(10_000), in_while_loop, in_nested_scans],
    ids=["scan", "while_loop", "inner scan of 5 in an outer of 2,000"],
)
def test_ten_thousand_records_in_buffers_of_100_make_about_100_transfers(
    function: Callable[..., Any], transfers: list[int]
) -> None:
    got: list[float] = []
    assert logax.tap(function, into(got), buffer=100)(0.0) == 10_000
    logax.flush()
    assert got == list(range(10_000))
    assert len(transfers) <= 110


@pytest.mark.parametrize(
    "function", [counting(40), *slow(in_while_loop)], ids=["scan", "while_loop"]
)
def test_256_lanes_make_as_many_transfers_as_one(
    function: Callable[..., Any], transfers: list[int]
) -> None:
    numbers = []
    for lanes in (1, 256):
        got: list[Any] = []
        tapped = logax.tap(function, got.append, buffer=50, lanes="batch")
        jax.vmap(tapped)(jnp.arange(lanes, dtype=jnp.float32))
        logax.flush()
        length = 40 if function is not in_while_loop else 10_000
        np.testing.assert_array_equal(
            [one["x"] for one in got], np.arange(length)[:, None] + np.arange(lanes)
        )
        numbers.append(len(transfers))
        transfers.clear()
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(("megabytes", "number"), [(1, 3), (8, 10)])
def test_a_buffer_holds_no_more_than_four_megabytes_of_large_records(
    transfers: list[int], megabytes: int, number: int
) -> None:
    got: list[float] = []
    x = jnp.zeros(megabytes * 2**18)
    logax.tap(lambda x: count(x, 10), lambda one: got.append(float(one["x"][0])), buffer=64)(x)
    logax.flush()
    assert got == [float(i) for i in range(10)]
    assert sum(size > 2**20 for size in transfers) == number
    assert max(transfers) < max(megabytes, 4) * 2**20 + 1_000


def test_what_is_not_due_is_not_transferred(transfers: list[int]) -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"x": carry + i}, every=1_000, step=i)
            return carry, None

        return lax.scan(body, x, jnp.arange(20_000))[0]

    got: list[float] = []
    logax.tap(function, into(got), buffer=8)(0.0)
    logax.flush()
    assert got == list(range(0, 20_000, 1_000))
    assert len(transfers) <= 5


# What is left behind.


def test_a_hundred_fresh_taps_with_fresh_callbacks_compile_once() -> None:
    def function(x: Any) -> Any:
        traces.append(x)
        return count(x)

    traces: list[Any] = []
    got: list[list[float]] = [[] for _ in range(100)]
    COMPILED.clear()
    for number, own in enumerate(got):
        x = np.float32(number)
        assert float(logax.tap(function, into(own), buffer=2)(x)) == number + 3
    assert (len(traces), len(COMPILED)) == (1, 1)
    logax.flush()
    assert got == [[n, n + 1, n + 2] for n in range(100)]
    assert calls._calls == {}


def test_hundreds_of_calls_with_fresh_callbacks_leave_nothing_behind() -> None:
    def call(number: int) -> weakref.ref[Any]:
        def callback(one: logax.record) -> None:
            seen.append(float(one["x"]) == number)

        assert float(logax.tap(once, callback)(np.float32(number))) == number + 1
        return weakref.ref(callback)

    def objects() -> int:
        logax.flush()
        gc.collect()
        return len(gc.get_objects())

    seen: list[bool] = []
    for number in range(10):
        call(number)
    before = objects()
    callbacks = [call(number) for number in range(500)]
    after = objects()
    assert [callback() for callback in callbacks] == [None] * 500
    assert seen == [True] * 510
    assert calls._calls == {}
    del callbacks
    assert after - before < 100 + 500  # the weak references themselves are objects too


def test_calls_that_end_early_or_say_nothing_leave_nothing_behind() -> None:
    def failing(x: Any) -> Any:
        logax.log({"x": x})
        raise KeyError("mine")

    got: list[float] = []
    with pytest.raises(KeyError, match="mine"):
        logax.tap(failing, into(got))(1.0)
    assert logax.tap(lambda x: x + 1, into(got))(1.0) == 2.0
    with pytest.warns(UserWarning, match="'other', which matches no log"):
        assert logax.tap(once, into(got), keys="other")(1.0) == 2.0
    never = lambda n: lax.fori_loop(0, n, lambda i, c: once(c), 1.0)  # noqa: E731
    assert logax.tap(never, into(got), buffer=4)(0) == 1.0
    assert jax.vmap(logax.tap(never, into(got)))(jnp.zeros(3, int)).tolist() == [1.0] * 3
    logax.flush()
    assert got == []
    assert calls._calls == {}


def test_nor_does_a_logger_of_programs_that_log_nothing_in_the_end() -> None:
    logger = MemoryLogger()
    with logger.run() as state:
        scanned = logger.spool(lambda xs: lax.scan(lambda c, x: (once(c), None), 1.0, xs)[0], state)
        assert [float(scanned(jnp.zeros(0))) for _ in range(3)] == [1.0] * 3
        logax.flush()
        assert calls._calls == {}


def test_threads_take_their_usual_turns_again_once_all_is_delivered() -> None:
    usual = sys.getswitchinterval()
    turns = []
    for _ in range(2):
        logax.tap(once, lambda one: turns.append(sys.getswitchinterval()))(1.0)
        logax.flush()
        assert sys.getswitchinterval() == usual
    assert max(turns) < usual


@pytest.mark.slow
def test_a_million_records_leave_no_memory_behind() -> None:
    number, last = 0, -1.0

    def callback(one: logax.record) -> None:
        nonlocal number, last
        number, last = number + 1, float(one.step)

    run = logax.tap(counting(1_000_000), callback, buffer=1_000)
    run(0.0)
    logax.flush()
    tracemalloc.start()
    try:
        run(0.0)
        logax.flush()
        gc.collect()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (number, last) == (2_000_000, 999_999)
    assert left < 1_000_000
    assert peak < 100_000_000
    assert calls._calls == {}


# Threads.


@pytest.mark.parametrize("jitted", [False, True], ids=["tap(f)", "jit(tap(f))"])
def test_threads_that_call_the_same_tapped_function_keep_their_records_apart(jitted: bool) -> None:
    got: list[float] = []
    tapped = logax.tap(counting(100), into(got), buffer=7)
    function = jax.jit(tapped) if jitted else tapped
    starts = [1000.0 * thread for thread in range(4)]
    together = threading.Barrier(4, timeout=LONG)
    results: dict[float, list[float]] = {}

    def call(start: float) -> None:
        together.wait()
        results[start] = [float(function(start + 100 * i)) for i in range(5)]

    threads = [threading.Thread(target=call, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    logax.flush()
    for begin in starts:
        assert results[begin] == [begin + 100 * (i + 1) for i in range(5)]
        assert [x for x in got if begin <= x < begin + 1000] == [begin + i for i in range(500)]
    assert len(got) == 2_000
    assert calls._calls == {}


def test_threads_with_their_own_callbacks_get_only_their_own() -> None:
    got: dict[int, list[float]] = {number: [] for number in range(4)}
    together = threading.Barrier(4, timeout=LONG)
    function = counting(50)

    def call(number: int) -> None:
        together.wait()
        for i in range(5):
            logax.tap(function, into(got[number]), buffer=3)(1000.0 * number + 50 * i)

    threads = [threading.Thread(target=call, args=(number,)) for number in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    logax.flush()
    assert got == {number: [1000.0 * number + i for i in range(250)] for number in range(4)}


# Callbacks that fail.


class MineError(Exception):
    """What callbacks here raise."""


def failing(one: logax.record) -> None:
    raise MineError(f"at {one['x']}")


def failing_too(one: logax.record) -> None:
    raise MineError("too")


def site_of(function: Callable[..., Any], line: int) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno + line}"


def test_what_a_callback_raises_comes_out_of_flush_and_names_all_that_helps() -> None:
    assert logax.tap(once, failing)(1.0) == 2.0
    with pytest.raises(logax.DeliveryError) as caught:
        logax.flush()
    assert isinstance(caught.value.__cause__, MineError)
    assert str(caught.value.__cause__) == "at 1.0"
    text = str(caught.value)
    assert "`failing`" in text
    assert "MineError: at 1.0" in text
    assert "`x`" in text
    assert site_of(once, 1) in text
    logax.flush()  # it is told once


def test_it_comes_out_of_the_next_call_of_that_tap() -> None:
    got: list[float] = []
    assert logax.tap(once, failing)(1.0) == 2.0
    await_callbacks()
    assert logax.tap(once, into(got))(5.0) == 6.0  # another tap has nothing to do with it
    with pytest.raises(logax.DeliveryError, match=r"`failing` raised MineError: at 1\.0") as caught:
        logax.tap(once, failing)(2.0)
    assert isinstance(caught.value.__cause__, MineError)
    logax.flush()
    assert got == [5.0]


def test_bound_methods_are_the_same_callback_again() -> None:
    class Logger:
        def take(self, one: logax.record) -> None:
            raise MineError("method")

    logger = Logger()
    logax.tap(once, logger.take)(1.0)
    await_callbacks()
    with pytest.raises(logax.DeliveryError, match=r"Logger\.take` raised MineError: method"):
        logax.tap(once, logger.take)(1.0)
    logax.tap(once, Logger().take)(1.0)
    with pytest.raises(logax.DeliveryError, match=r"Logger\.take` raised MineError: method"):
        logax.flush()


def test_the_next_call_in_a_jitted_program_does_not_hide_it() -> None:
    tapped = jax.jit(logax.tap(once, failing))
    assert tapped(1.0) == 2.0
    await_callbacks()
    assert tapped(3.0) == 4.0
    with pytest.raises(logax.DeliveryError, match=r"at 1\.0") as caught:
        logax.flush()
    assert caught.value.__notes__ == ["It raised for 1 more record after that one."]


def test_a_callback_that_raises_for_each_record_says_how_often() -> None:
    assert logax.tap(counting(10), failing)(0.0) == 10.0
    with pytest.raises(logax.DeliveryError, match=r"MineError: at 0\.0") as caught:
        logax.flush()
    assert caught.value.__notes__ == ["It raised for 9 more records after that one."]


def test_several_callbacks_that_raise_come_as_a_group() -> None:
    logax.tap(once, failing)(1.0)
    logax.tap(once, failing_too)(1.0)
    with pytest.raises(ExceptionGroup) as caught:
        logax.flush()
    assert [type(error) for error in caught.value.exceptions] == [logax.DeliveryError] * 2
    assert [str(error.__cause__) for error in caught.value.exceptions] == ["at 1.0", "too"]
    logax.flush()


@pytest.mark.filterwarnings("error")
def test_on_error_warn_raises_nothing_where_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tapped = logax.tap(count, failing, on_error="warn")
    assert float(tapped(0.0)) == float(count(0.0))
    logax.flush()
    printed = capsys.readouterr().err
    assert printed.startswith("UserWarning: The callback `failing` raised ")
    assert printed.endswith(" It raised for 2 more records after that one.\n")
    logax.tap(once, failing, on_error="warn")(1.0)
    logax.tap(once, failing_too)(1.0)
    with pytest.raises(logax.DeliveryError, match="too"):
        logax.flush()
    assert "at 1.0" in capsys.readouterr().err


def test_a_callback_that_was_warned_of_is_let_go() -> None:
    class Failing:
        def __call__(self, one: logax.record) -> None:
            raise MineError("mine")

    callback = Failing()
    logax.tap(once, callback, on_error="warn")(1.0)
    with pytest.warns(UserWarning, match="mine"):
        logax.flush()
    reference = weakref.ref(callback)
    del callback
    gc.collect()
    assert reference() is None


def test_records_after_an_error_still_come_to_it_and_to_others() -> None:
    got: list[float] = []
    others: list[float] = []

    def picky(one: logax.record) -> None:
        if one["x"] == 1.0:
            raise MineError("picky")
        got.append(float(one["x"]))

    logax.tap(logax.tap(count, into(others), keep_logs=True), picky)(0.0)
    with pytest.raises(logax.DeliveryError, match="picky"):
        logax.flush()
    assert got == [0.0, 2.0]
    assert others == [0.0, 1.0, 2.0]


def test_on_error_warn_makes_one_warning_of_it() -> None:
    got: list[float] = []

    def picky(one: logax.record) -> None:
        if one["x"] >= 1.0:
            raise MineError("picky")
        got.append(float(one["x"]))

    def run() -> None:
        logax.tap(count, picky, on_error="warn")(0.0)
        logax.flush()

    with pytest.warns(UserWarning, match=r"picky` raised .*MineError: picky") as caught:
        run()
    (warning,) = caught
    assert "`x`" in str(warning.message)
    assert str(warning.message).endswith(" It raised for 1 more record after that one.")
    assert warning.filename == __file__
    assert got == [0.0]


class Silent(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no text")


@jax.tree_util.register_pytree_node_class
class Choosy:
    """A pytree that cannot be made of every number."""

    def __init__(self, x: Any) -> None:
        if not isinstance(x, jax.core.Tracer) and isinstance(x, np.generic) and x == 1.0:
            raise MineError("not of 1")
        self.x = x

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any]) -> Choosy:
        return cls(*parts)


def test_a_record_that_cannot_be_made_is_named_and_the_others_come() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"choosy": Choosy(carry)}, step=i)
            return carry + 1, None

        return lax.scan(body, x, jnp.arange(4))[0]

    steps: list[int] = []
    logax.tap(function, lambda one: steps.append(int(one.step)), buffer=4)(0.0)
    with pytest.raises(logax.DeliveryError, match=r"A record of `choosy` \(logged at ") as caught:
        logax.flush()
    assert "could not be made for the callback" in str(caught.value)
    assert "MineError: not of 1." in str(caught.value)
    assert steps == [0, 2, 3]


def test_an_error_that_has_no_text_loses_nothing() -> None:
    got: list[float] = []

    def callback(one: logax.record) -> None:
        got.append(float(one["x"]))
        raise Silent

    logax.tap(count, callback, buffer=3)(0.0)
    with pytest.raises(logax.DeliveryError, match="exception str"):
        logax.flush()
    assert got == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_exits_does_not_end_the_thread(error: type[BaseException]) -> None:
    got: list[float] = []

    def leaving(one: logax.record) -> None:
        raise error(3)

    logax.tap(count, leaving)(0.0)
    with pytest.raises(logax.DeliveryError, match=f"raised {error.__name__}: 3") as caught:
        logax.flush()
    assert isinstance(caught.value.__cause__, error)
    logax.tap(count, into(got))(0.0)
    logax.flush()
    assert got == [0.0, 1.0, 2.0]


def test_a_callback_that_takes_no_record_fails_like_any_other() -> None:
    logax.tap(once, lambda: None)(1.0)
    with pytest.raises(logax.DeliveryError, match="raised TypeError"):
        logax.flush()


def test_a_callback_without_hash_or_name_is_a_callback() -> None:
    class Callback:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, one: logax.record) -> None:
            raise MineError("unnamed")

        def __repr__(self) -> str:
            return "<a callback>"

    callback = Callback()
    logax.tap(once, callback)(1.0)
    with pytest.raises(logax.DeliveryError, match="`<a callback>` raised MineError: unnamed"):
        logax.flush()


# Callbacks that do something.


def test_a_callback_may_call_jax() -> None:
    got: list[float] = []
    cubed = jax.jit(lambda x: x**3)
    logax.tap(count, lambda one: got.append(float(jnp.sum(jnp.asarray(one["x"])) + cubed(2.0))))(0)
    logax.flush()
    assert got == [8.0, 9.0, 10.0]


def test_a_callback_may_call_a_tapped_function() -> None:
    got: list[float] = []
    inner: list[float] = []

    def callback(one: logax.record) -> None:
        got.append(float(logax.tap(once, into(inner))(float(one["x"]) * 10)))

    logax.tap(count, callback)(0.0)
    logax.flush()
    assert got == [1.0, 11.0, 21.0]
    logax.flush()
    assert inner == [0.0, 10.0, 20.0]


def test_a_log_of_a_callback_is_no_part_of_the_program() -> None:
    got: list[float] = []

    def callback(one: logax.record) -> None:
        logax.log({"y": one["x"]})
        got.append(float(one["x"]))

    _, logs = logax.spool(logax.tap(count, callback, keep_logs=True))(0.0)
    logax.flush()
    assert got == [0.0, 1.0, 2.0]
    assert list(logs) == ["x"]


def test_a_callback_must_not_flush() -> None:
    got: list[float] = []

    def callback(one: logax.record) -> None:
        got.append(float(one["x"]))
        logax.flush()

    logax.tap(count, callback)(0.0)
    with pytest.raises(logax.DeliveryError, match="raised RuntimeError: `flush` was called in a"):
        logax.flush()
    assert got == [0.0, 1.0, 2.0]


def test_a_sink_with_a_thread_of_its_own_must_not_flush() -> None:
    class Flushing(Sink):
        def write(self, batch: RecordBatch) -> None:
            logax.flush()

    logger = Logger(Flushing(), network=True)
    state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1.0})
    with pytest.raises(logax.DeliveryError, match="`flush` was called in a callback or a sink"):
        logax.flush(timeout=LONG)
    logger.close()


def test_flush_gives_up_on_a_callback_that_blocks_and_later_all_arrive() -> None:
    go_on = threading.Event()
    got: list[float] = []

    def callback(one: logax.record) -> None:
        assert go_on.wait(LONG)
        got.append(float(one["x"]))

    assert logax.tap(count, callback)(0.0) == 3.0
    with pytest.raises(TimeoutError, match=r"`flush` waited 0.1 s, and records are still on"):
        logax.flush(timeout=0.1)
    assert got == []
    go_on.set()
    logax.flush()
    assert got == [0.0, 1.0, 2.0]


def test_flush_with_nothing_to_wait_for_returns_at_once() -> None:
    logax.flush()
    logax.flush(timeout=LONG)


LINE = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i"))


def lately(x: Any) -> Any:
    """Logs only after some time."""
    return once(lax.fori_loop(0, 300, lambda _, x: jnp.sin(x), x).sum() * 0)


def test_flush_with_a_timeout_waits_for_programs_that_run() -> None:
    got: list[float] = []
    tapped = logax.tap(lately, into(got))
    for number in range(3):
        tapped(jax.device_put(jnp.ones(80_000), LINE))
        logax.flush(timeout=LONG)
        assert got == [0.0] * (number + 1)


@pytest.mark.parametrize("timeout", [None, LONG])
def test_flush_waits_for_programs_in_a_live_block(timeout: float | None) -> None:
    got: list[float] = []
    function = jax.jit(lately)
    with logax.live(into(got)):
        for number in range(3):
            function(jax.device_put(jnp.ones(80_000), LINE))
            logax.flush(timeout)
            assert got == [0.0] * (number + 1)


def test_flush_waits_for_a_call_that_another_thread_is_making() -> None:
    got: list[float] = []
    begun, go_on = threading.Event(), threading.Event()

    def function(x: Any) -> None:
        begun.set()  # while it is traced
        assert go_on.wait(LONG)
        once(x)

    thread = threading.Thread(target=logax.tap(function, into(got)), args=(5.0,))
    thread.start()
    assert begun.wait(LONG)
    with pytest.raises(TimeoutError, match="A program is still running"):
        logax.flush(timeout=0.05)
    go_on.set()
    logax.flush()
    assert got == [5.0]
    thread.join(LONG)


def test_flush_while_a_function_is_traced_does_not_wait_for_itself() -> None:
    got: list[float] = []

    def function(x: Any) -> Any:
        logax.flush()
        logax.flush(timeout=LONG)
        return once(x)

    logax.tap(function, into(got))(1.0)
    logax.flush()
    assert got == [1.0]


def test_a_program_that_died_does_not_keep_flush_waiting() -> None:
    def fail(x: Any) -> None:
        if x == 2:
            raise MineError("of the program")

    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"x": carry}, step=i)
            jax.debug.callback(fail, carry)
            return carry + 1, None

        return lax.scan(body, x, jnp.arange(5))[0]

    got: list[float] = []
    with pytest.raises(Exception, match="of the program"):
        jax.block_until_ready(jax.jit(logax.tap(function, into(got)))(0.0))
    logax.flush(timeout=LONG)
    logax.flush()
    assert got == [0.0, 1.0, 2.0][: len(got)]
    calls._calls.clear()  # nobody knows that the rest of them will never come


def test_a_program_that_died_on_several_devices_does_not_keep_flush_waiting() -> None:
    def fail(x: Any) -> Any:
        if x == 1:
            raise MineError("of the program")
        return x

    def function(x: Any) -> Any:
        return once(jax.pure_callback(fail, jax.ShapeDtypeStruct((), x.dtype), x[0]))[None]

    got: list[float] = []
    mesh, each = Mesh(np.array(jax.devices()[:2]), "i"), PartitionSpec("i")
    program = jax.shard_map(function, mesh=mesh, in_specs=each, out_specs=each)
    x = jax.device_put(np.array([1, 5], np.float32), NamedSharding(mesh, each))
    with ThreadPoolExecutor(1) as thread:  # JAX reminds the thread that called it of what failed
        out = thread.submit(logax.tap(program, into(got)), x).result()
    logax.flush(timeout=LONG)
    assert (got, calls._calls) == ([5.0][: len(got)], {})
    with pytest.raises(jax.errors.JaxRuntimeError, match="of the program"):
        jax.block_until_ready(out)


def test_one_that_dies_after_its_last_record_has_said_all() -> None:
    got: list[float] = []

    def fail(x: Any) -> None:
        await_delivery()
        raise MineError("of the program")

    def function(x: Any) -> Any:
        x = count(x)
        jax.debug.callback(fail, x)
        return x

    with pytest.raises(Exception, match="of the program"):
        jax.block_until_ready(logax.tap(function, into(got))(0.0))
    logax.flush(timeout=LONG)
    assert (got, calls._calls) == ([0.0, 1.0, 2.0], {})


@pytest.mark.parametrize("timeout", ["1", -1, float("nan"), True])
def test_a_time_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="`flush` takes `timeout` in seconds, 0 or more, and got"):
        logax.flush(timeout)


def test_what_waits_can_be_discarded() -> None:
    gate, got = Gate(), []  # type: tuple[Gate, list[float]]
    logax.tap(count, lambda one: None)(0.0)  # after which the rate is known, and 50 may wait
    logax.flush()
    logax.tap(counting(50), gate)(0.0)
    assert gate.reached.wait(LONG)
    threading.Timer(0, gate.open.set).start()
    dropped = logax.discard()
    assert len(gate.got) + dropped == 50
    assert gate.got == list(range(len(gate.got)))
    logax.tap(count, into(got))(0.0)
    logax.flush()
    assert got == [0.0, 1.0, 2.0]
    assert logax.discard() == 0


def test_what_waits_for_a_logger_can_be_discarded() -> None:
    def wait(one: logax.record) -> None:
        reached.set()
        while not worker.is_discarding:  # nobody tells of that
            threading.Event().wait(0.001)

    logger, reached = MemoryLogger(), threading.Event()
    with logger.run() as state:
        logax.tap(once, wait)(0.0)
        assert reached.wait(LONG)
        logger.tap(count, state)(0.0)
        jax.effects_barrier()
        assert logax.discard() == 3
        logger.tap(count, state)(5.0)
    (run,) = logger.runs
    assert [float(one.values["x"]) for one in run.records] == [5.0, 6.0, 7.0]


def test_a_callback_must_not_discard() -> None:
    logax.tap(once, lambda one: logax.discard())(0.0)
    with pytest.raises(logax.DeliveryError, match="RuntimeError: `discard` was called in a call"):
        logax.flush()


def test_flush_waits_for_programs_that_another_thread_started() -> None:
    got: list[float] = []
    tapped = logax.tap(lately, into(got))
    for number in range(3):
        x = jax.device_put(jnp.ones(80_000), LINE)
        thread = threading.Thread(target=tapped, args=(x,))
        thread.start()
        thread.join(LONG)
        logax.flush()
        assert got == [0.0] * (number + 1)


# The bounded queue.

WIDTH = 256  # float32: a record of about a kilobyte


@pytest.fixture
def configured() -> Iterator[Callable[..., None]]:
    """`configure`, undone afterwards."""
    limit, seconds, blocks = worker.queue_bytes, worker.queue_seconds, worker.blocks_when_full
    yield logax.configure
    when_full = "block" if blocks else "drop"
    logax.configure(queue_bytes=limit, queue_seconds=seconds, when_full=when_full)


class Gate:
    """A callback that waits at its first record until it may go on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.got: list[float] = []

    def __call__(self, one: logax.record) -> None:
        self.reached.set()
        assert self.open.wait(LONG)
        self.got.append(float(np.asarray(one["x"]).flat[0]))


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Set when somebody must wait for room; and what was in the queue each time it changed."""
    full, sizes = threading.Event(), []
    add = worker.add

    def watched(size: int, *arguments: Any) -> bool:
        if not worker._has_room(size, 1):
            full.set()
        done = add(size, *arguments)
        sizes.append(worker._bytes)
        return done

    monkeypatch.setattr(worker, "add", watched)
    return full, sizes


@pytest.mark.parametrize("buffer", [1, 3])
def test_a_full_queue_makes_the_program_wait_and_loses_nothing(
    configured: Callable[..., None], filled: tuple[threading.Event, list[int]], buffer: int
) -> None:
    bound = 20_000
    configured(queue_bytes=bound, when_full="block")
    gate, (full, sizes) = Gate(), filled
    out: list[Any] = []
    tapped = logax.tap(counting(200), gate, buffer=buffer)
    program = threading.Thread(target=lambda: out.append(tapped(jnp.zeros(WIDTH))))
    program.start()
    assert full.wait(LONG)
    assert bound - 4 * buffer * (WIDTH + 10) - 512 < worker._bytes <= bound
    gate.open.set()
    program.join(LONG)
    logax.flush()
    np.testing.assert_array_equal(out, [np.full(WIDTH, 200.0)])
    assert gate.got == list(range(200))
    assert max(sizes) <= bound
    assert worker._bytes == 0


def test_records_that_a_callback_does_not_take_in_time_make_the_program_wait(
    configured: Callable[..., None], filled: tuple[threading.Event, list[int]]
) -> None:
    logax.tap(counting(3), lambda one: None)(jnp.zeros(()))  # after which the rate is known
    logax.flush()
    configured(queue_seconds=0)
    gate, (full, _) = Gate(), filled
    tapped = logax.tap(counting(2_000), gate, buffer=1)
    program = threading.Thread(target=lambda: tapped(jnp.zeros(())))
    program.start()
    assert full.wait(LONG)
    assert worker._records == 1
    gate.open.set()
    program.join(LONG)
    logax.flush()
    assert gate.got == list(range(2_000))
    assert worker._records == 0


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_full_queue_drops_and_says_how_many(
    configured: Callable[..., None], lanes: int | None
) -> None:
    configured(queue_bytes=10_000, when_full="drop")
    gate = Gate()
    function = logax.tap(counting(50), gate)
    x = jnp.zeros(WIDTH)
    out = function(x) if lanes is None else jax.vmap(function)(jnp.stack([x] * lanes))
    assert np.asarray(out).flat[0] == 50.0
    jax.effects_barrier()
    gate.open.set()
    with pytest.warns(UserWarning, match="records were dropped") as caught:
        logax.flush()
    (warning,) = caught
    text = str(warning.message)
    dropped = int(text.split(maxsplit=1)[0])
    assert 0 < dropped < 50 * (lanes or 1)
    assert len(gate.got) + dropped == 50 * (lanes or 1)
    assert gate.got == sorted(gate.got)
    assert f"{dropped} of `x` (logged at {site_of(count, 4)})" in text
    assert "the queue of 10000 bytes was full" in text
    assert 'when_full="block"' in text
    assert warning.filename == __file__
    logax.flush()  # said once
    assert calls._calls == {}


def test_dropped_records_are_told_by_the_next_call_too(configured: Callable[..., None]) -> None:
    configured(queue_bytes=10_000, when_full="drop")
    gate = Gate()
    logax.tap(counting(50), gate)(jnp.zeros(WIDTH))
    jax.effects_barrier()
    gate.open.set()
    await_callbacks()
    with pytest.warns(UserWarning, match=r"\d+ records were dropped") as caught:
        _ = logax.tap(once, gate)(jnp.zeros(WIDTH)), logax.flush()
    dropped = sum(int(str(warning.message).split(maxsplit=1)[0]) for warning in caught)
    assert len(gate.got) + dropped == 51


@pytest.mark.filterwarnings("error")
def test_where_warnings_are_errors_dropped_records_and_errors_come_together(
    configured: Callable[..., None],
) -> None:
    configured(queue_bytes=10_000, when_full="drop")
    gate = Gate()
    _ = logax.tap(once, failing_too)(1.0), logax.tap(counting(50), gate)(jnp.zeros(WIDTH))
    jax.effects_barrier()
    gate.open.set()
    with pytest.raises(ExceptionGroup) as caught:
        logax.flush()
    error, warning = caught.value.exceptions
    assert (type(error), str(error.__cause__)) == (logax.DeliveryError, "too")
    assert isinstance(warning, UserWarning)
    assert "records were dropped" in str(warning)
    logax.flush()


@pytest.mark.parametrize("way", ["two calls", "live"])
def test_whatever_they_come_from_dropped_records_are_counted(
    configured: Callable[..., None], way: str
) -> None:
    configured(queue_bytes=10_000, when_full="drop")
    gate, x = Gate(), jnp.zeros((2, WIDTH))

    def run() -> None:
        with logax.live(gate) if way == "live" else contextlib.nullcontext():
            if way == "live":
                jax.jit(jax.vmap(counting(50)))(x)
            else:
                _ = logax.tap(counting(50), gate)(x[0]), logax.tap(counting(50), gate)(x[1])
            jax.effects_barrier()
            gate.open.set()
        logax.flush()

    with pytest.warns(UserWarning, match="records were dropped") as caught:
        run()
    text = str(caught[0].message)
    dropped = int(text.split(maxsplit=1)[0])
    assert f"{dropped} of `x` (logged at {site_of(count, 4)})" in text
    assert 50 < dropped < 100
    assert len(gate.got) + dropped == 100
    assert calls._calls == {}


def test_where_no_thread_can_be_started_who_waits_does_the_jobs() -> None:
    alone, done = Worker("none"), list[int]()
    usual = threading.stack_size(2**50)  # as if there were no room for another thread
    try:
        for number in range(3):
            alone.put(0, done.append, number)
        assert alone.drain(None)
    finally:
        threading.stack_size(usual)
    assert done == [0, 1, 2]


def test_a_callback_that_does_not_return_is_told_of_and_the_queue_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logax._delivery.worker._STALL_SECONDS", 0.01)
    monkeypatch.setattr("logax._delivery.worker._STALL_GROWTH_BYTES", 100)
    full, go_on, done = Worker("a full one"), threading.Event(), list[int]()
    full.queue_bytes = 100
    full.put(100, go_on.wait, LONG)
    for number in range(3):
        assert full.put(100, done.append, number)  # the program goes on
    go_on.set()
    assert full.drain(None)
    full.stop(waits=True)
    assert done == [0, 1, 2]
    with pytest.warns(
        UserWarning, match=r"not returned for 0\.01 s, and the queue is full"
    ) as told:
        delivery_errors.raise_pending()
    assert "the queue grows beyond its bound" in str(told[0].message)


@pytest.mark.slow
def test_dropping_takes_no_memory_worth_mentioning(configured: Callable[..., None]) -> None:
    configured(queue_bytes=10_000, when_full="drop")
    gate, number = Gate(), 10_000
    tapped = logax.tap(counting(number), gate)
    logax.tap(counting(2), lambda one: None)(0.0)  # JAX imports modules when it first compiles
    tracemalloc.start()
    try:
        tapped(0.0)
        jax.effects_barrier()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100 * number
    gate.open.set()
    with pytest.warns(UserWarning, match="records were dropped") as caught:
        logax.flush()
    dropped = int(str(caught[0].message).split(maxsplit=1)[0])
    assert dropped > number / 2
    assert len(gate.got) + dropped == number


def test_nothing_is_said_where_nothing_was_dropped(configured: Callable[..., None]) -> None:
    configured(when_full="drop")
    got: list[float] = []
    logax.tap(count, into(got))(0.0)
    logax.flush()
    assert got == [0.0, 1.0, 2.0]


def logs_much(x: Any) -> Any:
    logax.log({"small": x[0]})
    logax.log({"much": x, "more": {"y": x}})
    return x.sum()


def test_a_record_that_is_larger_than_the_queue_is_refused(
    configured: Callable[..., None],
) -> None:
    configured(queue_bytes=1_500)
    with pytest.raises(ValueError, match="has 2048 bytes") as caught:
        logax.tap(logs_much, into([]))(jnp.zeros(WIDTH))
    text = str(caught.value)
    assert "`much`, `more`" in text
    assert site_of(logs_much, 2) in text
    assert "the queue on the host takes 1500" in text
    assert "logax.configure(queue_bytes=...)" in text
    got: list[logax.record] = []
    assert logax.tap(logs_much, got.append, keys="small")(jnp.zeros(WIDTH)) == 0
    logax.flush()
    assert [dict(one) for one in got] == [{"small": 0.0}]


def test_transfers_that_are_larger_than_the_queue_go_one_by_one(
    configured: Callable[..., None],
) -> None:
    configured(queue_bytes=1_100)
    got: list[float] = []
    logax.tap(counting(64), lambda one: got.append(float(one["x"][0])), buffer=16)(jnp.zeros(256))
    logax.flush()
    assert got == list(range(64))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue_bytes": 0}, "`configure` takes `queue_bytes` of 1 or more, and got 0."),
        ({"queue_bytes": 1.5}, "`configure` takes `queue_bytes` of 1 or more, and got 1.5."),
        ({"queue_bytes": "1 MB"}, "`configure` takes `queue_bytes` of 1 or more, and got '1 MB'."),
        (
            {"queue_seconds": -1, "queue_bytes": 10},
            "`configure` takes `queue_seconds` in seconds, 0 or more, and got -1.",
        ),
        ({"when_full": 3}, "`configure` takes `when_full` as 'block' or 'drop', and got 3."),
        ({"when_full": "x"}, "`configure` takes `when_full` as 'block' or 'drop', and got 'x'."),
        (
            {"queue_bytes": 10, "when_full": "x"},
            "`configure` takes `when_full` as 'block' or 'drop', and got 'x'.",
        ),
    ],
    ids=str,
)
def test_bad_bounds_are_refused_and_change_nothing(
    configured: Callable[..., None], options: Any, text: str
) -> None:
    before = worker.queue_bytes, worker.queue_seconds, worker.blocks_when_full
    with pytest.raises(ValueError, match="`configure`") as caught:
        configured(**options)
    assert str(caught.value) == text
    assert (worker.queue_bytes, worker.queue_seconds, worker.blocks_when_full) == before


# Processes.


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def test_a_process_that_exits_at_once_loses_no_record(tmp_path: Path) -> None:
    code, _, err = finish(
        start(
            """
            logax.tap(lambda x: count(x, 3000), into("many"), buffer=10)(0)
            """,
            tmp_path,
        )
    )
    assert (code, err) == (0, "")
    assert numbers(tmp_path / "many") == list(range(3000))


@pytest.mark.slow
def test_records_that_come_only_while_the_process_exits_are_not_lost(tmp_path: Path) -> None:
    code, _, err = finish(
        start(
            """
            logax.tap(lately, into("late"))(on_devices(jnp.ones(800_000)))
            """,
            tmp_path,
        )
    )
    assert (code, err) == (0, "")
    assert numbers(tmp_path / "late") == list(range(30))


@pytest.mark.slow
def test_nor_are_those_of_a_program_that_another_thread_started(tmp_path: Path) -> None:
    code, _, err = finish(
        start(
            """
            x = on_devices(jnp.ones(800_000))
            thread = threading.Thread(target=logax.tap(lately, into("late")), args=(x,))
            thread.start()
            """,
            tmp_path,
        )
    )
    assert (code, err) == (0, "")
    assert numbers(tmp_path / "late") == list(range(30))


@pytest.mark.slow
def test_nor_are_those_of_a_thread_that_begins_while_the_process_exits(tmp_path: Path) -> None:
    code, _, err = finish(
        start(
            """
            def later():
                threading.main_thread().join()
                logax.configure(queue_bytes=2000)
                logax.tap(lambda x: count(x, 30), into("late"))(0)

            threading.Thread(target=later).start()
            """,
            tmp_path,
        )
    )
    assert (code, err) == (0, "")
    assert numbers(tmp_path / "late") == list(range(30))


@pytest.mark.slow
def test_a_daemon_thread_that_never_gets_to_run_its_program_does_not_hold_up_the_exit(
    tmp_path: Path,
) -> None:
    code, _, err = finish(
        start(
            """
            begun = threading.Event()

            def function(x):
                begun.set()  # while it is traced
                threading.Event().wait()

            target = logax.tap(function, into("never"))
            threading.Thread(target=target, args=(1,), daemon=True).start()
            begun.wait()
            logax.tap(lambda x: count(x, 5), into("few"))(0)
            """,
            tmp_path,
        )
    )
    assert (code, err) == (0, "")
    assert numbers(tmp_path / "few") == list(range(5))


def test_a_process_that_ends_with_an_error_tells_all_and_loses_no_record(tmp_path: Path) -> None:
    code, _, err = finish(
        start(
            """
            def callback(one):
                raise KeyError("of the callback")

            logax.tap(lambda x: count(x, 5), callback)(0)
            logax.tap(lambda x: count(x, 3000), into("many"), buffer=10)(0)
            raise KeyError("of the program")
            """,
            tmp_path,
        )
    )
    assert code == 1
    assert "KeyError: 'of the program'" in err
    assert numbers(tmp_path / "many") == list(range(3000))
    assert "DeliveryError: The callback `callback` raised KeyError: 'of the callback'" in err
    assert "in callback" in err  # where in the callback
    assert "It raised for 4 more records after that one." in err


@pytest.mark.parametrize(
    "devices", ["one device", pytest.param("several devices", marks=pytest.mark.slow)]
)
def test_a_callback_that_runs_a_program_while_the_queue_is_full_does_not_hang(
    tmp_path: Path, devices: str
) -> None:
    place = {"one device": "", "several devices": "x = on_devices(x)"}[devices]
    code, out, err = finish(
        start(
            f"""
            logax.configure(queue_bytes=4000)
            got = []
            x = jnp.zeros(320)
            {place}
            doubled = jax.jit(lambda x: 2 * x.sum())

            def callback(one):
                got.append(float(one["x"][0] + doubled(x)))

            logax.tap(lambda x: count(x, 50), callback)(x)
            logax.flush()
            print(got == [*range(50)])
            """,
            tmp_path,
        )
    )
    assert (code, out) == (0, "True\n")
    # Where the callback waits for the program that waits for room, there must be more room.
    said = "the queue grows beyond its bound" if devices == "several devices" else ""
    assert said in err
    assert err.count("Warning") == bool(said)


def test_a_forked_child_delivers_its_own_and_the_parent_goes_on(tmp_path: Path) -> None:
    code, out, _ = finish(
        start(
            """
            def child(name):
                pid = os.fork()
                if pid == 0:
                    logax.tap(lambda x: count(x, 20), into(name))(0)
                    logax.flush()
                    sys.stdout.flush()
                    os._exit(7)
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

            print(child("before"))
            logax.tap(lambda x: count(x, 40), into("parent"), buffer=4)(0)
            logax.flush()
            logax.tap(lambda x: count(x, 60), into("again"), buffer=4)(0)
            """,
            tmp_path,
        )
    )
    assert (code, out.split()) == (0, ["7"])
    assert numbers(tmp_path / "before") == list(range(20))
    assert numbers(tmp_path / "parent") == list(range(40))
    assert numbers(tmp_path / "again") == list(range(60))


@pytest.mark.slow
def test_a_child_that_is_forked_while_records_wait_leaves_them_to_the_parent(
    tmp_path: Path,
) -> None:
    code, out, _ = finish(
        start(
            """
            go_on, seen = threading.Event(), into("parent")

            def callback(one):
                go_on.wait()
                seen(one)

            from logax._delivery.worker import worker
            logax.tap(lambda x: count(x, 1), lambda one: 1 / 0)(0)
            worker.drain(None)
            logax.tap(lambda x: count(x, 40), callback)(0)
            jax.effects_barrier()
            pid = os.fork()
            if pid == 0:
                from logax._delivery.calls import _calls
                from logax._delivery.errors import delivery_errors
                from logax._delivery.worker import worker
                delivery_errors.raise_pending()  # what went wrong is the parent's
                done = threading.Event()
                worker.put(0, done.set)
                print(len(_calls), len(worker._jobs) <= 1, done.wait(30), flush=True)
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            go_on.set()
            try:
                logax.flush()
            except logax.DeliveryError as error:
                print(type(error.__cause__).__name__)
            """,
            tmp_path,
        )
    )
    assert (code, out.split()) == (0, ["0", "True", "True", "7", "ZeroDivisionError"])
    assert numbers(tmp_path / "parent") == list(range(40))


@pytest.mark.slow
def test_an_interrupted_process_ends_and_has_delivered_in_order(tmp_path: Path) -> None:
    process = start(
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # where it came ignored
        seen = into("seen")

        def callback(one):
            seen(one)
            if one["x"] == 100:
                print("begun", flush=True)

        def step(i, x):
            y = lax.fori_loop(0, 3, lambda _, y: jnp.sin(y @ y) / 100, jnp.full((100, 100), x))
            logax.log({"x": x}, step=i)
            return x + 1 + 0 * y[0, 0]

        out = logax.tap(lambda x: lax.fori_loop(0, 5000, step, x), callback)(0.0)
        jax.block_until_ready(out)
        print("ended", flush=True)
        """,
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code != 0
    # JAX 0.8.0 may break its memory, and abort, where the interrupt comes while a callback runs.
    if not (jax.__version_info__ == (0, 8, 0) and code == -signal.SIGABRT):
        assert "KeyboardInterrupt" in err
    got = numbers(tmp_path / "seen")
    assert len(got) > 100
    assert got == list(range(len(got)))


def test_the_first_short_jobs_say_little_about_the_rate() -> None:
    """They only gather records that a later job writes, so the window must not follow them."""
    worker = Worker(queue_seconds=QUEUE_SECONDS)
    share = QUEUE_SECONDS / JOBS_PER_WINDOW
    worker._measure(10, 1e-3)
    assert worker.job_records == pytest.approx(10 / 1e-3 * share)
    worker._measure(990, 1e-4)
    assert worker.job_records == pytest.approx(MAX_EARLY_RATE * share)
    worker._measure(999_000, 1e-4)
    assert worker.job_records == pytest.approx(1_000_000 / RATE_SECONDS * share)
    worker._measure(1_000_000, 0.1988)
    assert worker.job_records == pytest.approx(2_000_000 / 0.2 * share)


def test_streams_of_a_batch_are_chosen_in_the_order_that_is_asked_for() -> None:
    runs = [RunInfo("a", "a"), RunInfo("b", "b")]
    batch = RecordBatch.of(runs, {"x": np.array([[1.0], [2.0]])}, step=np.array([[3], [4]]))
    assert batch.only([0, 1]) is batch
    turned = batch.only([1, 0])
    assert [stream.run.id for stream in turned.streams] == ["b", "a"]
    np.testing.assert_array_equal(turned.values["x"], [[2.0], [1.0]])
    np.testing.assert_array_equal(turned.steps["step"], [[4], [3]])

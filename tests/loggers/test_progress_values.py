"""`ProgressLogger`: the values that a bar ends with are the last ones, whatever logs them."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import logax
from logax.loggers import ProgressLogger
from logax.loggers import progress as pending_bars
from terminals import Terminal

LENGTH = 40


def train(x: Any, shift: Any = 0.0) -> Any:
    """Logs two keys in each iteration, one before it, and one after all."""
    logax.log({"before": x})

    def body(carry: Any, i: Any) -> Any:
        logax.log({"loss": carry + i}, step=i)
        carry = carry + 0.0
        logax.log({"score": 100.0 + carry + i + shift}, step=i)
        return carry, None

    x = lax.scan(body, x, jnp.arange(LENGTH))[0]
    logax.log({"after": -x})
    return x


def sometimes(x: Any, every: int, at: int) -> Any:
    """The second key is logged in some iterations only."""

    def body(carry: Any, i: Any) -> Any:
        logax.log({"loss": carry + i}, step=i)
        lax.cond(i % every == at, lambda: logax.log({"score": 100.0 + i}, step=i), lambda: None)
        return carry, None

    return lax.scan(body, x, jnp.arange(LENGTH))[0]


def seen(use: Callable[[ProgressLogger], Any], **options: Any) -> list[str]:
    """Return the screen after the block, without bars and times."""
    with Terminal(120, 24) as terminal:
        with ProgressLogger(file=terminal.file, **options) as progress:
            use(progress)
        return without_times(terminal)


def without_times(terminal: Terminal) -> list[str]:
    lines = [re.sub(r"\|.*\| ", " ", line) for line in terminal.screen()]
    return [re.sub(r" \[.*?(, [a-z].*)?\]", r"\1", line) for line in lines]


END = f"100% {LENGTH}/{LENGTH}"

# Several keys.


@pytest.mark.parametrize("buffer", [1, 7, 64])
def test_keys_that_come_after_the_leading_one_end_with_their_last_values(buffer: int) -> None:
    use = lambda p: logax.tap(train, p, buffer=buffer)(1.0)  # noqa: E731
    assert seen(use, show=("loss", "score")) == [f"{END}, loss=40, score=140"]
    assert seen(use, show="score") == [f"{END}, score=140"]


@pytest.mark.parametrize("lanes", ["split", "batch"])
def test_the_last_values_are_means_over_all_lanes(lanes: str) -> None:
    xs = jnp.arange(5.0)
    use = lambda p: jax.vmap(logax.tap(train, p, lanes=lanes))(xs)  # noqa: E731
    assert seen(use, show=("score", "loss")) == [f"{END}, loss=41, score=141"]
    assert seen(use, show="after") == [f"{END}, after=-2"]


def test_what_is_logged_once_after_the_loop_is_shown_too() -> None:
    use = lambda p: logax.tap(train, p)(1.0)  # noqa: E731
    assert seen(use, show=("loss", "after")) == [f"{END}, loss=40, after=-1"]
    assert seen(use, show="*") == [f"{END}, before=1, loss=40, score=140, after=-1"]


@pytest.mark.parametrize(("every", "at", "last"), [(10, 9, 139), (10, 8, 138), (LENGTH, 39, 139)])
def test_a_key_that_is_logged_now_and_then_ends_with_its_last_value(
    every: int, at: int, last: int
) -> None:
    use = lambda p: logax.tap(lambda x: sometimes(x, every, at), p)(1.0)  # noqa: E731
    assert seen(use, show=("loss", "score")) == [f"{END}, loss=40, score={last}"]


def test_a_key_that_never_comes_holds_nothing_up() -> None:
    use = lambda p: logax.tap(lambda x: sometimes(x, 100, 99), p)(1.0)  # noqa: E731
    assert seen(use, show=("loss", "score")) == [f"{END}, loss=40"]


def test_a_key_with_less_records_ends_with_the_last_of_them() -> None:
    def f(x: Any) -> Any:
        def epoch(x: Any, e: Any) -> Any:
            def body(x: Any, i: Any) -> Any:
                logax.log({"loss": x + i}, step=i)
                return x, None

            x = lax.scan(body, x, jnp.arange(10))[0]
            logax.log({"score": 1.0 * e}, epoch=e)
            return x, None

        return lax.scan(epoch, x, jnp.arange(4))[0]

    use = lambda p: logax.tap(f, p)(1.0)  # noqa: E731
    assert seen(use, show=("loss", "score")) == [f"{END}, loss=10, score=3"]


def test_a_total_of_the_users_ends_with_the_values_of_its_iteration() -> None:
    def step(i: Any) -> None:
        logax.log({"loss": 2 * i}, step=i)
        logax.log({"score": 3 * i}, step=i)

    def use(progress: ProgressLogger) -> None:
        tapped = logax.tap(step, progress)
        for i in range(8):
            tapped(i)

    ends = [f"100% 6/6, loss={2 * 5}, score={3 * 5}"]  # what comes after is of no bar
    assert seen(use, total=6, show=("loss", "score")) == ends


# Several calls.


def test_values_of_the_next_call_are_not_in_the_bar_of_the_last() -> None:
    def use(progress: ProgressLogger) -> None:
        for x in range(3):
            logax.tap(train, progress)(float(x))

    assert seen(use, show="*") == [
        f"{END}, before={x}, loss={39 + x}, score={139 + x}, after={-x}" for x in range(3)
    ]


def test_a_bar_that_waits_ends_where_its_key_leads_again() -> None:
    def use(progress: ProgressLogger) -> None:
        for x in range(2):
            logax.tap(lambda x: sometimes(x, 10, 9), progress)(float(x))

    assert seen(use, show=("loss", "score")) == [
        f"{END}, loss={39 + x}, score=139" for x in range(2)
    ]


def test_lanes_of_an_earlier_call_are_not_in_the_mean() -> None:
    def use(progress: ProgressLogger) -> None:
        for number in (5, 2, 3):
            jax.vmap(logax.tap(train, progress))(jnp.arange(1.0 * number))

    assert seen(use, show=("loss", "score")) == [
        f"{END}, loss={39 + mean:g}, score={139 + mean:g}" for mean in (2, 0.5, 1)
    ]


def test_bars_of_several_loggers_stand_one_below_the_other() -> None:
    with Terminal(120, 24) as terminal:
        options = {"file": terminal.file, "show": ("loss", "score", "after")}
        with ProgressLogger(**options) as one, ProgressLogger(**options) as two:
            for x, progress in enumerate((one, two, one)):
                logax.tap(lambda x: sometimes(x, 10, 9), progress)(float(x))
        assert without_times(terminal) == [f"{END}, loss={39 + x}, score=139" for x in range(3)]


# When a bar ends.


def test_without_a_block_a_bar_ends_with_the_last_record_that_it_shows() -> None:
    ended = threading.Event()
    with Terminal(120, 24) as terminal:
        progress = ProgressLogger(file=terminal.file, show=("loss", "score"))

        def watched(one: logax.record) -> None:
            progress(one)
            if "after" in one:
                ended.set()

        logax.tap(train, watched)(1.0)
        assert ended.wait(60)
        assert terminal.written().endswith("\n")
        assert without_times(terminal) == [f"{END}, loss=40, score=140"]


def test_without_a_block_a_flush_ends_a_bar_and_nothing_is_drawn_after_it() -> None:
    with Terminal(120, 24) as terminal:
        progress = ProgressLogger(file=terminal.file, show=("loss", "score"))
        logax.tap(lambda x: sometimes(x, 10, 9), progress)(1.0)
        logax.flush()
        written = terminal.written()
        assert written.endswith("\n")
        assert without_times(terminal) == [f"{END}, loss=40, score=139"]
        logax.flush()
        progress.close()
        assert terminal.written() == written


def test_a_bar_that_waits_stands_at_its_end_with_the_values_that_came() -> None:
    last, go_on = threading.Event(), threading.Event()
    with Terminal(120, 24) as terminal:
        progress = ProgressLogger(file=terminal.file, show=("loss", "score"))

        def held(one: logax.record) -> None:
            if "score" in one and one.step == LENGTH - 1:
                last.set()
                assert go_on.wait(60)
            progress(one)

        logax.tap(lambda x: sometimes(x, 10, 9), held)(1.0)
        assert last.wait(60)
        assert without_times(terminal) == [f"{END}, loss=40, score=129"]
        assert "\n" not in terminal.written()
        go_on.set()
        logax.flush()
        assert without_times(terminal) == [f"{END}, loss=40, score=139"]
        assert terminal.written().count("\n") == 1


def test_a_flush_that_gives_up_leaves_a_bar_to_wait() -> None:
    go_on = threading.Event()
    with Terminal(120, 24) as terminal:
        progress = ProgressLogger(file=terminal.file, show=("loss", "score"))

        def held(one: logax.record) -> None:
            if "score" in one and one.step == LENGTH - 1:
                assert go_on.wait(60)
            progress(one)

        logax.tap(lambda x: sometimes(x, 10, 9), held)(1.0)
        with pytest.raises(TimeoutError):
            logax.flush(timeout=0)
        go_on.set()
        logax.flush()
        assert without_times(terminal) == [f"{END}, loss=40, score=139"]


def test_an_error_in_the_block_ends_a_bar_that_waits() -> None:
    with Terminal(120, 24) as terminal:
        progress = ProgressLogger(file=terminal.file, show="*")
        arrived = threading.Event()

        def watched(one: logax.record) -> None:
            progress(one)
            if "after" in one:
                arrived.set()

        def use() -> None:
            with progress:
                logax.tap(train, watched)(1.0)
                assert arrived.wait(60)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            use()
        assert terminal.written().endswith("\n")
        assert without_times(terminal) == [f"{END}, before=1, loss=40, score=140, after=-1"]


def test_a_program_that_fails_leaves_the_bar_where_it_is() -> None:
    def fails(i: Any) -> Any:
        if i == 25:
            raise ValueError("mine")
        return i

    def f(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            logax.log({"loss": x + i}, step=i)
            i = jax.pure_callback(fails, jax.ShapeDtypeStruct((), i.dtype), i)
            logax.log({"score": 100 + i}, step=i)
            return x, None

        return lax.scan(body, x, jnp.arange(LENGTH))[0]

    with Terminal(120, 24) as terminal:

        def use() -> None:
            with ProgressLogger(file=terminal.file, show=("loss", "score")) as progress:
                try:
                    jax.block_until_ready(logax.tap(f, progress, buffer=1)(1.0))
                finally:
                    logax.flush()

        with pytest.raises(jax.errors.JaxRuntimeError, match="mine"):
            use()
        (line,) = without_times(terminal)
        assert re.fullmatch(r" 6[25]% (25|26)/40, loss=\1, score=124", line)


def test_elsewhere_than_on_a_screen_there_is_one_line_for_the_end() -> None:
    file = io.StringIO()
    with ProgressLogger(file=file, show="*") as progress:
        logax.tap(train, progress)(1.0)
    first, last = file.getvalue().splitlines()
    assert first.startswith("0%")
    assert last.endswith("before=1, loss=40, score=140, after=-1]")


def test_time_stands_still_while_a_bar_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    now, today = time.monotonic, time.time
    with Terminal(120, 24) as terminal:
        bar = pending_bars.PausableBar(terminal.file, 5, 0)
        monkeypatch.setattr(time, "monotonic", lambda: now() + passed[-1])
        monkeypatch.setattr(bar._bar, "_time", lambda: today() + passed[-1])
        for later in (60.0, 3600.0, 7200.0):
            passed.append(later)
            bar.pause(5, "loss=1")
        bar.close(5, "loss=2")
        assert re.search(r" 5/5 \[01:00<00:00, .*loss=2\]$", terminal.screen()[0])

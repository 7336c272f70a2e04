"""`ProgressLogger`: the bar says how far a compiled loop is, whatever the loop."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from logax.loggers import MultiLogger, ProgressLogger
from logax.testing import MemoryLogger


class Terminal(io.StringIO):
    """A file that can be redrawn."""

    def isatty(self) -> bool:
        return True


def scan(x: Any, length: int = 40, start: int = 0) -> Any:
    """Logs before, in and after a loop of a known length."""
    logax.log({"before": x})

    def body(carry: Any, i: Any) -> Any:
        logax.log({"loss": carry + i}, step=i + start)
        return carry, None

    x = lax.scan(body, x, jnp.arange(length))[0]
    logax.log({"after": x})
    return x


def count_to(n: Any) -> Any:
    """Logs in a loop whose length is data."""

    def body(i: Any) -> Any:
        logax.log({"i": 2 * i}, step=i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def count_silently_to(n: Any) -> Any:
    """The same without a step."""

    def body(i: Any) -> Any:
        logax.log({"i": 2 * i})
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def drawn(use: Callable[[ProgressLogger], Any], **options: Any) -> list[str]:
    """The lines that are written."""
    file = io.StringIO()
    with ProgressLogger(file=file, **options) as progress:
        use(progress)
    assert "\r" not in file.getvalue()
    return file.getvalue().splitlines()


def ends(use: Callable[[ProgressLogger], Any], **options: Any) -> list[str]:
    """Where each bar ended, without times; each has a line at its start and one at its end."""
    return [re.sub(r" \[.*?(, [a-z].*)?\]", r"\1", line) for line in drawn(use, **options)[1::2]]


def positions(make: Callable[[Any], Any], **options: Any) -> list[int]:
    """Return the position of the bar after each record."""
    seen = []
    with ProgressLogger(file=io.StringIO(), **options) as progress:

        def watched(one: logax.record) -> None:
            progress(one)
            seen.append(progress.position)

        make(watched)
    return seen


# One loop.


def test_a_scan_is_shown_from_its_start_to_its_end() -> None:
    lines = drawn(lambda progress: logax.tap(scan, progress, buffer=8)(1.0))
    assert len(lines) == 2
    assert lines[0].startswith("0%|          | 0/40 [00:00<?")
    assert re.fullmatch(r"100%\|#{10}\| 40/40 \[00:00<00:00, .+it/s\]", lines[1])


def test_results_are_those_of_the_function() -> None:
    with ProgressLogger(file=io.StringIO()) as progress:
        assert logax.tap(scan, progress)(3.0) == 3.0


@pytest.mark.parametrize("buffer", [1, 7, 64])
def test_every_record_of_the_loop_moves_the_bar_by_one(buffer: int) -> None:
    seen = positions(lambda progress: logax.tap(scan, progress, buffer=buffer)(1.0))
    # Records logged once, before and after the loop, are not progress.
    assert seen == [0, *range(1, 41), 40]


def test_a_fori_loop_is_shown() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            logax.log({"x": x}, step=i)
            return x + 1

        return lax.fori_loop(0, 12, body, x)

    assert ends(lambda progress: logax.tap(f, progress, buffer=5)(0)) == ["100%|##########| 12/12"]


def test_a_while_loop_counts_up() -> None:
    assert ends(lambda progress: logax.tap(count_to, progress, buffer=8)(25)) == ["25it"]
    assert ends(lambda progress: logax.tap(count_silently_to, progress)(25)) == ["25it"]


def test_a_while_loop_with_a_total_shows_its_share() -> None:
    use = lambda progress: logax.tap(count_to, progress, buffer=8)(25)  # noqa: E731
    assert ends(use, total=50) == ["50%|#####     | 25/50"]
    assert ends(use, total=25) == ["100%|##########| 25/25"]


def test_nested_loops_count_all_iterations_though_their_step_goes_back() -> None:
    def f(x: Any) -> Any:
        def epoch(x: Any, e: Any) -> Any:
            x = scan(x, 10)
            logax.log({"score": x}, epoch=e)
            return x, None

        return lax.scan(epoch, x, jnp.arange(4))[0]

    use = lambda progress: logax.tap(f, progress, buffer=8)(1.0)  # noqa: E731
    assert ends(use) == ["100%|##########| 40/40"]
    seen = positions(lambda progress: logax.tap(f, progress, "loss")(1.0))
    assert seen == list(range(1, 41))


def test_steps_that_begin_later_do_not_change_the_share() -> None:
    use = lambda progress: logax.tap(lambda x: scan(x, 40, 5000), progress)(1.0)  # noqa: E731
    assert ends(use) == ["100%|##########| 40/40"]
    assert ends(use, total=5040) == ["100%|##########| 5040/5040"]


def test_the_step_has_a_name() -> None:
    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            logax.log({"i": i}, step=0, update=2 * i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    use = lambda progress: logax.tap(f, progress)(5)  # noqa: E731
    assert ends(use, step="update", total=18) == ["50%|#####     | 9/18"]


def test_steps_may_be_floats_and_what_is_no_number_is_not_followed() -> None:
    def f(steps: Any) -> Any:
        return lax.scan(lambda c, t: (c, logax.log({"t": t}, step=t)), 0, steps)[0]

    whole = jnp.arange(8.0)
    for steps in (whole, whole.at[3].set(jnp.nan)):
        use = lambda progress, steps=steps: logax.tap(f, progress)(steps)  # noqa: E731
        assert ends(use, total=16) == ["50%|#####     | 8/16"]


# Lanes.


def test_the_slowest_lane_leads() -> None:
    def f(pace: Any) -> Any:
        return lax.scan(lambda c, i: (c, logax.log({"i": i}, step=i * pace)), 0, jnp.arange(5))[0]

    paces = jnp.array([3, 1, 2])
    seen = positions(lambda progress: jax.vmap(logax.tap(f, progress))(paces), total=13)
    # After every third record all lanes have moved; a bar needs two of one lane.
    assert seen[2::3] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("lanes", ["split", "batch"])
def test_lanes_of_a_scan_end_together(lanes: str) -> None:
    use = lambda p: jax.vmap(logax.tap(scan, p, buffer=8, lanes=lanes))(jnp.arange(5.0))  # noqa: E731
    assert ends(use, show="loss") == ["100%|##########| 40/40, loss=41"]


@pytest.mark.parametrize(
    ("buffer", "f", "lanes"),
    [  # each two of them meet, and all three where it is slow
        (1, count_to, "split"),
        (1, count_silently_to, "batch"),
        (16, count_to, "batch"),
        (16, count_silently_to, "split"),
        pytest.param(1, count_to, "batch", marks=pytest.mark.slow),
        pytest.param(1, count_silently_to, "split", marks=pytest.mark.slow),
        pytest.param(16, count_to, "split", marks=pytest.mark.slow),
        pytest.param(16, count_silently_to, "batch", marks=pytest.mark.slow),
    ],
)
def test_a_lane_that_has_ended_does_not_hold_the_bar_back(f: Any, lanes: str, buffer: int) -> None:
    ns = jnp.array([4, 30, 12])
    use = lambda p: jax.vmap(logax.tap(f, p, buffer=buffer, lanes=lanes))(ns)  # noqa: E731
    seen = positions(use)
    assert seen == sorted(seen)
    # It waits for a lane that has ended for two iterations, and then goes on with the others.
    assert {2, 3}.issubset(seen)
    assert {4, 7, 12, 15}.issubset(seen)
    assert not {5, 13, 14} & set(seen)
    assert seen[-1] == 30
    assert ends(use) == ["30it"]
    assert ends(use, total=40) == ["75%|#######5  | 30/40"]


def test_when_all_lanes_have_ended_the_bar_stands_where_the_last_did() -> None:
    use = lambda p: jax.vmap(logax.tap(count_to, p))(jnp.array([9, 10]))  # noqa: E731
    assert positions(use)[-1] == 9
    assert ends(use) == ["10it"]


def test_a_lane_that_logs_now_and_then_still_leads() -> None:
    def f(every: Any) -> Any:
        def body(i: Any) -> Any:
            lax.cond(i % every == 0, lambda: logax.log({"i": i}), lambda: None)
            return i + 1

        return lax.while_loop(lambda i: i < 200, body, 0)

    seen = positions(lambda p: jax.vmap(logax.tap(f, p))(jnp.array([1, 10])))
    # Every tenth record of the first lane is followed by one of the second.
    assert len(seen) == 220
    assert seen[-10:] == [20] * 10


def test_the_batched_program_of_a_vmapped_function_is_followed() -> None:
    use = lambda p: logax.tap(jax.vmap(count_to), p)(jnp.array([3, 10]))  # noqa: E731
    assert ends(use) == ["10it"]


def test_nested_lanes_are_lanes() -> None:
    xs = jnp.arange(6.0).reshape(2, 3)
    for lanes in ("split", "batch"):
        both = lambda p, lanes=lanes: jax.vmap(jax.vmap(logax.tap(scan, p, lanes=lanes)))  # noqa: E731
        use = lambda p, both=both: both(p)(xs)  # noqa: E731
        assert ends(use, show="loss") == ["100%|##########| 40/40, loss=41.5"]


def test_shards_are_lanes() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c, logax.log({"x": c[0]}, step=i)), x, jnp.arange(6))[0]

    sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    use = lambda p: logax.tap(sharded, p)(jnp.arange(4.0))  # noqa: E731
    assert ends(use) == ["100%|##########| 6/6"]


# Several calls.


def test_each_call_starts_the_bar_anew() -> None:
    def use(progress: ProgressLogger) -> None:
        for x in range(3):
            logax.tap(scan, progress, buffer=8)(float(x))

    assert ends(use, show="loss") == [f"100%|##########| 40/40, loss={39 + x}" for x in range(3)]


def test_calls_of_a_while_loop_are_told_apart_by_their_step() -> None:
    def use(progress: ProgressLogger) -> None:
        for n in (10, 20, 5):
            logax.tap(count_to, progress, buffer=8)(n)

    assert ends(use, show="i") == ["10it, i=18", "20it, i=38", "5it, i=8"]


@pytest.mark.parametrize(
    ("second", "total", "expected"),
    [
        ([3, 9], None, ["6it, i=8", "9it, i=10"]),
        ([3, 9, 5], None, ["6it, i=8", "9it, i=9.333"]),
        ([3, 9, 5], 9, ["100%|##########| 9/9, i=9.333"]),
    ],
)
def test_calls_of_a_while_loop_are_told_apart_where_lanes_come_together(
    second: list[int], total: int | None, expected: list[str]
) -> None:
    def use(progress: ProgressLogger) -> None:
        for ns in ([4, 6], second):
            jax.vmap(logax.tap(count_to, progress, lanes="batch"))(jnp.array(ns))

    assert ends(use, show="i", total=total) == expected


def test_calls_may_differ_in_their_lanes() -> None:
    def use(progress: ProgressLogger) -> None:
        logax.tap(scan, progress)(1.0)
        for lanes in (5, 2, 7):
            jax.vmap(logax.tap(scan, progress))(jnp.zeros(lanes))
            jax.vmap(logax.tap(scan, progress, lanes="batch"))(jnp.zeros(lanes))
        logax.tap(scan, progress)(1.0)

    assert ends(use, show="loss") == [
        "100%|##########| 40/40, loss=40",
        *["100%|##########| 40/40, loss=39"] * 6,
        "100%|##########| 40/40, loss=40",
    ]


def test_calls_may_differ_in_their_length() -> None:
    def use(progress: ProgressLogger) -> None:
        for length in (10, 30, 20):
            logax.tap(lambda x, length=length: scan(x, length), progress)(1.0)

    assert ends(use) == [f"100%|##########| {n}/{n}" for n in (10, 30, 20)]


def test_two_functions_take_turns() -> None:
    def evaluate(x: Any) -> Any:
        return lax.scan(lambda c, i: (c, logax.log({"score": c})), x, jnp.arange(20))[0]

    def use(progress: ProgressLogger) -> None:
        for _ in range(2):
            logax.tap(scan, progress)(1.0)
            logax.tap(evaluate, progress)(1.0)

    assert ends(use) == ["100%|##########| 40/40", "100%|##########| 20/20"] * 2


def test_a_total_of_the_users_goes_on_through_all_calls() -> None:
    file = io.StringIO()
    step = logax.tap(lambda x: logax.log({"x": x}), ProgressLogger(6, file=file))
    for x in range(6):
        step(float(x))
    logax.flush()
    assert "6/6" in file.getvalue().splitlines()[-1]
    assert len(file.getvalue().splitlines()) == 2


def test_calls_that_log_once_are_counted() -> None:
    def use(progress: ProgressLogger) -> None:
        step = logax.tap(lambda i: logax.log({"i": i}, step=i), progress)
        for i in range(7):
            step(i)

    assert ends(use) == ["7it"]


# The values.


def test_the_last_values_are_shown_by_name_and_pattern() -> None:
    def f(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            slope = {"max": carry + i, "all": jnp.stack([carry, carry + 2 * i])}
            logax.log({"loss": 2.0 * i, "slope": slope, "key": jax.random.key(0)}, step=i)
            return carry, None

        return lax.scan(body, x, jnp.arange(5))[0]

    use = lambda progress: logax.tap(f, progress)(1.0)  # noqa: E731
    (bar,) = ends(use)
    assert ends(use, show="loss") == [f"{bar}, loss=8"]
    assert ends(use, show=["slope/m*", "loss"]) == [f"{bar}, loss=8, slope/max=5"]
    assert ends(use, show="slope") == [f"{bar}, slope/all=5, slope/max=5"]
    assert ends(use, show="key") == ends(use, show="nothing") == [bar]


def test_values_of_lanes_are_means_of_the_last_of_each() -> None:
    ns = jnp.array([3, 6])
    for lanes in ("split", "batch"):
        use = lambda p, lanes=lanes: jax.vmap(logax.tap(count_to, p, lanes=lanes))(ns)  # noqa: E731
        assert ends(use, show="i") == ["6it, i=7"]


def test_a_lane_that_never_comes_has_no_value_and_random_keys_have_none() -> None:
    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            logax.log({"i": {"n": 2 * i, "key": jax.random.key(0)}}, step=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    use = lambda p: jax.vmap(logax.tap(f, p, lanes="batch"))(jnp.array([0, 3, 5]))  # noqa: E731
    assert ends(use, show="i") == ["5it, i/n=6"]


# Terminals, and how it is used.


def test_on_a_terminal_it_is_one_line_that_is_redrawn() -> None:
    file = Terminal()
    with ProgressLogger(file=file, show="loss") as progress:
        logax.tap(scan, progress, buffer=8)(1.0)
    assert file.getvalue().startswith("\r")
    assert file.getvalue().count("\n") == 1
    assert "40/40" in file.getvalue().splitlines()[-1]
    assert "loss=40" in file.getvalue().splitlines()[-1]


def test_the_number_of_drawings_does_not_grow_with_the_number_of_records() -> None:
    file = io.StringIO()
    with ProgressLogger(file=file) as progress:
        logax.tap(lambda x: scan(x, 20_000), progress, buffer=1000)(1.0)
    assert len(file.getvalue().splitlines()) < 200


def test_elsewhere_than_on_a_screen_it_is_drawn_when_some_seconds_have_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + passed[-1])

    def use(progress: ProgressLogger) -> None:
        def watched(one: logax.record) -> None:
            if one.steps.get("step") == 20:
                passed.append(60.0)
            progress(one)

        logax.tap(scan, watched)(1.0)

    lines = [line.partition(" [")[0] for line in drawn(use)]
    assert "52%|#####2    | 21/40" in lines
    assert lines[-1] == "100%|##########| 40/40"


def test_it_writes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLogger() as progress:
        logax.tap(scan, progress, buffer=8)(1.0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "40/40" in captured.err


def test_without_a_block_the_bar_ends_at_its_total() -> None:
    file = io.StringIO()
    logax.tap(scan, ProgressLogger(file=file))(1.0)
    logax.flush()
    assert "40/40" in file.getvalue().splitlines()[-1]


def test_without_a_block_and_a_total_it_ends_when_it_is_closed() -> None:
    file = io.StringIO()
    progress = ProgressLogger(file=file)
    logax.tap(count_to, progress)(9)
    logax.flush()
    progress.close()
    assert file.getvalue().splitlines()[-1].startswith("9it")
    written = file.getvalue()
    logax.tap(count_to, progress)(9)  # ignored
    logax.flush()
    progress.close()
    assert file.getvalue() == written
    with progress:
        logax.tap(count_to, progress)(3)
    assert file.getvalue().splitlines()[-1].startswith("3it")


def test_a_flush_brings_it_up_to_date_and_draws_nothing_twice() -> None:
    file = Terminal()
    progress = ProgressLogger(file=file, show="i")
    logax.tap(count_to, progress)(9)
    for _ in range(2):
        logax.flush()
        last = file.getvalue().split("\r")[-1]
        assert last.startswith("9it")
        assert "i=16" in last
        assert file.getvalue().count("\r9it") == 1
    progress.close()


def test_elsewhere_than_on_a_screen_a_flush_writes_no_line() -> None:
    file = io.StringIO()
    progress = ProgressLogger(total=500, file=file, show="i")
    for number in (3, 9):
        logax.tap(count_to, progress)(number)
        logax.flush()
    assert len(file.getvalue().splitlines()) == 1
    progress.close()
    _, last = file.getvalue().splitlines()
    assert "9/500" in last
    assert "i=16" in last


def test_in_a_multi_logger_it_ends_with_that() -> None:
    file = io.StringIO()
    logger = MultiLogger(MemoryLogger(), ProgressLogger(file=file, show="i"))
    with logger.run() as state:
        logger.tap(count_to, state)(9)
    logger.close()
    last = file.getvalue().splitlines()[-1]
    assert last.startswith("9it")
    assert "i=16" in last


def test_a_block_without_records_writes_nothing() -> None:
    assert drawn(lambda progress: None) == []
    assert drawn(lambda progress: logax.tap(lambda x: x, progress)(1)) == []


def test_an_error_in_the_block_comes_out_and_ends_the_bar_where_it_is() -> None:
    file = io.StringIO()
    progress = ProgressLogger(file=file)

    def fail() -> None:
        logax.tap(count_to, progress)(9)
        logax.flush()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), progress:
        fail()
    assert file.getvalue().splitlines()[-1].startswith("9it")


def test_an_error_of_another_callback_comes_out_of_the_block() -> None:
    file = io.StringIO()

    def bad(one: logax.record) -> None:
        raise ValueError("no")

    def use() -> None:
        with ProgressLogger(file=file) as progress:
            logax.tap(scan, progress)(1.0)
            logax.tap(count_to, bad)(1)

    with pytest.raises(logax.DeliveryError, match="no"):
        use()
    assert "40/40" in file.getvalue().splitlines()[-1]


def test_a_file_that_cannot_be_written_fails_as_a_callback_does() -> None:
    file = io.StringIO()
    file.close()
    with pytest.raises(logax.DeliveryError, match="closed file"):
        drawn_on(file)


def drawn_on(file: Any) -> None:
    logax.tap(scan, ProgressLogger(file=file))(1.0)
    logax.flush()


def test_an_interval_leaves_a_share_to_show() -> None:
    (end,) = ends(lambda p: logax.tap(scan, p, interval=10, buffer=2)(1.0))
    assert end.startswith("100%|")
    assert end.endswith("| 4/4")


def test_negative_steps_are_no_progress() -> None:
    def warm_up(x: Any) -> Any:
        return lax.while_loop(
            lambda i: i < 2, lambda i: (logax.log({"x": x}, step=i), i + 1)[1], -3
        )

    assert positions(lambda p: logax.tap(warm_up, p)(1.0)) == [0, 0, 0, 1, 2]


def test_a_terminal_that_does_not_know_its_width_gets_a_whole_bar() -> None:
    reads, writes = pty.openpty()
    with open(writes, "w") as file, ProgressLogger(file=file, show="loss") as progress:
        logax.tap(scan, progress, buffer=8)(1.0)
    text = ""
    with contextlib.suppress(OSError):  # all of it is read
        while more := os.read(reads, 10_000):
            text += more.decode()
    os.close(reads)
    assert "40/40" in text
    assert "loss=40" in text


def test_the_total_is_what_was_given_or_what_the_loop_says() -> None:
    for given, before in ((None, None), (50, 50)):
        with ProgressLogger(given, file=io.StringIO()) as progress:
            assert (progress.position, progress.total) == (0, before)
            logax.tap(scan, progress)(1.0)
            logax.flush()
            assert (progress.position, progress.total) == (40, given or 40)


def test_records_of_nothing_are_no_progress() -> None:
    def use(progress: ProgressLogger) -> None:
        logger = MultiLogger(progress)
        with logger.run() as state:
            for i in range(3):
                logger.log(state, {"loss": i}, step=i)
                logger.log(state, {}, step=i + 10)

    assert ends(use, show="loss") == ["3it, loss=2"]


def test_only_records_are_taken() -> None:
    with pytest.raises(TypeError, match=r"takes the records of `tap` and `live`, and got \{'a': 1"):
        ProgressLogger()({"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("total", [0, -1, 2.5, "10", True])
def test_a_total_is_a_whole_number(total: Any) -> None:
    with pytest.raises(ValueError, match=r"`ProgressLogger` takes `total` of 1 or more, and got"):
        ProgressLogger(total)


def test_other_bad_arguments_are_errors_that_say_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"Write `log\(..., update=i\)` and `ProgressLogger\(step="):
        ProgressLogger(step=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`show` takes a string or strings, and got 3"):
        ProgressLogger(show=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`ProgressLogger` takes a `file` to write to, and got 3"):
        ProgressLogger(file=3)

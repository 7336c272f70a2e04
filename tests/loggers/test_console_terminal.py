"""`ConsoleLogger` in a real pseudo-terminal: what a person sees."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consoles import HOSTILE, Clock, column, run
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax._media import HistogramBins, ImagePixels
from logax.loggers._console.console_sink import ConsoleSink
from logax.loggers._console.screen import Screen
from terminals import Terminal

# In a terminal.


def say(*words: str, **options: Any) -> None:
    """As a program of the user's does."""
    print(*words, **options)  # noqa: T201


def draws(written: str, title: str = "demo") -> int:
    """Count the redraws of the table by its headings."""
    return written.count(title)


def follow(sink: ConsoleSink, runs: Sequence[RunInfo], *, records: int = 8) -> None:
    """Some records of two keys."""
    loss = np.broadcast_to(np.arange(records, 0.0, -1), (len(runs), records))
    loss = loss + np.arange(len(runs))[:, None]
    step = np.broadcast_to(np.arange(records), loss.shape)
    sink.write(RecordBatch.of(runs, {"loss": loss, "rate": np.full(loss.shape, 0.1)}, step=step))


def test_the_table_has_a_line_for_each_key() -> None:
    clock, demo = Clock(), run("demo")
    with Terminal(80, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=clock)
        sink.open([demo])
        follow(sink, [demo])
        clock.now = 2.0
        sink.flush()
        assert terminal.screen() == [
            "run demo · running · step 7 · 3.5 steps/s · 0:02",
            "key   last  mean  min  max  history",
            "loss     1   4.5    1    8  █▇▆▅▄▃▂▁",
            "rate   0.1   0.1  0.1  0.1  ▅▅▅▅▅▅▅▅",
        ]
        clock.now = 4.0
        sink.close([demo], "finished")
        assert terminal.screen() == [
            "run demo · finished · step 7 · 1.75 steps/s · 0:04",
            "key   last  mean  min  max  history",
            "loss     1   4.5    1    8  █▇▆▅▄▃▂▁",
            "rate   0.1   0.1  0.1  0.1  ▅▅▅▅▅▅▅▅",
        ]


def test_a_later_run_has_a_table_of_its_own_below() -> None:
    with Terminal(80, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        for each in (run("first"), run("second")):
            sink.open([each])
            follow(sink, [each])
            sink.close([each], "finished")
            sink.end()
        screen = terminal.screen()
    assert [line.split(" · ")[0] for line in screen[::4]] == ["run first", "run second"]
    assert len(screen) == 8


def test_seeds_share_a_table_with_their_mean_and_deviation() -> None:
    runs = [run(str(seed)) for seed in range(3)]
    with Terminal(80, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open(runs)
        follow(sink, runs, records=4)
        sink.close(runs[:1], "crashed")
        assert terminal.screen() == [
            "3 runs · 1 crashed, 2 running · step 3 · 0:00",
            "key       last        mean  min  max  history",
            "loss  2 ± 0.82  3.5 ± 0.82    1    6  █▆▃▁",
            "rate   0.1 ± 0     0.1 ± 0  0.1  0.1  ▅▅▅▅",
        ]
        sink.close(runs[1:], "finished")
        assert terminal.screen()[0] == "3 runs · 1 crashed, 2 finished · step 3 · 0:00"


def test_what_is_not_finite_has_a_column_when_there_is_some() -> None:
    demo = run("demo")
    with Terminal(80, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        sink.write(
            RecordBatch.of([demo], {"x": column(1, np.nan, 3, np.inf), "y": column(0, 1, 2, 3)})
        )
        sink.flush()
        assert terminal.screen()[1:] == [
            "key  last  mean  min  max  nonfinite  history",
            "x     inf     2    1    3  2          ▁!█!",
            "y       3   1.5    0    3             ▁▃▆█",
        ]
        sink.end()


def test_other_values_are_shown_as_what_they_are() -> None:
    demo = run("demo")
    bins = HistogramBins(
        np.asarray([[[0, 2, 4, 2]]]), np.asarray([[[0.0, 1, 2, 3, 4]]]), np.asarray([[0]])
    )
    values = {"h": bins, "i": ImagePixels(np.zeros((1, 1, 8, 6))), "v": np.ones((1, 1, 64))}
    with Terminal(80, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        sink.write(RecordBatch.of([demo], values))
        sink.flush()
        assert terminal.screen()[1:] == [
            "key              last  mean  min  max  history",
            "h              4 bins   2.5    0    4  ▁▅█▅",
            "i           image 8x6",
            "v[64] mean          1     1    1    1  ▅",
        ]
        sink.end()


def test_however_many_records_come_it_is_drawn_a_few_times_a_second() -> None:
    clock, demo = Clock(), run("demo")
    with Terminal() as terminal:
        sink = ConsoleSink(file=terminal.file, clock=clock, refresh=4)
        sink.open([demo])
        for step in range(1000):
            clock.now = step / 100
            sink.write(RecordBatch.of([demo], {"x": column(step)}))
        assert 30 <= draws(terminal.written()) <= 40
        before = draws(terminal.written())
        for _ in range(1000):
            sink.write(RecordBatch.of([demo], {"x": column(0)}))
            sink.flush()
        assert draws(terminal.written()) <= before + 4
        for _ in range(100):
            clock.now += 10
            sink.flush()
        assert draws(terminal.written()) <= before + 5  # once more, and there is nothing new
        sink.close([demo], "finished")
        assert draws(terminal.written()) <= before + 6


def test_a_flush_shows_what_was_written_before_it() -> None:
    clock, demo = Clock(), run("demo")
    with Terminal() as terminal:
        sink = ConsoleSink(file=terminal.file, clock=clock)
        sink.open([demo])
        for second in range(5):
            clock.now = float(second)
            for step in range(3):
                sink.write(RecordBatch.of([demo], {"x": column(10 * second + step)}))
            sink.flush()
            assert terminal.screen()[2].split()[:2] == ["x", str(10 * second + 2)]
        assert draws(terminal.written()) == 5
        sink.end()


def test_closing_many_runs_one_by_one_draws_a_few_times() -> None:
    runs = [run(str(i)) for i in range(200)]
    with Terminal() as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open(runs)
        follow(sink, runs)
        for each in runs:
            sink.close([each], "finished")
        assert draws(terminal.written(), "200 runs") == 5
        assert terminal.screen()[0].startswith("200 runs · finished · ")


@pytest.mark.parametrize("columns", [1, 2, 10, 20, 30, 40, 50, 60, 70, 80, 120, 300])
def test_the_table_fits_a_terminal_of_any_width(columns: int) -> None:
    runs = [run("one"), run("two")]
    values = {
        "train/loss": np.asarray([[0.123456, 1e-9], [0.3, np.nan]]),
        "a key that is rather long for a table": np.ones((2, 2, 3)),
        "漢字漢字漢字漢字漢字": np.zeros((2, 2)),
    }
    with Terminal(columns, 30) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open(runs)
        sink.write(RecordBatch.of(runs, values))
        for _ in range(3):
            sink.write(RecordBatch.of(runs, values))
            sink.flush()
        screen = terminal.screen()
        assert len(screen) == (5 if columns > 1 else 1)  # no line was wrapped
        if columns >= 40:
            assert "train/loss" in screen[2]
            assert "1e-09 ± 0" in screen[2]
        sink.end()


def test_a_narrow_table_leaves_out_what_matters_less() -> None:
    demo = run("demo")
    headings = {}
    for columns in (24, 32, 44, 60):
        with Terminal(columns, 12) as terminal:
            sink = ConsoleSink(file=terminal.file, clock=Clock())
            sink.open([demo])
            values = np.linspace(0.12345, 0.98765, 50, dtype=np.float32)[None]
            sink.write(RecordBatch.of([demo], {"a long name of a key": values}))
            sink.flush()
            headings[columns] = " ".join(terminal.screen()[1].split())
            sink.end()
    assert headings == {
        24: "key last",
        32: "key last mean",
        44: "key last mean history",
        60: "key last mean min max history",
    }


@pytest.mark.parametrize(
    ("lines", "shown", "more"),
    [
        (2, [], ""),
        (4, [], ""),
        (5, ["k0"], "… and 9 more keys"),
        (13, list(map("k{}".format, range(10))), ""),
    ],
)
def test_keys_that_do_not_fit_are_counted(lines: int, shown: list[str], more: str) -> None:
    demo = run("demo")
    with Terminal(60, lines) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        sink.write(RecordBatch.of([demo], {f"k{i}": column(i) for i in range(10)}))
        sink.flush()
        screen = terminal.screen()
        sink.end()
    assert screen[0].startswith("run demo · running")
    rows = screen[2:-1] if more else screen[2:]
    assert [row.split()[0] for row in rows] == shown
    if more:
        assert screen[-1] == more


def test_another_size_of_the_terminal_is_followed() -> None:
    clock, demo = Clock(), run("demo")
    with Terminal(80, 20) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=clock)
        sink.open([demo])
        sink.write(RecordBatch.of([demo], {f"k{i}": column(i) for i in range(10)}))
        sink.flush()
        assert len(terminal.screen()) == 12
        for columns, lines, number in ((40, 20, 12), (40, 8, 7), (100, 30, 12)):
            terminal.resize(columns, lines)
            clock.now += 1
            sink.write(RecordBatch.of([demo], {"k0": column(clock.now)}))
            sink.flush()
            screen = terminal.screen()
            assert screen[-number].startswith("run demo · running")
            assert max(map(len, screen)) <= columns
        sink.end()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_nothing_to_the_terminal(text: str) -> None:
    hostile = run(text)
    with Terminal(60, 12) as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([hostile])
        for _ in range(3):
            sink.write(RecordBatch.of([hostile], {text: column(1), "y": column(2)}, step=[[0]]))
            sink.flush()
        sink.close([hostile], "finished")
        screen = terminal.screen()
        assert len(screen) == 4
        assert screen[1].split()[:2] == ["key", "last"]
        assert screen[3].split()[:2] == ["y", "2"]
        assert "owned" not in terminal.written() or "\\x1b]0;owned" in terminal.written()


def test_a_terminal_that_takes_ascii_only_gets_ascii() -> None:
    demo = run("ü")
    with Terminal(60, 12, "ascii") as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        sink.write(RecordBatch.of([demo], {"ä": column(1, 2, 3)}))
        sink.close([demo], "finished")
        assert terminal.screen() == [
            "run \\xfc | finished | 3 records | 0:00",
            "key   last  mean  min  max  history",
            "\\xe4     3     2    1    3  _+#",
        ]


def test_terminals_that_cannot_redraw_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    demo = run("demo")
    with Terminal() as terminal:
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        sink.write(RecordBatch.of([demo], {"x": column(1)}))
        sink.close([demo], "finished")
        assert terminal.written() == "run demo: 1 record x=1 (mean 1), finished in 0:00\r\n"


# Beside others that print.


def test_what_is_printed_meanwhile_stands_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, demo = Clock(), run("demo")
    with Terminal(60, 20) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        monkeypatch.setattr(sys, "stderr", terminal.file)
        sink = ConsoleSink(clock=clock)
        sink.open([demo])
        say("before")
        sink.write(RecordBatch.of([demo], {"x": column(1)}))
        sink.flush()
        say("[bold]markup[/] stays")
        say("two\nlines", file=sys.stderr)
        say("part ", end="", flush=True)
        say("by part")
        say("\r10%\r100%", end="")
        say("\r", end="\n")
        sys.stdout.writelines(["some at ", "once\n"])
        assert (sys.stdout.encoding, sys.stdout.isatty()) == ("utf-8", True)
        say("rest", end="")
        clock.now = 1.0
        sink.write(RecordBatch.of([demo], {"x": column(2)}))
        sink.close([demo], "finished")
        assert sys.stdout is terminal.file
        assert sys.stderr is terminal.file
        say(" and after")
        assert terminal.screen() == [
            "before",
            "[bold]markup[/] stays",
            "two",
            "lines",
            "part by part",
            "100%",
            "some at once",
            "run demo · finished · 2 records · 2 records/s · 0:01",
            "key  last  mean  min  max  history",
            "x       2   1.5    1    2  ▁█",
            "rest and after",
        ]


def test_output_that_goes_elsewhere_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    demo, elsewhere = run("demo"), io.StringIO()
    with Terminal(60, 20) as terminal:
        monkeypatch.setattr(sys, "stdout", elsewhere)
        monkeypatch.setattr(sys, "stderr", terminal.file)
        sink = ConsoleSink(clock=Clock())
        sink.open([demo])
        say("to a file")
        assert elsewhere.getvalue() == "to a file\n"
        assert sys.stdout is elsewhere
        sink.end()
        assert sys.stderr is terminal.file


def test_whoever_replaced_the_output_meanwhile_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    demo, other = run("demo"), io.StringIO()
    with Terminal(60, 20) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        kept = sys.stdout
        sys.stdout = other
        sink.write(RecordBatch.of([demo], {"x": column(1)}))
        sink.close([demo], "finished")
        assert sys.stdout is other
        sys.stdout = kept
        say("still works")
        assert terminal.screen()[-1] == "still works"


def test_threads_that_print_do_not_garble_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, demo = Clock(), run("demo")
    with Terminal(60, 400) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        sink = ConsoleSink(file=terminal.file, clock=clock)
        sink.open([demo])

        def talk(name: int) -> None:
            for line in range(50):
                say(f"thread {name} line {line}")

        threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for step in range(50):
            clock.now = float(step)
            sink.write(RecordBatch.of([demo], {"x": column(step)}))
            sink.flush()
        for thread in threads:
            thread.join()
        sink.close([demo], "finished")
        screen = terminal.screen()
    printed = [line for line in screen if line.startswith("thread")]
    assert sorted(printed) == sorted(f"thread {a} line {b}" for a in range(4) for b in range(50))
    assert len(screen) == len(printed) + 3


def test_a_second_logger_on_the_terminal_writes_lines_above_the_first() -> None:
    a, b = run("a"), run("b")
    with Terminal(60, 20) as terminal:
        first = ConsoleSink(file=terminal.file, clock=Clock())
        second = ConsoleSink(file=terminal.file, clock=Clock())
        first.open([a])
        second.open([b])
        for sink, each in ((first, a), (second, b)):
            sink.write(RecordBatch.of([each], {"x": column(1)}))
            sink.flush()
        second.close([b], "finished")
        first.close([a], "finished")
        assert terminal.screen() == [
            "run b: 1 record x=1 (mean 1), finished in 0:00",
            "run a · finished · 1 record · 0:00",
            "key  last  mean  min  max  history",
            "x       1     1    1    1  ▅",
        ]
        second.open([b])  # now the terminal is free
        second.write(RecordBatch.of([b], {"x": column(1)}))
        second.end()
        assert terminal.screen()[4] == "run b · running · 1 record · 0:00"


class Window(io.StringIO):
    """A terminal that is no file of the system, as some editors have."""

    def isatty(self) -> bool:
        return True


def test_terminals_that_are_no_files_are_known_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [Window(), Window()]
    monkeypatch.setattr(sys, "stdout", windows[0])
    sinks = [ConsoleSink(file=window, clock=Clock()) for window in windows]
    runs = [run("a"), run("b")]
    for sink, each in zip(sinks, runs, strict=True):
        sink.open([each])
        sink.write(RecordBatch.of([each], {"x": column(1)}))
    say("above the first")
    for sink, each in zip(sinks, runs, strict=True):
        sink.close([each], "finished")
    first, second = (window.getvalue() for window in windows)
    assert first.startswith("above the first\n")
    assert (draws(first, "run a"), draws(first, "run b")) == (1, 0)
    assert (draws(second, "run a"), draws(second, "run b")) == (0, 1)
    assert sys.stdout is windows[0]


def test_a_screen_that_is_closed_has_nothing_to_redraw() -> None:
    with Terminal(60, 20) as terminal:
        screen = Screen(terminal.file)
        assert screen.open()
        screen.paint(["drawn"], screen.size())
        screen.print("above\n")
        for _ in range(2):
            screen.close()
        screen.print("below\n")
        assert terminal.screen() == ["above", "drawn", "below"]


@pytest.mark.slow
def test_a_program_in_a_terminal_is_followed_to_its_end() -> None:
    child = Path(__file__).with_name("console_child.py")
    with Terminal(80, 24) as terminal:
        fd = terminal.file.fileno()
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, child], stdin=subprocess.PIPE, stdout=fd, stderr=fd, env=environment
        )
        with process:
            terminal.wait_for("running")
            terminal.resize(40, 24)
            process.send_signal(signal.SIGWINCH)
            process.communicate(b"go on\n", timeout=60)
        assert process.returncode == 0
        screen = terminal.screen()
        written = terminal.written()
    seconds = time.monotonic() - began
    assert draws(written, "8 runs") <= seconds + 2  # one a second at most, and the last one
    assert [line for line in screen if "printed" in line] == ["printed by the program"]
    assert screen[-4].startswith("8 runs · finished · step 1999")
    assert screen[-3].split() == ["key", "last", "mean"]
    assert screen[-2].split() == ["loss", "1999", "±", "2.3", "1950", "±", "2.3"]
    assert screen[-1] == "the end"


def test_a_logger_that_is_dropped_gives_the_output_back(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = run("demo")
    with Terminal(60, 20) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.file)
        sink = ConsoleSink(file=terminal.file, clock=Clock())
        sink.open([demo])
        assert sys.stdout is not terminal.file
        del sink
        gc.collect()
        assert sys.stdout is terminal.file


@pytest.mark.slow
def test_a_child_that_is_forked_while_something_is_printed_prints_for_itself() -> None:
    code = """if True:
        import os, signal, sys, threading
        from logax.loggers._console.screen import OutputProxy, Screen

        screen, held, done = Screen(sys.stdout), threading.Event(), threading.Event()
        screen.open()
        proxy = OutputProxy(screen, sys.stdout)

        def hold():
            with proxy._lock, screen._lock:
                held.set()
                done.wait()

        threading.Thread(target=hold).start()
        held.wait()
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            proxy.write("of the child")
            screen.close()
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        done.set()
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (0, "of the child", "")

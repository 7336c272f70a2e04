"""`logax tail` prints records as they come."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import logax
from logax._cli import tail
from logax.loggers.save import SaveLogger

Call = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]


def test_of_a_run_that_has_ended_it_prints_the_last_records(call: Call, store: Path) -> None:
    ended = call("tail", "first", "-n", "3", "--path", store)
    assert ended.status == 0
    assert ended.lines == [
        "step 2  loss 1  hits 4",
        "step 3  loss 0.5  hits 9",
        "epoch 1  val/loss 1",
    ]
    assert ended.err == "logax tail: run first has finished.\n"
    assert call("tail", "broken", "--path", store)[1:] == (
        "step 7  loss nan\n",
        "logax tail: run broken has crashed.\n",
    )


def test_without_a_number_it_prints_ten_and_with_zero_none(
    call: Call, saved: Callable[..., Path]
) -> None:
    path = saved({"x": np.arange(12.0)})
    assert call("tail", "last", "--path", path).lines == [f"x {number}" for number in range(2, 12)]
    assert call("tail", "last", "-n", "0", "--path", path).lines == []


def test_json_lines_are_those_of_the_jsonl_logger(
    call: Call, store: Path, ids: dict[str, str]
) -> None:
    lines = call("tail", "first", "--json", "--path", store).lines
    assert [json.loads(line) for line in lines] == [
        {"run": ids["first"], "step": 0, "loss": 2.0, "hits": 0},
        {"run": ids["first"], "step": 1, "loss": 1.5, "hits": 1},
        {"run": ids["first"], "step": 2, "loss": 1.0, "hits": 4},
        {"run": ids["first"], "step": 3, "loss": 0.5, "hits": 9},
        {"run": ids["first"], "epoch": 1, "val/loss": 1.0},
    ]


def test_keys_choose(call: Call, store: Path) -> None:
    lines = call("tail", "first", "hits", "-n", "2", "--path", store).lines
    assert lines == ["step 2  hits 4", "step 3  hits 9"]
    ended = call("tail", "first", "hitz", "--path", store)
    assert ended == (1, "", "logax tail: 'hitz' was not logged in run first. Did you mean hits?\n")


def test_records_stay_in_order_where_steps_go_back(call: Call, logged: Callable[..., Path]) -> None:
    path = logged(*(({"x": x}, {"step": step}) for x, step in enumerate([0, 5, 1, 2, 6])))
    assert call("tail", "last", "--path", path).lines == [
        "step 0  x 0",
        "step 5  x 1",
        "step 1  x 2",
        "step 2  x 3",
        "step 6  x 4",
    ]


def test_records_without_the_step_of_the_others_are_spread_among_them(
    call: Call, logged: Callable[..., Path]
) -> None:
    path = logged(
        ({"x": 0}, {"step": 0}),
        ({"x": 1}, {"step": 1}),
        ({"y": 7}, {"epoch": 0}),
        ({"x": 0}, {"step": 10}),
        ({"x": 1}, {"step": 11}),
        ({"y": 7}, {"epoch": 1}),
    )
    assert call("tail", "last", "--path", path).lines == [
        "step 0  x 0",
        "step 1  x 1",
        "epoch 0  y 7",
        "step 10  x 0",
        "step 11  x 1",
        "epoch 1  y 7",
    ]


def test_lanes_have_lines_of_their_own(call: Call, saved: Callable[..., Path]) -> None:
    logs = logax.logdict(
        {"x": np.array([[1.0, 2.0], [3.0, 9.0]])},
        steps={"step": {"x": np.array([[0, 1], [0, 0]])}},
        count={"x": np.array([2, 1])},
        rank={"x": 0},
    )
    path = saved(logs, lanes="batch")
    assert call("tail", "last", "--path", path).lines == [
        "lane 0  step 0  x 1",
        "lane 1  step 0  x 3",
        "lane 0  step 1  x 2",
    ]


def test_lanes_of_values_without_elements_have_lines(
    call: Call, saved: Callable[..., Path]
) -> None:
    logs = logax.logdict(
        {"none": np.zeros((2, 0)), "void": np.zeros((2, 1, 0)), "x": np.ones((2, 1))},
        rank={"none": 0, "void": 1, "x": 0},
    )
    path = saved(logs, lanes="batch")
    assert call("tail", "last", "--path", path).lines == [
        "lane 0  void []  x 1",
        "lane 1  void []  x 1",
    ]
    text = call("export", "last", "--to", "csv", "--path", path)
    assert text.lines == ["lane,void,x", "0,[],1.0", "1,[],1.0"]


def test_a_key_that_changed_its_shape_is_printed_whole(
    call: Call, logged: Callable[..., Path]
) -> None:
    path = logged(({"x": 1.0}, {"step": 0}), ({"x": np.zeros(2)}, {"step": 1}))
    ended = call("tail", "last", "--path", path)
    assert ended.lines == ["step 0  x 1", "step 1  x [0.0, 0.0]"]


def test_names_do_nothing_to_the_terminal(call: Call, saved: Callable[..., Path]) -> None:
    path = saved({"\x1b[2J\n": np.ones(1)}, name="\x07")
    ended = call("tail", "last", "--path", path)
    assert ended[1:] == ("\\x1b[2J\\n 1\n", "logax tail: run \\x07 has finished.\n")


def test_it_follows_another_process_until_the_run_ends(start: Start, tmp_path: Path) -> None:
    logger = SaveLogger(tmp_path)
    with logger.run(name="live") as state:
        logger.log(state, {"x": 0.5}, step=0)
        logax.flush()
        program = start("tail", "live", "--path", tmp_path)
        assert program.stdout is not None
        assert program.stdout.readline() == "step 0  x 0.5\n"
        for step in (1, 2):
            logger.log(state, {"x": 0.5 + step}, step=step)
            logax.flush()
            assert program.stdout.readline() == f"step {step}  x {0.5 + step}\n"
        logger.log(state, {"late": 7}, step=3)
    logger.close()
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (0, "step 3  late 7\n")
    assert err == "logax tail: run live has finished.\n"


def test_it_waits_for_the_first_record_and_looks_again_where_nothing_new_is(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = SaveLogger(tmp_path)

    def life() -> Iterator[None]:
        with logger.run(name="live") as state:
            logax.flush()
            yield  # a run without records
            for step in (0, 1):
                logger.log(state, {"x": 0.5 + step}, step=step)
                logax.flush()
                yield
                yield  # nothing new
        yield

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            next(lived)
            return False

    lived = life()
    next(lived)
    monkeypatch.setattr(tail, "threading", SimpleNamespace(Event=Pause))
    ended = call("tail", "live", "x", "--path", tmp_path)
    logger.close()
    assert ended == (
        0,
        "step 0  x 0.5\nstep 1  x 1.5\n",
        "logax tail: run live has finished.\n",
    )
    assert list(lived) == []


@pytest.mark.slow
def test_an_interrupt_ends_it_quietly(start: Start, tmp_path: Path) -> None:
    logger = SaveLogger(tmp_path)
    with logger.run(name="live") as state:
        logger.log(state, {"x": 0.5})
        logax.flush()
        program = start("tail", "last", "--json", "--path", tmp_path)
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["x"] == 0.5
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    logger.close()
    assert (program.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("number", ["-3", "x"])
def test_a_number_of_lines_that_is_none_is_a_mistake_in_use(
    call: Call, store: Path, number: str
) -> None:
    ended = call("tail", "first", f"-n={number}", "--path", store)
    assert ended.status == 2
    assert "is not an integer of 0 or more" in ended.err

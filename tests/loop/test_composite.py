"""Combined loggers: order of the calls, and failures of single loggers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logax import EveryNStep
from logax.loggers import ProgressLogger
from logax.loop import (
    CallbackLogger,
    CheckLogger,
    CompositeLogger,
    InvariantViolation,
    Logger,
    NullLogger,
    RingBufferLogger,
    TqdmLogger,
    run_loop,
)
from loops import Told, run


def three(book: list[Any], **fails: tuple[str, ...]) -> list[Told]:
    return [Told(name, book, *fails.get(name, ())) for name in "abc"]


def test_all_are_entered_and_told_in_order_and_left_in_reverse() -> None:
    book: list[Any] = []
    state = run(CompositeLogger(*three(book)), steps=2)
    assert float(state.energy) == 2
    assert book == [
        ("a", "enter"),
        ("b", "enter"),
        ("c", "enter"),
        ("a", "log", 0, 1.0),
        ("b", "log", 0, 1.0),
        ("c", "log", 0, 1.0),
        ("a", "log", 1, 2.0),
        ("b", "log", 1, 2.0),
        ("c", "log", 1, 2.0),
        ("c", "exit"),
        ("b", "exit"),
        ("a", "exit"),
    ]


def test_if_one_cannot_be_entered_those_before_it_are_left() -> None:
    book: list[Any] = []
    with pytest.raises(ValueError, match=r"^b enter$"):
        run(CompositeLogger(*three(book, b=("enter",))))
    assert book == [("a", "enter"), ("b", "enter"), ("a", "exit", "ValueError")]


def test_if_leaving_fails_as_well_both_errors_come_out() -> None:
    book: list[Any] = []
    with pytest.raises(ExceptionGroup, match="several loggers failed") as caught:
        run(CompositeLogger(*three(book, a=("exit",), c=("enter",))))
    assert [str(error) for error in caught.value.exceptions] == ["c enter", "a exit"]
    assert [entry[:2] for entry in book][-2:] == [("b", "exit"), ("a", "exit")]


def test_if_one_fails_to_log_the_others_are_told_and_all_are_left() -> None:
    book: list[Any] = []
    with pytest.raises(ValueError, match=r"^a log$") as caught:
        run(CompositeLogger(*three(book, a=("log",))))
    assert book[3:] == [
        ("a", "log", 0, 1.0),
        ("b", "log", 0, 1.0),
        ("c", "log", 0, 1.0),
        ("c", "exit", "ValueError"),
        ("b", "exit", "ValueError"),
        ("a", "exit", "ValueError"),
    ]
    assert caught.value.__cause__ is None


def test_several_that_fail_to_log_come_out_together() -> None:
    with pytest.raises(ExceptionGroup, match="several loggers failed") as caught:
        run(CompositeLogger(*three([], a=("log",), c=("log",))))
    assert [str(error) for error in caught.value.exceptions] == ["a log", "c log"]


def test_if_one_cannot_be_left_the_others_are() -> None:
    book: list[Any] = []
    with pytest.raises(ValueError, match=r"^b exit$"):
        run(CompositeLogger(*three(book, b=("exit",))), steps=1)
    assert book[-3:] == [("c", "exit"), ("b", "exit"), ("a", "exit")]
    with pytest.raises(ExceptionGroup) as caught:
        run(CompositeLogger(*three(book, a=("exit",), b=("exit",))), steps=1)
    assert [str(error) for error in caught.value.exceptions] == ["b exit", "a exit"]


def test_an_error_of_the_loop_is_told_to_all_and_comes_out_with_theirs() -> None:
    book: list[Any] = []

    def fail(step: int) -> None:
        raise KeyError("of the loop")

    with pytest.raises(KeyError, match="of the loop"):
        run(CompositeLogger(*three(book)), at=fail)
    assert book[-3:] == [(name, "exit", "KeyError") for name in "cba"]
    with pytest.raises(ExceptionGroup) as caught:
        run(CompositeLogger(*three(book, b=("exit",))), at=fail)
    assert [str(error) for error in caught.value.exceptions] == ["'of the loop'", "b exit"]
    assert book[-3:] == [(name, "exit", "KeyError") for name in "cba"]


def test_an_interrupt_of_the_loop_stays_one_whatever_fails_then() -> None:
    def interrupt(step: int) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        run(CompositeLogger(*three([], b=("exit",))), at=interrupt)
    assert caught.value.code == 3
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [str(error) for error in caught.value.__cause__.exceptions] == ["b exit"]


def test_a_logger_that_leaves_the_block_itself_hides_no_error() -> None:
    book: list[Any] = []

    def leave(state: Any, step: int) -> None:
        composite.__exit__(None, None, None)
        raise LookupError("after that")

    composite = CompositeLogger(CallbackLogger(leave, 1), Told("b", book))
    with pytest.raises(LookupError, match="after that"):
        run(composite)
    assert book == [("b", "enter"), ("b", "exit")]


def test_an_interrupt_comes_out_as_itself_and_carries_the_others() -> None:
    book: list[Any] = []
    interrupted = Told("b", book, "exit", error=KeyboardInterrupt)
    loggers = [Told("a", book, "exit"), interrupted, Told("c", book, "exit")]
    with pytest.raises(KeyboardInterrupt) as caught:
        run(CompositeLogger(*loggers), steps=1)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [str(error) for error in caught.value.__cause__.exceptions] == ["c exit", "a exit"]
    assert book[-3:] == [("c", "exit"), ("b", "exit"), ("a", "exit")]


class Forgiving(NullLogger):
    """Ends the exception."""

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        return True


def test_a_logger_may_end_an_exception_as_in_nested_blocks() -> None:
    book: list[Any] = []

    def fail(step: int) -> None:
        raise KeyError

    run(CompositeLogger(Told("a", book), Forgiving(), Told("b", book)), at=fail)
    assert book[-2:] == [("b", "exit", "KeyError"), ("a", "exit")]


def test_real_loggers_are_released_when_one_of_them_stops_the_run(tmp_path: Path) -> None:
    text = io.StringIO()
    bar = TqdmLogger(10, file=text)
    ring = RingBufferLogger(2, dump=tmp_path / "ring.npz")
    check = CheckLogger(lambda state: state.energy < 4, EveryNStep(1))
    late: list[int] = []
    after = CallbackLogger(lambda state, step: late.append(step), 1)
    with pytest.raises(InvariantViolation) as caught:
        run(CompositeLogger(bar, check, ring, after))
    assert caught.value.step == 3
    assert late == [0, 1, 2, 3]
    assert [step for step, _ in ring.buf] == [2, 3]
    assert "4/10" in text.getvalue().splitlines()[-1]
    with np.load(tmp_path / "ring.npz") as arrays:
        np.testing.assert_array_equal(arrays["step"], [2, 3])
    with pytest.raises(RuntimeError, match=r"`TqdmLogger.log` was called outside"):
        bar.log(None, 0)


def test_a_bar_that_stands_before_one_that_cannot_be_entered_is_closed() -> None:
    text = io.StringIO()
    bar = TqdmLogger(10, file=text)
    with pytest.raises(ValueError, match="b enter"):
        run(CompositeLogger(bar, Told("b", [], "enter")))
    with bar:  # it was left, else it would be in use
        pass


def test_composites_nest_and_can_be_used_again() -> None:
    book: list[Any] = []
    a, b, c = three(book)
    logger = CompositeLogger(a, CompositeLogger(b, c), NullLogger())
    run(logger, steps=1)
    once = list(book)
    assert [entry[0] for entry in once] == ["a", "b", "c", "a", "b", "c", "c", "b", "a"]
    run(logger, steps=1)
    assert book == once * 2


def test_no_loggers_at_all_are_a_logger() -> None:
    assert float(run(CompositeLogger()).energy) == 10


# Invalid loggers.


class NoLog:
    """Almost a logger."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *reason: Any) -> None:
        pass

    def __repr__(self) -> str:
        return "NoLog()"


class OfFunctions(NoLog):
    """Has a method that returns a logger for loops."""

    def loop(self, view: Any, schedule: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("logger", "parts"),
    [
        (NoLog(), ["got NoLog() of type `NoLog`, which has no `log`."]),
        (None, ["got None of type `NoneType`, which has no `__enter__` and no `__exit__` and no"]),
        (print, ["For a function, write `CallbackLogger(fn, schedule)`."]),
        ([NullLogger()], ["Write `CompositeLogger(*loggers)`."]),
        (NullLogger, ["got the class `NullLogger`. Write `NullLogger(...)`."]),
        (OfFunctions(), ["Write `logger.loop(view, schedule)` instead."]),
        (
            ProgressLogger(),
            ["which follows compiled loops", "loop.TqdmLogger(num_steps)`"],
        ),
    ],
)
def test_what_is_no_logger_is_refused_with_what_to_write(logger: Any, parts: list[str]) -> None:
    for make, name in (
        (lambda: CompositeLogger(NullLogger(), logger), "`CompositeLogger`, at position 1, takes"),
        (lambda: run_loop(lambda x: x, 1.0, 3, logger=logger), "`run_loop` takes"),
    ):
        with pytest.raises(TypeError) as caught:
            make()
        assert name in str(caught.value)
        assert all(part in str(caught.value) for part in parts), caught.value


def test_any_class_with_the_three_methods_is_a_logger() -> None:
    assert isinstance(Told("a", []), Logger)
    assert isinstance(NullLogger(), Logger)
    assert isinstance(CompositeLogger(), Logger)
    assert not isinstance(NoLog(), Logger)


def test_the_same_logger_twice_is_refused_and_nothing_stays_open() -> None:
    ring = RingBufferLogger(2)
    with pytest.raises(ValueError, match=r"`CompositeLogger` got .*RingBuffer.* twice\. Give it"):
        CompositeLogger(ring, NullLogger(), ring)
    with pytest.raises(RuntimeError, match=r"This `RingBufferLogger` is in use.*only once"):
        run(CompositeLogger(ring, CompositeLogger(ring)))
    run(ring, steps=1)
    composite = CompositeLogger(ring)
    with composite, pytest.raises(RuntimeError, match="This `CompositeLogger` is in use"):
        composite.__enter__()


def test_logging_outside_of_the_block_shows_the_lines_to_write() -> None:
    loggers: list[Any] = [
        CompositeLogger(),
        RingBufferLogger(1),
        TqdmLogger(3),
        CallbackLogger(print, 1),
        CheckLogger(bool, 1),
    ]
    for logger in loggers:
        name = type(logger).__name__
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                logger.log(None, 0)
            assert str(caught.value) == (
                f"`{name}.log` was called outside of its `with` block. Write\n\n    with logger:\n"
                "        logger.log(state, step)\n\nwith the whole loop inside the block."
            )
            with logger:
                pass

"""Many threads that log at once, while others flush, configure, discard and fail."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import logax
from logax._delivery.worker import worker
from logax.loggers import SaveLogger
from soak.counting import counter

LONG = 250.0  # seconds
THREADS, ROUNDS, LENGTH = 8, 50, 10

count = counter(LENGTH)


def numbers(thread: int) -> list[float]:
    """All that a thread logs."""
    return [float(1000 * thread + i) for i in range(ROUNDS * LENGTH)]


def starts(thread: int) -> list[np.float32]:
    """With what a thread calls `count`, one time after another."""
    return [np.float32(x) for x in numbers(thread)[::LENGTH]]


def at_once(target: Callable[[int], None]) -> None:
    """Call it in all threads at once, and raise what one of them raises."""
    together = threading.Barrier(THREADS, timeout=LONG)
    errors: list[BaseException] = []

    def call(thread: int) -> None:
        try:
            together.wait()
            target(thread)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@contextlib.contextmanager
def meanwhile(target: Callable[[], object]) -> Iterator[None]:
    """Do something again and again in another thread, and raise what it raises."""
    ends = threading.Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            while not ends.is_set():
                target()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(LONG)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    """The bounds of delivery are afterwards what they were."""
    before = worker.queue_bytes
    yield
    logax.configure(queue_bytes=before, when_full="block")


@pytest.mark.slow
def test_every_thread_has_its_own_records_whatever_it_shares_with_others(tmp_path: Path) -> None:
    shared = SaveLogger(tmp_path / "shared")
    seen: list[list[float]] = [[] for _ in range(THREADS)]
    from_all: list[float] = []
    same = jax.jit(logax.tap(count, lambda one: from_all.append(float(one["x"])), buffer=4))
    spooled = jax.jit(logax.spool(count))
    sizes = itertools.cycle([400, 5_000, 2**20])

    def work(thread: int) -> None:
        own = SaveLogger(tmp_path / str(thread))
        with shared.run(name=str(thread)) as state, own.run() as mine:
            for x in starts(thread):
                end = x + LENGTH
                assert same(x) == end
                tapped = logax.tap(
                    count, lambda one: seen[thread].append(float(one["x"])), buffer=3
                )
                assert tapped(x) == end
                assert shared.tap(count, state, buffer=4)(x) == end
                assert own.tap(count, mine)(x) == end
                assert own.spool(count, mine, prefix="spooled/")(x) == end
                _, logs = spooled(x)
                assert logs["x"].tolist() == [x + i for i in range(LENGTH)]
                shared.log(state, {"y": float(x)})
        own.close()

    with meanwhile(logax.flush), meanwhile(lambda: logax.configure(queue_bytes=next(sizes))):
        at_once(work)
    shared.close()
    runs = logax.load(tmp_path / "shared")
    assert sorted(run.name for run in runs.values()) == [str(i) for i in range(THREADS)]
    for thread in range(THREADS):
        wanted = numbers(thread)
        assert seen[thread] == wanted
        assert [x for x in from_all if x // 1000 == thread] == wanted
        assert runs.find(str(thread))["x"].tolist() == wanted
        assert runs.find(str(thread))["y"].tolist() == wanted[::LENGTH]
        (mine,) = logax.load(tmp_path / str(thread)).values()
        assert mine["x"].tolist() == mine["spooled/x"].tolist() == wanted
        assert mine.steps["step"]["x"].tolist() == list(range(LENGTH)) * ROUNDS
    assert len(from_all) == THREADS * ROUNDS * LENGTH


@pytest.mark.slow
def test_records_that_a_thread_discards_are_counted_and_the_others_come_in_order() -> None:
    seen: list[list[float]] = [[] for _ in range(THREADS)]
    discarded: list[int] = []

    def work(thread: int) -> None:
        for x in starts(thread):
            logax.tap(count, lambda one: seen[thread].append(float(one["x"])), buffer=3)(x)

    with meanwhile(lambda: discarded.append(logax.discard())):
        at_once(work)
    logax.flush()
    for thread, got in enumerate(seen):
        assert got == sorted(set(got))
        assert set(got) <= set(numbers(thread))
    assert sum(discarded) + sum(map(len, seen)) == THREADS * ROUNDS * LENGTH


class MineError(Exception):
    """What callbacks here raise."""


class Told:
    """Asks for what went wrong, in many threads, and counts the records that it is about."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def ask(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """Whether nothing was told by a call."""
        errors: list[Exception] = []
        try:
            call(*arguments)
        except* logax.DeliveryError as group:
            errors += group.exceptions
        for error in errors:
            assert isinstance(error.__cause__, MineError)
            notes = " ".join(getattr(error, "__notes__", []))
            self.numbers.append(1 + sum(map(int, re.findall(r"for (\d+) more record", notes))))
        return not errors


@pytest.mark.slow
def test_every_record_that_a_callback_fails_for_is_told_once_and_harms_no_other() -> None:
    raised: list[float] = []
    told = Told()
    seen: list[list[float]] = [[] for _ in range(THREADS)]

    def fails(thread: int, x: float) -> bool:
        return thread % 2 == 1 and x % 3 == 0

    def work(thread: int) -> None:
        def callback(one: logax.record) -> None:
            x = float(one["x"])
            (raised if fails(thread, x) else seen[thread]).append(x)
            if fails(thread, x):
                raise MineError

        for x in starts(thread):
            # What is told instead of the call is told once, so that it can be called then.
            while not told.ask(logax.tap(count, callback, buffer=3), x):
                pass

    with meanwhile(lambda: told.ask(logax.flush)):
        at_once(work)
    told.ask(logax.flush)
    everything = [(thread, x) for thread in range(THREADS) for x in numbers(thread)]
    assert sorted(raised) == [x for thread, x in everything if fails(thread, x)]
    assert sum(told.numbers) == len(raised)
    for thread, got in enumerate(seen):
        assert got == [x for x in numbers(thread) if not fails(thread, x)]

"""Whose records those of each lane are.

Takes batches in, and hands bundles to the branches: once there is much, soon, or on `flush`.

All of it happens on the thread of delivery, except that runs may begin anywhere: that is queued in
front of the records of the run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from logax._delivery.control import before_flush
from logax._delivery.errors import DeliveryError, troubles
from logax._delivery.packet import Owner, Parcel
from logax._delivery.record_batch import Stream
from logax._delivery.routes import Batch, Route
from logax._delivery.shutdown import at_termination
from logax._delivery.unordered import deliver_soon
from logax._delivery.worker import attempt, worker
from logax._support.forks import renew_after_fork
from logax.loggers._core.batches import Bundles, columns_of
from logax.loggers._core.registry import LiveRun, Register
from logax.loggers._core.sink_worker import Branch


def streams_of(
    runs: list[Any], lanes: tuple[int, ...], over: tuple[bool, ...], shard: int | None
) -> tuple[Stream, ...]:
    """The stream of each lane: its run, and its indices at the levels that the run spans.

    A run that began on a shard is all on that shard.
    """
    number = int(np.prod(lanes))
    indices = np.stack(np.unravel_index(np.arange(number), lanes), 1) if lanes else np.zeros((1, 0))
    within = [level for level in range(len(lanes)) if not (level < len(over) and over[level])]
    own = indices[:, within].astype(int).tolist()
    each = runs if len(runs) == number else runs * number
    return tuple(
        Stream(run, tuple(lane), None if run is None or run.seeds.shard is not None else shard)
        for run, lane in zip(each, own, strict=True)
    )


_SOON = 0.2  # seconds: what waits longer would be lost with the process
_MUCH = 8 * 2**20  # bytes
_MANY = 256  # sets of runs


class Inbox:
    """Where the batches of one logger go.

    Args:
      name: Of the logger.
      register: Its runs.
      branches: The ways to its sinks.
      callbacks: What else gets each record: a callback as `tap` takes it.
      let_go: Gives what is called when runs have ended, if it is still there.
    """

    def __init__(
        self,
        name: str,
        register: Register,
        branches: Sequence[Branch],
        callbacks: Sequence[Any],
        let_go: Callable[[], Callable[[], None] | None],
    ) -> None:
        self._name, self._register, self._branches = name, register, branches
        self._let_go, self._has_ended = let_go, False
        self._routes = [Route(callback, "split", "raise") for callback in callbacks]
        self._reset()
        _all.add(self)
        at_termination(worker, "safe", self.settle)
        at_termination(worker, "close", self._crash)
        renew_after_fork(self)

    def _reset(self) -> None:
        self._bundles = Bundles()
        self._streams: dict[Any, tuple[Stream, ...] | None] = {}
        self._finishing: list[list[LiveRun]] = []
        self._place = 0
        _waiting.pop(self, None)

    # From programs and from Python.

    def take(self, parcel: Parcel) -> None:
        """Take in a parcel that is of no call, on whatever thread of XLA's."""
        deliver_soon(parcel, self)

    def begin(self, runs: Sequence[LiveRun]) -> None:
        """Have runs opened before their first record."""
        worker.put(0, self._open, runs, waits=False)

    def finish(self, runs: list[LiveRun]) -> None:
        """Have runs closed when the programs that may still log to them have ended.

        A program that finishes a run promises no order between that and its records.
        """
        worker.put(0, self._finish, runs, waits=False)

    def close(self, runs: list[LiveRun], status: str) -> None:
        """Have runs closed behind all that is queued."""
        worker.put(0, self._close, runs, status, waits=False)

    def end(self) -> None:
        """Have all sinks let go of what they hold."""
        worker.put(0, self._end, waits=False)

    def check(self) -> None:
        """Raise what went wrong before."""
        troubles.tell(self)
        for branch in self._branches:
            branch.check()
        for route in self._routes:
            troubles.tell(route)

    # On the thread of delivery.

    def deliver(self, batch: Batch) -> None:
        """Take in a batch."""
        worker.done += 1
        if worker.discards:
            worker.discarded += len(batch.order)
            return
        for route in self._routes:
            route.deliver(batch)
        if not self._branches:
            return
        for columns in columns_of(batch, self._streams_of(batch), self._place):
            open_ones = columns.of_open_runs()
            if open_ones is not None:
                self._bundles.add(open_ones)
        self._place += len(batch.order)
        if self._bundles.size > _MUCH:
            self.hand_over()
        elif self not in _waiting:
            if not _waiting:
                worker.after(_SOON, _hand_over_all)
            _waiting[self] = None

    def hand_over(self) -> None:
        """Give all that waits to the sinks."""
        _waiting.pop(self, None)
        portions = self._bundles.taken()
        if portions:
            for branch in self._branches:
                branch.write(portions)

    def settle(self) -> None:
        """Give all that waits to the sinks, and close the runs that programs have finished."""
        self.hand_over()
        for branch in self._branches:
            branch.settle()
        finishing, self._finishing = self._finishing, []
        for runs in finishing:
            self._close(runs, "finished")

    def _streams_of(self, batch: Batch) -> tuple[Stream, ...]:
        """The stream of each lane; one whose run has ended, which is said, is of no run."""
        owner = batch.owner or Owner(np.zeros((), np.uint32))
        name = (owner.number.tobytes(), batch.lanes, owner.over, batch.shard)
        known = self._streams.get(name)
        if known is not None:
            return known
        numbers = np.ravel(owner.number).tolist()
        runs = [self._register.find(number) for number in numbers]
        streams = streams_of(runs, batch.lanes, owner.over, batch.shard)
        if None in runs:
            gone = [i for i, stream in enumerate(streams) if stream.run is None]
            self._missed(batch, gone, [n for n in numbers if self._register.find(n) is None])
            return streams
        if len(self._streams) > _MANY:
            self._streams.clear()
        self._streams[name] = streams
        return streams

    def _missed(self, batch: Batch, lanes: Sequence[int], numbers: Sequence[int]) -> None:
        names = [self._register.named(number).name for number in numbers[:3]]
        keys = ", ".join(site.named() for site in batch.sites)
        gone = set(lanes)
        records = sum(len(lanes) if n < 0 else n in gone for n in batch.order[:, 2].tolist())
        told = (
            f"`{self._name}` got records of {keys} for a run that is finished: {', '.join(names)}. "
            "Call `logger.finish(state)` after the last call that logs to it. "
            f"{records} records were lost."
        )
        troubles.failed(self, DeliveryError(told), records=records)

    def could_not_resume(self, what: str, runs: Sequence[str], instead: str) -> None:
        """Report that a program tried to resume runs that are still open. Works on any thread."""
        told = (
            f"`{what}` was to resume the run {runs[0]} while it is open: a program came there "
            "again before the run was finished. What it logs from then on is in new runs, the "
            f"first of them {instead}. Call `logger.finish(state)` and `logax.flush()` in between."
        )
        troubles.failed(self, DeliveryError(told), records=0)

    def _open(self, runs: Sequence[LiveRun]) -> None:
        for branch in self._branches:
            branch.open(runs)

    def _finish(self, runs: list[LiveRun]) -> None:
        self._finishing.append(runs)

    def _close(self, runs: list[LiveRun], status: str) -> None:
        self.hand_over()
        ended = self._register.end(runs)
        self._streams.clear()
        if ended:
            for branch in self._branches:
                branch.close(ended, status)
        let_go = self._let_go()
        if let_go is not None:
            let_go()

    def _crash(self) -> None:
        """Close all runs: the process is about to be ended."""
        self._close([run for run in self._register if run.seeds.of_here], "crashed")
        self._end()

    def _end(self) -> None:
        self.settle()
        if not self._has_ended:
            self._has_ended = True
            for branch in self._branches:
                branch.end()


def _hand_over_all() -> None:
    _do_each(_waiting, Inbox.hand_over)


def _settle_all(deadline: float | None) -> bool:
    """Before a `flush`, when the programs have ended: all that waits goes on."""
    if _all:
        worker.put(0, _do_each, _all, Inbox.settle, waits=False)
    return True


def _do_each(inboxes: Iterable[Inbox], job: Callable[[Inbox], None]) -> None:
    """Do this for each by itself: one that fails keeps nothing from the others."""
    for inbox in list(inboxes):
        attempt(job, inbox)


_all: weakref.WeakSet[Inbox] = weakref.WeakSet()
_waiting: dict[Inbox, None] = {}
before_flush(_settle_all)

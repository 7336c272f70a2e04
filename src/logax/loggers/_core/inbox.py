"""Receive the records of one logger, assign them to runs, and pass them to its sinks.

Records wait in a `BatchBuffer` until they exceed `_MAX_BUFFER_BYTES`, `_HANDOVER_SECONDS` have
passed, or the user calls `flush`. All of this happens on the worker thread of delivery, except that
runs may begin on any thread: their opening is queued in front of their records.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from logax._delivery.calls import queue_packet
from logax._delivery.control import register_flush_hook
from logax._delivery.errors import DeliveryError, delivery_errors
from logax._delivery.packet import Packet, RecordOwner
from logax._delivery.record_batch import Stream
from logax._delivery.routes import CallbackRoute
from logax._delivery.shutdown import run_at_termination
from logax._delivery.worker import attempt, worker
from logax._support.processes import reset_after_fork
from logax.loggers._core.batches import BatchBuffer, split_by_site
from logax.loggers._core.registry import OpenRun, RunRegistry
from logax.loggers._core.sink_worker import SinkWorker


def make_streams(
    runs: list[Any], lanes: tuple[int, ...], over: tuple[bool, ...], shard: int | None
) -> tuple[Stream, ...]:
    """Return the stream of each lane: its run, and its indices at the levels that the run spans.

    A run that began on a shard is on that shard only, so that its streams name no shard.
    """
    number = int(np.prod(lanes))
    indices = np.stack(np.unravel_index(np.arange(number), lanes), 1) if lanes else np.zeros((1, 0))
    within = [level for level in range(len(lanes)) if not (level < len(over) and over[level])]
    own = indices[:, within].astype(int).tolist()
    each = runs if len(runs) == number else runs * number
    return tuple(
        Stream(run, tuple(lane), None if run is None or run.run_set.shard is not None else shard)
        for run, lane in zip(each, own, strict=True)
    )


_HANDOVER_SECONDS = 0.2  # records that wait are lost if the process is killed
_MAX_BUFFER_BYTES = 8 * 2**20
_MAX_CACHED_STREAM_SETS = 256


class Inbox:
    """The route of one logger: passes batches to its sinks and callbacks.

    Args:
      name: Name of the logger.
      registry: Its runs.
      sink_workers: Workers of its sinks.
      callbacks: Callbacks, as `tap` takes them, that get each record too.
      runs_closed: Weak reference to a function that is called after runs were closed.
    """

    def __init__(
        self,
        name: str,
        registry: RunRegistry,
        sink_workers: Sequence[SinkWorker],
        callbacks: Sequence[Any],
        runs_closed: Callable[[], Callable[[], None] | None],
    ) -> None:
        self._name, self._registry, self._sink_workers = name, registry, sink_workers
        self._runs_closed, self._has_ended = runs_closed, False
        self._routes = [CallbackRoute(callback, "split", "raise") for callback in callbacks]
        self._reset()
        _all_inboxes.add(self)
        run_at_termination(worker, "safe", self.settle)
        run_at_termination(worker, "close", self._crash)
        reset_after_fork(self)

    def _reset(self) -> None:
        self._buffer = BatchBuffer()
        self._streams: dict[Any, tuple[Stream, ...] | None] = {}
        self._finishing: list[list[OpenRun]] = []
        self._next_position = 0
        _waiting_inboxes.pop(self, None)

    # On any thread.

    def receive(self, packet: Packet) -> None:
        """Queue a packet that belongs to no call."""
        queue_packet(packet, self)

    def begin(self, runs: Sequence[OpenRun]) -> None:
        """Queue the opening of runs, before their first record."""
        worker.put(0, self._open, runs, waits=False)

    def finish(self, runs: list[OpenRun]) -> None:
        """Close runs as soon as the programs that may still log to them have ended.

        A program that finishes a run promises no order between that and its records.
        """
        worker.put(0, self._finish, runs, waits=False)

    def close(self, runs: list[OpenRun], status: str) -> None:
        """Queue the closing of runs, behind all queued records."""
        worker.put(0, self._close, runs, status, waits=False)

    def end(self) -> None:
        """Queue the end of the sinks, which then release their files and connections."""
        worker.put(0, self._end, waits=False)

    def check(self) -> None:
        """Raise the errors of earlier records."""
        delivery_errors.raise_pending(self)
        for sink_worker in self._sink_workers:
            sink_worker.check()
        for route in self._routes:
            delivery_errors.raise_pending(route)

    # On the worker thread.

    def deliver(self, packet: Packet, owner: RecordOwner | None = None) -> None:
        """Deliver the records of a packet to the callbacks, and buffer them for the sinks.

        Args:
          packet: The packet, with its records in order.
          owner: Run that the records belong to, if the packet does not name it.
        """
        worker.progress += 1
        if worker.is_discarding:
            worker.num_discarded += len(packet.record_index)
            return
        for route in self._routes:
            route.deliver(packet)
        if not self._sink_workers:
            return
        streams = self._streams_of(packet, owner or packet.owner())
        for site, part in split_by_site(packet, streams, self._next_position):
            is_open = [i for i, stream in enumerate(part.streams) if stream.run is not None]
            if is_open:
                self._buffer.add(site, part.only(is_open))
        self._next_position += len(packet.record_index)
        if self._buffer.size > _MAX_BUFFER_BYTES:
            self.hand_over()
        elif self not in _waiting_inboxes:
            if not _waiting_inboxes:
                worker.call_later(_HANDOVER_SECONDS, _hand_over_all)
            _waiting_inboxes[self] = None

    def hand_over(self) -> None:
        """Pass all buffered records to the sinks."""
        _waiting_inboxes.pop(self, None)
        batches = self._buffer.take_batches()
        if batches:
            for sink_worker in self._sink_workers:
                sink_worker.write(batches)

    def settle(self) -> None:
        """Pass all buffered records to the sinks, and close the runs that programs finished."""
        self.hand_over()
        for sink_worker in self._sink_workers:
            sink_worker.settle()
        finishing, self._finishing = self._finishing, []
        for runs in finishing:
            self._close(runs, "finished")

    def _streams_of(self, packet: Packet, owner: RecordOwner | None) -> tuple[Stream, ...]:
        """Return the stream of each lane, with no run if that run has ended, and report those."""
        owner, shard = owner or RecordOwner(np.zeros((), np.uint32)), packet.shard()
        name = (owner.number.tobytes(), packet.lanes, owner.over, shard)
        known = self._streams.get(name)
        if known is not None:
            return known
        numbers = np.ravel(owner.number).tolist()
        runs = [self._registry.find(number) for number in numbers]
        streams = make_streams(runs, packet.lanes, owner.over, shard)
        if None in runs:
            gone = [i for i, stream in enumerate(streams) if stream.run is None]
            self._report_finished(
                packet, gone, [n for n in numbers if self._registry.find(n) is None]
            )
            return streams
        if len(self._streams) > _MAX_CACHED_STREAM_SETS:
            self._streams.clear()
        self._streams[name] = streams
        return streams

    def _report_finished(
        self, packet: Packet, lanes: Sequence[int], numbers: Sequence[int]
    ) -> None:
        names = [self._registry.label(number).name for number in numbers[:3]]
        keys = ", ".join(site.describe() for site in packet.schema.sites)
        gone = set(lanes)
        records = sum(
            len(lanes) if n < 0 else n in gone for n in packet.record_index[:, 2].tolist()
        )
        message = (
            f"`{self._name}` got records of {keys} for a run that is finished: {', '.join(names)}. "
            "Call `logger.finish(state)` after the last call that logs to it. "
            f"{records} records were lost."
        )
        delivery_errors.add(self, DeliveryError(message), records=records)

    def report_failed_resume(self, what: str, runs: Sequence[str], instead: str) -> None:
        """Report that a program tried to resume runs that are still open. Works on any thread."""
        message = (
            f"`{what}` was to resume the run {runs[0]} while it is open: the program called it "
            "again before the run was finished. Its later records are in new runs, the first of "
            f"them {instead}. Call `logger.finish(state)` and `logax.flush()` in between."
        )
        delivery_errors.add(self, DeliveryError(message), records=0)

    def _open(self, runs: Sequence[OpenRun]) -> None:
        for sink_worker in self._sink_workers:
            sink_worker.open(runs)

    def _finish(self, runs: list[OpenRun]) -> None:
        self._finishing.append(runs)

    def _close(self, runs: list[OpenRun], status: str) -> None:
        self.hand_over()
        ended = self._registry.end(runs)
        self._streams.clear()
        if ended:
            for sink_worker in self._sink_workers:
                sink_worker.close(ended, status)
        runs_closed = self._runs_closed()
        if runs_closed is not None:
            runs_closed()

    def _crash(self) -> None:
        """Close all runs as crashed, because SIGTERM is about to end the process."""
        self._close([run for run in self._registry if run.run_set.is_of_this_process], "crashed")
        self._end()

    def _end(self) -> None:
        self.settle()
        if not self._has_ended:
            self._has_ended = True
            for sink_worker in self._sink_workers:
                sink_worker.end()


def _hand_over_all() -> None:
    _attempt_each(_waiting_inboxes, Inbox.hand_over)


def _settle_all(deadline: float | None) -> bool:
    """Settle all inboxes before a `flush`, after the programs have ended."""
    if _all_inboxes:
        worker.put(0, _attempt_each, _all_inboxes, Inbox.settle, waits=False)
    return True


def _attempt_each(inboxes: Iterable[Inbox], job: Callable[[Inbox], None]) -> None:
    """Run a job for each inbox, so that the failure of one does not affect the others."""
    for inbox in list(inboxes):
        attempt(job, inbox)


_all_inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
_waiting_inboxes: dict[Inbox, None] = {}
register_flush_hook(_settle_all)

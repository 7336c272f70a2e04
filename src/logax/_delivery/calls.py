"""The number of records that leave a program together, where users give no `buffer`.

A compiled program has no clock, so the host measures for it: each time records leave, the host
compares the time since the last ones with `TARGET_SECONDS`, and answers how many are to leave next.

Which call a parcel belongs to, and which of its records comes next.

Every record carries its place in the order of the program (see `ordering`). Each call remembers,
lane by lane, which place comes next, and holds the records that came too early. It leaves out the
records it was given already: a program that runs a part again says the same again.
"""

from __future__ import annotations

import array
import collections
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from logax._compat import Tree, effects_of_this_thread
from logax._delivery.control import before_flush
from logax._delivery.errors import troubles
from logax._delivery.ordering import Places, batches_of, ends_of, next_in_order, places_of
from logax._delivery.packet import Emission, Parcel, Rows, stack
from logax._delivery.routes import Takes
from logax._delivery.shutdown import at_termination, watcher
from logax._delivery.worker import attempt, worker

TARGET_SECONDS = 0.02
MAX_BLOCK_RECORDS = 4096
SMALL_BLOCK_RECORDS = 32


class BlockSize:
    """The number of records that leave one compiled program together.

    It is kept from call to call: a later call begins with the size that the last one found.
    """

    def __init__(self) -> None:
        self.records = 1

    def limited(self, most: float) -> int:
        """Return the number of records that are to leave together, at most `most` but for one."""
        return max(1, int(min(self.records, most)))

    def adapt(self, records: int, seconds: float) -> None:
        """Adapt to a program that took so long for so many records.

        The size doubles while a whole block takes less than half of the target, or less than nine
        tenths if the block is small: an emission has a fixed cost. The size shrinks in proportion
        once a block takes more than twice the target.
        """
        fraction = 0.9 if self.records < SMALL_BLOCK_RECORDS else 0.5
        if seconds > 2 * TARGET_SECONDS:
            allowed = int(records * TARGET_SECONDS / seconds)
            self.records = max(1, min(self.records, allowed))
        elif seconds < fraction * TARGET_SECONDS and records >= self.records:
            self.records = min(2 * self.records, MAX_BLOCK_RECORDS)


class Call:
    """One run of a tapped function."""

    def __init__(self, route: Takes, block_size: BlockSize | None = None) -> None:
        self.thread = threading.current_thread()
        self.running = threading.Event()  # once that thread has handed it to JAX
        self.result: Any = None
        self.failed = False  # whether the program was seen to
        self.route = route
        self._block_size = BlockSize() if block_size is None else block_size
        self._block_started: float | None = None  # when the program went on after the last block
        self._next: dict[tuple[int, int], Any] = {}
        self._early: dict[tuple[int, int], list[tuple[list[Parcel], Places]]] = {}
        self._ends: dict[tuple[int, int], Any] | None = None

    def take(self, parcels: Sequence[Parcel]) -> bool:
        """Deliver what is due of these parcels and of what is held; return whether that was all.

        Args:
          parcels: Opened parcels.
        """
        streams: dict[tuple[int, int], list[Parcel]] = {}
        for parcel in parcels:
            if self._ends is None:
                self._ends = ends_of(parcel)
            streams.setdefault(parcel.stream(), []).append(parcel)
        for stream, own in streams.items():
            held = self._early.pop(stream, [])
            self._deliver(stream, [*held, (own, places_of(own))])
        return self._is_over()

    def settle(self) -> bool:
        """Deliver all that is held: nothing will come before it any more."""
        held, self._early = self._early, {}
        for stream, parts in held.items():
            self._deliver(stream, parts, late=True)
        return self._is_over()

    def _deliver(self, stream: tuple[int, int], parts: Any, late: bool = False) -> None:
        """Deliver the records that are due, and hold the others."""
        parcels, places = _merge(parts)
        lanes = max(math.prod(parcel.lanes) for parcel in parcels)
        expected = self._next.get(stream)
        if expected is None:
            expected = np.zeros(lanes, np.int64)
        elif len(expected) < lanes:
            # Values that vary by `axis_index` alone have lanes where their call has none.
            expected = np.full(lanes, expected.max(initial=0))
        self._next[stream] = expected
        if not lanes:
            return
        due, early = next_in_order(places, expected, late)
        if len(early.place):
            self._early[stream] = [(parcels, early)]
        dropped = np.array([parcel.dropped for parcel in parcels])
        if dropped.any():
            self._count_dropped(parcels, due.only(dropped[due.parcel]), len(expected))
            due = due.only(~dropped[due.parcel])
        for batch in batches_of(parcels, due):
            self.route.deliver(batch)

    def measure_block(self, records: int) -> int:
        """Return how many records are to leave the program next, given that so many leave now.

        No more than the worker delivers soon: it may be far slower than the program.
        """
        if self._block_started is not None:  # the first block may have waited for other programs
            self._block_size.adapt(records, time.perf_counter() - self._block_started)
        return self._block_size.limited(worker.job_records if worker.blocks else math.inf)

    def start_block_timer(self) -> None:
        """Measure the next block from now on: the program goes on."""
        self._block_started = time.perf_counter()

    def await_program(self) -> None:
        """Wait for the program, as far as that is possible from another thread."""
        self.running.wait()
        result = self.result
        if result is not None and not result.is_deleted():
            try:
                result.block_until_ready()
            except jax.errors.JaxRuntimeError:  # it is told to whoever uses the result
                self.failed = True
            except RuntimeError:  # pragma: no cover - it was donated meanwhile
                pass

    def _count_dropped(self, parcels: Sequence[Parcel], places: Places, lanes: int) -> None:
        for number, parcel in enumerate(parcels):
            for site, named in enumerate(parcel.packet.sites):
                own = places.lane[(places.parcel == number) & (places.site == site)]
                total = int(np.where(own < 0, lanes, 1).sum())
                if total:
                    troubles.dropped(named.named(), total)

    def _is_over(self) -> bool:
        if self._ends is None:
            return False
        return all(
            bool((self._next.get(key, np.zeros(1, np.int64)) == end).all())
            for key, end in self._ends.items()
        )


def begin(route: Takes, block_size: BlockSize | None = None) -> int:
    """Return the number of a new call, which `started` or `forget` will be told about."""
    worker.start()
    watcher.start()
    number = next(_numbers) % 2**32
    _calls[number] = Call(route, block_size)
    return number


def begin_inside(route: Takes) -> int:
    """The number of a new call that is part of a program, which runs."""
    number = begin(route)
    _calls[number].running.set()
    return number


def started(number: int, result: Tree) -> None:
    """Remember what the program of a call returns, to wait for it."""
    call = _calls.get(number)
    if call is not None:
        arrays = (x for x in jax.tree.leaves(result) if isinstance(x, jax.Array))
        call.result = next(arrays, None)
        call.running.set()


def called(number: int) -> Call | None:
    """The call of a number, unless nothing more will come of it."""
    return _calls.get(number)


def forget(number: int) -> Call | None:
    """Drop a call of which nothing more will come, and give it if there is one."""
    call = _calls.pop(number, None)
    if call is not None:
        call.running.set()
    return call


def abandon(number: int) -> None:
    """Drop a call whose program failed, and have delivered what it had said by then."""
    call = forget(number)
    if call is not None:
        worker.put(0, _end, call, waits=False)


def receive(parcel: Parcel) -> None:
    """Take in a parcel, on whatever thread of XLA's."""
    number = parcel.operands[0].item(0)
    call = _calls.get(number)
    if call is not None:  # else it is what a part of a program that runs again says again
        emission = parcel.emission
        _queue(number, call, parcel, emission.size, emission.records)


def receive_block(parcel: Parcel) -> int:
    """Take in the content of a buffer, and return how many records are to fill it next."""
    number = parcel.operands[0].item(0)
    call = _calls.get(number)
    if call is None:
        return MAX_BLOCK_RECORDS
    parcel = parcel.opened()
    records = call.measure_block(parcel.pending())
    parcel, size, real = parcel.trimmed()
    if real:
        _queue(number, call, parcel, size, real)  # it may wait: that is not the program's time
    call.start_block_timer()
    return records


def _queue(number: int, call: Call, parcel: Parcel, size: int, records: int) -> None:
    """Queue a parcel for its call; where there is no room, queue which records there were."""
    if worker.add(size, _take_all, (number, call, parcel), records):
        return
    if not worker.extend_last(lambda job: isinstance(job, _Dropped) and job.add(call, parcel)):
        dropped = _Dropped(number, call)
        dropped.add(call, parcel)
        worker.put(0, dropped, waits=False)


def _take_all(arrived: collections.deque[tuple[int, Call, Parcel]]) -> None:
    """Give each call its parcels, those of one emission stacked."""
    of_call: dict[Call, tuple[int, list[Parcel]]] = {}
    for number, call, parcel in arrived:
        of_call.setdefault(call, (number, []))[1].append(parcel)
    arrived.clear()
    for call, (number, parcels) in of_call.items():
        attempt(_take, number, call, stack(parcels))


def _take(number: int, call: Call, parcels: Sequence[Parcel]) -> None:
    if call.take(parcels):
        forget(number)


class _Dropped:
    """A job: tells a call which records there was no room for. There may be very many."""

    def __init__(self, number: int, call: Call) -> None:
        self._number, self._call = number, call
        self._parcels: list[Parcel] = []
        self._emissions: dict[int, Emission] = {}
        self._singles = array.array("q")  # emission, shard and place of each

    def add(self, call: Call, parcel: Parcel) -> bool:
        """Take in some more, if they are of the same call."""
        if call is not self._call:
            return False
        bare = parcel.without_values()
        rows = None if parcel.packet.last or parcel.lanes else _single(bare)
        if rows is None:
            self._parcels.append(bare)
        else:
            self._emissions[id(parcel.emission)] = parcel.emission
            self._singles.extend((id(parcel.emission), bare.shard() or 0, int(rows.order[0])))
        return True

    def __call__(self) -> None:
        for parcel in itertools.chain(self._single_parcels(), self._parcels):
            _take(self._number, self._call, [parcel])

    def _single_parcels(self) -> Iterator[Parcel]:
        numbers = iter(self._singles)
        for emission_id, shard, place in zip(numbers, numbers, numbers, strict=True):
            emission = self._emissions[emission_id]
            packet = emission.packet
            values = [_NOTHING] * packet.sites[0].width
            gate = np.ones(1, bool) if packet.gated[0] else None
            rows = Rows(values, np.array([place]), gate)
            number, owner = np.asarray(self._number), (np.zeros((), np.uint32), _NOTHING)
            operands = packet.flat(number, np.asarray(shard), owner, [rows])
            yield Parcel(emission, operands, is_open=True, dropped=True)


def _single(parcel: Parcel) -> Rows | None:
    """Return the arrays of a parcel that is nothing but one real record."""
    if len(parcel.packet.sites) != 1:
        return None
    (rows,) = parcel.packet.rows(parcel.operands)
    is_real = rows.gate is None or bool(np.asarray(rows.gate).all())
    return rows if rows.order.shape == (1,) and is_real else None


def _merge(parts: Sequence[tuple[list[Parcel], Places]]) -> tuple[list[Parcel], Places]:
    """Return all parcels, and the records of all."""
    if len(parts) == 1:
        return parts[0]
    parcels: list[Parcel] = []
    places = []
    for own, each in parts:
        used, number = np.unique(each.parcel, return_inverse=True)
        # Records that are held arrived before all that come now.
        arrival = each.arrival if own is parts[-1][0] else np.full(len(number), -1)
        number = number.reshape(-1) + len(parcels)
        places.append(each._replace(parcel=number, arrival=arrival))
        parcels += [own[i] for i in used.tolist()]
    return parcels, Places(*map(np.concatenate, zip(*places, strict=True)))


def _end(call: Call) -> None:
    call.settle()


def _settle(before: int) -> None:
    for number, call in list(_calls.items()):
        if number < before and (call.settle() or call.failed):
            forget(number)


def _await_programs(deadline: float | None) -> bool:
    """Wait for the programs that have begun, and say whether they have ended."""
    begun = list(_calls.values())
    awaited = [call for call in begun if call.running.is_set() or _will_run(call.thread)]
    await_effects = effects_of_this_thread()

    def await_all() -> None:
        await_effects()
        for call in awaited:
            call.await_program()

    if deadline is None:
        await_all()
    else:
        waiting = threading.Thread(target=await_all, name="logax-flush", daemon=True)
        waiting.start()
        waiting.join(max(deadline - time.monotonic(), 0))
        if waiting.is_alive():
            return False
    if begun:
        worker.put(0, _settle, next(_numbers) % 2**32, waits=False)
    return True


def _will_run(thread: threading.Thread) -> bool:
    """Whether what a thread is about to hand to JAX can be waited for."""
    is_left_behind = worker.exits and thread.daemon
    return thread is not threading.current_thread() and not is_left_behind


def _reset() -> None:
    _calls.clear()


_NOTHING = np.zeros(0, bool)
_numbers = itertools.count(1)
_calls: dict[int, Call] = {}
before_flush(_await_programs)
at_termination(worker, "safe", lambda: _settle(2**32))
os.register_at_fork(after_in_child=_reset)

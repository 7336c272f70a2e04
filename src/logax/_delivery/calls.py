"""Which call a parcel belongs to, and which of its records comes next.

Every record carries its place in the order of the program (see `places`). Each call remembers, lane
by lane, which place comes next, and holds what came too early. What it was given already it leaves
out: a program that runs a part again says the same again.
"""

from __future__ import annotations

import array
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from logax._compat import Tree, effects_of_this_thread
from logax._delivery.control import before_flush
from logax._delivery.packets import Packet, Parcel, Rows
from logax._delivery.places import (
    Places,
    batch_at,
    batch_of_one,
    ends_of,
    in_order,
    places_of,
    single,
)
from logax._delivery.routes import Takes
from logax._delivery.troubles import troubles
from logax._delivery.worker import worker


class Call:
    """One run of a tapped function."""

    def __init__(self, route: Takes) -> None:
        self.thread = threading.current_thread()
        self.running = threading.Event()  # once that thread has handed it to JAX
        self.result: Any = None
        self.failed = False  # whether the program was seen to
        self.route = route
        self._next: dict[tuple[int, int], Any] = {}
        self._early: list[tuple[Parcel, Places]] = []
        self._ends: dict[tuple[int, int], Any] | None = None
        self._may_be_over = False

    def take(self, parcel: Parcel) -> bool:
        """Deliver what is due now, of this parcel and of those before it; True if that was all."""
        if self._ends is None:
            self._ends = ends_of(parcel)
        if self._is_next(parcel):
            return self._may_be_over and self._is_over()
        places = places_of(parcel)
        if not self._deliver(parcel, places):
            self._early.append((parcel, places))
            return False
        while any(self._deliver_early(i) for i in range(len(self._early))):
            pass
        return self._is_over()

    def _is_next(self, parcel: Parcel) -> bool:
        """The most common case, a single record that is due, delivered in the shortest way."""
        packet, rows = parcel.packet, single(parcel)
        if rows is None or self._early:
            return False
        stream = parcel.stream()
        expected = self._next.get(stream)
        lanes = math.prod(parcel.lanes)
        if expected is None:
            expected = self._next[stream] = np.zeros(lanes, np.int64)
        place = int(rows.order[0])
        if len(expected) != lanes or not lanes:
            return False
        if expected[0] != place or (lanes > 1 and (expected != place).any()):
            return False
        expected[:] = place + 1
        ends = self._ends
        self._may_be_over = ends is not None and bool((ends[stream] <= place + 1).all())
        if parcel.dropped:
            troubles.dropped(packet.sites[0].named(), lanes)
        else:
            self.route.deliver(batch_of_one(parcel, rows))
        return True

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

    def settle(self) -> bool:
        """Deliver all that is held: nothing will come before it any more."""
        held, self._early = self._early, []
        for parcel, places in in_order(held):
            self._deliver(parcel, places, late=True)
        return self._is_over()

    def _deliver_early(self, number: int) -> bool:
        if not self._deliver(*self._early[number]):
            return False
        del self._early[number]
        return True

    def _deliver(self, parcel: Parcel, places: Places, late: bool = False) -> bool:
        """Deliver a parcel unless something before it is missing."""
        stream, lanes = parcel.stream(), math.prod(parcel.lanes)
        expected = self._next.setdefault(stream, np.zeros(lanes, np.int64))
        if not len(places.place) or not lanes:
            return True
        if len(expected) != lanes:  # what varies by `axis_index` alone has lanes; its call has none
            expected = np.full(lanes, expected.max())
        if (expected != expected[0]).any():
            places = places.by_lane(lanes)
        upto = expected[places.lane]  # lane -1 is as good as any
        _, first = np.unique(places.lane, return_index=True)
        if not late and (places.place[first] > upto[first]).any():
            return False
        fresh = places.only(places.place >= upto)
        self._next[stream] = expected = expected.copy()
        if len(fresh.place) and fresh.lane[0] < 0:
            expected[:] = fresh.place[-1] + 1
        else:
            np.maximum.at(expected, fresh.lane, fresh.place + 1)
        if parcel.dropped:
            self._count_dropped(parcel, fresh, lanes)
        elif len(fresh.place):
            self.route.deliver(batch_at(parcel, fresh))
        return True

    def _count_dropped(self, parcel: Parcel, places: Places, lanes: int) -> None:
        for number, site in enumerate(parcel.packet.sites):
            own = places.lane[places.site == number]
            total = int(np.where(own < 0, lanes, 1).sum())
            if total:
                troubles.dropped(site.named(), total)

    def _is_over(self) -> bool:
        if self._ends is None:
            return False
        return all(
            bool((self._next.get(key, np.zeros(1, np.int64)) == end).all())
            for key, end in self._ends.items()
        )


def begin(route: Takes) -> int:
    """The number of a new call, which `started` or `forget` will be told about."""
    worker.start()
    number = next(_numbers) % 2**32
    _calls[number] = Call(route)
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
    number = parcel.number()
    call = called(number)
    if call is None:  # what a part of a program that runs again says again
        return
    if worker.put(parcel.size(), _take, number, call, parcel):
        return
    if not worker.extend_last(lambda job: isinstance(job, _Dropped) and job.add(call, parcel)):
        dropped = _Dropped(number, call)
        dropped.add(call, parcel)
        worker.put(0, dropped, waits=False)


def _take(number: int, call: Call, parcel: Parcel) -> None:
    if call.take(parcel.opened().spread()):
        forget(number)


class _Dropped:
    """A job: tells a call which records there was no room for. There may be very many."""

    def __init__(self, number: int, call: Call) -> None:
        self._number, self._call = number, call
        self._parcels: list[Parcel] = []
        self._packets: dict[int, Packet] = {}
        self._singles = array.array("q")  # packet, shard and place of each

    def add(self, call: Call, parcel: Parcel) -> bool:
        """Take in some more, if they are of the same call."""
        if call is not self._call:
            return False
        bare = parcel.without_values()
        rows = None if parcel.packet.last or parcel.lanes else single(bare)
        if rows is None:
            self._parcels.append(bare)
        else:
            self._packets[id(parcel.packet)] = parcel.packet
            self._singles.extend((id(parcel.packet), bare.shard() or 0, int(rows.order[0])))
        return True

    def __call__(self) -> None:
        for parcel in itertools.chain(self._single_parcels(), self._parcels):
            _take(self._number, self._call, parcel)

    def _single_parcels(self) -> Iterator[Parcel]:
        numbers = iter(self._singles)
        for packet_id, shard, place in zip(numbers, numbers, numbers, strict=True):
            packet = self._packets[packet_id]
            values = [_NOTHING] * packet.sites[0].width
            gate = np.ones(1, bool) if packet.gated[0] else None
            rows = Rows(values, np.array([place]), gate)
            number, owner = np.asarray(self._number), (np.zeros((), np.uint32), _NOTHING)
            operands = packet.flat(number, np.asarray(shard), owner, [rows])
            yield Parcel(packet, (), ((),) * len(operands), operands, dropped=True)


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
os.register_at_fork(after_in_child=_reset)

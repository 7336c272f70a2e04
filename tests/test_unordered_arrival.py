"""In whatever order the packets of a call arrive, twice or not at all: its records stay in order.

The packets are those of real programs. XLA promises no order between them, and keeps to that of
the program nearly always; here they come in any.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from jax import lax

import logax
from logax._delivery import calls
from logax._delivery import calls as direct
from logax._delivery.errors import delivery_errors
from logax._delivery.ordering import order_by_arrival
from logax._delivery.packet import Packet, stack_packets
from logax._delivery.routes import CallbackRoute
from logax._harvest import spool as sending
from logax._harvest import streaming
from logax.testing import MemoryLogger

STARTS = (6, 1, 5)  # in each lane
Records = list[tuple[str, int]]


def collatz(x: Any) -> Any:
    """Logs twice for all lanes, then at two sites, in each lane another number of records."""

    def body(x: Any) -> Any:
        logax.log({"x": x})
        lax.cond(x % 2 == 1, lambda: logax.log({"odd": x}), lambda: None)
        return jnp.where(x % 2 == 1, 3 * x + 1, x // 2)

    logax.log({"start": x})
    logax.log({"double": 2 * x})
    return lax.while_loop(lambda x: x > 1, body, x)


def path(x: int) -> Records:
    """What `collatz` logs."""
    found = [("start", x), ("double", 2 * x)]
    while x > 1:
        found += [("x", x), ("odd", x)] if x % 2 == 1 else [("x", x)]
        x = 3 * x + 1 if x % 2 == 1 else x // 2
    return found


LANES = {(lane,): path(start) for lane, start in enumerate(STARTS)}


def untouched(one: logax.record) -> None:
    raise AssertionError(f"{one} was delivered")


def packets_of(
    call: Callable[[], Any], module: Any = streaming, name: str = "receive_packet"
) -> Any:
    """What a call hands to the host, which does not take it."""
    found: list[Packet] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, found.append)
        jax.block_until_ready(call())
        jax.effects_barrier()
    for number in {packet.call_number() for packet in found}:
        calls.forget_call(number)
    return found


def by_index() -> Any:
    """`collatz` of lanes that differ by their index alone, of which the first log knows nothing."""
    logax.log({"rate": 7})
    return collatz(jnp.array(STARTS)[lax.axis_index("lane")])


@pytest.fixture(scope="module", params=[1, 3], ids=["buffer=1", "buffer=3"])
def packets(request: pytest.FixtureRequest) -> list[Packet]:
    tapped = logax.tap(functools.partial(collatz), untouched, buffer=request.param)
    found = packets_of(lambda: jax.vmap(tapped)(jnp.array(STARTS)))
    assert len(found) > 5
    return found


@pytest.fixture(scope="module")
def uneven() -> list[Packet]:
    """Packets with lanes and without."""
    tapped = logax.tap(functools.partial(by_index), untouched)
    lanes = jax.vmap(tapped, in_axes=(), axis_name="lane", axis_size=len(STARTS))
    found = packets_of(lanes)
    assert {packet.lanes for packet in found} == {(), (len(STARTS),)}
    return found


class Arrived(calls.Call):
    """A call that keeps what comes of it, lane by lane."""

    def __init__(self) -> None:
        super().__init__(CallbackRoute(self._keep, "split", "raise"))
        self.lanes: dict[tuple[int, ...], Records] = {}

    def _keep(self, one: logax.record) -> None:
        self.lanes.setdefault(one.lane, []).extend((k, int(x)) for k, x in one.items())


def arrivals(packets: list[Packet], data: Any) -> list[list[Packet]]:
    """The packets in some order, some of them together, those of one emission stacked."""
    order = data.draw(st.permutations(packets))
    found, rest = [], list(order)
    while rest:
        number = data.draw(st.integers(1, len(rest)))
        found.append(stack_packets(rest[:number]))
        rest = rest[number:]
    return found


def real_records(packets: list[Packet]) -> int:
    """How many records of lanes these hold."""
    found = [each for packet in packets for each in order_by_arrival([packet.unpack()])]
    return sum(sum(each.count_records()) for each in found)


@given(data=st.data())
def test_in_any_order_the_records_of_each_lane_come_in_theirs(
    packets: list[Packet], data: Any
) -> None:
    call = Arrived()
    for some in arrivals(packets, data):
        is_over = call.receive(some)
        assert call.lanes == LANES or not is_over
    assert is_over


@given(data=st.data())
def test_what_a_program_says_twice_comes_once(packets: list[Packet], data: Any) -> None:
    call = Arrived()
    for some in arrivals(packets * 2, data):
        call.receive(some)
    assert call.settle()
    assert call.lanes == LANES


@given(data=st.data())
def test_of_a_program_that_died_comes_what_it_said_in_order(
    packets: list[Packet], data: Any
) -> None:
    call = Arrived()
    said = data.draw(st.lists(st.sampled_from(range(len(packets))), unique=True))
    for some in arrivals([packets[number] for number in said], data):
        call.receive(some)
    call.settle()
    for lane, records in call.lanes.items():
        assert is_part(records, LANES[lane])
    real = real_records([packets[number] for number in said])
    assert sum(map(len, call.lanes.values())) == real


@given(data=st.data())
def test_what_there_was_no_room_for_is_counted_by_its_keys(
    packets: list[Packet], data: Any
) -> None:
    lost = data.draw(st.sets(st.sampled_from(range(len(packets)))))
    some = [x.drop_values() if i in lost else x for i, x in enumerate(packets)]
    call = Arrived()
    is_over = [call.receive(each) for each in arrivals(some, data)]
    dropped = told()
    assert is_over[-1]
    for lane, records in call.lanes.items():
        assert is_part(records, LANES[lane])
    for key in ("start", "double", "x", "odd"):
        came, said = (number_of(key, lanes) for lanes in (call.lanes, LANES))
        assert came + dropped.get(key, 0) == said


@given(data=st.data())
def test_parcels_with_lanes_and_without_come_in_order(uneven: list[Packet], data: Any) -> None:
    call = Arrived()
    for some in arrivals(uneven, data):
        call.receive(some)
    assert call.settle()
    assert call.lanes == {(): [("rate", 7)], **LANES}
    call, said = Arrived(), data.draw(st.lists(st.sampled_from(range(len(uneven))), unique=True))
    for some in arrivals([uneven[number] for number in said], data):
        call.receive(some)
    call.settle()
    assert sum(map(len, call.lanes.values())) == real_records([uneven[number] for number in said])


def is_part(records: Records, whole: Records) -> bool:
    """Whether these are some of those, in the same order."""
    rest = iter(whole)
    return all(record in rest for record in records)


def number_of(key: str, lanes: dict[tuple[int, ...], Records]) -> int:
    return sum(name == key for records in lanes.values() for name, _ in records)


def told() -> dict[str, int]:
    """How many records are said to be dropped of each key."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        delivery_errors.raise_pending()
    found = [re.findall(r"(\d+) of `(\w+)`", str(each.message)) for each in caught]
    return {key: int(number) for each in found for number, key in each}


def test_what_comes_of_a_call_that_is_over_is_left() -> None:
    tapped = logax.tap(functools.partial(collatz), untouched)
    for packet in packets_of(lambda: tapped(jnp.array(3))):
        calls.receive_packet(packet)
    logax.flush()
    assert calls._calls == {}


def test_what_comes_of_a_whole_call_that_is_over_is_left() -> None:
    logger = MemoryLogger()
    with logger.run() as state:
        spooled = logger.spool(lambda x: logax.log({"x": x}), state)
        (packet,) = packets_of(lambda: spooled(1.0), sending, "receive_whole_call")
        direct.receive_whole_call(packet)
    assert [run.records for run in logger.runs] == [[]]
    assert calls._calls == {}

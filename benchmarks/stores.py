"""Compiled programs that keep some records only: `capacity`, `reduce`, `interval` against carries.

By hand means what a careful person writes: the least that gives the same arrays, in the carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.columns import GOAL, LANES, STEPS, log_ten, step, ten, ten_logged
from benchmarks.timing import Call, Side
from logax import log, spool

CAPACITY = 100
INTERVAL = 100


def _put(rows: Any, value: Any, slot: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(rows, value, slot, 0)


def ring() -> tuple[Side, Side]:
    harvested = spool(_until_logged, capacity=CAPACITY)
    args = (jnp.float32(1), jnp.int32(STEPS))
    return Call(jax.jit(_until_by_hand), args), Call(jax.jit(harvested), args)


def ring_of_lanes() -> tuple[Side, Side]:
    harvested = spool(_until_logged, capacity=CAPACITY)
    args = (jnp.linspace(0, 1, LANES), STEPS - jnp.arange(LANES, dtype=jnp.int32))
    return Call(jax.jit(jax.vmap(_until_by_hand)), args), Call(jax.jit(jax.vmap(harvested)), args)


def _until_by_hand(x: Any, stop: Any) -> Any:
    def body(carried: Any) -> Any:
        i, carry, (losses, steps) = carried
        carry = step(carry)
        slot = i % CAPACITY
        return i + 1, carry, (_put(losses, carry, slot), _put(steps, i, slot))

    start = (jnp.int32(0), x, (jnp.zeros(CAPACITY), jnp.zeros(CAPACITY, jnp.int32)))
    count, carry, rows = jax.lax.while_loop(lambda carried: carried[0] < stop, body, start)
    oldest = jnp.where(count > CAPACITY, count % CAPACITY, 0)
    losses, steps = (jnp.roll(row, -oldest) for row in rows)
    return carry, losses, (steps, count)


def _until_logged(x: Any, stop: Any) -> Any:
    def body(carried: Any) -> Any:
        i, carry = carried
        carry = step(carry)
        log({"loss": carry}, step=i)
        return i + 1, carry

    return jax.lax.while_loop(lambda carried: carried[0] < stop, body, (jnp.int32(0), x))[1]


def ring_of_ten() -> tuple[Side, Side]:
    """Ten keys of one log call: by hand they share the step column, the slot and the count."""

    def by_hand(x: Any, stop: Any) -> Any:
        def body(carried: Any) -> Any:
            i, carry, (rows, steps) = carried
            carry = step(carry)
            slot = i % CAPACITY
            new = [_put(row, v, slot) for row, v in zip(rows, ten(carry), strict=True)]
            return i + 1, carry, (new, _put(steps, i, slot))

        start = ([jnp.zeros(CAPACITY)] * 10, jnp.zeros(CAPACITY, jnp.int32))
        count, carry, rings = jax.lax.while_loop(
            lambda carried: carried[0] < stop, body, (jnp.int32(0), x, start)
        )
        oldest = jnp.where(count > CAPACITY, count % CAPACITY, 0)
        rows, steps = jax.tree.map(lambda ring: jnp.roll(ring, -oldest), rings)
        return carry, rows, (steps, count)

    def logged(x: Any, stop: Any) -> Any:
        def body(carried: Any) -> Any:
            i, carry = carried
            carry = step(carry)
            log_ten(carry, i)
            return i + 1, carry

        return jax.lax.while_loop(lambda carried: carried[0] < stop, body, (jnp.int32(0), x))[1]

    args = (jnp.float32(1), jnp.int32(STEPS))
    harvested = spool(logged, capacity=CAPACITY)
    return Call(jax.jit(by_hand), args), Call(jax.jit(harvested), args)


def _scan_logged(x: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        carry = step(carry)
        log({"loss": carry}, step=i)
        return carry, None

    return jax.lax.scan(body, x, jnp.arange(STEPS))[0]


def mean_of_scalar() -> tuple[Side, Side]:
    return _mean(jnp.float32(1), spool(_scan_logged, reduce="mean"), lambda carry: [carry])


def mean_of_vector() -> tuple[Side, Side]:
    return _mean(jnp.linspace(0, 1, 64), spool(_scan_logged, reduce="mean"), lambda carry: [carry])


def mean_of_ten() -> tuple[Side, Side]:
    return _mean(jnp.float32(1), spool(ten_logged, reduce="mean"), ten)


def _mean(x: Any, harvested: Any, values: Callable[[Any], list[Any]]) -> tuple[Side, Side]:
    """By hand with Kahan's compensated sum: logax too keeps the digits that additions lose."""

    def added(pair: tuple[Any, Any], value: Any) -> tuple[Any, Any]:
        total, lost = pair
        term = value + lost
        new = total + term
        return new, term - (new - total)

    def by_hand(x: Any) -> Any:
        def body(carried: Any, i: Any) -> Any:
            carry, sums, _ = carried
            carry = step(carry)
            new = [added(pair, v) for pair, v in zip(sums, values(carry), strict=True)]
            return (carry, new, i), None

        start = (x, [(jnp.zeros_like(v), jnp.zeros_like(v)) for v in values(x)], jnp.int32(0))
        (carry, sums, last), _ = jax.lax.scan(body, start, jnp.arange(STEPS))
        return carry, [total[None] / STEPS for total, _ in sums], [last[None]]

    return Call(jax.jit(by_hand), (x,)), Call(jax.jit(harvested), (x,))


def mean_by_plain_sum() -> tuple[Side, Side]:
    def by_hand(x: Any) -> Any:
        def body(carried: Any, i: Any) -> Any:
            carry, total, _ = carried
            carry = step(carry)
            return (carry, total + carry, i), None

        start = (x, jnp.zeros_like(x), jnp.int32(0))
        (carry, total, last), _ = jax.lax.scan(body, start, jnp.arange(STEPS))
        return carry, total[None] / STEPS, [last[None]]

    x = jnp.linspace(0, 1, 64)
    return Call(jax.jit(by_hand), (x,)), Call(jax.jit(spool(_scan_logged, reduce="mean")), (x,))


def interval_of_scalar() -> tuple[Side, Side]:
    return _interval(jnp.float32(1))


def interval_of_vector() -> tuple[Side, Side]:
    return _interval(jnp.linspace(0, 1, 64))


def _interval(x: Any) -> tuple[Side, Side]:
    rows = STEPS // INTERVAL

    def by_hand(x: Any) -> Any:
        def body(carried: Any, i: Any) -> Any:
            carry, losses, steps = carried
            carry = step(carry)
            slot = jnp.where(i % INTERVAL == 0, i // INTERVAL, rows)
            return (carry, _put(losses, carry, slot), _put(steps, i, slot)), None

        start = (x, jnp.zeros((rows + 1, *x.shape)), jnp.zeros(rows + 1, jnp.int32))
        (carry, losses, steps), _ = jax.lax.scan(body, start, jnp.arange(STEPS))
        return carry, losses[:rows], [steps[:rows]]

    harvested = spool(_scan_logged, interval=INTERVAL)
    return Call(jax.jit(by_hand), (x,)), Call(jax.jit(harvested), (x,))


_GROUP = "jit(spool(f, ...))"

CASES = [
    Case(_GROUP, "while_loop of 1,000, capacity=100", GOAL, ring),
    Case(_GROUP, "the same, 10 scalars and a step in one log", GOAL, ring_of_ten),
    Case(_GROUP, "while_loop, capacity=100, vmap of 64 lanes", GOAL, ring_of_lanes),
    Case(_GROUP, 'scan of 1,000, a scalar, reduce="mean"', GOAL, mean_of_scalar),
    Case(_GROUP, 'scan of 1,000, 10 scalars, reduce="mean"', GOAL, mean_of_ten),
    Case(_GROUP, 'scan of 1,000, a vector of 64, reduce="mean"', GOAL, mean_of_vector),
    Case(_GROUP, "the same against a sum that loses digits", None, mean_by_plain_sum),
    Case(_GROUP, "scan of 1,000, a scalar, interval=100", GOAL, interval_of_scalar),
    Case(_GROUP, "scan of 1,000, a vector of 64, interval=100", GOAL, interval_of_vector),
]

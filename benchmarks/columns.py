"""Compiled programs whose number of records is known: `jit(spool(f))` against scan outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.case import Case
from benchmarks.timing import Call, Side
from logax import log, spool

STEPS = 1000
LANES = 64
GOAL = 1.10


def step(carry: Any) -> Any:
    """The work of one iteration, as small as can be, so that logging weighs as much as it can."""
    return carry + 0.01 * jnp.sin(carry)


def scalar() -> tuple[Side, Side]:
    return _compiled(jnp.float32(1), scalar_by_hand, spool(scalar_logged))


def scalar_by_hand(x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        carry = step(carry)
        return carry, carry

    carry, losses = jax.lax.scan(body, x, None, length=STEPS)
    return carry, losses, ()


def scalar_logged(x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        carry = step(carry)
        log({"loss": carry})
        return carry, None

    return jax.lax.scan(body, x, None, length=STEPS)[0]


def ten_scalars() -> tuple[Side, Side]:
    def by_hand(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            carry = step(carry)
            return carry, (ten(carry), i)

        carry, (values, steps) = jax.lax.scan(body, x, jnp.arange(STEPS))
        return carry, values, [steps]

    return _compiled(jnp.float32(1), by_hand, spool(ten_logged))


def ten(carry: Any) -> list[Any]:
    """Ten scalars of an iteration."""
    return [carry * (k + 1) for k in range(10)]


def log_ten(carry: Any, i: Any) -> None:
    """The same in one log."""
    log({f"metric_{k}": value for k, value in enumerate(ten(carry))}, step=i)


def ten_logged(x: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        carry = step(carry)
        log_ten(carry, i)
        return carry, None

    return jax.lax.scan(body, x, jnp.arange(STEPS))[0]


def vector() -> tuple[Side, Side]:
    return _compiled(jnp.linspace(0, 1, 64), scalar_by_hand, spool(scalar_logged))


def nested() -> tuple[Side, Side]:
    outer, inner = 50, 20

    def by_hand(x: Any) -> Any:
        def epoch(carry: Any, i: Any) -> Any:
            def batch(carry: Any, j: Any) -> Any:
                carry = step(carry)
                return carry, (carry, i, j)

            carry, (loss, epochs, batches) = jax.lax.scan(batch, carry, jnp.arange(inner))
            return carry, (loss, carry, epochs, batches, i)

        carry, (loss, last, epochs, batches, i) = jax.lax.scan(epoch, x, jnp.arange(outer))
        return carry, (loss.ravel(), last), (epochs.ravel(), batches.ravel(), i)

    def logged(x: Any) -> Any:
        def epoch(carry: Any, i: Any) -> Any:
            def batch(carry: Any, j: Any) -> Any:
                carry = step(carry)
                log({"loss": carry}, epoch=i, batch=j)
                return carry, None

            carry, _ = jax.lax.scan(batch, carry, jnp.arange(inner))
            log({"last": carry}, epoch=i)
            return carry, None

        return jax.lax.scan(epoch, x, jnp.arange(outer))[0]

    return _compiled(jnp.float32(1), by_hand, spool(logged))


def differentiated() -> tuple[Side, Side]:
    def with_columns(x: Any) -> Any:
        carry, losses, _ = scalar_by_hand(x)
        return carry, losses

    def by_hand(x: Any) -> Any:
        gradient, losses = jax.grad(with_columns, has_aux=True)(x)
        return gradient, losses, ()

    return _compiled(jnp.float32(1), by_hand, jax.grad(spool(scalar_logged), has_aux=True))


def lanes_outside() -> tuple[Side, Side]:
    x = jnp.linspace(0, 1, LANES)
    return _compiled(x, jax.vmap(scalar_by_hand), jax.vmap(spool(scalar_logged)))


def lanes_inside() -> tuple[Side, Side]:
    x = jnp.linspace(0, 1, LANES)
    by_hand = jax.vmap(scalar_by_hand, out_axes=(0, 1, 0))
    return _compiled(x, by_hand, spool(jax.vmap(scalar_logged)))


def _compiled(x: Any, by_hand: Any, harvested: Any) -> tuple[Side, Side]:
    return Call(jax.jit(by_hand), (x,)), Call(jax.jit(harvested), (x,))


_GROUP = "jit(spool(f))"

CASES = [
    Case(_GROUP, "scan of 1,000 steps, 1 scalar", GOAL, scalar),
    Case(_GROUP, "scan of 1,000 steps, 10 scalars and a step", GOAL, ten_scalars),
    Case(_GROUP, "scan of 1,000 steps, a vector of 64", GOAL, vector),
    Case(_GROUP, "scan of 50 in it one of 20, 2 keys, 2 steps", GOAL, nested),
    Case(_GROUP, "grad(spool(f), has_aux=True), scan of 1,000", GOAL, differentiated),
    Case(_GROUP, "vmap(spool(f)), 64 lanes, scan of 1,000", GOAL, lanes_outside),
    Case(_GROUP, "spool(vmap(f)), 64 lanes, scan of 1,000", GOAL, lanes_inside),
]

"""Tracing and compiling of functions that JAX has not seen before.

The large one logs 27 keys: in straight code, in a scan, in a `while_loop` and in a jitted helper
that is used 40 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.columns import scalar_by_hand, scalar_logged
from benchmarks.timing import Building, Side
from logax import log, spool

GOAL = 1.5
HELPED = 40
STAGES = 20
CAPACITY = 16
MATRIX = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)


def program_by_hand() -> Callable[..., Any]:
    @jax.jit
    def helper(x: Any) -> Any:
        y = jnp.maximum(x @ MATRIX, 0.1)
        return y, jnp.sqrt(jnp.sum(y * y))

    def body(carry: Any, i: Any) -> Any:
        carry = carry + 0.01 * jnp.sin(carry)
        largest, least = jnp.max(carry), jnp.min(carry)
        carry = carry * 0.99
        return carry, (largest, least, jnp.sum(carry), jnp.mean(carry), i)

    def search(carried: Any) -> Any:
        i, x, residuals, lengths, steps = carried
        x = x * 0.7
        residual = jnp.max(jnp.abs(x))
        x = x - 1e-3 * residual
        slot = i % CAPACITY
        return (
            i + 1,
            x,
            residuals.at[slot].set(residual),
            lengths.at[slot].set(jnp.sum(x)),
            steps.at[slot].set(i),
        )

    def program(x: Any) -> Any:
        stages, norms = [], []
        for k in range(STAGES):
            x = x * 0.9 + 0.1 * k
            stages.append(jnp.mean(x))
        for _ in range(HELPED):
            x, norm = helper(x)
            norms.append(norm)
        x, columns = jax.lax.scan(body, x, jnp.arange(100))
        rows = (jnp.zeros(CAPACITY), jnp.zeros(CAPACITY), jnp.zeros(CAPACITY, jnp.int32))
        count, x, *rings = jax.lax.while_loop(
            lambda carried: jnp.max(jnp.abs(carried[1])) > 1e-2, search, (jnp.int32(0), x, *rows)
        )
        oldest = jnp.where(count > CAPACITY, count % CAPACITY, 0)
        residuals, lengths, steps = (jnp.roll(ring, -oldest) for ring in rings)
        values = ([stage[None] for stage in stages], jnp.stack(norms), columns[:-1])
        return x, (*values, residuals, lengths), (columns[-1], steps, count)

    return program


def program_logged() -> Callable[..., Any]:
    @jax.jit
    def helper(x: Any) -> Any:
        y = jnp.maximum(x @ MATRIX, 0.1)
        log({"norm": jnp.sqrt(jnp.sum(y * y))})
        return y

    def body(carry: Any, i: Any) -> Any:
        carry = carry + 0.01 * jnp.sin(carry)
        log({"largest": jnp.max(carry), "least": jnp.min(carry)}, step=i)
        carry = carry * 0.99
        log({"sum": jnp.sum(carry), "mean": jnp.mean(carry)}, step=i)
        return carry, None

    def search(carried: Any) -> Any:
        i, x = carried
        x = x * 0.7
        residual = jnp.max(jnp.abs(x))
        x = x - 1e-3 * residual
        log({"residual": residual, "length": jnp.sum(x)}, iteration=i)
        return i + 1, x

    def program(x: Any) -> Any:
        for k in range(STAGES):
            x = x * 0.9 + 0.1 * k
            log({f"stage_{k}": jnp.mean(x)})
        for _ in range(HELPED):
            x = helper(x)
        x, _ = jax.lax.scan(body, x, jnp.arange(100))
        return jax.lax.while_loop(
            lambda carried: jnp.max(jnp.abs(carried[1])) > 1e-2, search, (jnp.int32(0), x)
        )[1]

    return spool(program, capacity={"residual": CAPACITY, "length": CAPACITY})


def whole() -> tuple[Side, Side]:
    args = (jnp.linspace(0, 1, 16),)
    return Building(program_by_hand, args), Building(program_logged, args)


def traced() -> tuple[Side, Side]:
    args = (jnp.linspace(0, 1, 16),)
    by_hand = Building(program_by_hand, args, compiles=False)
    return by_hand, Building(program_logged, args, compiles=False)


def helped() -> tuple[Side, Side]:
    def by_hand() -> Callable[..., Any]:
        @jax.jit
        def helper(x: Any) -> Any:
            y = jnp.maximum(x @ MATRIX, 0.1)
            return y, jnp.sum(y)

        def program(x: Any) -> Any:
            sums = []
            for _ in range(HELPED):
                x, total = helper(x)
                sums.append(total)
            return x, jnp.stack(sums), ()

        return program

    def logged() -> Callable[..., Any]:
        @jax.jit
        def helper(x: Any) -> Any:
            y = jnp.maximum(x @ MATRIX, 0.1)
            log({"sum": jnp.sum(y)})
            return y

        def program(x: Any) -> Any:
            for _ in range(HELPED):
                x = helper(x)
            return x

        return spool(program)

    args = (jnp.linspace(0, 1, 16),)
    return Building(by_hand, args), Building(logged, args)


def small() -> tuple[Side, Side]:
    def by_hand() -> Callable[..., Any]:
        def program(x: Any) -> Any:
            return scalar_by_hand(x)

        return program

    def logged() -> Callable[..., Any]:
        def program(x: Any) -> Any:
            return scalar_logged(x)

        return spool(program)

    args = (jnp.float32(1),)
    return Building(by_hand, args), Building(logged, args)


_GROUP = "tracing and compiling"

CASES = [
    Case(_GROUP, "27 keys, loops, a helper used 40 times", GOAL, whole),
    Case(_GROUP, "of that, tracing and lowering alone", None, traced),
    Case(_GROUP, "a jitted helper that logs, used 40 times", GOAL, helped),
    Case(_GROUP, "scan of 1,000 steps, 1 scalar", GOAL, small),
]

"""Calls from Python: `spool(f)(x)` against a jitted call, logs that nobody harvests, `concat`.

The function is as small as can be, so that what is timed is the call itself.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.columns import STEPS, scalar_by_hand, scalar_logged, step
from benchmarks.timing import Allowance, Call, Side
from logax import concat, log, logdict, spool

GOAL_OF_CALLS = 1.5
GOAL_OF_UNUSED = 1.02
JOINED_LOGDICTS = 1_000
SECONDS_TO_JOIN = 0.05


def tiny() -> tuple[Side, Side]:
    def by_hand(x: Any) -> Any:
        y = x * 2 + 1
        return y, y[None], ()

    def logged(x: Any) -> Any:
        y = x * 2 + 1
        log({"y": y})
        return y

    x = jnp.float32(1)
    return Call(jax.jit(by_hand), (x,)), Call(spool(logged), (x,))


def training_step() -> tuple[Side, Side]:
    def loss_of(parameters: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ parameters["weight"] + parameters["bias"])
        return jnp.mean(hidden**2)

    def update(parameters: Any, gradient: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)

    def by_hand(x: Any, parameters: Any, i: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(parameters, x)
        out = (loss, update(parameters, gradient))
        return out, (loss[None], gradient["bias"][None]), [i[None]]

    def logged(x: Any, parameters: Any, i: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(parameters, x)
        log({"loss": loss, "bias": gradient["bias"]}, step=i)
        return loss, update(parameters, gradient)

    parameters = {"weight": jnp.ones((8, 8)) / 8, "bias": jnp.zeros(8)}
    args = (jnp.ones((4, 8)), parameters, jnp.int32(7))

    def loss(result: Any) -> Any:
        return result[0][0]

    return Call(jax.jit(by_hand), args, loss), Call(spool(logged), args, loss)


def scan() -> tuple[Side, Side]:
    x = jnp.float32(1)
    return Call(jax.jit(scalar_by_hand), (x,)), Call(spool(scalar_logged), (x,))


def new_spool_each_time() -> tuple[Side, Side]:
    def anew(x: Any) -> Any:
        harvested = spool(scalar_logged)
        return harvested(x)

    x = jnp.float32(1)
    return Call(jax.jit(scalar_by_hand), (x,)), Call(anew, (x,))


def unused_tiny() -> tuple[Side, Side]:
    def plain(x: Any) -> Any:
        y = x * 2 + 1
        return y, y + 1

    def logged(x: Any) -> Any:
        y = x * 2 + 1
        log({"y": y})
        return y, y + 1

    x = jnp.float32(1)
    return Call(jax.jit(plain), (x,)), Call(jax.jit(logged), (x,))


def unused_scan() -> tuple[Side, Side]:
    def logged(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            carry = step(carry)
            log({"loss": carry})
            return carry, carry

        carry, losses = jax.lax.scan(body, x, None, length=STEPS)
        return carry, losses, ()

    x = jnp.float32(1)
    return Call(jax.jit(scalar_by_hand), (x,)), Call(jax.jit(logged), (x,))


class Joining:
    """`concat` of the logdicts of a Python loop, each of three keys and one record.

    They are new each time, because JAX caches the numbers of an array that was fetched.
    """

    def __init__(self) -> None:
        def logged(x: Any, i: Any) -> Any:
            log({"x": x, "square": x**2, "vector": jnp.full(3, x)}, step=i)
            return x + 1

        self._step = jax.jit(spool(logged))

    def _logdicts(self) -> list[logdict]:
        x, logdicts = jnp.float32(0), []
        for i in range(JOINED_LOGDICTS):
            x, logs = self._step(x, i)
            logdicts.append(logs)
        return jax.block_until_ready(logdicts)  # type: ignore[no-any-return]

    def seconds(self, number: int) -> float:
        total = 0.0
        for _ in range(number):
            logdicts = self._logdicts()
            start = time.perf_counter()
            jax.block_until_ready(concat(logdicts))
            total += time.perf_counter() - start
        return total

    def results(self) -> Any:
        return [*concat(self._logdicts()).values()]


def joining() -> tuple[Side, Side]:
    x = np.arange(JOINED_LOGDICTS, dtype=np.float32)
    return Allowance(SECONDS_TO_JOIN, [x, x**2, np.tile(x[:, None], 3)]), Joining()


_CALLED = "spool(f)(x), no outer jit"
_UNUSED = "nobody harvests"

CASES = [
    Case(_CALLED, "a tiny function", GOAL_OF_CALLS, tiny),
    Case(_CALLED, "a small training step, 2 keys and a step", GOAL_OF_CALLS, training_step),
    Case(_CALLED, "scan of 1,000 steps, 1 scalar", GOAL_OF_CALLS, scan),
    Case(_CALLED, "the same, a new spool(f) each time", None, new_spool_each_time),
    Case(_UNUSED, "a tiny function", GOAL_OF_UNUSED, unused_tiny),
    Case(_UNUSED, "scan of 1,000 steps", GOAL_OF_UNUSED, unused_scan),
    Case("concat(logdicts)", "1,000 logdicts of three keys, 50 ms allowed", 1.0, joining),
]

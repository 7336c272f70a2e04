"""Functions that log, as users write them.

They are module-level functions, so that each compiles once for all tested loggers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from logax._log import log


def growth(x: Any) -> Any:
    """Log three records of one key, with a step."""

    def body(x: Any, i: Any) -> Any:
        x = x * 2
        log({"loss": x}, step=i)
        return x, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


def episodes(x: Any) -> Any:
    """Log with two named steps, one of which is called `step`."""

    def body(x: Any, i: Any) -> Any:
        log({"a": x}, episode=i // 2, step=10 * i)
        return x + 1, None

    return jax.lax.scan(body, x, jnp.arange(4))[0]


def log_twice(x: Any) -> Any:
    """Log one key twice, without a step."""
    log({"a": x})
    log({"a": x + 1})
    return x


def arrays(x: Any) -> Any:
    """Log a vector and a matrix."""
    log({"v": x, "m": x.reshape(2, 2)}, step=1)
    return x


def count_to(n: Any) -> Any:
    """Log `n` records."""

    def body(i: Any) -> Any:
        log({"i": 10 * i}, step=i)
        return i + 1

    return jax.lax.while_loop(lambda i: i < n, body, 0)


def halves_to(n: Any) -> Any:
    """Log one key at two places of a loop with `n` iterations."""

    def body(i: Any) -> Any:
        log({"x": i / 1}, step=2 * i)
        log({"x": i + 0.5}, step=2 * i + 1)
        return i + 1

    return jax.lax.while_loop(lambda i: i < n, body, 0)


def even_and_odd() -> Any:
    """Log different keys in the branches of a `cond`."""

    def step(_: Any, i: Any) -> Any:
        jax.lax.cond(
            i % 2 == 0,
            lambda: log({"even": i, "both": -i}, step=i),
            lambda: log({"odd": i, "both": i}, step=i),
        )
        return None, None

    return jax.lax.scan(step, None, jnp.arange(4))


def log_count_from(start: Any) -> Any:
    """Log four records, counted from `start`."""

    def body(i: Any, _: Any) -> Any:
        log({"i": i}, step=i)
        return i + 1, None

    return jax.lax.scan(body, start, length=4)[0]


def loop_in_a_loop() -> Any:
    """Log in a loop and in a loop inside it."""

    def outer(_: Any, i: Any) -> Any:
        def inner(_: Any, j: Any) -> Any:
            log({"inner": j}, step=i * 3 + j)
            return None, None

        jax.lax.scan(inner, None, jnp.arange(3))
        log({"outer": i}, step=i * 3 + 2)
        return None, None

    return jax.lax.scan(outer, None, jnp.arange(2))


def log_with_tags(x: Any) -> Any:
    """Log records that a harvest can select by name or by tag."""
    log({"a": x, "b": x + 1}, step=0)
    log({"c": x}, step=1, tags="rare")
    return x

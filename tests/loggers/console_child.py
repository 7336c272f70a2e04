"""A program of eight seeds that is shown in its terminal, which is resized in the middle."""

import sys
from typing import Any

import jax
import jax.numpy as jnp

import logax
from logax.loggers.console import ConsoleLogger


def train(seed: Any, start: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        logax.log({"loss": i + seed - 3.5}, step=i)
        return carry, None

    return jax.lax.scan(body, 0.0, start + jnp.arange(1000))[0]


def main() -> None:
    logger = ConsoleLogger(refresh=1)
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
    seeds = jnp.arange(8.0)
    for start in (0, 1000):
        jax.vmap(lambda state, seed: logger.tap(train, state, buffer=50)(seed, start))(  # noqa: B023
            states, seeds
        )
        logax.flush()
        if not start:
            sys.stdin.readline()
            print("printed by the program")  # noqa: T201
    logger.finish(states)
    print("the end")  # noqa: T201


if __name__ == "__main__":
    main()

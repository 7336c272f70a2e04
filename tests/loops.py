"""Loops for the tests of `logax.loop`: states that are donated, steps that can be held up."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from gates import pending


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Particles:
    """A state: `energy` is the number of steps done."""

    position: Any
    energy: Any

    @classmethod
    def at_rest(cls) -> Particles:
        return cls(jnp.zeros((4, 2)), jnp.float32(0))


def _advance(state: Particles) -> Particles:
    return Particles(state.position + 1, state.energy + 1)


advance = jax.jit(_advance, donate_argnums=0)
"""The next state. The old one is gone after it."""


def run(logger: Any, steps: int = 10, at: Callable[[int], None] = lambda step: None) -> Any:
    """The loop as users write it; `at` is called after each step was logged."""
    state = Particles.at_rest()
    with logger:
        for step in range(steps):
            before, state = state, advance(state)
            for array in jax.tree.leaves(before):
                array.delete()  # also where JAX could not donate it, since somebody looks at it
            logger.log(state, step)
            at(step)
    return state


class Told:
    """A logger of nobody's family: notes what happens to it, and fails where it is told to."""

    def __init__(self, name: str, book: list[Any], *fails: str, error: Any = ValueError) -> None:
        self.name, self.book, self.fails, self.error = name, book, fails, error

    def _note(self, what: str, *more: Any) -> None:
        self.book.append((self.name, what, *more))
        if what in self.fails:
            raise self.error(f"{self.name} {what}")

    def __enter__(self) -> Told:
        self._note("enter")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._note("exit", *([] if kind is None else [kind.__name__]))

    def log(self, state: Any, step: int) -> None:
        self._note("log", step, float(state.energy))


@contextlib.contextmanager
def held_state() -> Iterator[Particles]:
    """A state that is not ready before the block is left: whoever waits for it waits forever."""
    gate = threading.Event()
    try:
        state = jax.jit(lambda x: Particles(jnp.zeros((4, 2)) + x, x - x))(pending(gate))
        yield state
        assert not gate.is_set()
        assert not state.energy.is_ready(), "something waited for the device"
    finally:
        gate.set()
    jax.block_until_ready(state)

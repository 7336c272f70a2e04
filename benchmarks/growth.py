"""How cost grows: with records, lanes, the size of values, depth, log sites and keys.

Of each size four programs are timed, which compute the same: one that returns the values by hand,
one that is spooled, one that is tapped with a buffer of 64, and, as far as one can wait for it, one
with a `jax.debug.callback` for each log. Delivery on the host is waited for, and not timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.columns import step
from benchmarks.streams import BUFFER, Stream, ignore
from benchmarks.timing import Building, Call, Effort, Side, medians
from logax import log, spool, tap

BY_HAND, SPOOL, TAP, CALLBACK = "by hand", "spool", "tap, buffer=64", "jax.debug.callback"
GOAL = 1.10
GOAL_OF_BUILDING = 1.5
_TRIPS = 1024  # of all loops of a nest together


@dataclasses.dataclass(frozen=True)
class Program:
    """One program in four forms.

    Attributes:
      by_hand: Returns what is logged, as `(out, values, ())`.
      said: Makes the other forms from what is done with the values, which have names there.
      x: What it is called with.
      lanes: Whether it runs under `vmap`.
    """

    by_hand: Callable[[Any], Any]
    said: Callable[[Callable[[dict[str, Any]], None]], Callable[[Any], Any]]
    x: Any
    lanes: bool = False

    def form(self, name: str) -> Callable[[Any], Any]:
        """The function that is timed: `BY_HAND`, `SPOOL`, `TAP` or `CALLBACK`."""
        if name == BY_HAND:
            return jax.vmap(self.by_hand, out_axes=(0, 1, 0)) if self.lanes else self.by_hand
        whole = self.said(_call_back if name == CALLBACK else log)
        whole = jax.vmap(whole) if self.lanes else whole
        if name == SPOOL:
            return spool(whole)
        return tap(whole, ignore, buffer=BUFFER, lanes="batch") if name == TAP else whole


@dataclasses.dataclass(frozen=True)
class Curve:
    """Something that grows.

    Attributes:
      title: What, for people.
      sizes: How large it becomes.
      program: Of a size.
      judged: The size of which there is a row with a goal, timed many times.
      most: Up to which size there is a callback for each log.
      builds: Whether tracing and compiling is timed, and not a call.
    """

    title: str
    sizes: Sequence[int]
    program: Callable[[int], Program]
    judged: int
    most: int = 0
    builds: bool = False

    def names(self, size: int) -> list[str]:
        """The forms that are timed."""
        return [BY_HAND, SPOOL, TAP, *([CALLBACK] if size <= self.most else [])]

    def run(self, effort: Effort) -> dict[str, Any]:
        """The seconds of each form at each size, None where it was not timed."""
        seconds: dict[str, list[float | None]] = {}
        for at, size in enumerate(self.sizes):
            # What streams large arrays leaves the host busy, and would be felt by its neighbours.
            streams = [[name] for name in self.names(size)[2:]]
            for names in ([BY_HAND, SPOOL], *streams):
                sides = [self.side(size, name) for name in names]
                for name, own in zip(names, medians(sides, _short(effort)), strict=True):
                    seconds.setdefault(name, [None] * len(self.sizes))[at] = own
        return {"title": self.title, "sizes": list(self.sizes), "seconds": seconds}

    def side(self, size: int, name: str) -> Side:
        """One form, to be timed."""
        if self.builds:
            return Building(lambda: self.program(size).form(name), (self.program(size).x,))
        program = self.program(size)
        function = jax.jit(program.form(name))
        if name in (BY_HAND, SPOOL):
            return Call(function, (program.x,), _first)
        return Stream(function, program.x)

    def case(self) -> Case:
        """A row of one size, spooled."""
        size = self.judged

        def make() -> tuple[Side, Side]:
            return self.side(size, BY_HAND), self.side(size, SPOOL)

        goal = GOAL_OF_BUILDING if self.builds else GOAL
        return Case("spool(f), as it grows", f"{self.title}: {size:,}", goal, make)


def _short(effort: Effort) -> Effort:
    """Less effort for each of many points."""
    return dataclasses.replace(effort, fewest=5, most=200, total_seconds=effort.total_seconds / 4)


def _first(result: Any) -> Any:
    return jax.tree.leaves(result)[0]


def _call_back(values: dict[str, Any]) -> None:
    jax.debug.callback(lambda **_: None, **values)


def _loop(length: int, names: Sequence[str], x: Any, lanes: bool = False) -> Program:
    """A scan in which each step says some values in one go."""

    def values(carry: Any) -> dict[str, Any]:
        return {name: carry * (k + 1) for k, name in enumerate(names)}

    def by_hand(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            carry = step(carry)
            return carry, list(values(carry).values())

        carry, columns = jax.lax.scan(body, x, None, length=length)
        return carry, columns, ()

    def said(say: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            def body(carry: Any, _: Any) -> Any:
                carry = step(carry)
                say(values(carry))
                return carry, None

            return jax.lax.scan(body, x, None, length=length)[0]

        return function

    return Program(by_hand, said, x, lanes)


def _records(number: int) -> Program:
    return _loop(number, ["value"], jnp.float32(1))


def _lanes(number: int) -> Program:
    return _loop(100, ["value"], jnp.linspace(0, 1, number), lanes=True)


def _bytes(number: int) -> Program:
    return _loop(4, ["value"], jnp.linspace(0, 1, number // 4))


def _keys(number: int) -> Program:
    return _loop(100, [f"key{k:04}" for k in range(number)], jnp.float32(1))


def _depth(number: int) -> Program:
    """Loops in loops, with as many records in all whatever their depth."""
    trips = round(_TRIPS ** (1 / number))

    def by_hand(x: Any) -> Any:
        def level(left: int) -> Callable[[Any, Any], Any]:
            if not left:
                return lambda carry, _: (step(carry), step(carry))
            return lambda carry, _: jax.lax.scan(level(left - 1), carry, None, length=trips)

        carry, values = level(number)(x, None)
        return carry, [values.reshape(-1)], ()

    def said(say: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
        def level(left: int) -> Callable[[Any, Any], Any]:
            def body(carry: Any, _: Any) -> Any:
                if left:
                    return jax.lax.scan(level(left - 1), carry, None, length=trips)[0], None
                carry = step(carry)
                say({"value": carry})
                return carry, None

            return body

        return lambda x: level(number)(x, None)[0]

    return Program(by_hand, said, jnp.float32(1))


def _sites(number: int) -> Program:
    """One loop with many places that log, each under a key of its own."""

    def by_hand(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            carry = step(carry)
            return carry, [carry * np.float32(k + 1) for k in range(number)]

        carry, columns = jax.lax.scan(body, x, None, length=10)
        return carry, columns, ()

    def said(say: Callable[[dict[str, Any]], None]) -> Callable[[Any], Any]:
        def function(x: Any) -> Any:
            def body(carry: Any, _: Any) -> Any:
                carry = step(carry)
                for k in range(number):
                    say({f"key{k:04}": carry * np.float32(k + 1)})
                return carry, None

            return jax.lax.scan(body, x, None, length=10)[0]

        return function

    return Program(by_hand, said, jnp.float32(1))


CURVES = [
    Curve("records in a call", tuple(10**k for k in range(7)), _records, 10_000, most=1000),
    Curve(
        "lanes of vmap, 100 records each", (1, 4, 16, 64, 256, 1024, 4096), _lanes, 4096, most=16
    ),
    Curve(
        "bytes of a value, 4 records", tuple(4**k for k in range(1, 14)), _bytes, 4**13, most=4**13
    ),
    Curve("depth of loops, 1,024 records", (1, 2, 5, 10), _depth, 10, most=10),
    Curve("log sites in a loop of 10", (1, 10, 100, 1000), _sites, 100, most=10),
    Curve("keys of a log, 100 records", (1, 10, 100, 1000), _keys, 100, most=10),
    Curve("log sites, to compile", (1, 10, 100, 1000), _sites, 100, most=100, builds=True),
]

CASES = [curve.case() for curve in CURVES]

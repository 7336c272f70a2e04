"""Programs that stream: `tap` against `jax.debug.callback`, and against `spool`.

What is timed is the program, from the call until its result is there; the callback does nothing,
and all that is still on its way to it arrives before the next timing. A *record's price* is the
time beyond that of the same program without any logging.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.columns import step
from benchmarks.timing import Side
from logax import flush, log, spool, tap

STEPS = 1_000
BUFFER = 64
LANES = 1_024
ON_GPU = jax.default_backend() == "gpu"


@dataclasses.dataclass(frozen=True)
class Stream:
    """A call whose records are delivered before the clock starts again.

    Attributes:
      function: What is called.
      x: With what.
      extra: Seconds that are added to each call.
      said: Gives the records of such a call, one array for each key, where they are compared.
    """

    function: Callable[..., Any]
    x: Any
    extra: float = 0.0
    said: Callable[[], Sequence[Any]] = tuple

    def seconds(self, number: int) -> float:
        total = 0.0
        for _ in range(number):
            start = time.perf_counter()
            jax.block_until_ready(self.function(self.x))
            total += time.perf_counter() - start + self.extra
            flush()
        return total

    def results(self) -> Any:
        return [*jax.tree.leaves(self.function(self.x))[:1], *self.said()]


class Delivered(Stream):
    """A tapped call, timed until the callback has all of its records."""

    def seconds(self, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            jax.block_until_ready(self.function(self.x))
            flush()
        return time.perf_counter() - start


def ignore(record: Any) -> None:
    pass


def loop(
    say: Callable[[Any, Any], None], advance: Callable[[Any], Any] = step, steps: int = STEPS
) -> Any:
    """A scan that advances and says something of each step."""

    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            carry = advance(carry)
            say(carry, i)
            return carry, None

        return jax.lax.scan(body, x, jnp.arange(steps))[0]

    return function


def log_scalars(scalars: int) -> Callable[[Any, Any], None]:
    def say(carry: Any, i: Any) -> None:
        log({f"key{j}": carry + j for j in range(scalars)}, step=i)

    return say


def call_back(
    scalars: int, callback: Callable[..., None] = lambda *_: None
) -> Callable[[Any, Any], None]:
    def say(carry: Any, i: Any) -> None:
        jax.debug.callback(callback, i, *(carry + j for j in range(scalars)))

    return say


def tapped(
    function: Callable[..., Any],
    x: Any,
    buffer: int | None,
    extra: float = 0.0,
    lanes: str = "split",
    timed: type[Stream] = Stream,
) -> Stream:
    """A tapped function."""

    def said() -> list[Any]:
        records: list[Any] = []
        tap(function, records.append, buffer=buffer, lanes=lanes)(x)
        flush()
        return [np.stack([record[key] for record in records]) for key in records[0]]

    return timed(tap(function, ignore, buffer=buffer, lanes=lanes), x, extra, said)


def _called_back(
    make: Callable[..., Callable[..., Any]], scalars: int, x: Any, extra: float = 0.0
) -> Stream:
    """A function, made with what is said at each step, that calls back."""

    def said() -> list[Any]:
        calls: list[Any] = []
        heard = jax.jit(make(call_back(scalars, lambda *values: calls.append(values))))
        jax.block_until_ready(heard(x))
        jax.effects_barrier()
        steps, *columns = zip(*calls, strict=True)
        order = np.argsort(steps)
        return [np.stack(column)[order] for column in columns]

    return Stream(jax.jit(make(call_back(scalars))), x, extra, said)


def spooled(function: Callable[..., Any], x: Any, extra: float = 0.0) -> Stream:
    """A spooled function."""
    harvested = jax.jit(spool(function))
    return Stream(harvested, x, extra, lambda: list(harvested(x)[1].values()))


def quiet(carry: Any, i: Any) -> None:
    pass


def plain_seconds(x: Any) -> float:
    """How long the program takes that says nothing."""
    plain = Stream(jax.jit(loop(quiet)), x)
    plain.seconds(3)
    return statistics.median(plain.seconds(1) for _ in range(11))


def _price(scalars: int, buffer: int) -> Callable[[], tuple[Side, Side]]:
    """A record's price with `jax.debug.callback` and with `tap`."""

    def make() -> tuple[Side, Side]:
        x = jnp.float32(1)
        floor = plain_seconds(x)
        ours = tapped(loop(log_scalars(scalars)), x, buffer, -floor)
        return _called_back(loop, scalars, x, -floor), ours

    return make


def _large(buffer: int) -> Callable[[], tuple[Side, Side]]:
    """An array of a megabyte at each step."""

    def make() -> tuple[Side, Side]:
        def function(say: Callable[[Any, Any], None]) -> Any:
            run = loop(say, lambda carry: carry * 0.999, steps=50)
            return lambda x: run(x).sum()

        x = jnp.ones(2**18)
        return _called_back(function, 1, x), tapped(function(log_scalars(1)), x, buffer)

    return make


def _allowed(scalars: int) -> tuple[Side, Side]:
    """`spool` and three microseconds a record, against `tap`."""
    x = jnp.float32(1)
    function = loop(log_scalars(scalars))
    return spooled(function, x, 3e-6 * STEPS), tapped(function, x, BUFFER)


def _dear_steps() -> tuple[Side, Side]:
    """Steps of some twenty microseconds or more."""
    grid = jnp.linspace(-1, 1, 1 << 24 if ON_GPU else 1 << 15)

    def advance(carry: Any) -> Any:
        return jnp.tanh(carry + grid).mean() + 0.5

    x, function = jnp.float32(1), loop(log_scalars(10), advance)
    return spooled(function, x), tapped(function, x, BUFFER)


def _lanes() -> tuple[Side, Side]:
    x = jnp.linspace(0, 1, LANES)
    spooled = jax.jit(jax.vmap(spool(loop(log_scalars(1)))))
    return Stream(spooled, x), Stream(_batched(), x)


def _more_lanes() -> tuple[Side, Side]:
    return Stream(_batched(), jnp.zeros(1)), Stream(_batched(), jnp.linspace(0, 1, LANES))


def _batched() -> Any:
    return jax.jit(jax.vmap(tap(loop(log_scalars(1)), ignore, buffer=BUFFER, lanes="batch")))


def _without_lanes(scalars: int, buffer: int) -> tuple[Side, Side]:
    """A tapped function outside of `vmap`, with both settings of `lanes`."""
    x, function = jnp.float32(1), loop(log_scalars(scalars))
    split = tapped(function, x, buffer, timed=Delivered)
    return split, tapped(function, x, buffer, lanes="batch", timed=Delivered)


class UncheckedCase(Case):
    """A row whose sides have different results."""

    def _check(self, by_hand: Any, logax: Any) -> None:
        pass


_PRICE = "a record of tap(f) against jax.debug.callback"
_SPOOL = "tap(f, buffer=64) against spool(f)"
_BATCH = 'tap(f, lanes="batch") against lanes="split", no lanes'

CASES = [
    Case(_PRICE, "buffer=64, 10 scalars", 1 / 60 if ON_GPU else 1 / 20, _price(10, BUFFER)),
    Case(_PRICE, "buffer=64, 1 scalar", None, _price(1, BUFFER)),
    Case(_PRICE, "buffer=1, 10 scalars", 1 / 5, _price(10, 1)),
    Case(_PRICE, "buffer=1, 1 scalar", 1 / 5, _price(1, 1)),
    Case(_PRICE, "buffer=1, an array of 1 MB, all of its time", None, _large(1)),
    Case(_PRICE, "buffer=8, an array of 1 MB, all of its time", None, _large(8)),
    Case(_SPOOL, "1 scalar, 3 µs a record more allowed", 1.0, lambda: _allowed(1)),
    Case(_SPOOL, "10 scalars, 3 µs a record more allowed", 1.0, lambda: _allowed(10)),
    Case(_SPOOL, "10 scalars, steps of 20 µs or more", 1.15, _dear_steps),
    Case(_SPOOL, "vmap of 1,024 lanes", None if ON_GPU else 1.3, _lanes),
    Case(_BATCH, "buffer=64, 10 scalars, until delivered", 1.1, lambda: _without_lanes(10, BUFFER)),
    Case(_BATCH, "buffer=1, 1 scalar, until delivered", 1.1, lambda: _without_lanes(1, 1)),
    UncheckedCase(
        "tap(f), 1,024 lanes against 1", "buffer=64", 3.0 if ON_GPU else None, _more_lanes
    ),
]

"""Reduced and thinned keys cost the same memory whatever the number of records.

Sizes are those that the compiler plans for temporaries and outputs, in excess of what it plans for
the same program when nothing is harvested. The program takes a million steps, or a thousand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import logax
from slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("optimized")

MEGABYTE = 1_000_000
WIDTH = 64


class Product(logax.Reducer):
    """A reducer as a user would write it."""

    def start(self, like: Any) -> Any:
        return jnp.ones(like.shape, like.dtype)

    def step(self, state: Any, value: Any) -> Any:
        return state * value

    def merge(self, first: Any, second: Any) -> Any:
        return first * second

    def finish(self, state: Any) -> Any:
        return state


NAMES = ("mean", "sum", "min", "max", "std", "first", "last", "count")
REDUCERS: dict[str, Any] = {name: name for name in NAMES}
REDUCERS |= {"first_bad": logax.FirstNonFinite(window=5), "product": Product()}


def advance(x: Any, i: Any, steps: int, keys: tuple[str, ...]) -> Any:
    def body(state: Any, _: None) -> Any:
        x, i = state
        x = jnp.sin(x) + 1.0
        logax.log(dict.fromkeys(keys, x), step=i)
        return (x, i + 1), None

    return jax.lax.scan(body, (x, i), None, length=steps)[0]


def scan(steps: int, *keys: str) -> Callable[[Any], Any]:
    return lambda x: advance(x, 0, steps, keys)[0].sum()


def nested_scans(steps: int, *keys: str) -> Callable[[Any], Any]:
    inner = {1_000: 10, 1_000_000: 1_000}[steps]

    def outer(state: Any, _: None) -> Any:
        return advance(*state, inner, keys), None

    return lambda x: jax.lax.scan(outer, (x, 0), None, length=steps // inner)[0][0].sum()


def while_loop(steps: int, *keys: str) -> Callable[[Any], Any]:
    def body(state: Any) -> Any:
        return advance(*state, 10, keys)

    return lambda x: jax.lax.while_loop(lambda state: state[1] < steps, body, (x, 0))[0].sum()


# Each way to use a harvest, beside the same without one.
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "spool(f)": (lambda f, spool: spool(f), lambda f: f),
    "grad(spool(f))": (lambda f, spool: jax.grad(spool(f), has_aux=True), jax.grad),
    "spool(grad(f))": (lambda f, spool: spool(jax.grad(f)), jax.grad),
}
EVERYWHERE = [
    (scan, "spool(f)"),
    (scan, "grad(spool(f))"),
    (nested_scans, "spool(f)"),
    (nested_scans, "grad(spool(f))"),
    (nested_scans, "spool(grad(f))"),
]


def planned(fun: Callable[..., Any]) -> int:
    """Bytes of temporaries and outputs."""
    argument = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    sizes = jax.jit(fun).lower(argument).compile().memory_analysis()
    return int(sizes.temp_size_in_bytes + sizes.output_size_in_bytes)


@functools.cache
def planned_unharvested(make: Callable[..., Any], steps: int, way: str) -> int:
    return planned(WAYS[way][1](make(steps, "x")))


def excess(make: Callable[..., Any], steps: int, way: str, *keys: str, **options: Any) -> int:
    """What a harvest of these keys takes beyond the plain program."""
    harvested = WAYS[way][0](make(steps, *keys), lambda f: logax.spool(f, **options))
    return planned(harvested) - planned_unharvested(make, steps, way)


@pytest.mark.parametrize("name", slow_but(["mean", "product"], REDUCERS))
def test_a_reduction_takes_as_much_for_a_million_records_as_for_a_thousand(name: str) -> None:
    thousand, million = (
        excess(scan, steps, "spool(f)", "x", reduce=REDUCERS[name]) for steps in (1_000, 1_000_000)
    )
    assert thousand == million < MEGABYTE


# A gradient of nested scans holds all the others, which are slow.
@pytest.mark.parametrize(("make", "way"), slow_but(EVERYWHERE[-1:], EVERYWHERE))
def test_all_reductions_together_stay_small_in_nested_scans_and_gradients(
    make: Callable[..., Any], way: str
) -> None:
    thousand, million = (
        excess(make, steps, way, *REDUCERS, reduce=REDUCERS) for steps in (1_000, 1_000_000)
    )
    assert thousand == million < MEGABYTE


def test_a_reduction_needs_no_bound_on_the_number_of_records() -> None:
    thousand, million = (
        excess(while_loop, steps, "spool(f)", "x", reduce="mean") for steps in (1_000, 1_000_000)
    )
    assert thousand == million < MEGABYTE


@pytest.mark.parametrize(("make", "way"), slow_but(EVERYWHERE[-1:], EVERYWHERE))
def test_an_interval_of_a_thousand_keeps_a_thousandth(make: Callable[..., Any], way: str) -> None:
    kept = 1_000 * WIDTH * 4
    assert kept <= excess(make, 1_000_000, way, "x", interval=1_000) < 2 * MEGABYTE


def test_a_capacity_bounds_a_loop_without_bound() -> None:
    kept = 1_000 * WIDTH * 4
    assert kept <= excess(while_loop, 1_000_000, "spool(f)", "x", capacity=1_000) < 2 * MEGABYTE


def test_all_records_together_take_their_own_size() -> None:
    """The measure itself sees what is kept: nothing is folded or thinned here."""
    own = 1_000_000 * (WIDTH + 1) * 4
    assert excess(scan, 1_000_000, "spool(f)", "x") == pytest.approx(own, rel=0.001)

"""Loops of equinox, optimistix and diffrax under `vmap`: each lane has the records it has alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from jax import lax

import logax
from slow_cases import slow

COUNTS = np.array([0, 2, 5, 3])


def loop(kind: str, condition: Any, body: Any, start: Any, max_steps: int | None = 16) -> Any:
    """A loop of equinox; a bounded one is two scans, one in the other."""
    return eqxi.while_loop(condition, body, start, max_steps=max_steps, kind=kind, base=4)


def nested(kind: str) -> Callable[[Any], Any]:
    """A loop of `n` iterations around one of `i + 1`."""

    def function(n: Any) -> Any:
        def outer(carry: Any) -> Any:
            i, x = carry
            logax.log({"x": x}, step=i)

            def inner(carry: Any) -> Any:
                j, x = carry
                logax.log({"y": x}, step=i, inner=j)
                return j + 1, x * 2.0

            _, x = loop(kind, lambda c: c[0] <= i, inner, (jnp.asarray(0), x))
            return i + 1, x

        return loop(kind, lambda c: c[0] < n, outer, (jnp.asarray(0), jnp.asarray(1.0)))[1]

    return function


def expected_records(n: int) -> tuple[list[tuple[float, int]], list[tuple[float, int, int]]]:
    """What `nested` logs under `x`, and under `y`."""
    outer, inner, x = [], [], 1.0
    for i in range(n):
        outer.append((x, i))
        for j in range(i + 1):
            inner.append((x, i, j))
            x *= 2
    return outer, inner


def records_of(seen: list[Any], lane: int) -> list[tuple[float, ...]]:
    """All records of a lane in order, each as its value and its steps."""
    own = [r for r in seen if r.lane == (lane,)]
    return [(*(float(x) for x in r.values()), *(int(s) for s in r.steps.values())) for r in own]


@pytest.mark.parametrize("kind", ["checkpointed", *slow("lax", "bounded")])
def test_lanes_of_nested_loops_of_equinox_log_as_if_alone(kind: str) -> None:
    function = nested(kind)
    out, logs = jax.jit(jax.vmap(logax.spool(function, capacity=32)))(COUNTS)
    np.testing.assert_array_equal(out, 2.0 ** (COUNTS * (COUNTS + 1) // 2))
    seen: list[Any] = []
    jax.jit(jax.vmap(logax.tap(function, seen.append, buffer=3)))(COUNTS)
    logax.flush()
    for lane, n in enumerate(COUNTS):
        outer, inner = expected_records(n)
        own = jax.tree.map(lambda x, lane=lane: x[lane], logs).compact()
        assert list(zip(own["x"], own.steps["step"]["x"], strict=True)) == outer
        steps = [own.steps["step"]["y"], own.steps["inner"]["y"]]
        assert list(zip(own["y"], *steps, strict=True)) == inner
        # In the order of the program, in which an outer record stands before its inner ones.
        in_order = sorted([*outer, *inner], key=lambda r: (r[1], r[2] if len(r) > 2 else -1))
        assert records_of(seen, lane) == in_order


@pytest.mark.slow
def test_the_gradient_of_a_checkpointed_loop_logs_the_forward_run_of_each_lane() -> None:
    def function(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            logax.log({"x": x}, step=i)
            return i + 1, jnp.sin(x)

        return loop("checkpointed", lambda c: c[0] < n, body, (jnp.asarray(0), x))[1]

    xs = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    spooled = logax.spool(function, capacity=8)
    gradients, logs = jax.jit(jax.vmap(jax.grad(spooled, has_aux=True)))(xs, COUNTS)
    np.testing.assert_array_equal(gradients, jax.jit(jax.vmap(jax.grad(function)))(xs, COUNTS))
    np.testing.assert_array_equal(logs.count["x"], COUNTS)
    for lane, n in enumerate(COUNTS):
        np.testing.assert_array_equal(logs.step["x"][lane, :n], np.arange(n))
        x = xs[lane]
        for i in range(n):
            np.testing.assert_allclose(logs["x"][lane, i], x, rtol=1e-6)
            x = np.sin(x)


def test_a_loop_of_equinox_in_lanes_that_do_not_run_does_not_change_what_runs() -> None:
    """Loops of JAX inside lanes that are set aside must come to their end: others ask them."""

    def function(n: Any) -> Any:
        def halved(x: Any) -> Any:
            def until_small(x: Any) -> Any:
                logax.log({"x": x})
                return x / 2

            return lax.while_loop(lambda x: x > 1, until_small, x)

        def body(carry: Any) -> Any:
            i, _ = carry

            def again(x: Any) -> Any:
                return halved(x)

            # It ends only when no lane's `x` is large, those of finished lanes included.
            x = loop("lax", lambda x: x > 1, again, 4.0 + i, max_steps=None)
            return i + 1, x

        def run(n: Any) -> Any:
            return loop("lax", lambda c: c[0] < n, body, (0.0, 0.0), max_steps=None)[1]

        return lax.cond(n > 1, run, lambda n: 0.0, n)

    ns = jnp.array([1.0, 2.0, 3.0])
    seen: list[Any] = []
    out = jax.jit(jax.vmap(logax.tap(function, seen.append)))(ns)
    np.testing.assert_array_equal(out, [0.0, 0.625, 0.75])
    logax.flush()
    four, five, six = [4.0, 2.0], [5.0, 2.5, 1.25], [6.0, 3.0, 1.5]
    for lane, values in enumerate([[], [*four, *five], [*four, *five, *six]]):
        assert [float(r["x"]) for r in seen if r.lane == (lane,)] == values
    _, logs = jax.jit(jax.vmap(logax.spool(function, capacity=8)))(ns)
    np.testing.assert_array_equal(logs.count["x"], [0, 5, 8])


def test_a_branch_that_is_decided_for_all_lanes_logs_for_those_that_would_take_it_alone() -> None:
    def function(x: Any) -> Any:
        def noted(name: str) -> Callable[[Any], Any]:
            def branch(x: Any) -> Any:
                logax.log({name: x})
                return x

            return branch

        def plain(x: Any) -> Any:
            return x

        small = jax.jit(eqxi.unvmap_any)(x < 2)  # inside of a call, too
        lax.cond(small, noted("small"), plain, x)
        lax.cond(eqxi.unvmap_all(x < 2), plain, noted("large"), x)
        index = eqxi.nonbatchable(eqxi.unvmap_max(x.astype(int)) // 2)
        lax.switch(index, [plain, noted("index"), plain], x)
        # What the other branch would have logged did not run: the lane has what did.
        lax.cond(small, noted("both"), noted("other"), x)
        return x

    xs = jnp.array([1.0, 2.0, 3.0])
    _, logs = jax.jit(jax.vmap(logax.spool(function)))(xs)
    counts = {key: count.tolist() for key, count in logs.count.items()}
    assert counts == {
        "small": [1, 0, 0],
        "large": [0, 1, 1],
        "index": [0, 1, 1],
        "both": [1, 1, 1],
        "other": [0, 0, 0],
    }
    seen: list[Any] = []
    jax.jit(jax.vmap(logax.tap(function, seen.append)))(xs)
    logax.flush()
    told = [[key for r in seen if r.lane == (lane,) for key in r] for lane in range(3)]
    assert told == [["small", "both"], ["large", "index", "both"], ["large", "index", "both"]]


def test_lanes_inside_of_the_harvest_are_those_of_the_batched_program() -> None:
    function = nested("lax")
    _, logs = logax.spool(jax.vmap(function), capacity=32)(COUNTS)
    assert int(logs.count["x"]) == 5  # as often as the longest
    pairs = jnp.array([[0, 2], [3, 1]])
    _, logs = jax.jit(jax.vmap(logax.spool(jax.vmap(function), capacity=32)))(pairs)
    np.testing.assert_array_equal(logs.count["x"], [2, 3])


def same_lanes(function: Callable[[Any], Any], xs: Any, capacity: int) -> list[int]:
    """Compare each lane with a run of it alone; the number of records of each lane.

    A solver that chooses its own steps amplifies rounding, which differs between programs. In 64
    bits what remains is far smaller than the difference between one record and the next.
    """
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        alone = logax.spool(function, capacity=capacity)
        out, logs = jax.jit(jax.vmap(alone))(xs)
        seen: list[Any] = []
        jax.vmap(logax.tap(function, seen.append, buffer=10))(xs)
        logax.flush()
        counts = []
        for lane, x in enumerate(xs):
            expected, solo = alone(x)
            np.testing.assert_allclose(out[lane], expected, rtol=1e-7)
            own, solo = jax.tree.map(lambda x, lane=lane: x[lane], logs).compact(), solo.compact()
            assert own.keys() == solo.keys()
            for key in solo:
                np.testing.assert_allclose(own[key], solo[key], rtol=1e-7)
                rows = [r[key] for r in seen if r.lane == (lane,) and key in r]
                np.testing.assert_array_equal(rows, own[key])
            counts.append(sum(len(solo[key]) for key in solo))
    return counts


def test_an_optimizer_of_optimistix_logs_as_often_as_each_lane_evaluates() -> None:
    def minimised(y: Any) -> Any:
        def cost(y: Any, _: Any) -> Any:
            logax.log({"y": y})
            return jnp.sum((y**2 - 1) ** 2)

        solver = optimistix.BFGS(1e-5, 1e-5)
        return optimistix.minimise(cost, solver, y, max_steps=64, throw=False).value

    counts = same_lanes(minimised, np.array([[1.0, 1.0], [0.5, 0.25], [4.0, 3.0]]), 64)
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.slow
def test_a_solve_of_diffrax_with_an_event_logs_as_often_as_each_lane_evaluates() -> None:
    def solved(rate: Any) -> Any:
        def field(t: Any, y: Any, _: Any) -> Any:
            logax.log({"y": y})
            return -rate * y

        def is_small(t: Any, y: Any, *_: Any, **__: Any) -> Any:
            logax.log({"event": y})
            return y - 0.5

        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, None, 1.0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            event=diffrax.Event(is_small, optimistix.Newton(1e-4, 1e-4)),
        ).ys[-1]  # fmt: skip

    counts = same_lanes(solved, np.array([0.1, 4.0]), 128)
    assert counts[0] < counts[1]

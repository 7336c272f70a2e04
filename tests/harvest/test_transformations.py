"""`spool` inside and outside of JAX's transformations.

The program's arithmetic is exact, so outputs and derivatives are compared bit for bit. One real
program at the end states the tolerance where XLA may fuse differently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax

pytestmark = pytest.mark.usefixtures("optimized")

X = np.arange(1.0, 4.0, dtype=np.float32)
Function = Callable[..., Any]


def program(x: Any) -> Any:
    """Doubles three times, logging each, then the sum of squares."""

    def body(carry: Any, i: Any) -> Any:
        carry = carry * 2
        logax.log({"carry": carry}, step=i)
        return carry, None

    carry, _ = lax.scan(body, x, jnp.arange(3))
    square = (carry * carry).sum()
    logax.log({"square": square})
    return square


def assert_logs_of_program(logs: Any, x: Any) -> None:
    assert list(logs) == ["carry", "square"]
    np.testing.assert_array_equal(logs["carry"], [2 * x, 4 * x, 8 * x])
    np.testing.assert_array_equal(logs.steps["step"]["carry"], [0, 1, 2])
    np.testing.assert_array_equal(logs["square"], [64 * (x * x).sum()])
    assert {key: int(logs.count[key]) for key in logs} == {"carry": 3, "square": 1}


SPOOLED: dict[str, Callable[[Function], Function]] = {
    "spool(f)": logax.spool,
    "jit(spool(f))": lambda f: jax.jit(logax.spool(f)),
    "spool(jit(f))": lambda f: logax.spool(jax.jit(f)),
    "spool(checkpoint(f))": lambda f: logax.spool(jax.checkpoint(f)),
    "checkpoint(spool(f))": lambda f: jax.checkpoint(logax.spool(f)),
    "compiled ahead of time": lambda f: jax.jit(logax.spool(f)).lower(X).compile(),
}


@pytest.mark.parametrize("way", SPOOLED)
def test_spool_gives_what_the_function_gives_and_its_logs(way: str) -> None:
    out, logs = SPOOLED[way](program)(X)
    assert float(out) == float(jax.jit(program)(X)) == 64 * 14
    assert_logs_of_program(logs, X)


DIFFERENTIATED: dict[str, Callable[[Function], Function]] = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "hessian": jax.hessian,
    "jacfwd": jax.jacfwd,
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x + 1,)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(3)),
    "linearize": lambda f: lambda x: [*jax.linearize(f, x)][1](x + 1),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_spool_around_a_derivative_gives_it_and_the_logs_once(name: str) -> None:
    derivative = DIFFERENTIATED[name](program)
    out, logs = logax.spool(derivative)(X)
    jax.tree.map(np.testing.assert_array_equal, out, jax.jit(derivative)(X))
    assert_logs_of_program(logs, X)


def test_a_derivative_around_spool_is_that_of_the_function() -> None:
    spooled = logax.spool(program)
    for derivative in (jax.grad, jax.value_and_grad, jax.hessian, jax.jacrev, jax.jacfwd):
        out, logs = jax.jit(derivative(spooled, has_aux=True))(X)
        if derivative is jax.value_and_grad:
            (value, logs), gradient = jax.value_and_grad(spooled, has_aux=True)(X)
            out = value, gradient
        jax.tree.map(np.testing.assert_array_equal, out, jax.jit(derivative(program))(X))
        assert_logs_of_program(logs, X)


def test_forward_derivatives_of_the_logs_are_zero() -> None:
    spooled = logax.spool(program)
    (out, logs), (derivative, none) = jax.jvp(spooled, (X,), (X + 1,))
    jax.tree.map(np.testing.assert_array_equal, (out, derivative), jax.jvp(program, (X,), (X + 1,)))
    assert_logs_of_program(logs, X)
    assert not np.any(none["carry"])

    (out, logs), linear = jax.linearize(spooled, X)
    np.testing.assert_array_equal(linear(X + 1)[0], derivative)
    assert_logs_of_program(logs, X)


def test_logs_have_no_gradient_and_change_none() -> None:
    def loss(x: Any) -> Any:
        out, logs = logax.spool(program)(x)
        return out + logs["carry"].sum() + logs["square"].sum()

    np.testing.assert_array_equal(jax.grad(loss)(X), jax.grad(program)(X))


def test_disabled_jit_gives_the_same() -> None:
    with jax.disable_jit():
        out, logs = logax.spool(program)(X)
        gradient, _ = jax.grad(logax.spool(program), has_aux=True)(X)
    assert float(out) == float(program(X))
    np.testing.assert_array_equal(gradient, jax.grad(program)(X))
    assert_logs_of_program(logs, X)


def test_shapes_are_known_without_running() -> None:
    out, logs = jax.eval_shape(logax.spool(program), X)
    assert (out.shape, out.dtype) == ((), np.float32)
    assert {key: (value.shape, value.dtype) for key, value in logs.items()} == {
        "carry": ((3, 3), np.float32),
        "square": ((1,), np.float32),
    }
    assert logs.steps["step"]["carry"].shape == (3,)


def test_a_spooled_function_can_be_exported() -> None:
    exported = jax.export.export(jax.jit(logax.spool(program)))(X)
    out, logs = exported.call(X)
    assert float(out) == float(program(X))
    assert_logs_of_program(logs, X)


def test_spool_inside_a_scan_body_gives_logs_for_each_iteration() -> None:
    def body(x: Any, _: None) -> Any:
        return x + 1, logax.spool(program)(x)

    _, (outs, logs) = lax.scan(body, X, None, length=3)
    for i in range(3):
        assert float(outs[i]) == float(program(X + i))
        assert_logs_of_program(jax.tree.map(lambda leaf, i=i: leaf[i], logs), X + i)


def test_spool_inside_a_while_body_gives_the_logs_of_the_last_iteration() -> None:
    def body(state: Any) -> Any:
        i, x, _, _ = state
        return i + 1, x + 1, *logax.spool(program)(x)

    start = jax.tree.map(jnp.zeros_like, logax.spool(program)(X))
    _, _, out, logs = lax.while_loop(lambda state: state[0] < 3, body, (0, X, *start))
    assert float(out) == float(program(X + 2))
    assert_logs_of_program(logs, X + 2)


def test_spool_inside_a_branch_gives_its_logs() -> None:
    spooled = logax.spool(program)
    for positive in (True, False):
        out, logs = jax.jit(lambda p, x: lax.cond(p, spooled, lambda x: spooled(-2 * x), x))(
            positive, X
        )
        x = X if positive else -2 * X
        assert float(out) == float(program(x))
        assert_logs_of_program(logs, x)


def test_vmap_of_spool_puts_lanes_first_and_spool_of_vmap_records_first() -> None:
    lanes = np.stack([X, X + 1, -X, 0 * X])
    outs, first = jax.vmap(logax.spool(program))(lanes)
    outs_again, second = logax.spool(jax.vmap(program))(lanes)
    np.testing.assert_array_equal(outs, jax.vmap(program)(lanes))
    np.testing.assert_array_equal(outs, outs_again)
    for lane in range(4):
        assert_logs_of_program(jax.tree.map(lambda leaf, i=lane: leaf[i], first), lanes[lane])
    for key in first:
        np.testing.assert_array_equal(np.moveaxis(first[key], 0, 1), second[key])
    assert second.steps["step"]["carry"].shape == (3,)


def test_nested_vmaps_put_the_outermost_lane_first() -> None:
    grid = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    _, inside = jax.vmap(jax.vmap(logax.spool(program)))(grid)
    _, between = jax.vmap(logax.spool(jax.vmap(program)))(grid)
    _, outside = logax.spool(jax.vmap(jax.vmap(program)))(grid)
    wanted = np.stack([2 * grid, 4 * grid, 8 * grid])
    np.testing.assert_array_equal(outside["carry"], wanted)
    np.testing.assert_array_equal(between["carry"], wanted.transpose(1, 0, 2, 3))
    np.testing.assert_array_equal(inside["carry"], wanted.transpose(1, 2, 0, 3))


def test_lanes_of_another_axis_and_of_some_arguments_only() -> None:
    def scaled(x: Any, weight: Any) -> Any:
        logax.log({"scaled": x * weight, "weight": weight})
        return x * weight

    columns = np.stack([X, X + 1], axis=1)
    out, logs = jax.vmap(logax.spool(scaled), in_axes=(1, None), out_axes=0)(columns, 2.0)
    np.testing.assert_array_equal(out, columns.T * 2)
    np.testing.assert_array_equal(logs["scaled"], (columns.T * 2)[:, None])
    np.testing.assert_array_equal(logs["weight"], [[2.0], [2.0]])
    _, logs = logax.spool(jax.vmap(scaled, in_axes=(1, None)))(columns, 2.0)
    np.testing.assert_array_equal(logs["scaled"], (columns.T * 2)[None])
    np.testing.assert_array_equal(logs["weight"], [2.0])


@pytest.mark.slow
def test_a_real_training_step_agrees_to_single_precision() -> None:
    """Where arithmetic rounds, XLA may fuse differently: relative 1e-5 and absolute 1e-6."""

    def train(weights: Any, inputs: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jnp.tanh(inputs @ weights["in"])
            logax.log({"hidden": hidden})
            return jnp.mean((hidden @ weights["out"] - 1) ** 2)

        def step(weights: Any, i: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(weights)
            logax.log({"loss": value, "gradient": gradient}, step=i)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

        return lax.scan(step, weights, jnp.arange(50))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"in": (4, 16), "out": (16, 1)}
    weights = {
        name: jax.random.normal(k, s) for (name, s), k in zip(shapes.items(), keys, strict=False)
    }
    inputs = jax.random.normal(keys[2], (32, 4))
    weights_after, losses = jax.jit(train)(weights, inputs)
    (out, out_losses), logs = logax.spool(train)(weights, inputs)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, out, weights_after)
    close(out_losses, losses)
    close(logs["loss"], losses)
    assert logs["gradient"]["in"].shape == (50, 4, 16)
    assert float(losses[-1]) < 0.5 * float(losses[0])


def grown(x: Any) -> Any:
    """Grows by half three times, in a loop that counts."""

    def body(carry: Any) -> Any:
        i, x = carry
        logax.log({"x": x}, step=i)
        return i + 1, x * 1.5

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


@pytest.mark.parametrize("buffer", [1, 2])
def test_a_derivative_along_a_loop_without_bound_is_that_of_the_function(buffer: int) -> None:
    records: list[Any] = []
    tapped = logax.tap(grown, records.append, buffer=buffer)
    assert jax.jvp(tapped, (2.0,), (1.0,)) == (6.75, 3.375)
    lanes = jax.vmap(lambda x: jax.jvp(tapped, (x,), (2.0,)))(jnp.array([0.0, 4.0]))
    np.testing.assert_array_equal(lanes, [[0, 13.5], [6.75, 6.75]])
    logax.flush()
    assert [float(r["x"]) for r in records if not r.lane] == [2, 3, 4.5]
    assert [float(r["x"]) for r in records if r.lane == (1,)] == [4, 6, 9]
    out, logs = jax.jvp(logax.spool(grown, capacity=3), (2.0,), (1.0,))[0]
    assert (float(out), logs["x"].tolist()) == (6.75, [2, 3, 4.5])


def test_where_loops_are_pythons_a_gradient_goes_through_them() -> None:
    records: list[Any] = []
    with jax.disable_jit():
        slope, logs = jax.grad(logax.spool(grown, capacity=3), has_aux=True)(2.0)
        tapped = jax.grad(logax.tap(grown, records.append))(2.0)
    logax.flush()
    assert (float(slope), float(tapped)) == (3.375, 3.375)
    assert logs["x"].tolist() == [float(r["x"]) for r in records] == [2, 3, 4.5]


def test_numbers_that_are_wide_in_the_log_alone_are_told() -> None:
    def program(x: Any) -> Any:
        with jax.enable_x64(True):
            logax.log({"x": jnp.ones((), jnp.float64)})
        return x

    told = r"`x`, logged at .*, is float64, and outside of the log JAX keeps 32 bits. Set `jax_enab"
    with pytest.raises(TypeError, match=told):
        logax.spool(program)(1.0)

"""`spool` inside and outside of JAX's transformations.

The program's arithmetic is exact, so outputs and derivatives are compared bit for bit. One real
program at the end states the tolerance where XLA may fuse differently.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax

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
    "spool(compiled inside)": lambda f: logax.spool(lambda x: jax.jit(f)(x)),
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
    jax.tree.map(
        np.testing.assert_array_equal, (out, derivative), jax.jvp(program, (X,), (X + 1,))
    )
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


def test_names_scopes_unrolling_direction_and_policy_survive() -> None:
    @jax.jit
    def helper(x: Any) -> Any:
        logax.log({"helped": x})
        return x + 1

    @functools.partial(
        jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable, prevent_cse=False
    )
    def block(x: Any) -> Any:
        logax.log({"block": x})
        return jnp.sin(x)

    def body(carry: Any, i: Any) -> Any:
        with jax.named_scope("in_body"):
            logax.log({"carry": carry}, step=i)
            return helper(jnp.cos(carry)), None

    def function(x: Any) -> Any:
        with jax.named_scope("in_function"):
            x, _ = lax.scan(body, x, jnp.arange(6), reverse=True, unroll=3)
            x = lax.cond(x[0] > 9, lambda x: (logax.log({"x": x}), jnp.tanh(x))[1], block, x)
        return block(x)

    kept = ("scan", "jit", "pjit", "remat2", "checkpoint", "cond")
    names = ("name", "unroll", "reverse", "length", "policy", "prevent_cse", "inline")

    def facts(fun: Function) -> list[Any]:
        return [
            (e.primitive.name, e.source_info.name_stack, [e.params.get(name) for name in names])
            for e in equations(jax.make_jaxpr(fun)(X))
            if e.primitive.name in kept and not e.params.get("name", "").startswith(("_", "cum"))
        ]

    assert len(facts(function)) == 5
    assert facts(logax.spool(function)) == facts(function)

    def scopes(fun: Function) -> set[str]:
        text = jax.jit(fun).lower(X).compile().as_text()
        return set(re.findall(r'op_name="([^"]*/(?:sin|cos|tanh))"', text))

    assert len(scopes(function)) >= 3
    assert scopes(logax.spool(function)) == scopes(function)


def equations(jaxpr: Any) -> Iterator[Any]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from equations(inner)


def test_a_checkpointed_region_recomputes_as_much_as_without_logs() -> None:
    def loss(policy: Any) -> Function:
        @functools.partial(jax.checkpoint, policy=policy)
        def block(x: Any) -> Any:
            y = jnp.sin(x)
            logax.log({"y": y})
            return jnp.sin(y)

        return lambda x: block(block(x)).sum()

    def sines(fun: Function) -> int:
        return jax.jit(fun).lower(X).as_text().count("stablehlo.sine")

    policies = jax.checkpoint_policies
    save, recompute = loss(policies.everything_saveable), loss(policies.nothing_saveable)
    plain = [sines(jax.value_and_grad(function)) for function in (save, recompute)]
    assert plain[0] < plain[1]
    for function, number in zip((save, recompute), plain, strict=True):
        assert sines(logax.spool(jax.value_and_grad(function))) == number
        assert sines(jax.value_and_grad(logax.spool(function), has_aux=True)) == number


def test_the_buffer_of_a_donated_argument_is_given_away() -> None:
    def function(x: Any) -> Any:
        logax.log({"x": x})
        return x * 2

    def tree(given: Any, scale: Any) -> Any:
        logax.log({"a": given["a"]})
        return {"a": given["a"] * scale}, scale

    for donating in (
        jax.jit(logax.spool(function), donate_argnums=0),
        logax.spool(jax.jit(function, donate_argnums=0)),
    ):
        x = jnp.array(X)
        out, logs = donating(x)
        assert x.is_deleted()
        np.testing.assert_array_equal(out, 2 * X)
        np.testing.assert_array_equal(logs["x"], [X])

    given, scale = {"a": jnp.array(X)}, jnp.float32(3)
    logax.spool(jax.jit(tree, donate_argnums=0))(given, scale)
    assert (given["a"].is_deleted(), scale.is_deleted()) == (True, False)


def test_donated_and_static_arguments_of_a_jitted_function_stay_so() -> None:
    def repeated(x: Any, times: int) -> Any:
        for i in range(times):
            x = x * 2
            logax.log({"x": x}, step=i)
        return x

    donating = jax.jit(repeated, donate_argnums=0, static_argnames="times")
    for harvested in (logax.spool(donating), logax.spool(donating, static_argnames="times")):
        x = jnp.array(X)
        out, logs = harvested(x, times=2)
        assert x.is_deleted()
        np.testing.assert_array_equal(out, 4 * X)
        np.testing.assert_array_equal(logs["x"], [2 * X, 4 * X])


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

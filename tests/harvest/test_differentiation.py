"""A log runs as often in a program that JAX differentiates as in the program itself.

Differentiation moves out of a loop what does not vary in it, forgets effects in branches, and runs
loops again. Each case here is one of these; random programs are in `test_oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import Mesh, PartitionSpec

import logax

Function = Callable[..., Any]
DERIVATIVES: dict[str, Callable[[Function], Function]] = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jacrev": jax.jacrev,
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}
SLOW = ("value_and_grad", "jacrev")
each_derivative = pytest.mark.parametrize(
    "derivative",
    [
        pytest.param(derivative, marks=pytest.mark.slow if name in SLOW else (), id=name)
        for name, derivative in DERIVATIVES.items()
    ],
)


def seen(fun: Function, **options: Any) -> dict[str, list[float]]:
    """The records of a function of 0.5, as numbers."""
    logs = logax.spool(fun, **options)(0.5)[1].compact()
    return {key: jnp.asarray(logs[key]).tolist() for key in logs}


def repeated(step: Function, length: int = 3) -> Function:
    """A loop whose body is given its carry and a value that does not vary."""
    return lambda x: lax.scan(lambda c, _: (step(c, x), None), x, length=length)[0]


def log_invariants(c: Any, x: Any) -> Any:
    logax.log({"number": 0.1, "x": x}, step=4)
    logax.log({"nothing": {}})
    return c * jnp.sin(x)


@each_derivative
def test_what_does_not_vary_in_a_loop_is_logged_in_every_iteration(derivative: Any) -> None:
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        _, logs = logax.spool(derivative(repeated(wrap(log_invariants))))(0.5)
        assert {key: int(n) for key, n in logs.count.items()} == {
            "number": 3,
            "x": 3,
            "nothing": 3,
        }
        assert logs["x"].tolist() == [0.5] * 3
        assert logs.steps["step"]["x"].tolist() == [4] * 3


@each_derivative
def test_a_loop_without_iterations_logs_nothing(derivative: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        logax.log({"x": x, "number": 1.0})
        return c * x

    assert seen(derivative(repeated(step, 0))) == {"x": [], "number": []}


@each_derivative
def test_a_branch_that_does_not_vary_in_a_loop_is_logged_when_it_is_taken(derivative: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        def small(c: Any) -> Any:
            logax.log({"varies": c, "x": x})
            return c + x

        return lax.cond(x < 1, small, lambda c: (logax.log({"large": x}), c)[1], c)

    wanted = {"varies": [0.5, 1.0, 1.5], "x": [0.5] * 3, "large": []}
    assert seen(derivative(repeated(step))) == wanted


@each_derivative
def test_a_while_loop_of_constants_is_logged_once_however_often_it_runs(derivative: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        def body(y: Any) -> Any:
            logax.log({"y": y})
            return double(y)

        y = lax.while_loop(lambda y: y < 2, body, lax.stop_gradient(x))
        return jnp.sin(c * y)

    @jax.custom_jvp
    def double(y: Any) -> Any:
        logax.log({"inside": y})
        return 2 * y

    double.defjvps(lambda dy, _, y: 2 * dy)
    for length in (1, 2):
        again = {"y": [0.5, 1.0] * length, "inside": [0.5, 1.0] * length}
        assert seen(derivative(repeated(step, length)), capacity=9) == again


def test_a_while_loop_is_logged_once_where_it_is_linearized() -> None:
    def growth(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y = carry
            logax.log({"y": y}, step=i)
            return i + 1, y * x

        return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

    def linearized(fun: Function) -> Function:
        def both(x: Any) -> Any:
            out, linear = jax.linearize(fun, x)
            return out, linear(1.0), linear(2.0)

        return both

    for fun in (growth, jax.checkpoint(growth)):
        out, _ = logax.spool(linearized(fun), capacity=9)(0.5)
        assert [float(x) for x in out] == [0.0625, 0.5, 1.0]
        assert seen(linearized(fun), capacity=9) == {"y": [0.5, 0.25, 0.125]}


def test_callbacks_beside_a_log_run_as_they_do_without_it(capsys: Any) -> None:
    def growth(log: Any) -> Function:
        def run(x: Any) -> Any:
            def body(y: Any) -> Any:
                log({"y": y})
                jax.debug.print("at {y}", y=y)
                return 2 * y

            return x * lax.while_loop(lambda y: y < 2, body, lax.stop_gradient(x))

        return jax.jit(jax.grad(jax.checkpoint(run)))

    growth(lambda _: None)(0.5)
    jax.effects_barrier()
    plain = capsys.readouterr().out
    assert seen(growth(logax.log), capacity=9) == {"y": [0.5, 1.0]}
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.split("\n")) == sorted(plain.split("\n"))


@each_derivative
def test_tap_delivers_in_the_order_of_the_program(derivative: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        logax.log({"first": 1.0})
        logax.log({"carry": c})
        logax.log({"last": x})
        return c * x

    got: list[Any] = []
    logax.tap(derivative(repeated(step, 2)), got.append)(0.5)
    logax.flush()
    assert [dict(one) for one in got] == [
        {"first": 1.0},
        {"carry": 0.5},
        {"last": 0.5},
        {"first": 1.0},
        {"carry": 0.25},
        {"last": 0.5},
    ]


def rate(x: Any) -> Any:
    logax.log({"rate": x})
    return jnp.sin(x)


def with_jvp(fun: Function) -> Function:
    function = jax.custom_jvp(fun)
    function.defjvp(lambda primals, tangents: (fun(*primals), 2 * tangents[0]))
    return function


def with_vjp(fun: Function) -> Function:
    function = jax.custom_vjp(fun)
    function.defvjp(lambda x: (fun(x), None), lambda _, cotangent: (2 * cotangent,))
    return function


def with_vmap(fun: Function) -> Function:
    function = custom_vmap(fun)
    function.def_vmap(lambda size, batched, x: (jax.vmap(fun)(x), True))
    return function


def in_shards(fun: Function) -> Function:
    mesh, spec = Mesh(np.array(jax.devices()[:2]), ("i",)), PartitionSpec("i")
    shards = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)
    return lambda x: shards(jnp.stack([x, x])).mean()


CALLS: dict[str, Function] = {
    "custom_jvp": with_jvp(rate),
    "custom_jvp of jit": with_jvp(jax.jit(rate)),
    "custom_vjp": with_vjp(rate),
    "custom_vjp of cond": with_vjp(lambda x: lax.cond(x < 1, rate, rate, x)),
    "custom_vmap": with_vmap(rate),
    "linear solve": lambda x: lax.custom_linear_solve(
        lambda y: 2 * y, x, lambda _, y: rate(y), symmetric=True
    ),
    "shard_map": in_shards(rate),
    "checkpoint without operands": lambda x: jax.checkpoint(lambda: rate(0.5))(),
    "checkpoint of scan": jax.checkpoint(
        lambda x: lax.scan(lambda c, _: (rate(c), None), x, length=1)[0]
    ),
}


@pytest.mark.parametrize("function", CALLS.values(), ids=CALLS)
def test_what_is_called_with_the_same_in_every_iteration_logs_in_each(function: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        return c * function(lax.stop_gradient(x))

    gradient = jax.grad(repeated(step))
    out, logs = logax.spool(gradient)(0.5)
    np.testing.assert_allclose(out, jax.jit(gradient)(0.5), rtol=1e-6)
    assert np.unique(logs["rate"]).tolist() == [0.5]
    assert int(logs.count["rate"]) == 3


def test_logs_keep_no_more_for_the_backward_run() -> None:
    """What does not vary in a loop is computed and kept once, logs or not."""

    def steps(log: Any) -> Function:
        def sine(w: Any) -> Any:
            log({"corner": w[0, 0]})
            return jnp.sin(w)

        def step(c: Any, w: Any) -> Any:
            w = lax.cond(w[0, 0] < 1, sine, jnp.cos, w)
            return jnp.tanh(with_jvp(sine)(jax.checkpoint(sine)(w)) @ c)

        def run(w: Any) -> Any:
            first = jnp.ones(len(w))
            return lax.scan(lambda c, _: (step(c, w), None), first, length=50)[0].sum()

        return jax.jit(logax.spool(jax.grad(run)))

    w = np.full((200, 200), 0.5, np.float32)
    logged, silent = (
        steps(log).lower(w).compile().memory_analysis().temp_size_in_bytes
        for log in (logax.log, lambda _: None)
    )
    assert logged - silent < w.nbytes


def test_what_moves_out_of_a_loop_is_the_same_without_logs() -> None:
    """Un-harvested, the program that JAX makes of a gradient is that of the code without logs."""

    def step(log: Any) -> Function:
        def run(c: Any, x: Any) -> Any:
            log({"x": x})
            y = lax.cond(x < 1, lambda x: (log({"x": x}), jnp.sin(x))[1], jnp.cos, x)
            return c * y

        return run

    with_logs, without = (
        jax.jit(jax.grad(repeated(step(log)))).lower(0.5).as_text()
        for log in (logax.log, lambda _: None)
    )
    assert with_logs == without

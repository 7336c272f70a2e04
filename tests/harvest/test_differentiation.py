"""A log runs as often in a program that JAX differentiates as in the program itself.

Differentiation moves out of a loop what does not vary in it, forgets effects in branches, and runs
loops again. Each case here is one of these; random programs are in `test_oracle`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

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


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_functions_with_rules_that_move_out_of_a_loop_are_warned_of(kind: str) -> None:
    def plain(x: Any) -> Any:
        logax.log({"rate": x})
        return x + 1

    line = plain.__code__.co_firstlineno + 1
    if kind == "custom_jvp":
        function: Any = jax.custom_jvp(plain)
        function.defjvp(lambda primals, tangents: (plain(*primals), tangents[0]))
    else:
        function = jax.custom_vjp(plain)
        function.defvjp(lambda x: (plain(x), None), lambda _, cotangent: (cotangent,))

    def step(c: Any, x: Any) -> Any:
        return c * function(lax.stop_gradient(x))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert seen(jax.grad(repeated(step))) == {"rate": [0.5]}
    assert {str(warning.message) for warning in caught} == {
        f"The `log` of rate at {__file__}:{line} is in a function with a derivative rule of its "
        "own, in a loop that is differentiated. No argument of that function varies in the loop, "
        "so JAX runs it once, before the loop, and its records are not repeated for each "
        "iteration. Harvest inside the gradient, `grad(spool(f), has_aux=True)`, or log outside "
        "of that function."
    }
    inside = jax.grad(logax.spool(repeated(step)), has_aux=True)(0.5)[1]
    assert inside["rate"].tolist() == [0.5] * 3


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

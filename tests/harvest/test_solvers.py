"""Functions with rules that are no derivatives: batching, solvers, and what hides its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import lineax
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import linear_call

import logax

X = np.arange(1.0, 4.0, dtype=np.float32)
VERSION = tuple(int(number) for number in jax.__version__.split(".")[:2])
Function = Callable[..., Any]


def test_a_rule_for_lanes_runs_and_the_records_are_those_of_the_function() -> None:
    @custom_vmap
    def function(x: Any) -> Any:
        logax.log({"x": x})
        return x * 2

    @function.def_vmap
    def rule(size: int, batched: Any, x: Any) -> Any:
        logax.log({"rule": x})
        return x * 20, True

    np.testing.assert_array_equal(logax.spool(function)(X)[1]["x"], [X])
    (out, inside), outside = logax.spool(jax.vmap(logax.spool(function)))(X)
    np.testing.assert_array_equal(out, X * 20)
    np.testing.assert_array_equal(inside["x"], X[:, None])
    assert list(outside) == ["rule"]
    np.testing.assert_array_equal(outside["rule"], [X])


@pytest.mark.parametrize("options", [{}, {"reduce": "last"}])
def test_a_linear_solve_shows_the_logs_of_its_solver(options: Any) -> None:
    def function(b: Any) -> Any:
        def solve(_: Any, b: Any) -> Any:
            logax.log({"b": b})
            return b / 2

        return lax.custom_linear_solve(lambda x: 2 * x, b, solve, solve).sum()

    gradient, logs = jax.grad(logax.spool(function, **options), has_aux=True)(X)
    np.testing.assert_array_equal(gradient, [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(logs["b"], [X])


def test_a_linear_solve_that_cannot_be_transposed_shows_them_too() -> None:
    def function(b: Any) -> Any:
        def solve(_: Any, b: Any) -> Any:
            logax.log({"b": b})
            return b / 2

        return lax.custom_linear_solve(lambda x: 2 * x, b, solve)

    out, logs = logax.spool(function)(X)
    np.testing.assert_array_equal(out, X / 2)
    np.testing.assert_array_equal(logs["b"], [X])


def root(x: Any) -> Any:
    def solve(f: Function, start: Any) -> Any:
        logax.log({"start": start})
        return lax.fori_loop(0, 20, lambda _, y: y - f(y) / (2 * y), start)

    return lax.custom_root(lambda y: y * y - x, 1.0, solve, lambda g, y: y / g(1.0))


def solved(x: Any) -> Any:
    def product(y: Any) -> Any:
        logax.log({"product": y})
        return 2 * y

    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    operator = lineax.FunctionLinearOperator(product, like, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, x, lineax.CG(1e-5, 1e-5)).value


def test_a_log_that_a_linear_solver_of_lineax_hides_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"`product`, logged at .*test_solvers\.py:\d+, is lost"):
        out, logs = logax.spool(solved)(X)
    np.testing.assert_allclose(out, X / 2, rtol=1e-5)
    assert dict(logs) == {}


def test_a_log_in_custom_root_is_harvested_or_warned_about() -> None:
    if VERSION < (0, 11):
        out, logs = logax.spool(root)(4.0)
        np.testing.assert_array_equal(logs["start"], [1.0])
    else:  # a primitive that hides its functions
        with pytest.warns(UserWarning, match=r"`start`, logged at .*test_solvers\.py:\d+, is lost"):
            out, logs = logax.spool(root)(4.0)
        assert dict(logs) == {}
    assert float(out) == 2.0


def test_a_primitive_without_a_rule_that_holds_a_log_is_an_error_that_names_it() -> None:
    def function(x: Any) -> Any:
        def forward(_: Any, x: Any) -> Any:
            logax.log({"x": x})
            return x * 2

        return linear_call(forward, lambda _, cotangent: cotangent * 2, None, x)

    with pytest.raises(NotImplementedError, match="`linear_call` cannot be harvested"):
        logax.spool(function)(X)
    np.testing.assert_array_equal(logax.spool(logax.nolog(function))(X)[0], X * 2)

"""Functions with derivative rules of their own.

The derivatives below are false on purpose, so that it shows whose rule ran.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from slow_cases import slow

X = np.arange(1.0, 4.0, dtype=np.float32)
STEPS = 5
Function = Callable[..., Any]


def climb(x: Any) -> Any:
    """Adds one in each step of a loop, and logs it."""

    def body(carry: Any, i: Any) -> Any:
        logax.log({"carry": carry}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


def assert_climbed(logs: Any, x: Any = X) -> None:
    np.testing.assert_array_equal(logs["carry"], [x + i for i in range(STEPS)])
    np.testing.assert_array_equal(logs.steps["step"]["carry"], range(STEPS))


def rise(x: Any) -> Any:
    """The same number as of `climb`, and other logs."""

    def body(carry: Any, _: None) -> Any:
        logax.log({"forward": carry})
        return carry + STEPS, None

    return lax.scan(body, x, None, length=1)[0]


def with_vjp(forward: str) -> Function:
    """`climb` with a backward rule of its own; `forward` says what the forward rule does."""

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return climb(x)

    def rule(x: Any) -> Any:
        if forward == "logs more":
            logax.log({"forward": x})
        if forward == "does not run it":
            return x + STEPS, None
        if forward == "logs otherwise":
            return rise(x), None
        return (climb if forward == "runs the same" else function)(x), None

    def backward(_: None, cotangent: Any) -> Any:
        logax.log({"backward": cotangent})
        return (7 * cotangent,)

    function.defvjp(rule, backward)
    return function


def with_jvp(forward: str) -> Function:
    """The same with a forward-mode rule."""

    @jax.custom_jvp
    def function(x: Any) -> Any:
        return climb(x)

    @function.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (tangent,) = primals, tangents
        if forward == "logs more":
            logax.log({"forward": x})
        if forward == "does not run it":
            return x + STEPS, 7 * tangent
        if forward == "logs otherwise":
            return rise(x), 7 * tangent
        return (climb if forward == "runs the same" else function)(x), 7 * tangent

    return function


FORWARD = ["runs it", "runs the same", "logs more", "logs otherwise", "does not run it"]
MADE = pytest.mark.parametrize("make", [with_vjp, with_jvp])


@MADE
def test_logs_inside_are_harvested(make: Callable[[str], Function]) -> None:
    out, logs = logax.spool(make("runs it"))(X)
    np.testing.assert_array_equal(out, X + STEPS)
    assert list(logs) == ["carry"]
    assert_climbed(logs)


@MADE
@pytest.mark.parametrize("forward", FORWARD)
def test_a_gradient_outside_uses_the_rule_and_leaves_the_records(
    make: Callable[[str], Function], forward: str
) -> None:
    function = make(forward)
    spooled = logax.spool(lambda x: function(x).sum())
    (out, logs), gradient = jax.value_and_grad(spooled, has_aux=True)(X)
    np.testing.assert_array_equal(out, (X + STEPS).sum())
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    assert list(logs) == ["carry"]
    assert_climbed(logs)


@MADE
@pytest.mark.parametrize("forward", FORWARD)
def test_a_gradient_inside_shows_the_logs_of_the_rule(
    make: Callable[[str], Function], forward: str
) -> None:
    function = make(forward)
    gradient, logs = logax.spool(jax.grad(lambda x: function(x).sum()))(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    some = {"logs more": ["forward", "carry"], "logs otherwise": ["forward"], "does not run it": []}
    wanted = some.get(forward, ["carry"])
    assert list(logs) == wanted + (["backward"] if make is with_vjp else [])
    if "carry" in wanted:
        assert_climbed(logs)
    if "forward" in wanted:
        np.testing.assert_array_equal(logs["forward"], [X])
    if make is with_vjp:
        np.testing.assert_array_equal(logs["backward"], [[1, 1, 1]])


@MADE
@pytest.mark.parametrize("forward", ["logs more", "logs otherwise"])
@pytest.mark.parametrize("keep_logs", [False, True])
def test_logs_of_a_rule_go_to_the_harvest_around_the_differentiation(
    make: Callable[[str], Function], forward: str, keep_logs: bool
) -> None:
    function = make(forward)
    inner = logax.spool(lambda x: function(x).sum(), keep_logs=keep_logs)
    (gradient, inside), outside = logax.spool(jax.grad(inner, has_aux=True))(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    assert list(inside) == ["carry"]
    assert_climbed(inside)
    rule = ["forward", "backward"] if make is with_vjp else ["forward"]
    assert set(outside) == {*rule, *(["carry"] if keep_logs else [])}
    np.testing.assert_array_equal(outside["forward"], [X])
    if keep_logs:
        assert_climbed(outside)


@MADE
@pytest.mark.parametrize("forward", ["logs more", "logs otherwise"])
@pytest.mark.parametrize("is_spooled", [True, False])
def test_logs_of_a_rule_go_to_the_harvest_around_a_tapped_function(
    make: Callable[[str], Function], forward: str, is_spooled: bool
) -> None:
    function, got = make(forward), []  # type: tuple[Function, list[logax.record]]
    differentiated = jax.grad(logax.tap(lambda x: function(x).sum(), got.append))
    if is_spooled:
        gradient, outside = logax.spool(differentiated)(X)
        assert list(outside) == (["forward", "backward"] if make is with_vjp else ["forward"])
        np.testing.assert_array_equal(outside["forward"], [X])
    else:
        gradient = differentiated(X)
    logax.flush()
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    np.testing.assert_array_equal([one["carry"] for one in got], [X + i for i in range(STEPS)])


@MADE
@pytest.mark.parametrize("forward", ["logs more", "logs otherwise"])
def test_logs_of_a_rule_go_to_a_live_block_around_it(
    make: Callable[[str], Function], forward: str
) -> None:
    function, got = make(forward), {}  # type: tuple[Function, dict[str, Any]]
    with logax.live(got.update):
        spooled = logax.spool(lambda x: function(x).sum())
        gradient, inside = jax.grad(spooled, has_aux=True)(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    assert_climbed(inside)
    assert set(got) == ({"forward", "backward"} if make is with_vjp else {"forward"})
    np.testing.assert_array_equal(got["forward"], X)


def loops(fun: Function) -> int:
    return len(re.findall(r" while\(", jax.jit(fun).lower(X).compile().as_text()))


@MADE
@pytest.mark.parametrize("forward", FORWARD[:2])
def test_a_function_whose_rule_logs_the_same_runs_once(
    make: Callable[[str], Function], forward: str
) -> None:
    function = make(forward)

    def loss(x: Any) -> Any:
        return function(x).sum()

    assert loops(jax.value_and_grad(loss)) == 1
    assert loops(jax.value_and_grad(logax.spool(loss), has_aux=True)) == 1
    assert loops(logax.spool(jax.value_and_grad(loss))) == 1


@MADE
def test_a_function_that_its_rule_does_not_run_is_run_for_the_records(
    make: Callable[[str], Function],
) -> None:
    function = make("does not run it")

    def loss(x: Any) -> Any:
        return function(x).sum()

    assert loops(jax.value_and_grad(loss)) == 0
    assert loops(jax.value_and_grad(logax.spool(loss), has_aux=True)) == 1
    assert loops(logax.spool(jax.value_and_grad(loss))) == 0


@pytest.mark.parametrize("make", [with_jvp, *slow(with_vjp)])
def test_lanes_loops_checkpoints_and_second_derivatives_keep_the_rule(
    make: Callable[[str], Function],
) -> None:
    function = make("runs it")

    def nested(x: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            return lax.cond(carry[0] < 7, jax.checkpoint(function), lambda x: x, carry), None

        return (lax.scan(body, x, None, length=2)[0] ** 2).sum()

    lanes = np.stack([X, X + 4])
    spooled = jax.jit(jax.vmap(jax.grad(logax.spool(nested), has_aux=True)))
    gradients, logs = spooled(lanes)
    np.testing.assert_array_equal(gradients, jax.vmap(jax.grad(nested))(lanes))
    np.testing.assert_array_equal(gradients, [2 * 49 * (X + 10), 2 * 7 * (X + 9)])
    np.testing.assert_array_equal(logs.count["carry"], [10, 5])
    np.testing.assert_array_equal(logs["carry"][0], [X + i for i in range(10)])
    np.testing.assert_array_equal(logs["carry"][1, :5], [X + 4 + i for i in range(5)])

    def second(fun: Function) -> Any:
        return jax.grad(lambda x: jax.grad(fun)(x).sum())(X)

    np.testing.assert_array_equal(second(lambda x: logax.spool(nested)(x)[0]), second(nested))


@pytest.mark.parametrize(
    ("options", "kept"),
    [({"reduce": "sum"}, [10 + 5 * X[0]]), ({"capacity": 2}, [4, 5]), ({"interval": 2}, [1, 3, 5])],
)
def test_stores_of_constant_size_pass_through_a_rule(options: Any, kept: Any) -> None:
    function = with_vjp("runs it")
    spooled = logax.spool(lambda x: function(x).sum(), **options)
    gradient, logs = jax.grad(spooled, has_aux=True)(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    np.testing.assert_array_equal(logs["carry"][:, 0], kept)


def test_static_integer_and_unperturbed_arguments_reach_the_rule_as_they_are() -> None:
    seen = []

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def scaled(name: str, x: Any, number: Any, other: Any) -> Any:
        logax.log({name: x * number})
        return x * number * other, number

    def forward(name: str, x: Any, number: Any, other: Any) -> Any:
        seen.append((name, x.perturbed, number.perturbed, other.perturbed))
        return scaled(name, x.value, number.value, other.value), None

    def backward(name: str, _: None, cotangents: Any) -> Any:
        return 7 * cotangents[0], None, None

    scaled.defvjp(forward, backward, symbolic_zeros=True)

    def loss(x: Any, number: Any) -> Any:
        return scaled("scaled", x, number, 2.0)[0].sum()

    gradient, logs = jax.grad(logax.spool(loss), has_aux=True)(X, 3)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    np.testing.assert_array_equal(logs["scaled"], [3 * X])
    assert set(seen) == {("scaled", True, False, False)}


@MADE
def test_nolog_silences_the_rules_too(make: Callable[[str], Function]) -> None:
    quiet = logax.nolog(make("logs more"))
    gradient, logs = logax.spool(jax.grad(lambda x: quiet(x).sum()))(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    assert dict(logs) == {}


def test_a_log_of_a_tangent_is_seen_forwards_and_said_to_have_no_value_backwards() -> None:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return x * 2

    @function.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        logax.log({"tangent": tangents[0]})
        return function(*primals), 7 * tangents[0]

    _, logs = logax.spool(lambda x: jax.jvp(function, (x,), (x + 1,)))(X)
    np.testing.assert_array_equal(logs["tangent"], [X + 1])
    # That is all that is said: any other warning would be an error here.
    with pytest.warns(UserWarning, match=r"`log` of tangent at .*test_custom_rules\.py:\d+ logs a"):
        gradient, logs = logax.spool(jax.grad(lambda x: function(x).sum()))(X)
    np.testing.assert_array_equal(gradient, [7, 7, 7])
    assert dict(logs) == {}


def test_a_log_of_a_tangent_is_told_where_a_rule_differentiates() -> None:
    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        logax.log({"tangent": tangents[0]})
        return square(*primals), 2 * primals[0] * tangents[0]

    @jax.custom_vjp
    def function(x: Any) -> Any:
        logax.log({"x": x})
        return square(x)

    function.defvjp(
        lambda x: (function(x), jax.grad(square)(x)), lambda slope, cotangent: (slope * cotangent,)
    )
    with pytest.warns(UserWarning, match=r"`log` of tangent at .*test_custom_rules\.py:\d+ logs a"):
        gradient, logs = jax.grad(logax.spool(function), has_aux=True)(3.0)
    assert gradient == 6.0
    assert {key: x.tolist() for key, x in logs.items()} == {"x": [3.0]}

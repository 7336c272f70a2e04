"""A harvest leaves the user's function as it found it, also when something goes wrong."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from logax._log import are_logs_bound
from slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("optimized")

X = np.arange(1.0, 5.0, dtype=np.float32)
Function = Callable[..., Any]


class RefusedError(Exception):
    """What the functions below raise when they are told to."""


def make(fails: list[bool] | None = None) -> Function:
    """A function with a jitted part, loops, branches and a custom derivative, which may fail."""

    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        logax.log({"doubled": x})
        return 2 * x

    def forward(x: Any) -> Any:
        logax.log({"forward": x})
        return doubled(x), None

    def backward(_: None, cotangent: Any) -> Any:
        return (3 * cotangent,)

    doubled.defvjp(forward, backward)

    @jax.jit
    def helper(x: Any) -> Any:
        logax.log({"helped": x})
        return lax.cond(x[0] > 2, doubled, lambda x: x + 1, x)

    def body(carry: Any, i: Any) -> Any:
        logax.log({"carry": carry}, step=i)
        carry = helper(carry)
        if fails:
            raise RefusedError
        return carry, carry[0]

    def function(x: Any) -> Any:
        logax.log({"x": x})
        carry, ys = lax.scan(body, x, jnp.arange(3))
        return jax.checkpoint(helper)(carry).sum() + ys.sum()

    return function


def shown(function: Function) -> tuple[Any, ...]:
    """The value of a function, run without a jit around it, and its texts."""
    jitted, gradient = jax.jit(function), jax.jit(jax.grad(function))
    texts = jitted.lower(X).as_text(), gradient.lower(X).as_text(), jax.make_jaxpr(function)(X)
    return float(function(X)), *map(str, texts)


@functools.cache
def untouched() -> tuple[Any, ...]:
    """The same of a function that nothing ever harvested."""
    return shown(make())


def spool_it(function: Function) -> None:
    _, logs = logax.spool(function)(X)
    np.testing.assert_array_equal(logs["carry"][0], X)


def spool_its_gradient(function: Function) -> None:
    _, logs = logax.spool(jax.grad(function))(X)
    np.testing.assert_array_equal(logs["carry"][0], X)


def differentiate_its_spool(function: Function) -> None:
    _, logs = jax.grad(logax.spool(function), has_aux=True)(X)
    np.testing.assert_array_equal(logs["carry"][0], X)


def map_its_spool(function: Function) -> None:
    _, logs = jax.vmap(logax.spool(function))(X[None])
    np.testing.assert_array_equal(logs["carry"][0, 0], X)


def spool_it_by_reduction(function: Function) -> None:
    _, logs = logax.spool(function, reduce="first", keep_logs=True)(X)
    np.testing.assert_array_equal(logs["carry"], [X])


def silence_it(function: Function) -> None:
    assert float(logax.nolog(function)(X)) == float(function(X))


def spool_it_without_jit(function: Function) -> None:
    with jax.disable_jit():
        spool_it(function)


def trace_its_spool(function: Function) -> None:
    assert jax.eval_shape(logax.spool(function), X)[1]["carry"].shape == (3, 4)


USES = [
    spool_it,
    spool_its_gradient,
    differentiate_its_spool,
    map_its_spool,
    spool_it_by_reduction,
    silence_it,
    spool_it_without_jit,
    trace_its_spool,
]


@pytest.mark.parametrize("use", slow_but(USES[:2], USES))
def test_a_jitted_function_is_the_same_before_and_after_a_harvest(
    use: Callable[[Function], None],
) -> None:
    function = make()
    jitted = jax.jit(function)
    before = float(jitted(X)), jitted.lower(X).as_text()
    use(jitted)
    assert (float(jitted(X)), jitted.lower(X).as_text()) == before
    assert shown(function) == untouched()


def test_a_function_first_seen_by_a_harvest_is_the_same_afterwards() -> None:
    function = make()
    spool_it(function)
    spool_its_gradient(function)
    assert shown(function) == untouched()


def test_one_harvest_does_not_change_the_next() -> None:
    function = make()
    first = logax.spool(function)(X)
    spool_its_gradient(function)
    map_its_spool(function)
    # Another option makes it trace and walk anew.
    jax.tree.map(np.testing.assert_array_equal, logax.spool(function, capacity=99)(X), first)


def bad_value(x: Any) -> Any:
    logax.log({"fine": x})
    return lax.scan(lambda c, _: (logax.log({"bad": "text"}), (c, None))[1], x, None, length=2)[0]


def no_bound(x: Any) -> Any:
    def body(state: Any) -> Any:
        logax.log({"state": state})
        return state + 1

    return lax.while_loop(lambda state: state.sum() < 20, body, x)


def two_shapes(x: Any) -> Any:
    logax.log({"shape": x})
    logax.log({"shape": x[0]})
    return x + 1


@pytest.mark.parametrize(
    ("function", "error"), [(bad_value, TypeError), (no_bound, ValueError), (two_shapes, TypeError)]
)
def test_an_error_of_the_harvest_leaves_the_function_as_it_was(
    function: Function, error: type[Exception]
) -> None:
    before = function(X), jax.jit(function).lower(X).as_text()
    for harvested in (
        logax.spool(function),
        jax.jit(logax.spool(function)),
        jax.vmap(logax.spool(function), axis_size=2, in_axes=None),
        logax.spool(logax.spool(function)),
    ):
        with pytest.raises(error, match=r"test_harmless\.py:\d+"):
            harvested(X)
        assert not are_logs_bound()
    np.testing.assert_array_equal(function(X), before[0])
    assert jax.jit(function).lower(X).as_text() == before[1]


def test_an_error_of_the_function_passes_through_and_leaves_it_as_it_was() -> None:
    fails: list[bool] = []
    function = make(fails)
    fails.append(True)
    for harvested in (
        logax.spool(function),
        logax.spool(jax.grad(function)),
        jax.vmap(logax.spool(function), axis_size=2, in_axes=None),
        logax.nolog(function),
    ):
        with pytest.raises(RefusedError):
            harvested(X)
        assert not are_logs_bound()
    fails.clear()
    spool_it(function)
    spool_its_gradient(function)
    assert shown(function) == untouched()


def test_an_error_in_an_inner_harvest_leaves_the_outer_one_listening() -> None:
    def caught(x: Any) -> Any:
        logax.log({"before": x})
        with pytest.raises(TypeError):
            logax.spool(two_shapes)(x)
        with pytest.raises(RefusedError):
            logax.nolog(make([True]))(x)
        logax.log({"after": x})
        return x

    _, logs = logax.spool(caught)(X)
    assert list(logs) == ["before", "after"]


def test_two_threads_that_harvest_do_not_see_each_others_logs() -> None:
    results = in_two_threads(logax.spool, logax.spool)
    for name, (out, logs) in results.items():
        np.testing.assert_array_equal(out, X + 1)
        assert list(logs) == [name, "shared"]
        np.testing.assert_array_equal(logs[name], [X])
        np.testing.assert_array_equal(logs["shared"], [X])


def test_a_thread_without_a_harvest_has_no_logs_while_another_one_harvests() -> None:
    results = in_two_threads(logax.spool, jax.make_jaxpr)
    assert list(results["one"][1]) == ["one", "shared"]
    assert str(results["two"]) == str(in_two_threads(jax.make_jaxpr, jax.make_jaxpr)["two"])
    assert [equation.primitive.name for equation in results["two"].eqns] in (["jit"], ["pjit"])


def in_two_threads(*ways: Callable[[Function], Function]) -> dict[str, Any]:
    """Trace a function in each of two threads, both in the midst of it at once."""
    together = threading.Barrier(2, timeout=60)
    shared = jax.jit(lambda x: (logax.log({"shared": x}), x + 1)[1])
    results: dict[str, Any] = {}

    def work(name: str, way: Callable[[Function], Function]) -> None:
        def function(x: Any) -> Any:
            together.wait()
            logax.log({name: x})
            together.wait()
            x = shared(x)
            together.wait()
            return x

        results[name] = way(function)(X)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(("one", "two"), ways, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results

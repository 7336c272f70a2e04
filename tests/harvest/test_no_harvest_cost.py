"""A log that nobody harvests is free: the lowered program is that of the function without it.

Each program is made twice by the same code, once with `logax.log` and once with a function that
does nothing, and the texts are compared as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import logax

X = np.arange(1.0, 9.0, dtype=np.float32)
Log = Callable[..., None]
Function = Callable[..., Any]
Make = Callable[[Log], Function]
PROGRAMS: dict[str, Make] = {}


def unlogged(*_: Any, **__: Any) -> None:
    """In place of `log`: nothing."""


def program(make: Make) -> Make:
    PROGRAMS[make.__name__] = make
    return make


@program
def in_jit(log: Log) -> Function:
    @jax.jit
    def helper(x: Any) -> Any:
        log({"inner": x, "tree": {"a": [x, x]}}, step=0, episode=1, tags="loud")
        return x * 2

    def function(x: Any) -> Any:
        y = helper(x)
        log({"outer": y})
        return helper(y)

    return function


@program
def in_scan(log: Log) -> Function:
    def body(carry: Any, i: Any) -> Any:
        carry = carry + i
        log({"carry": carry}, step=i)
        return carry, carry[0]

    return lambda x: lax.scan(body, x, jnp.arange(5.0), reverse=True, unroll=2)


@program
def in_while(log: Log) -> Function:
    def goes_on(state: Any) -> Any:
        log({"asked": state[1]})
        return state[1] < 5

    def body(state: Any) -> Any:
        log({"x": state[0]}, step=state[1])
        return state[0] * 2, state[1] + 1

    return lambda x: lax.while_loop(goes_on, body, (x, 0))


@program
def in_fori(log: Log) -> Function:
    def body(i: Any, x: Any) -> Any:
        log({"x": x}, step=i)
        return x * 2

    return lambda x: lax.fori_loop(0, 5, body, x)


@program
def in_cond(log: Log) -> Function:
    def first(x: Any) -> Any:
        log({"first": x})
        return x * 2

    def second(x: Any) -> Any:
        log({"second": x[0]})
        log({"second": x[1]})
        return x - 1

    def function(x: Any) -> Any:
        y = lax.cond(x[0] > 0, first, second, x)
        return lax.switch(2, [first, second, first], y)

    return function


@program
def in_grad(log: Log) -> Function:
    def loss(x: Any) -> Any:
        y = x * x
        log({"y": y})
        return y.sum()

    return jax.value_and_grad(loss)


@program
def in_vmap(log: Log) -> Function:
    def each(x: Any) -> Any:
        y = lax.cond(x > 3, lambda: x, lambda: -x)
        log({"y": y, "constant": 1})
        return y * 2

    return jax.vmap(each)


@program
def in_checkpoint(log: Log) -> Function:
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def block(x: Any) -> Any:
        y = x * x
        log({"y": y})
        return y @ y

    return jax.grad(lambda x: block(x) ** 2)


@program
def in_custom_jvp(log: Log) -> Function:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        log({"x": x})
        return x * x

    @function.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        log({"tangent": tangents[0]})
        return function(*primals), tangents[0] * 3

    return lambda x: jax.jvp(function, (x,), (x,))


@program
def in_custom_vjp(log: Log) -> Function:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        log({"x": x})
        return (x * x).sum()

    def forward(x: Any) -> Any:
        log({"forward": x})
        return function(x), x

    def backward(x: Any, cotangent: Any) -> Any:
        log({"backward": cotangent})
        return (x * cotangent,)

    function.defvjp(forward, backward)
    return jax.grad(function)


@program
def in_shard_map(log: Log) -> Function:
    mesh = Mesh(np.array(jax.devices()), ("i",))

    def shard(x: Any) -> Any:
        log({"x": x})
        total = lax.psum(x, "i")
        log({"total": total})
        return x + total

    spec = PartitionSpec("i")
    return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)


@program
def in_all_of_them_at_once(log: Log) -> Function:
    scanned = in_scan(log)
    squared = in_custom_vjp(log)

    def loss(x: Any) -> Any:
        log({"x": x, "norm": x[0]}, step=3)
        y = jax.vmap(jax.checkpoint(lambda x: scanned(x[None])[0][0]))(x)
        return squared(y).sum() + in_jit(log)(y).sum()

    return jax.jit(jax.grad(loss))


def text(fun: Function) -> str:
    """The lowered program under a name that is the same for all."""

    def function(x: Any) -> Any:
        return fun(x)

    return jax.jit(function).lower(X).as_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_unharvested_logs_leave_the_lowered_program_as_it_is(name: str) -> None:
    make = PROGRAMS[name]
    logged, plain = make(logax.log), make(unlogged)
    without = text(plain)
    assert text(logged) == without, "before any harvest"

    out, logs = logax.spool(logged, capacity=10)(X)
    assert len(logs) > 0
    assert all(np.all(logs.count[key] > 0) for key in logs if key != "second")
    jax.tree.map(np.testing.assert_array_equal, out, jax.jit(plain)(X))

    assert text(logged) == without, "after a harvest"
    assert str(jax.make_jaxpr(logged)(X)) == str(jax.make_jaxpr(plain)(X))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_harvest_sees_through_what_was_jitted_and_called_before(name: str) -> None:
    fresh, used = PROGRAMS[name](logax.log), jax.jit(PROGRAMS[name](logax.log))
    before = used.lower(X).as_text()
    out = used(X)
    _, wanted = logax.spool(fresh, capacity=10)(X)
    _, logs = logax.spool(used, capacity=10)(X)
    assert list(logs) == list(wanted)
    jax.tree.map(np.testing.assert_array_equal, dict(logs), dict(wanted))
    assert used.lower(X).as_text() == before
    jax.tree.map(np.testing.assert_array_equal, used(X), out)


def test_a_function_given_as_data_is_not_called_when_nothing_harvests() -> None:
    calls = []

    def heavy() -> dict[str, Any]:
        calls.append(1)
        return {"heavy": jnp.ones(3)}

    def function(x: Any) -> Any:
        logax.log(heavy)
        logax.log(heavy, every=2, step=jnp.int32(x[0]))
        return x

    plain = text(lambda x: x)
    assert text(function) == plain
    np.testing.assert_array_equal(function(X), X)
    assert calls == []
    _, logs = logax.spool(function)(X)
    assert (int(logs.count["heavy"]), len(calls)) == (1, 2)
    assert text(function) == plain
    assert len(calls) == 2


def test_nothing_is_checked_when_nothing_harvests() -> None:
    assert logax.log(object(), every="never", step="one") is None  # type: ignore[arg-type]


def test_logs_that_a_harvest_does_not_choose_are_free() -> None:
    def function(log: Log) -> Function:
        def logging(x: Any) -> Any:
            def body(carry: Any, i: Any) -> Any:
                log({"unchosen": carry}, step=i)
                return carry + i, None

            x, _ = lax.scan(body, x, jnp.arange(5.0))
            logax.log({"chosen": x})
            return x

        return logging

    harvested = [logax.spool(function(log), keys="chosen") for log in (logax.log, unlogged)]
    assert text(harvested[0]) == text(harvested[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_nolog_makes_the_program_without_logs_under_a_harvest_too(name: str) -> None:
    make = PROGRAMS[name]
    quiet = logax.nolog(make(logax.log))
    _, logs = logax.spool(quiet)(X)
    assert dict(logs) == {}
    without = text(make(unlogged))
    assert text(quiet) == without
    assert text(lambda x: logax.spool(quiet)(x)[0]) == without

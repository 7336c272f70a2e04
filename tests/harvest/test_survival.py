"""What a user's program says of itself stays so under a harvest, which traces it again.

Names, scopes, unrolling, direction, checkpoint policies, donated and static arguments; shardings
are in `test_shards`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import logax

X = np.arange(1.0, 4.0, dtype=np.float32)
Function = Callable[..., Any]


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

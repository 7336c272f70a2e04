"""Hand-written programs, one hard case each, written against the namespace of `oracle`.

Each is a function of the namespace and a state (see `programs`); its name says what is hard.
`HARD` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from programs import State, wrap
from recorder import Namespace

Hard = Callable[[Namespace, State], State]
HARD: list[Hard] = []


def hard(program: Hard) -> Hard:
    HARD.append(program)
    return program


def advanced(state: State, by: Any = 1.0) -> State:
    return {**state, "x": wrap(state["x"] + by)}


@hard
def one_key_before_inside_and_after_a_scan(ns: Namespace, state: State) -> State:
    def body(state: State, i: Any) -> tuple[State, None]:
        ns.log({"loss": state["x"]}, step=i)
        state = advanced(state)
        ns.log({"loss": state["x"]}, step=i)
        return state, None

    ns.log({"loss": state["x"]}, step=-1)
    state, _ = ns.scan(body, state, jnp.arange(3))
    ns.log({"loss": state["x"]}, step=3)
    return state


@hard
def while_in_cond_in_scan(ns: Namespace, state: State) -> State:
    def climb(state: State) -> State:
        def body(state: State) -> State:
            state = advanced(state)
            ns.log({"loss": state["x"], "inner": state["v"]}, step=state["n"])
            return state

        return ns.while_loop(lambda state: state["x"] % 4 != 3, body, state)

    def rest(state: State) -> State:
        ns.log({"loss": state["x"]}, episode=state["n"])
        return advanced(state, 5.0)

    def body(state: State, i: Any) -> tuple[State, Any]:
        state = ns.cond(state["x"] % 3 == 0, climb, rest, state)
        ns.log({"outer": i}, step=i)
        return advanced(state), state["x"]

    return ns.scan(body, state, jnp.arange(5))[0]


@hard
def condition_of_a_while_loop_logs(ns: Namespace, state: State) -> State:
    def condition(state: State) -> Any:
        ns.log({"checked": state["x"], "both": state["n"]}, step=state["n"])
        return state["n"] < 6

    def body(state: State) -> State:
        ns.log({"both": -state["n"]})
        return {**state, "n": state["n"] + 2}

    return ns.while_loop(condition, body, state)


@hard
def condition_logs_in_a_loop_that_never_runs(ns: Namespace, state: State) -> State:
    def condition(state: State) -> Any:
        ns.log({"checked": state["x"]})
        return state["x"] < 0

    def body(state: State) -> State:
        ns.log({"never": state["v"]}, step=state["n"])
        return state

    return ns.while_loop(condition, body, state)


@hard
def reverse_scan_within_scan(ns: Namespace, state: State) -> State:
    def outer(state: State, i: Any) -> tuple[State, Any]:
        def inner(state: State, j: Any) -> tuple[State, Any]:
            ns.log({"loss": 10 * i + j}, outer=i, inner=j)
            return advanced(state, j.astype(jnp.float32)), state["x"]

        state, ys = ns.scan(inner, state, jnp.arange(3), reverse=True)
        ns.log({"ys": ys}, outer=i)
        return state, None

    return ns.scan(outer, state, jnp.arange(2))[0]


@hard
def scan_within_reverse_scan(ns: Namespace, state: State) -> State:
    def outer(state: State, i: Any) -> tuple[State, Any]:
        def inner(state: State, j: Any) -> tuple[State, Any]:
            ns.log({"loss": 10 * i + j}, outer=i, inner=j)
            return advanced(state), None

        ns.log({"loss": 100 * i}, outer=i)
        return ns.scan(inner, state, jnp.arange(3), unroll=2)[0], None

    return ns.scan(outer, state, jnp.arange(3), reverse=True)[0]


@hard
def switch_whose_three_branches_log_differently(ns: Namespace, state: State) -> State:
    def silent(state: State) -> State:
        return advanced(state)

    def once(state: State) -> State:
        ns.log({"loss": state["x"], "only here": state["v"]}, step=state["n"])
        return state

    def thrice(state: State) -> State:
        for i in range(3):
            ns.log({"loss": state["x"] + i}, episode=i)
        return state

    def body(i: Any, state: State) -> State:
        return ns.switch(state["n"] + i - 2, [silent, once, thrice], state)

    return ns.fori_loop(0, 4, body, state)


@hard
def loops_of_length_zero(ns: Namespace, state: State) -> State:
    def body(state: State, i: Any) -> tuple[State, Any]:
        ns.log({"never": state["v"], "loss": state["x"]}, step=i, time=state["x"])
        return state, state["v"]

    def element(i: Any) -> Any:
        ns.log({"never": state["v"]}, step=i)
        return state["x"]

    def count(i: Any, state: State) -> State:
        ns.log({"loss": state["x"]}, step=i)
        return advanced(state)

    state, ys = ns.scan(body, state, jnp.arange(0))
    ns.log({"loss": state["x"] + ys.sum()})
    state = ns.fori_loop(3, 3, count, state)
    return advanced(state, ns.map(element, jnp.arange(0)).sum())


@hard
def loops_of_length_zero_within_scan(ns: Namespace, state: State) -> State:
    def inner(state: State, _: Any) -> tuple[State, None]:
        ns.log({"loss": state["x"], "never": state["n"]}, inner=state["n"])
        return state, None

    def outer(state: State, i: Any) -> tuple[State, None]:
        state, _ = ns.scan(inner, state, None, length=0)
        ns.log({"loss": state["x"]}, step=i)
        return advanced(state), None

    return ns.scan(outer, state, jnp.arange(2))[0]


@hard
def while_in_a_loop_of_length_zero(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        ns.log({"never": state["x"]}, step=state["n"])
        return advanced(state)

    def body(state: State, _: Any) -> tuple[State, None]:
        return ns.while_loop(lambda s: s["x"] < 5, logs, state), None

    return ns.scan(body, state, None, length=0)[0]


@hard
def cond_in_a_loop_of_length_zero_in_a_branch(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        ns.log({"loss": state["x"]})
        return advanced(state)

    def loops(state: State) -> State:
        state = ns.fori_loop(0, 0, lambda _, s: ns.cond(s["x"] > 7, logs, advanced, s), state)
        return logs(state)

    return ns.cond(state["n"] > 2, loops, logs, state)


@hard
def one_key_at_sites_with_other_steps(ns: Namespace, state: State) -> State:
    ns.log({"loss": state["x"]}, step=1)
    ns.log({"loss": state["x"] + 1}, episode=state["n"], time=0.5)
    ns.log({"loss": state["x"] + 2})
    ns.log({"loss": state["x"] + 3, "other": state["n"]}, time=state["x"], step=state["n"])
    return state


@hard
def one_function_jitted_and_used_with_other_keys(ns: Namespace, state: State) -> State:
    def step(state: State, key: str) -> State:
        ns.log({key: state["x"], "shared": state["n"]}, step=state["n"])
        return {**advanced(state), "n": state["n"] + 1}

    jitted = ns.jit(step, static_argnames="key")
    state = jitted(jitted(state, "first"), "second")
    state = ns.scan(lambda state, _: (jitted(state, "second"), None), state, None, length=2)[0]
    return jitted(state, "first")


@hard
def bounds_of_nested_fori_loops_from_data(ns: Namespace, state: State) -> State:
    def outer(i: Any, state: State) -> State:
        def inner(j: Any, state: State) -> State:
            ns.log({"inner": state["x"]}, outer=i, inner=j)
            return advanced(state)

        ns.log({"outer": state["x"]}, outer=i)
        return ns.fori_loop(i, state["n"], inner, state)

    return ns.fori_loop(1, state["n"], outer, state)


@hard
def branches_that_log_in_turn_with_the_code_around(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        ns.log({"loss": state["x"]}, inside=1)
        return advanced(state)

    for _ in range(2):
        ns.log({"loss": state["x"]})
        state = ns.cond(state["x"] > 7, logs, advanced, state)
        state = ns.cond(state["x"] <= 7, logs, logs, state)
    ns.log({"loss": state["x"]})
    return state


@hard
def branches_with_dtypes_to_be_joined(ns: Namespace, state: State) -> State:
    def short(state: State) -> State:
        ns.log(
            {"loss": state["v"].astype(jnp.bfloat16), "n": state["n"].astype(jnp.int8)},
            step=np.int8(1),
        )
        return state

    def long(state: State) -> State:
        ns.log({"loss": state["v"], "n": state["n"]}, step=state["n"])
        return advanced(state)

    return ns.cond(state["n"] % 2 == 0, short, long, state)


@hard
def trees_out_of_one_branch_of_a_loop(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        key = jax.random.wrap_key_data(jnp.stack([state["n"], state["n"]]).astype(jnp.uint32))
        ns.log(
            {"net": {"w": [state["v"], state["x"] > 3], "key": key}, "none": ()}, step=state["n"]
        )
        return state

    def body(state: State, _: Any) -> tuple[State, None]:
        state = ns.cond(state["x"] % 2 == 0, logs, advanced, state)
        return {**advanced(state, 3.0), "n": state["n"] + 1}, None

    return ns.scan(body, state, None, length=4)[0]


@hard
def trees_without_leaves_or_elements(ns: Namespace, state: State) -> State:
    def body(state: State, _: Any) -> tuple[State, None]:
        ns.log({"tree": (), "array": state["v"][:0]})
        return ns.cond(state["x"] > 7, logs, advanced, state), None

    def logs(state: State) -> State:
        ns.log({"tree": (), "array": state["v"][:0]})
        return advanced(state)

    return ns.scan(body, state, None, length=3)[0]


@hard
def checkpointed_body_of_a_scan(ns: Namespace, state: State) -> State:
    def body(state: State, i: Any) -> tuple[State, Any]:
        ns.log({"loss": state["x"]}, step=i)
        return ns.cond(state["x"] > 7, lambda s: advanced(s, 2.0), advanced, state), state["x"]

    return ns.scan(ns.checkpoint(body), state, jnp.arange(4))[0]


@hard
def custom_derivatives_in_a_while_loop(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        ns.log({"loss": state["x"]}, step=state["n"])
        return advanced(state)

    forward, backward = ns.custom_jvp(logs), ns.custom_vjp(logs)
    forward.defjvp(lambda primals, tangents: (forward(*primals), tangents[0]))
    backward.defvjp(lambda state: (backward(state), None), lambda _, cotangent: (cotangent,))

    def body(state: State) -> State:
        state = backward(forward(state))
        return {**state, "n": state["n"] + 1}

    return ns.while_loop(lambda state: state["n"] < 5, body, state)


@hard
def due_steps_in_nested_loops(ns: Namespace, state: State) -> State:
    def outer(i: Any, state: State) -> State:
        def inner(state: State, j: Any) -> tuple[State, None]:
            ns.log(
                lambda: {"late": state["v"] * 2, "loss": state["x"]},
                every=3,
                step=2 * i + j,
                outer=i,
            )
            return advanced(state), None

        ns.log({"loss": -state["x"]}, every=2, step=i)
        return ns.scan(inner, state, jnp.arange(2))[0]

    return ns.fori_loop(0, 2 + state["n"] % 4, outer, state)


@hard
def constants_and_arguments_logged_in_loops(ns: Namespace, state: State) -> State:
    table = np.arange(6, dtype=np.int32).reshape(2, 3)

    def body(_: Any, carry: State) -> State:
        ns.log(
            {"constant": 2.0, "table": table, "argument": state["v"], "moving": carry["x"]}, step=7
        )
        return advanced(carry)

    state = ns.fori_loop(0, 2, body, state)
    return ns.while_loop(lambda s: s["x"] % 5 != 0, lambda s: body(0, s), state)


@hard
def map_within_a_loop_without_bound(ns: Namespace, state: State) -> State:
    def body(state: State) -> State:
        def element(shift: Any) -> Any:
            ns.log({"element": state["x"] + shift}, step=state["n"], shift=shift)
            return state["x"] + shift

        total = ns.map(element, jnp.arange(3.0)).sum()
        return {**advanced(state, total), "n": state["n"] + 1}

    return ns.while_loop(lambda state: state["n"] < 4, body, state)


@hard
def scan_unrolled_with_a_remainder(ns: Namespace, state: State) -> State:
    def body(state: State, i: Any) -> tuple[State, Any]:
        ns.log({"loss": state["x"], "i": i}, step=i)
        return advanced(state, 3.0), state["x"]

    state, _ = ns.scan(body, state, jnp.arange(5), unroll=3)
    return ns.scan(body, state, jnp.arange(5), unroll=2, reverse=True)[0]


@hard
def while_in_while_in_scan(ns: Namespace, state: State) -> State:
    def inner(state: State) -> State:
        ns.log({"inner": state["x"]}, step=state["n"])
        return advanced(state)

    def outer(state: State) -> State:
        state = ns.while_loop(lambda s: s["x"] % 4 != 0, inner, advanced(state))
        ns.log({"outer": state["v"]}, step=state["n"])
        return {**state, "n": state["n"] + 1}

    def body(state: State, _: Any) -> tuple[State, None]:
        state = ns.while_loop(lambda s: s["n"] % 3 != 0, outer, state)
        return {**state, "n": state["n"] + 1}, None

    return ns.scan(body, state, None, length=2)[0]


@hard
def explicit_and_tagged_logs_beside_plain_ones(ns: Namespace, state: State) -> State:
    def body(state: State, i: Any) -> tuple[State, None]:
        ns.log({"loss": state["x"], "hidden": state["n"]}, explicit=True, step=i)
        ns.log({"loss": state["x"] + 1}, tags=("seldom",), step=i)
        return advanced(state), None

    return ns.scan(body, state, jnp.arange(2))[0]


@hard
def lanes_that_loop_differently_often(ns: Namespace, state: State) -> State:
    def until(x: Any) -> Any:
        def body(x: Any) -> Any:
            ns.log({"lanes/x": x})
            return x + 1

        return ns.while_loop(lambda x: x < 9, body, x)

    xs = ns.lanes(until, 3, "lanes", 0, 0)(state["v"])
    return advanced(state, xs.sum())


@hard
def lanes_that_branch_within_lanes_of_a_loop(ns: Namespace, state: State) -> State:
    def inner(x: Any) -> Any:
        def logs(x: Any) -> Any:
            ns.log({"inner/x": x, "inner/constant": 1.0}, step=3)
            return x + 1

        return ns.cond(x > 7, logs, lambda x: x + 2, x)

    def outer(x: Any) -> Any:
        ns.log({"outer/x": x})
        return ns.lanes(inner, 2, "inner", 0, 0)(x + jnp.arange(0.0, 8.0, 4.0)).sum()

    def body(state: State, _: Any) -> tuple[State, None]:
        xs = ns.lanes(outer, 3, "outer", 0, 0)(state["v"])
        return {**state, "v": wrap(xs)}, None

    return ns.scan(body, state, None, length=2)[0]


@hard
def shards_that_log_and_speak_in_a_loop(ns: Namespace, state: State) -> State:
    def shard(x: Any) -> Any:
        def logs(x: Any) -> Any:
            ns.log({"shards/x": x}, step=4)
            return x + 1

        total = jax.lax.psum(x, "shards")
        ns.log({"shards/total": total, "shards/constant": 2.0})
        return wrap(ns.cond(total > 20, logs, lambda x: x + 3, x + total))

    def body(state: State, i: Any) -> tuple[State, None]:
        ns.log({"loss": state["x"]}, step=i)
        xs = ns.shards(shard, 2, "shards")(state["v"][:2])
        return {**advanced(state, xs.sum()), "v": jnp.append(xs, state["v"][2])}, None

    return ns.scan(body, state, jnp.arange(2))[0]


@hard
def a_while_loop_in_which_only_shards_log(ns: Namespace, state: State) -> State:
    def shard(x: Any) -> Any:
        ns.log({"shards/x": x}, step=4)
        return wrap(x + jax.lax.psum(x, "shards"))

    def body(state: State) -> State:
        xs = ns.shards(shard, 2, "shards")(state["v"][:2])
        return {**state, "n": state["n"] + 1, "v": jnp.append(xs, state["v"][2])}

    ns.log({"loss": state["x"]})
    state = ns.while_loop(lambda s: s["n"] < 5, body, state)
    ns.log({"loss": state["v"][0]})
    return state


@hard
def rules_that_log_under_a_gradient_in_a_loop(ns: Namespace, state: State) -> State:
    def doubled(x: Any) -> Any:
        ns.log({"run": x})
        return 2 * x

    double = ns.custom_vjp(doubled)

    def forward(x: Any) -> Any:
        ns.log({"forward": x})
        return double(x), x

    def backward(x: Any, slope: Any) -> Any:
        ns.log({"backward": x, "slope": slope})
        return (3 * slope,)

    double.defvjp(forward, backward)

    def body(x: Any, _: Any) -> tuple[Any, None]:
        return wrap(double(ns.checkpoint(double)(x))), None

    value, slope = jax.value_and_grad(lambda x: ns.scan(body, x, None, length=2)[0])(state["x"])
    return advanced({**state, "x": value}, slope)


@hard
def harvests_inside_that_take_some_and_all(ns: Namespace, state: State) -> State:
    def logs(state: State) -> State:
        ns.log({"loss": state["x"], "kept": state["n"]}, step=state["n"])
        return advanced(state)

    state = ns.taken(logs, "loss")(logs(state))
    return ns.nolog(logs)(ns.jit(logs, donate_argnums=0)(state))

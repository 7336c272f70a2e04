"""Rules for `scan`, `while` and `cond`.

Each builds the same construct with JAX's public functions around the walked body, and carries
states and validity through it. Three small primitives keep `while` loops exact and cheap. JAX
selects the whole carry of a batched loop at every step, which would copy every store. So the loop
is given a predicate that stays unbatched (`any_lane_p`: whether any lane goes on), and the user's
carry alone is selected lane by lane (`advance_p`); stores skip idle lanes by their validity. In a
loop that is not batched an iteration that runs is real, and `running_p` says so to the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _compat
from logax._compat import Array, Equation, Tree
from logax._harvest import census as counting
from logax._harvest.census import Census, Tally
from logax._harvest.storage import Block, Single, empty, padded
from logax._harvest.walker import RULES, Collected, Frame, Harvest, Rule, take, traced_part, walk


def _census_scan(equation: Equation, harvest: Harvest) -> Census:
    inside = harvest.census(equation.params["jaxpr"])
    return {key: tally.times(equation.params["length"]) for key, tally in inside.items()}


def _run_scan(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    params = equation.params
    num_consts, num_carry = _compat.scan_split(params)
    consts, carry = args[:num_consts], list(args[num_consts : num_consts + num_carry])

    def body(carried: Tree, x: list[Array]) -> Tree:
        carry, states = carried
        child = frame.child(states, frame.valid)
        results = walk(child, params["jaxpr"], [*consts, *carry, *x])
        return (results[:num_carry], child.states), (results[num_carry:], child.collected())

    def in_order(stacked: Block | Single) -> Block:
        """The records of all iterations, one after the other as they were executed."""
        if params["reverse"]:
            stacked = jax.tree.map(lambda x: jnp.flip(x, 0), stacked)
        if isinstance(stacked, Single):  # the loop gave it its axis
            return Block(*stacked)
        return Block(*jax.tree.map(_one_axis_less, tuple(stacked)))

    split = {"_split_transpose": True} if params.get("_split_transpose") else {}
    (carry, states), (ys, blocks) = lax.scan(
        body,
        (carry, frame.threaded(frame.harvest.census(params["jaxpr"]))),
        list(args[num_consts + num_carry :]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
        **split,
    )
    frame.states.update(states)
    frame.record_all({key: in_order(block) for key, block in blocks.items()})
    return [*carry, *ys]


def _one_axis_less(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _census_while(equation: Equation, harvest: Harvest) -> Census:
    before = harvest.census(equation.params["cond_jaxpr"])
    inside = counting.then(before, harvest.census(equation.params["body_jaxpr"]))
    varying = _compat.varying_axes(_compat.parts(equation.params["cond_jaxpr"])[0].outvars[0].aval)
    return {key: tally.unbounded().maybe(varying) for key, tally in inside.items()}


def _run_while(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """The predicate is computed once before the loop and then at the end of each iteration.

    So whether an iteration is real is known, as data, before it runs, and logs in the predicate
    come in their order.
    """
    params = equation.params
    for_cond, for_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = args[:for_cond], args[for_cond : for_cond + for_body]

    def goes_on(child: Frame, carry: Sequence[Array]) -> Array:
        (again,) = walk(child, params["cond_jaxpr"], [*cond_consts, *carry])
        if again.ndim:  # JAX batched this loop: it runs while any lane does
            again = jnp.any(again)
        return again if child.valid is None else again & child.valid

    def body(carried: Tree) -> Tree:
        carry, states, active = carried
        child = frame.child(states, running_p.bind(active))
        new = walk(child, params["body_jaxpr"], [*body_consts, *carry])
        new = [advance_p.bind(active, n, o) for n, o in zip(new, carry, strict=True)]
        return new, child.states, goes_on(child, new)

    inside = counting.then(
        frame.harvest.census(params["cond_jaxpr"]), frame.harvest.census(params["body_jaxpr"])
    )
    start = list(args[for_cond + for_body :])
    first = frame.child(frame.threaded(inside), frame.valid)
    active = goes_on(first, start)
    carry, states, _ = lax.while_loop(
        lambda carried: any_lane_p.bind(carried[2]), body, (start, first.states, active)
    )
    frame.states.update(states)
    return list(carry)


def _census_cond(equation: Equation, harvest: Harvest) -> Census:
    varying = _compat.varying_axes(equation.invars[0].aval)
    return counting.either([harvest.census(b) for b in equation.params["branches"]], varying)


def _run_cond(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Every branch returns room for the most records any of them has, and says which are real.

    A store goes through the branches only where it is smaller than that room would be. Any other is
    left outside and takes in what comes out, since JAX selects everything that passes a batched
    `cond`.
    """
    index, operands = args[0], args[1:]
    branches = equation.params["branches"]
    inside = frame.taken(_census_cond(equation, frame.harvest))
    states = {
        key: state
        for key, state in frame.threaded(inside).items()
        if _is_larger(inside[key], frame.harvest.stores[key].rows)
    }

    def unified(blocks: Collected) -> Collected:
        result: Collected = {}
        for key, tally in inside.items():
            if key in states:
                continue
            block = blocks[key].block() if key in blocks else empty(frame.tallies[key])
            if tally.most is not None and not (tally.exact and tally.leaves):
                block = padded(block, tally.most)
            result[key] = _compat.make_varying(block, tally.varying)
        return result

    parts = [traced_part(frame, branch, operands, states, unified) for branch in branches]
    added = jax.tree.leaves((states, frame.valid))
    jaxprs, consts = _compat.with_common_consts([closed for closed, _ in parts])
    params = {**equation.params, "branches": jaxprs}
    results = _compat.rebind(equation, [index, *consts, *operands, *added], params)
    return take(equation, results, parts[0][1], frame)


def _is_larger(tally: Tally, rows: int) -> bool:
    """Whether the records are more than so many, or, each shard with a state of its own, apart."""
    return tally.most is None or tally.most > rows or bool(tally.shards)


def _any_lane_batch(args: Any, dims: Any) -> tuple[Array, None]:
    return any_lane_p.bind(jnp.any(args[0], axis=dims[0])), None


def _advance_batch(args: Any, dims: Any) -> tuple[Array, int]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    active, new, old = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    )
    if dims[0] is None:
        return advance_p.bind(args[0], new, old), 0
    mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
    return jnp.where(mask, new, old), 0


def _advance_jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
    active, new, old = primals
    result = advance_p.bind(active, new, old)
    _, new_dot, old_dot = tangents
    if type(new_dot) is ad.Zero and type(old_dot) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, advance_p.bind(
        active, ad.instantiate_zeros(new_dot), ad.instantiate_zeros(old_dot)
    )


def _advance_transpose(cotangent: Any, active: Any, new: Any, old: Any) -> list[Any]:
    # Unbatched, an iteration that runs is real: all of the result is `new`.
    return [None, cotangent, None]


any_lane_p = jex.Primitive("any_lane")
any_lane_p.def_impl(lambda active: active)
any_lane_p.def_abstract_eval(lambda active: active)
batching.primitive_batchers[any_lane_p] = _any_lane_batch
mlir.register_lowering(any_lane_p, lambda context, active: [active])

running_p = jex.Primitive("running")
running_p.def_impl(lambda active: active)
running_p.def_abstract_eval(lambda active: active)
batching.primitive_batchers[running_p] = lambda args, dims: (args[0], dims[0])
mlir.register_lowering(
    running_p, mlir.lower_fun(lambda active: jnp.ones((), bool), multiple_results=False)
)

advance_p = jex.Primitive("advance")
advance_p.def_impl(lambda active, new, old: new)
advance_p.def_abstract_eval(lambda active, new, old: new)
batching.primitive_batchers[advance_p] = _advance_batch
ad.primitive_jvps[advance_p] = _advance_jvp
ad.primitive_transposes[advance_p] = _advance_transpose
mlir.register_lowering(advance_p, lambda context, active, new, old: [new])

RULES["scan"] = Rule(_census_scan, _run_scan)
RULES["while"] = Rule(_census_while, _run_while)
RULES["cond"] = Rule(_census_cond, _run_cond)

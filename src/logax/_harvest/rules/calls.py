"""Rules for primitives that call a function once: `jit`, `checkpoint`, solves, plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Equation, Tree
from logax._harvest.census import Census
from logax._harvest.harvest import INLINE_CALLS, RULES, Frame, Harvest, Rule, census_of_param
from logax._harvest.walker import record_results, trace_part, walk, walk_unharvested


def _run_jit(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Bind the same `jit`, with its name, shardings and donations, around the walked function.

    Memoized: a helper that is called forty times is walked, lowered and compiled once.
    """
    inner = equation.params["jaxpr"]
    census = frame.harvest.census(inner)
    emits = frame.harvest.emits_inside(frame, census, may_repeat=False)
    states = frame.states_for(census, emits)
    added, structure = jax.tree.flatten((states, frame.scope()))
    types = tuple(jax.typeof(x) for x in (*args, *added))
    in_loop = frame.harvest.adapts and frame.in_loop
    place = ("jit", types, structure, frame.only_keys, emits, in_loop, frame.shards)
    closed, tree = frame.harvest.memoize(
        place,
        _compat.jaxpr_and_consts(inner)[0],
        lambda: trace_part(frame, inner, args, states, emits),
    )
    results = _compat.rebind_jit(equation, closed, [*args, *added], len(added))
    return record_results(equation, results, tree, frame)


def _run_checkpoint(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Bind the same `checkpoint` with its policy; records are its results, so they appear once."""
    inner = equation.params["jaxpr"]
    census = frame.harvest.census(inner)
    emits = frame.harvest.emits_inside(frame, census, may_repeat=True)
    states = frame.states_for(census, emits)
    closed, tree = trace_part(frame, inner, args, states, emits)
    opened, consts = _compat.open_jaxpr(closed)
    added = jax.tree.leaves((states, frame.scope()))
    params = {**equation.params, "jaxpr": opened}
    results = _compat.rebind(equation, [*consts, *args, *added], params)
    return record_results(equation, results, tree, frame)


def _run_inline(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Walk the equations of a plain call in place; the compiled program does not show the call."""
    return walk(frame, _compat.jaxpr_of_call(equation.params), args)


def _census_inline(equation: Equation, harvest: Harvest) -> Census:
    return harvest.census(_compat.jaxpr_of_call(equation.params))


def _census_linear_solve(equation: Equation, harvest: Harvest) -> Census:
    jaxprs = equation.params["jaxprs"]
    for other in (jaxprs.matvec, jaxprs.vecmat, jaxprs.transpose_solve):
        if other is not None:
            harvest.census(other)  # their logs count as seen, though they do not run here
    return harvest.census(jaxprs.solve)


def _run_linear_solve(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Walk `solve`; its records become auxiliary results, which JAX does not differentiate.

    The other functions run only under an outer differentiation, so their logs do not belong to this
    harvest.
    """
    jaxprs, lengths = equation.params["jaxprs"], equation.params["const_lengths"]
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    consts = type(jaxprs)(*(args[end - n : end] for end, n in zip(ends, lengths, strict=True)))
    right_side = list(args[ends[-1] :])
    census = frame.harvest.census(jaxprs.solve)
    emits = frame.harvest.emits_inside(frame, census, may_repeat=True)
    states = frame.states_for(census, emits)
    like: list[Tree] = []

    def matvec(x: list[Array]) -> list[Array]:
        return walk_unharvested(jaxprs.matvec, [*consts.matvec, *x])

    def solve(_: Any, b: list[Array]) -> Tree:
        child = frame.child(states, frame.scope(), emits)
        results = walk(child, jaxprs.solve, [*consts.solve, *b])
        extra = (results[len(b) :], child.states, child.collect_blocks())
        like.append(jax.tree.map(jax.typeof, extra))
        return results[: len(b)], extra

    def transpose_solve(_: Any, b: list[Array]) -> Tree:
        results = walk_unharvested(jaxprs.transpose_solve, [*consts.transpose_solve, *b])
        return results[: len(b)], jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like[-1])

    results, (auxiliary, states, blocks) = jax.lax.custom_linear_solve(
        matvec,
        right_side,
        solve,
        None if jaxprs.transpose_solve is None else transpose_solve,
        symmetric=jaxprs.vecmat is jaxprs.matvec,
        has_aux=True,
    )
    frame.states.update(states)
    frame.record_all(blocks)
    return [*results, *auxiliary]


RULES["jit"] = RULES["pjit"] = Rule(census_of_param("jaxpr"), _run_jit)
RULES["checkpoint"] = RULES["remat2"] = Rule(census_of_param("jaxpr"), _run_checkpoint)
for _name in INLINE_CALLS:
    RULES[_name] = Rule(_census_inline, _run_inline)
RULES["custom_linear_solve"] = Rule(_census_linear_solve, _run_linear_solve)

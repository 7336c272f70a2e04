"""Rules for `scan`, `while` and `cond`, and three primitives that keep them exact under `vmap`.

Each rule builds the same construct around the walked body, and carries
states and validity through it.

JAX selects the whole carry of a batched `while` loop at every step, which would copy every store.
So the loop gets a predicate that stays unbatched (`any_lane_p`: whether any lane continues), and
only the user's carry is selected lane by lane (`advance_p`: the new value in active lanes, else the
old one); stores skip idle lanes by their validity. In a loop or branch that is not batched every
record is valid, and `running_p` tells the compiler so.

| primitive | value | under `vmap` |
| --- | --- | --- |
| `any_lane_p` (active) | `active` | whether any lane is active, without a lane axis |
| `running_p` (active) | true | `active` |
| `advance_p` (active, new, old) | `new` | `new` in active lanes, `old` in others |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _compat
from logax._compat import Array, Equation, Tree
from logax._harvest.census import Census, census_of_branches, census_of_sequence
from logax._harvest.harvest import RULES, Blocks, Frame, Harvest, Rule
from logax._harvest.record_blocks import Block, empty_block, pad_block
from logax._harvest.walker import record_results, walk
from logax._support.arrays import lane_count, move_lanes_first


def _any_lane_batch(args: Any, dims: Any) -> tuple[Array, None]:
    return any_lane_p.bind(jnp.any(args[0], axis=dims[0])), None


def _advance_batch(args: Any, dims: Any) -> tuple[Array, int]:
    size = lane_count(args, dims)
    active, new, old = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else x
        for x, d in zip(move_lanes_first(args, dims), dims, strict=True)
    )
    if dims[0] is None:
        return advance_p.bind(args[0], new, old), 0
    mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
    return jnp.where(mask, new, old), 0


def _advance_jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
    active, new, old = primals
    result = advance_p.bind(active, new, old)
    _, new_dot, old_dot = tangents
    return result, advance_p.bind(
        active, ad.instantiate_zeros(new_dot), ad.instantiate_zeros(old_dot)
    )


def _advance_transpose(cotangent: Any, active: Any, new: Any, old: Any) -> list[Any]:
    # Runs only under `disable_jit`, where loops are Python loops: the result is always `new`.
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


ITERATIONS_PER_INNER_LOOP = 64  # in loops that run in chunks, on a GPU


def _census_scan(equation: Equation, harvest: Harvest) -> Census:
    inside = harvest.census(equation.params["jaxpr"])
    return {key: tally.times(equation.params["length"]) for key, tally in inside.items()}


def _run_scan(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Run the same loop, or, if records leave while it runs, a loop of loops that emits after each.

    The remaining iterations run in a loop of their own.
    """
    length, reverse = equation.params["length"], equation.params["reverse"]
    num_consts, num_carry = _compat.scan_operand_counts(equation.params)
    consts, carry, xs = (
        args[:num_consts],
        args[num_consts:][:num_carry],
        args[num_consts:][num_carry:],
    )
    loop = _Scan(equation, consts, frame.harvest.census(equation.params["jaxpr"]))
    if frame.harvest.runs_in_chunks(frame, loop.census, length):
        return loop.run_in_chunks(frame, list(carry), list(xs))
    chunk = frame.harvest.iterations_per_emission(frame, loop.census, length)
    if chunk <= 1:
        results = loop.run(frame, list(carry), list(xs), length, emits=chunk == 1)
        frame.harvest.end_loop(frame)
        return results
    num_chunks, rest = divmod(length, chunk)

    def run_chunk(carried: Tree, x: list[Array]) -> Tree:
        carry, states = carried
        child = frame.child(states, frame.scope(), emits=True)
        results = loop.run(child, carry, x, chunk)
        frame.harvest.drain(child)
        return (results[:num_carry], child.states), results[num_carry:]

    # In reverse, the remainder runs last and comes first.
    cut = rest if reverse else length - rest
    first, last = ([x[:cut] for x in xs], [x[cut:] for x in xs])
    whole, left = (last, first) if reverse else (first, last)
    (carry, states), ys = lax.scan(
        run_chunk,
        (list(carry), frame.states_for(loop.census, emits=True)),
        [x.reshape(num_chunks, chunk, *x.shape[1:]) for x in whole],
        length=num_chunks,
        reverse=reverse,
    )
    frame.states.update(states)
    ys = [_merge_leading_axes(y) for y in ys]
    if rest:
        results = loop.run(frame, carry, left, rest)
        carry, more = results[:num_carry], results[num_carry:]
        pairs = zip(ys, more, strict=True)
        ys = [jnp.concatenate((b, a) if reverse else (a, b)) for a, b in pairs]
    return [*carry, *ys]


class _Scan:
    """The body of a `scan`, for any number of iterations."""

    def __init__(self, equation: Equation, consts: Sequence[Array], census: Census) -> None:
        self._params, self._consts, self.census = equation.params, consts, census
        self._results = equation.outvars

    def run(
        self, frame: Frame, carry: list[Array], xs: list[Array], length: int, emits: bool = False
    ) -> list[Array]:
        """Run `length` iterations; records go to the frame, or leave each iteration if `emits`."""
        params, num_carry = self._params, len(carry)

        def body(carried: Tree, x: list[Array]) -> Tree:
            carry, states = carried
            child = frame.child(states, frame.scope(), emits, in_loop=True)
            results = walk(child, params["jaxpr"], [*self._consts, *carry, *x])
            if emits:
                frame.harvest.drain(child)
            blocks = child.collect_blocks()
            return (results[:num_carry], child.states), (results[num_carry:], blocks)

        (carry, states), (ys, blocks) = lax.scan(
            body,
            (carry, frame.states_for(self.census, emits)),
            xs,
            length=length,
            reverse=params["reverse"],
            unroll=params["unroll"],
            **_compat.scan_options(params),
        )
        frame.states.update(states)
        frame.record_all({key: self._in_order(block) for key, block in blocks.items()})
        return [*carry, *ys]

    def run_in_chunks(self, frame: Frame, carry: list[Array], xs: list[Array]) -> list[Array]:
        """Run all iterations in chunks; the host decides the length of each chunk.

        A GPU waits for the host at each turn of a loop with an unknown number of iterations. So the
        iterations of long chunks run in groups, each a loop of a known length. That is a second
        copy of the body in the program.
        """
        harvest, census, params = frame.harvest, self.census, self._params
        length, num_carry = params["length"], len(carry)
        on_cpu = jax.default_backend() == "cpu"
        group = max(params["unroll"], 1 if on_cpu else ITERATIONS_PER_INNER_LOOP)

        def iterate(carried: Tree, number: int) -> Tree:
            at, carry, states, ys = carried
            index = length - number - at if params["reverse"] else at
            child = frame.child(states, frame.scope(), in_loop=True)
            x = [lax.dynamic_slice_in_dim(x, index, number) for x in xs]
            if number == 1:
                own = [*self._consts, *carry, *(lax.squeeze(x, (0,)) for x in x)]
                results = walk(child, params["jaxpr"], own)
                new = [lax.expand_dims(y, (0,)) for y in results[num_carry:]]
            else:
                results = self.run(child, carry, x, number)
                new = results[num_carry:]
            harvest.drain(child, has_room=True)
            pairs = zip(ys, new, strict=True)
            ys = [lax.dynamic_update_slice_in_dim(y, n, index, 0) for y, n in pairs]
            return at + number, results[:num_carry], child.states, ys

        def group_goes_on(carried: Tree) -> Array:
            at, _, states, _ = carried
            in_groups = harvest.iterates_in_groups(states, census, group)
            return (
                (at + group <= length) & in_groups & ~harvest.is_full(frame, states, census, group)
            )

        def one_goes_on(carried: Tree) -> Array:
            at, _, states, _ = carried
            goes_on = (at < length) & ~harvest.is_full(frame, states, census, group)
            if group > 1:
                goes_on &= (at + group > length) | ~harvest.iterates_in_groups(
                    states, census, group
                )
            return goes_on

        def run_chunk(carried: Tree) -> Tree:
            if 1 < group <= length:
                carried = lax.while_loop(group_goes_on, lambda c: iterate(c, group), carried)
            at, carry, states, ys = lax.while_loop(one_goes_on, lambda c: iterate(c, 1), carried)
            child = frame.child(states, frame.scope(), emits=True)
            harvest.end_chunk(child, census, group)
            return at, carry, child.states, ys

        types = [y.aval for y in self._results]
        room = [lax.full(y.shape, 0, y.dtype) for y in types[num_carry:]]
        start = (jnp.int32(0), carry, frame.states_for(census, emits=True), room)
        _, carry, states, ys = lax.while_loop(lambda c: c[0] < length, run_chunk, start)
        frame.states.update(states)
        return list(map(_compat.match_weak_type, [*carry, *ys], types))

    def _in_order(self, stacked: Block) -> Block:
        """Return the records of all iterations in the order of execution."""
        if self._params["reverse"]:
            stacked = jax.tree.map(lambda x: jnp.flip(x, 0), stacked)
        if stacked.is_single:  # the loop stacked it, and so added the record axis
            return dataclasses.replace(stacked, is_single=False)
        return jax.tree.map(_merge_leading_axes, stacked)  # type: ignore[no-any-return]


def _merge_leading_axes(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _census_while(equation: Equation, harvest: Harvest) -> Census:
    before = harvest.census(equation.params["cond_jaxpr"])
    inside = census_of_sequence(before, harvest.census(equation.params["body_jaxpr"]))
    varying = _compat.varying_axes(
        _compat.jaxpr_and_consts(equation.params["cond_jaxpr"])[0].outvars[0].aval
    )
    return {key: tally.unbounded().conditional(varying) for key, tally in inside.items()}


def _run_while(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Compute the predicate once before the loop and then at the end of each iteration.

    So the validity of an iteration is known, as data, before it runs, and logs in the predicate are
    in order.
    """
    params = equation.params
    for_cond, for_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = args[:for_cond], args[for_cond : for_cond + for_body]

    def goes_on(child: Frame, carry: Sequence[Array]) -> tuple[Array, Array | None, Array | None]:
        """Return whether the loop continues, whether the next iteration is valid, and the lanes.

        The second is None if it equals the first. The third, the active lanes, is None unless JAX
        batched the loop inside of the harvest.
        """
        (again,) = walk(child, params["cond_jaxpr"], [*cond_consts, *carry])
        alone = child.single_lane_value(again)
        lanes = again if again.ndim else None
        if lanes is not None:  # the loop runs while any lane does
            again = jnp.any(lanes)
        if alone is None and frame.valid is None:
            return again, None, lanes
        return again, child.mask_valid(again if alone is None else jnp.any(alone)), lanes

    harvest = frame.harvest
    inside = census_of_sequence(
        harvest.census(params["cond_jaxpr"]), harvest.census(params["body_jaxpr"])
    )
    waits = harvest.uses_buffer(frame, inside)
    emits = harvest.streams and not waits

    def body(carried: Tree) -> Tree:
        carry, states, active, next_valid, lanes = carried
        valid = running_p.bind(active if next_valid is None else next_valid)
        child = frame.child(states, (valid, frame.call_context), emits, in_loop=True)
        new = walk(child, params["body_jaxpr"], [*body_consts, *carry])
        if lanes is not None:
            new = [_select_lanes(lanes, n, o) for n, o in zip(new, carry, strict=True)]
        new = [advance_p.bind(active, n, o) for n, o in zip(new, carry, strict=True)]
        active, next_valid, lanes = goes_on(child, new)
        harvest.drain(child, has_room=waits)
        return new, child.states, active, next_valid, lanes

    def any_goes_on(carried: Tree) -> Array:
        return any_lane_p.bind(carried[2])

    def while_there_is_room(carried: Tree) -> Tree:
        """Iterate until the buffer is full, then empty it: no iteration needs a conditional."""

        def goes_on_here(carried: Tree) -> Array:
            # Lanes that are idle here, or in an outer loop, need no room.
            _, states, active, next_valid, _ = carried
            full = harvest.is_full(frame, states, inside) & (
                active if next_valid is None else next_valid
            )
            return any_goes_on(carried) & ~any_lane_p.bind(full)

        carry, states, *rest = lax.while_loop(goes_on_here, body, carried)
        child = frame.child(states, frame.scope(), emits=True)
        harvest.end_chunk(child, inside)
        return (carry, child.states, *rest)

    start = list(args[for_cond + for_body :])
    active, next_valid, lanes = goes_on(frame, start)
    carried = (start, frame.states_for(inside, harvest.streams), active, next_valid, lanes)
    carry, states, *_ = lax.while_loop(any_goes_on, while_there_is_room if waits else body, carried)
    frame.states.update(states)
    if not waits:
        harvest.end_loop(frame)
    return list(carry)


def _select_lanes(lanes: Array, new: Array, old: Array) -> Array:
    """Return the new value in active lanes, else the old; lanes are the leading axes of both."""
    return jnp.where(lanes.reshape(lanes.shape + (1,) * (new.ndim - lanes.ndim)), new, old)


def _census_cond(equation: Equation, harvest: Harvest) -> Census:
    varying = _compat.varying_axes(equation.invars[0].aval)
    return census_of_branches([harvest.census(b) for b in equation.params["branches"]], varying)


def _run_cond(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Make every branch return room for the maximum number of records of any branch, with a mask.

    If the harvest emits inside, the branches emit their records and return none.
    """
    index, operands = args[0], args[1:]
    branches = equation.params["branches"]
    alone = _single_lane_branch(equation, index, frame)
    inside = frame.select_census(_census_cond(equation, frame.harvest))
    states, emits = frame.harvest.branch_states(frame, inside)
    branch = index if emits and alone is None else alone
    added = (states, frame.scope(), branch)

    def unify(blocks: Blocks, is_taken: Array | None) -> Blocks:
        result: Blocks = {}
        for key, tally in inside.items():
            if key in states:
                continue
            block = (
                blocks[key].with_record_axis() if key in blocks else empty_block(frame.tallies[key])
            )
            if tally.max_records is not None and not (tally.is_exact and tally.leaves):
                block = pad_block(block, tally.max_records)
                if is_taken is not None:
                    block = dataclasses.replace(block, valid=block.valid & is_taken)
            result[key] = _compat.make_varying(block, tally.varying)
        return result

    def trace_branch(number: int) -> tuple[Any, Tree]:
        def part(args: Sequence[Array], states: Tree, scope: Tree, branch: Array | None) -> Tree:
            child = frame.child(states, scope, emits)
            is_taken = None if branch is None else running_p.bind(branch == number)
            if is_taken is not None:
                child.valid = child.mask_valid(is_taken)
            results = walk(child, branches[number], args)
            if emits:
                frame.harvest.drain(child)
                return results, (child.states, {})
            return results, (child.states, unify(child.collect_blocks(), is_taken))

        closed, tree = _compat.trace_to_jaxpr(part, list(operands), *added)
        return closed, tree.children()[1]

    parts = [trace_branch(number) for number in range(len(branches))]
    jaxprs, consts = _compat.with_common_consts([closed for closed, _ in parts])
    params = {**equation.params, "branches": jaxprs}
    inputs = [index, *consts, *operands, *jax.tree.leaves(added)]
    return record_results(equation, _compat.rebind(equation, inputs, params), parts[0][1], frame)


def _single_lane_branch(equation: Equation, index: Array, frame: Frame) -> Array | None:
    """Return the branch that this lane would take alone, if a library decided for all lanes.

    None unless exactly one branch logs. If several do, the branch that the lane would take may not
    have run, so the lane gets the records of the branch that did.
    """
    logging = sum(map(frame.harvest.concerns_jaxpr, equation.params["branches"]))
    return frame.single_lane_value(index) if logging == 1 else None


RULES["scan"] = Rule(_census_scan, _run_scan)
RULES["while"] = Rule(_census_while, _run_while)
RULES["cond"] = Rule(_census_cond, _run_cond, predicate=0)

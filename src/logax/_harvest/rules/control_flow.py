"""Three small primitives that keep loops and branches exact and cheap where JAX batches them.

JAX selects the whole carry of a batched `while` loop at every step, which would copy every store.
So the loop is given a predicate that stays unbatched (`any_lane_p`: whether any lane goes on), and
the user's carry alone is selected lane by lane (`advance_p`: the new value where a lane is active,
else the old one); stores skip idle lanes by their validity. In a loop or a branch that is not
batched, what runs is real, and `running_p` says so to the compiler.

| | is | under `vmap` |
| --- | --- | --- |
| `any_lane_p` (active) | `active` | whether any lane is, with no lane axis |
| `running_p` (active) | true | `active` |
| `advance_p` (active, new, old) | `new` | `new` in active lanes, `old` in others |

Rules for `scan`, `while` and `cond`.

Each builds the same construct with JAX's public functions around the walked body, and carries
states and validity through it. What keeps that exact and cheap where JAX batches a loop or a branch
is in `lanes`.
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
from logax._harvest.blocks import Block, Single, empty, padded
from logax._harvest.census import Census
from logax._harvest.harvest import RULES, Collected, Frame, Harvest, Rule
from logax._harvest.walker import take, walk
from logax._support.arrays import lane_count, lanes_first


def _any_lane_batch(args: Any, dims: Any) -> tuple[Array, None]:
    return any_lane_p.bind(jnp.any(args[0], axis=dims[0])), None


def _advance_batch(args: Any, dims: Any) -> tuple[Array, int]:
    size = lane_count(args, dims)
    active, new, old = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else x
        for x, d in zip(lanes_first(args, dims), dims, strict=True)
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
    # Only under `disable_jit`, where loops are Python's, and what runs is real: it is all `new`.
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


ITERATIONS_PER_GROUP = 64  # of a loop whose stretches adapt, on a GPU


def _census_scan(equation: Equation, harvest: Harvest) -> Census:
    inside = harvest.census(equation.params["jaxpr"])
    return {key: tally.times(equation.params["length"]) for key, tally in inside.items()}


def _run_scan(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """The same loop, or, where records leave while it runs, a loop of loops with a stop after each.

    Iterations that are left over after whole stops come in a loop of their own.
    """
    length, reverse = equation.params["length"], equation.params["reverse"]
    num_consts, num_carry = _compat.scan_split(equation.params)
    consts, carry, xs = (
        args[:num_consts],
        args[num_consts:][:num_carry],
        args[num_consts:][num_carry:],
    )
    loop = _Scan(equation, consts, frame.harvest.census(equation.params["jaxpr"]))
    if frame.harvest.runs_in_stretches(frame, loop.census, length):
        return loop.run_adapted(frame, list(carry), list(xs))
    each = frame.harvest.cut(frame, loop.census, length)
    if each <= 1:
        results = loop.run(frame, list(carry), list(xs), length, emits=each == 1)
        frame.harvest.leave_loop(frame)
        return results
    stops, rest = divmod(length, each)

    def stop(carried: Tree, x: list[Array]) -> Tree:
        carry, states = carried
        child = frame.child(states, frame.passed(), emits=True)
        results = loop.run(child, carry, x, each)
        frame.harvest.settle(child)
        return (results[:num_carry], child.states), results[num_carry:]

    # In reverse, what runs last comes first.
    cut = rest if reverse else length - rest
    first, last = ([x[:cut] for x in xs], [x[cut:] for x in xs])
    whole, left = (last, first) if reverse else (first, last)
    (carry, states), ys = lax.scan(
        stop,
        (list(carry), frame.threaded(loop.census, emits=True)),
        [x.reshape(stops, each, *x.shape[1:]) for x in whole],
        length=stops,
        reverse=reverse,
    )
    frame.states.update(states)
    ys = [_one_axis_less(y) for y in ys]
    if rest:
        results = loop.run(frame, carry, left, rest)
        carry, more = results[:num_carry], results[num_carry:]
        pairs = zip(ys, more, strict=True)
        ys = [jnp.concatenate((b, a) if reverse else (a, b)) for a, b in pairs]
    return [*carry, *ys]


class _Scan:
    """The body of a `scan`, to be run for any number of iterations."""

    def __init__(self, equation: Equation, consts: Sequence[Array], census: Census) -> None:
        self._params, self._consts, self.census = equation.params, consts, census
        self._results = equation.outvars

    def run(
        self, frame: Frame, carry: list[Array], xs: list[Array], length: int, emits: bool = False
    ) -> list[Array]:
        """Run it; records go to the frame, or from each iteration to where the harvest wants."""
        params, num_carry = self._params, len(carry)

        def body(carried: Tree, x: list[Array]) -> Tree:
            carry, states = carried
            child = frame.child(states, frame.passed(), emits, in_loop=True)
            results = walk(child, params["jaxpr"], [*self._consts, *carry, *x])
            if emits:
                frame.harvest.settle(child)
            return (results[:num_carry], child.states), (results[num_carry:], child.collected())

        (carry, states), (ys, blocks) = lax.scan(
            body,
            (carry, frame.threaded(self.census, emits)),
            xs,
            length=length,
            reverse=params["reverse"],
            unroll=params["unroll"],
            **_compat.scan_options(params),
        )
        frame.states.update(states)
        frame.record_all({key: self._in_order(block) for key, block in blocks.items()})
        return [*carry, *ys]

    def run_adapted(self, frame: Frame, carry: list[Array], xs: list[Array]) -> list[Array]:
        """Run it as a loop of stretches, of as many iterations as the host asks for each time.

        A GPU waits for the host at each turn of a loop whose number of iterations is not known
        before. So where stretches are long enough, their iterations come in groups, each a loop
        of a known number. That is a second copy of the body in the program.
        """
        harvest, census, params = frame.harvest, self.census, self._params
        length, num_carry = params["length"], len(carry)
        on_cpu = jax.default_backend() == "cpu"
        group = max(params["unroll"], 1 if on_cpu else ITERATIONS_PER_GROUP)

        def iterate(carried: Tree, number: int) -> Tree:
            at, carry, states, ys = carried
            index = length - number - at if params["reverse"] else at
            child = frame.child(states, frame.passed(), in_loop=True)
            x = [lax.dynamic_slice_in_dim(x, index, number) for x in xs]
            if number == 1:
                own = [*self._consts, *carry, *(lax.squeeze(x, (0,)) for x in x)]
                results = walk(child, params["jaxpr"], own)
                new = [lax.expand_dims(y, (0,)) for y in results[num_carry:]]
            else:
                results = self.run(child, carry, x, number)
                new = results[num_carry:]
            harvest.settle(child, has_room=True)
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

        def stretch(carried: Tree) -> Tree:
            if 1 < group <= length:
                carried = lax.while_loop(group_goes_on, lambda c: iterate(c, group), carried)
            at, carry, states, ys = lax.while_loop(one_goes_on, lambda c: iterate(c, 1), carried)
            child = frame.child(states, frame.passed(), emits=True)
            harvest.end_stretch(child, census, group)
            return at, carry, child.states, ys

        types = [y.aval for y in self._results]
        room = [lax.full(y.shape, 0, y.dtype) for y in types[num_carry:]]
        start = (jnp.int32(0), carry, frame.threaded(census, emits=True), room)
        _, carry, states, ys = lax.while_loop(lambda c: c[0] < length, stretch, start)
        frame.states.update(states)
        return list(map(_compat.typed_like, [*carry, *ys], types))

    def _in_order(self, stacked: Block | Single) -> Block:
        """The records of all iterations, one after the other as they were executed."""
        if self._params["reverse"]:
            stacked = jax.tree.map(lambda x: jnp.flip(x, 0), stacked)
        if isinstance(stacked, Single):  # the loop gave it its axis
            return Block(*stacked)
        return Block(*jax.tree.map(_one_axis_less, tuple(stacked)))


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

    def goes_on(child: Frame, carry: Sequence[Array]) -> tuple[Array, Array | None, Array | None]:
        """Return whether the loop goes on, whether the next iteration is real, and in which lanes.

        The second is None where it equals the first. The third is None unless JAX batched the loop
        inside of the harvest.
        """
        (again,) = walk(child, params["cond_jaxpr"], [*cond_consts, *carry])
        alone = child.decided_alone(again)
        lanes = again if again.ndim else None
        if lanes is not None:  # it runs while any lane does
            again = jnp.any(lanes)
        if alone is None and frame.valid is None:
            return again, None, lanes
        return again, child.real(again if alone is None else jnp.any(alone)), lanes

    harvest = frame.harvest
    inside = counting.then(
        harvest.census(params["cond_jaxpr"]), harvest.census(params["body_jaxpr"])
    )
    waits = harvest.waits(frame, inside)
    emits = harvest.streams and not waits

    def body(carried: Tree) -> Tree:
        carry, states, active, real, lanes = carried
        valid = running_p.bind(active if real is None else real)
        child = frame.child(states, (valid, frame.given), emits, in_loop=True)
        new = walk(child, params["body_jaxpr"], [*body_consts, *carry])
        if lanes is not None:
            new = [_in_lanes(lanes, n, o) for n, o in zip(new, carry, strict=True)]
        new = [advance_p.bind(active, n, o) for n, o in zip(new, carry, strict=True)]
        active, real, lanes = goes_on(child, new)
        harvest.settle(child, has_room=waits)
        return new, child.states, active, real, lanes

    def any_goes_on(carried: Tree) -> Array:
        return any_lane_p.bind(carried[2])

    def while_there_is_room(carried: Tree) -> Tree:
        """Iterate until the buffer is full, then empty it: no iteration needs a conditional."""

        def goes_on_here(carried: Tree) -> Array:
            # Lanes that rest here, or in a loop around this one, need no room.
            _, states, active, real, _ = carried
            full = harvest.is_full(frame, states, inside) & (active if real is None else real)
            return any_goes_on(carried) & ~any_lane_p.bind(full)

        carry, states, *rest = lax.while_loop(goes_on_here, body, carried)
        child = frame.child(states, frame.passed(), emits=True)
        harvest.end_stretch(child, inside)
        return (carry, child.states, *rest)

    start = list(args[for_cond + for_body :])
    active, real, lanes = goes_on(frame, start)
    carried = (start, frame.threaded(inside, harvest.streams), active, real, lanes)
    carry, states, *_ = lax.while_loop(any_goes_on, while_there_is_room if waits else body, carried)
    frame.states.update(states)
    if not waits:
        harvest.leave_loop(frame)
    return list(carry)


def _in_lanes(lanes: Array, new: Array, old: Array) -> Array:
    """The new value in these lanes, which are the leading axes of both values."""
    return jnp.where(lanes.reshape(lanes.shape + (1,) * (new.ndim - lanes.ndim)), new, old)


def _census_cond(equation: Equation, harvest: Harvest) -> Census:
    varying = _compat.varying_axes(equation.invars[0].aval)
    return counting.either([harvest.census(b) for b in equation.params["branches"]], varying)


def _run_cond(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    """Every branch returns room for the most records any of them has, and says which are real.

    Or it emits them by itself, where the harvest says so.
    """
    index, operands = args[0], args[1:]
    branches = equation.params["branches"]
    alone = _branch_alone(equation, index, frame)
    inside = frame.taken(_census_cond(equation, frame.harvest))
    states, emits = frame.harvest.through_branches(frame, inside)
    choice = index if emits and alone is None else alone
    added = (states, frame.passed(), choice)

    def unified(blocks: Collected, taken: Array | None) -> Collected:
        result: Collected = {}
        for key, tally in inside.items():
            if key in states:
                continue
            block = blocks[key].block() if key in blocks else empty(frame.tallies[key])
            if tally.most is not None and not (tally.exact and tally.leaves):
                block = padded(block, tally.most)
                if taken is not None:
                    block = block._replace(valid=block.valid & taken)
            result[key] = _compat.make_varying(block, tally.varying)
        return result

    def traced(number: int) -> tuple[Any, Tree]:
        def part(args: Sequence[Array], states: Tree, passed: Tree, choice: Array | None) -> Tree:
            child = frame.child(states, passed, emits)
            taken = None if choice is None else running_p.bind(choice == number)
            if taken is not None:
                child.valid = child.real(taken)
            results = walk(child, branches[number], args)
            if emits:
                frame.harvest.settle(child)
                return results, (child.states, {})
            return results, (child.states, unified(child.collected(), taken))

        closed, tree = _compat.trace(part, list(operands), *added)
        return closed, tree.children()[1]

    parts = [traced(number) for number in range(len(branches))]
    jaxprs, consts = _compat.with_common_consts([closed for closed, _ in parts])
    params = {**equation.params, "branches": jaxprs}
    given = [index, *consts, *operands, *jax.tree.leaves(added)]
    return take(equation, _compat.rebind(equation, given, params), parts[0][1], frame)


def _branch_alone(equation: Equation, index: Array, frame: Frame) -> Array | None:
    """Return the branch that this lane would take alone, if a library decided for all lanes.

    None unless exactly one branch logs. If several do, the branch that the lane would take may not
    have run, so the lane gets the records of the branch that did.
    """
    logging = sum(map(frame.harvest.concerns_jaxpr, equation.params["branches"]))
    return frame.decided_alone(index) if logging == 1 else None


RULES["scan"] = Rule(_census_scan, _run_scan)
RULES["while"] = Rule(_census_while, _run_while)
RULES["cond"] = Rule(_census_cond, _run_cond)

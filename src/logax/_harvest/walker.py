"""The walker: run a jaxpr again, equation by equation, and pass every log to a harvest.

The walker never edits a jaxpr. It re-traces: equations without a log are bound as they are, in
segments; a log goes to the harvest; an equation that contains a log goes to the rule of its
primitive, which builds the same construct again around walked parts, so that records and states can
travel through it (see `harvest`). The walk and the rules are the same for all harvests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from logax import _compat
from logax._compat import Array, Equation, Jaxpr, Tree
from logax._harvest.harvest import RULES, Frame, Harvest, SilentHarvest, rule_for
from logax._harvest.unvmap import ReducedVariable, SingleLaneHarvest, reduced_variables
from logax._log import are_logs_bound, is_inside_harvest, log_p


def walk(frame: Frame, jaxpr: Jaxpr, args: Sequence[Array]) -> list[Array]:
    """Run the jaxpr on `args`; its logs go to the frame."""
    inner, consts = _compat.jaxpr_and_consts(jaxpr)
    env: dict[Any, Array] = dict(zip(inner.constvars, consts, strict=True))
    env.update(zip(inner.invars, args, strict=True))

    def read(atom: Any) -> Array:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for equations, outputs, reduced in _segments(inner, frame.harvest):
        equation = equations[0]
        if not frame.harvest.concerns(equation):
            _run_segment(equations, outputs, env)
            for each in reduced:
                inputs = [env[v] for v in each.inputs]
                (alone,) = walk(Frame(SingleLaneHarvest(), {}, {}), each.jaxpr, inputs)
                frame.set_single_lane_value(env[each.variable], alone)
            continue
        values = [read(atom) for atom in equation.invars]
        if equation.primitive is log_p:
            frame.harvest.on_log(equation, values, frame)
        else:
            with _compat.equation_context(equation):
                results = rule_for(equation).run(equation, values, frame)
            env.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


def evaluate_equation(equation: Equation, args: Sequence[Array]) -> list[Array]:
    """Run one equation as it is, custom rules included, on other operands."""
    jaxpr, variables = _compat.single_equation_jaxpr(equation)
    values = {id(v): x for v, x in zip(equation.invars, args, strict=True)}
    return jax.core.eval_jaxpr(jaxpr, (), *[values[id(v)] for v in variables])


def trace_part(
    frame: Frame,
    jaxpr: Jaxpr,
    args: Sequence[Array],
    states: dict[str, Tree],
    emits: bool = False,
) -> tuple[Jaxpr, Tree]:
    """Walk a part of the program, and return it as a jaxpr with the tree of its additional results.

    The jaxpr takes the arguments of the part, then the leaves of the states and of the frame's
    scope. It returns the results of the part, then the leaves of (states, blocks).
    """

    def part(args: Sequence[Array], states: dict[str, Tree], scope: Tree) -> Tree:
        child = frame.child(states, scope, emits)
        return walk(child, jaxpr, args), (child.states, child.collect_blocks())

    closed, tree = _compat.trace_to_jaxpr(part, list(args), states, frame.scope())
    return closed, tree.children()[1]


def record_results(
    equation: Equation, results: Sequence[Array], tree: Tree, frame: Frame
) -> Sequence[Array]:
    """Return the equation's own results; the states and blocks behind them go to the frame."""
    number = len(equation.outvars)
    states, blocks = jax.tree.unflatten(tree, results[number:])
    frame.states.update(states)
    frame.record_all(blocks)
    return results[:number]


def walk_unharvested(jaxpr: Jaxpr, args: Sequence[Array]) -> list[Array]:
    """Run a part whose logs do not belong to this harvest; an outer harvest, if any, gets them."""
    if is_inside_harvest():
        inner, consts = _compat.jaxpr_and_consts(jaxpr)
        return jax.core.eval_jaxpr(inner, consts, *args)
    return walk(
        Frame(_RelayHarvest() if are_logs_bound() else SilentHarvest(), {}, {}), jaxpr, args
    )


class _RelayHarvest(SilentHarvest):
    """The harvest that passes every log to the outer one."""

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        frame.bind_for_outer(args, equation.params["spec"])


class _Segment(NamedTuple):
    """Equations that run together.

    Attributes:
      equations: One equation that concerns the harvest, or any number of others.
      outputs: Variables that the equations define and later equations read.
      reduced: Variables by which a library decides loops and branches for all lanes.
    """

    equations: list[Equation]
    outputs: list[Any]
    reduced: list[ReducedVariable]


def _segments(jaxpr: Jaxpr, harvest: Harvest) -> list[_Segment]:
    """Split the equations: one segment per equation of the harvest, and one per run of others."""

    def split() -> list[_Segment]:
        groups: list[list[Equation]] = []
        # The result of a predicate jaxpr and the predicate of a rule decide loops and branches.
        predicates = [v for v in jaxpr.outvars if len(jaxpr.outvars) == 1 and v.aval.dtype == bool]
        for equation in jaxpr.eqns:
            is_special = harvest.concerns(equation)
            if is_special or not groups or harvest.concerns(groups[-1][0]):
                groups.append([])
            groups[-1].append(equation)
            rule = RULES.get(equation.primitive.name)
            if is_special and rule is not None and rule.predicate is not None:
                predicates.append(equation.invars[rule.predicate])
        reduced = reduced_variables(jaxpr, predicates) if predicates else []
        result = []
        needed = _compat.variables(jaxpr.outvars)
        for group in reversed(groups):
            outvars = [v for equation in group for v in equation.outvars]
            own = [each for each in reduced if each.variable in outvars]
            needed |= _compat.variables(v for each in own for v in each.inputs)
            result.append(_Segment(group, [v for v in outvars if v in needed], own))
            needed |= _compat.variables(v for equation in group for v in equation.invars)
        return result[::-1]

    return harvest.memoize("segments", jaxpr, split)  # type: ignore[no-any-return]


def _run_segment(equations: list[Equation], outputs: list[Any], env: dict[Any, Array]) -> None:
    defined = {v for equation in equations for v in equation.outvars}
    used = _compat.variables(v for equation in equations for v in equation.invars)
    invars = [v for v in used if v not in defined]
    jaxpr = _compat.sub_jaxpr(equations, invars, outputs)
    results = jax.core.eval_jaxpr(jaxpr, (), *[env[v] for v in invars])
    env.update(zip(outputs, results, strict=True))

"""The walker: runs a jaxpr again, equation by equation, and hands every log to a harvest.

It never edits a jaxpr. It re-traces: what holds no log is bound as it is, in whole stretches; a log
goes to the harvest; and an equation with a log somewhere inside goes to the rule of its primitive,
which builds the same construct anew around walked parts, so that what the logs produce can travel
through it (see `harvest`). The walk and the rules are the same for all harvests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from logax import _compat
from logax._compat import Array, Equation, Jaxpr, Tree
from logax._harvest.harvest import Frame, Harvest, Silent, rule_for
from logax._harvest.unvmap import Alone, Reduced, reduced_variables
from logax._log import is_harvested, is_listening, log_p


def walk(frame: Frame, jaxpr: Jaxpr, args: Sequence[Array]) -> list[Array]:
    """Run the jaxpr on `args`, its logs going to the frame."""
    inner, consts = _compat.parts(jaxpr)
    env: dict[Any, Array] = dict(zip(inner.constvars, consts, strict=True))
    env.update(zip(inner.invars, args, strict=True))

    def read(atom: Any) -> Array:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for equations, later, reduced in _stretches(inner, frame.harvest):
        equation = equations[0]
        if not frame.harvest.concerns(equation):
            _run_stretch(equations, later, env)
            for each in reduced:
                inputs = [env[v] for v in each.inputs]
                (alone,) = walk(Frame(Alone(), {}, {}), each.jaxpr, inputs)
                frame.add_decision(env[each.variable], alone)
            continue
        values = [read(atom) for atom in equation.invars]
        if equation.primitive is log_p:
            frame.harvest.on_log(equation, values, frame)
        else:
            with _compat.equation_context(equation):
                results = rule_for(equation).run(equation, values, frame)
            env.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


def evaluated(equation: Equation, args: Sequence[Array]) -> list[Array]:
    """Run one equation as it is, custom rules included, on other values for its operands."""
    jaxpr, variables = _compat.single_equation(equation)
    values = {id(v): x for v, x in zip(equation.invars, args, strict=True)}
    return jax.core.eval_jaxpr(jaxpr, (), *[values[id(v)] for v in variables])


def traced_part(
    frame: Frame,
    jaxpr: Jaxpr,
    args: Sequence[Array],
    states: dict[str, Tree],
    emits: bool = False,
) -> tuple[Jaxpr, Tree]:
    """The walked part as a jaxpr of its own.

    It takes the arguments, then the leaves of states and of what is `passed`; it returns the
    results of the part, then the leaves of (states, blocks), whose tree comes second.
    """

    def part(args: Sequence[Array], states: dict[str, Tree], passed: Tree) -> Tree:
        child = frame.child(states, passed, emits)
        return walk(child, jaxpr, args), (child.states, child.collected())

    closed, tree = _compat.trace(part, list(args), states, frame.passed())
    return closed, tree.children()[1]


def take(equation: Equation, results: Sequence[Array], tree: Tree, frame: Frame) -> Sequence[Array]:
    """The equation's own results; what `traced_part` added to them goes to the frame."""
    number = len(equation.outvars)
    states, blocks = jax.tree.unflatten(tree, results[number:])
    frame.states.update(states)
    frame.record_all(blocks)
    return results[:number]


def walk_unharvested(jaxpr: Jaxpr, args: Sequence[Array]) -> list[Array]:
    """Run a part whose logs are not of this harvest: the one outside sees them, if there is one."""
    if is_harvested():
        inner, consts = _compat.parts(jaxpr)
        return jax.core.eval_jaxpr(inner, consts, *args)
    return walk(Frame(_Relay() if is_listening() else Silent(), {}, {}), jaxpr, args)


class _Relay(Silent):
    """The harvest that leaves every log to what is outside."""

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        frame.leave(args, equation.params["spec"])


class _Stretch(NamedTuple):
    """Equations that run together.

    Attributes:
      equations: One that concerns the harvest, or any number of others.
      later: Variables that they define and that are read after them.
      reduced: Variables by which a library decides loops and branches for all lanes.
    """

    equations: list[Equation]
    later: list[Any]
    reduced: list[Reduced]


def _stretches(jaxpr: Jaxpr, harvest: Harvest) -> list[_Stretch]:
    """Split the equations: each that concerns the harvest by itself, those between together."""

    def cut() -> list[_Stretch]:
        groups: list[list[Equation]] = []
        # What decides loops and branches: the result of a predicate, and the index of each `cond`.
        deciding = [v for v in jaxpr.outvars if len(jaxpr.outvars) == 1 and v.aval.dtype == bool]
        for equation in jaxpr.eqns:
            alone = harvest.concerns(equation)
            if alone or not groups or harvest.concerns(groups[-1][0]):
                groups.append([])
            groups[-1].append(equation)
            if alone and equation.primitive.name == "cond":
                deciding.append(equation.invars[0])
        reduced = reduced_variables(jaxpr, deciding) if deciding else []
        result = []
        needed = _compat.variables(jaxpr.outvars)
        for group in reversed(groups):
            outvars = [v for equation in group for v in equation.outvars]
            own = [each for each in reduced if each.variable in outvars]
            needed |= _compat.variables(v for each in own for v in each.inputs)
            result.append(_Stretch(group, [v for v in outvars if v in needed], own))
            needed |= _compat.variables(v for equation in group for v in equation.invars)
        return result[::-1]

    return harvest.remembered("stretches", jaxpr, cut)  # type: ignore[no-any-return]


def _run_stretch(equations: list[Equation], later: list[Any], env: dict[Any, Array]) -> None:
    defined = {v for equation in equations for v in equation.outvars}
    used = _compat.variables(v for equation in equations for v in equation.invars)
    invars = [v for v in used if v not in defined]
    jaxpr = _compat.sub_jaxpr(equations, invars, later)
    results = jax.core.eval_jaxpr(jaxpr, (), *[env[v] for v in invars])
    env.update(zip(later, results, strict=True))

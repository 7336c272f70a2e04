"""Undo reductions over lanes: compute the decision of one lane where a library reduces over all.

The loops of equinox, and so those of diffrax and optimistix, continue while any lane does: they
reduce their predicate over the lanes of every `vmap` (`unvmap_any`) and discard the results of
finished lanes. The harvest walks the program before `vmap` adds lanes, so the operand of the
reduction is still the predicate of one lane. The equations between the reduction and the predicate
of the loop run once more on that operand: the loop uses the reduced predicate, and the predicate of
the lane decides whether the records of an iteration are valid.

Primitives are recognized by name, so logax does not import equinox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Equation, Jaxpr
from logax._harvest.harvest import INLINE_CALLS, RULES, Rule, SilentHarvest

_CALLS = ("jit", "pjit", "custom_jvp_call", *INLINE_CALLS)


class SingleLaneHarvest(SilentHarvest):
    """The harvest that computes the decision of a lane alone: it does not reduce over lanes."""

    def concerns_primitive(self, name: str) -> bool:
        return name in _WITHIN_LANE or super().concerns_primitive(name)


class ReducedVariable(NamedTuple):
    """A variable that depends on a reduction over lanes.

    Attributes:
      variable: The variable.
      jaxpr: The equations from the reduction to the variable, for a walk with `SingleLaneHarvest`.
      inputs: Variables that the equations read and do not define.
    """

    variable: Any
    jaxpr: Jaxpr
    inputs: list[Any]


def reduced_variables(jaxpr: Jaxpr, atoms: Iterable[Any]) -> list[ReducedVariable]:
    """Return the variables among `atoms` that depend on a reduction over lanes."""
    equations: dict[Any, Equation] = {}  # by the variables that depend on a reduction
    for equation in jaxpr.eqns:
        if _reduces(equation) or (
            _can_repeat(equation)
            and any(v in equations for v in _compat.variables(equation.invars))
        ):
            equations.update(dict.fromkeys(equation.outvars, equation))
    return [_trace_back(v, jaxpr, equations) for v in _compat.variables(atoms) if v in equations]


def _trace_back(variable: Any, jaxpr: Jaxpr, equations: dict[Any, Equation]) -> ReducedVariable:
    needed = {variable: None}
    chosen: list[Equation] = []
    for equation in reversed(jaxpr.eqns):
        if any(v in needed and v in equations for v in equation.outvars):
            chosen.append(equation)
            needed.update(_compat.variables(equation.invars))
    inputs = [v for v in needed if v not in equations]
    return ReducedVariable(variable, _compat.sub_jaxpr(chosen[::-1], inputs, [variable]), inputs)


def _reduces(equation: Equation) -> bool:
    """Return whether the equation is a reduction over lanes, or a plain call that holds one."""
    if equation.primitive.name in _REDUCTIONS:
        return True
    return _can_repeat(equation) and any(map(_reduces, _called_equations(equation)))


def _can_repeat(equation: Equation) -> bool:
    """Return whether the equation only computes numbers, so that it can run once more."""
    if equation.effects or "callback" in equation.primitive.name:
        return False
    if equation.primitive.name in _CALLS:
        return all(map(_can_repeat, _called_equations(equation)))
    is_plain = not list(_compat.jaxprs_in(equation.params))
    return is_plain and all(v.aval.shape == () for v in equation.outvars)


def _called_equations(equation: Equation) -> Sequence[Equation]:
    if equation.primitive.name not in _CALLS:
        return ()
    inner, _ = _compat.jaxpr_and_consts(_compat.jaxpr_of_call(equation.params))
    return inner.eqns  # type: ignore[no-any-return]


def _rule(within_lane: Callable[[Array], Array]) -> Rule:
    """Return the rule of a primitive that, without lanes, is a function of its operand."""
    return Rule(lambda equation, harvest: {}, lambda equation, args, frame: [within_lane(args[0])])


# Each reduction is over the axes of its operand, and under `vmap` over all lanes too.
# `nonbatchable` returns its operand, and raises under `vmap` if that differs between lanes. Here it
# may differ.
_REDUCTIONS = {"unvmap_any": jnp.any, "unvmap_all": jnp.all, "unvmap_max": jnp.max}
_WITHIN_LANE: dict[str, Any] = {**_REDUCTIONS, "nonbatchable": lambda x: x}
RULES.update({name: _rule(function) for name, function in _WITHIN_LANE.items()})

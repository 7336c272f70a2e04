"""Undo reductions over lanes: compute what one lane would decide, where a library asks them all.

The loops of equinox, and so those of diffrax and optimistix, go on while any lane does: they reduce
their predicate over the lanes of every `vmap` (`unvmap_any`) and discard the results of finished
lanes. The harvest walks the program before `vmap` gives it lanes, so the operand of the reduction
is still the predicate of one lane. The equations between the reduction and the predicate of the
loop run once more on that operand: the loop keeps the reduced predicate, and the one of the lane
says whether the records of an iteration are real.

Primitives are recognized by their names: logax does not import equinox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Equation, Jaxpr
from logax._harvest.equations import evaluated, read, variables

# Each reduces over the axes of its operand, and under `vmap` over all lanes too.
_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "unvmap_any": jnp.any,
    "unvmap_all": jnp.all,
    "unvmap_max": jnp.max,
}
# Returns its operand, and raises under `vmap` if that differs between lanes, as it does here.
_NONBATCHABLE = "nonbatchable"
_CALLS = ("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call")


class Reduced(NamedTuple):
    """A variable that depends on a reduction over lanes.

    Attributes:
      variable: The variable.
      equations: The equations from the reduction to the variable, in order.
      inputs: The variables that they read and do not define.
    """

    variable: Any
    equations: list[Equation]
    inputs: list[Any]

    def alone(self, env: dict[Any, Array]) -> Array:
        """Compute the variable as a lane alone would."""
        own = {v: env[v] for v in self.inputs}
        _run_alone(self.equations, own)
        return own[self.variable]


def reduced_variables(jaxpr: Jaxpr, atoms: Iterable[Any]) -> list[Reduced]:
    """Find those of the variables that depend on a reduction over lanes."""
    equations: dict[Any, Equation] = {}  # by the variables that depend on a reduction
    for equation in jaxpr.eqns:
        if _reduces(equation) or (
            _can_repeat(equation) and any(v in equations for v in variables(equation.invars))
        ):
            equations.update(dict.fromkeys(equation.outvars, equation))
    return [_reduced(v, jaxpr, equations) for v in variables(atoms) if v in equations]


def _reduced(variable: Any, jaxpr: Jaxpr, equations: dict[Any, Equation]) -> Reduced:
    needed = {variable: None}
    chosen: list[Equation] = []
    for equation in reversed(jaxpr.eqns):
        if any(v in needed and v in equations for v in equation.outvars):
            chosen.append(equation)
            needed.update(variables(equation.invars))
    return Reduced(variable, chosen[::-1], [v for v in needed if v not in equations])


def _reduces(equation: Equation) -> bool:
    """Return whether the equation is a reduction over lanes, or a plain call that holds one."""
    if equation.primitive.name in _REDUCTIONS:
        return True
    return _can_repeat(equation) and any(map(_reduces, _called(equation)))


def _can_repeat(equation: Equation) -> bool:
    """Return whether the equation only computes numbers, so that it can run once more."""
    if equation.effects or "callback" in equation.primitive.name:
        return False
    if equation.primitive.name in _CALLS:
        return all(map(_can_repeat, _called(equation)))
    is_plain = not list(_compat.jaxprs_in(equation.params))
    return is_plain and all(v.aval.shape == () for v in equation.outvars)


def _called(equation: Equation) -> Sequence[Equation]:
    if equation.primitive.name not in _CALLS:
        return ()
    inner, _ = _compat.parts(_compat.called_jaxpr(equation.params))
    return inner.eqns  # type: ignore[no-any-return]


def _run_alone(equations: Sequence[Equation], env: dict[Any, Array]) -> None:
    """Run equations, with reductions over the axes of their operands but not over lanes."""
    for equation in equations:
        args = [read(x, env) for x in equation.invars]
        env.update(zip(equation.outvars, _alone(equation, args), strict=True))


def _alone(equation: Equation, args: list[Array]) -> list[Array]:
    name = equation.primitive.name
    if name in _REDUCTIONS:
        return [_REDUCTIONS[name](args[0])]
    if name == _NONBATCHABLE:
        return args
    if name in _CALLS:
        inner, consts = _compat.parts(_compat.called_jaxpr(equation.params))
        env = dict(zip((*inner.constvars, *inner.invars), (*consts, *args), strict=True))
        _run_alone(inner.eqns, env)
        return [read(x, env) for x in inner.outvars]
    return evaluated(equation, args)

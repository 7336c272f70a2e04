"""Run a single equation of a jaxpr, and read its variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend import core as jex

from logax import _compat
from logax._compat import Array, Equation


def evaluated(equation: Equation, args: Sequence[Array]) -> list[Array]:
    """Run one equation unchanged, custom rules included, with other values for its operands."""
    jaxpr, variables = _compat.single_equation(equation)
    values = {id(v): x for v, x in zip(equation.invars, args, strict=True)}
    return jax.core.eval_jaxpr(jaxpr, (), *[values[id(v)] for v in variables])


def read(atom: Any, env: dict[Any, Array]) -> Array:
    """Return the value of a variable or a literal."""
    return atom.val if isinstance(atom, jex.Literal) else env[atom]


def variables(atoms: Iterable[Any]) -> dict[Any, None]:
    """Return the variables among some atoms, each once, in order."""
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, jex.Literal))

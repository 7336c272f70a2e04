"""Rules for functions with rules of their own: `custom_jvp`, `custom_vjp`, `custom_vmap`.

Each becomes a function with a custom rule again: run plainly, it is the walked function, which
returns records beside its results; transformed from outside, the user's own rule runs. That rule
often runs the function itself, logs and all. Where it logs the same as the function does, the
records come from its run; otherwise the function is walked once more for the records alone, of
which the compiler keeps the part that they need. Other logs in a rule are for the harvest around
the transformation.

Make a log run as often in a program that JAX differentiates as in the program itself.

A harvest around `grad` walks the program that JAX has made of the function. Where JAX's rules for
splitting a program would lose, add or repeat logs, `_compat.register_partial_eval` wraps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.tree_util import Partial

from logax import _compat
from logax._compat import Array, Equation, Jaxpr, Tree
from logax._harvest.census import Census, same_records
from logax._harvest.harvest import RULES, Frame, Rule, Silent, census_of
from logax._harvest.walker import evaluated, walk, walk_unharvested
from logax._log import is_harvested, log_p


class _Closed:
    """A function with a rule of its own, as one that takes and returns records explicitly."""

    def __init__(self, jaxpr: Jaxpr, frame: Frame) -> None:
        self.jaxpr, self.frame = jaxpr, frame
        self.census: Census = frame.harvest.census(jaxpr)
        self._emits = frame.harvest.emits_inside(frame, self.census, again=True)

    def inputs(self, args: Sequence[Array]) -> list[Tree]:
        """The arguments, then what the frame has to give: nothing may be closed over."""
        states = self.frame.threaded(self.census, self._emits)
        return [*args, (states, self.frame.passed())]

    def plain(self, *inputs: Tree) -> Tree:
        """The walked function."""
        return self._walked(self.jaxpr, inputs[:-1], inputs[-1])

    def trace_rule(self, rule: Callable[..., Tree], *args: Tree) -> tuple[Jaxpr, Tree]:
        """What the user's rule computes, with its logs."""
        with self.frame.harvest.rule_context():
            return _compat.trace(rule, *args)

    def ruled(self, jaxpr: Jaxpr, args: Sequence[Array], inputs: Sequence[Tree]) -> Tree:
        """The results of a rule that was traced as `jaxpr`, and the records."""
        logged = self.frame.harvest.census(jaxpr)
        if same_records({key: logged[key] for key in self.census if key in logged}, self.census):
            return self._walked(jaxpr, args, inputs[-1], frozenset(self.census))
        _, records = self.plain(*inputs)
        return walk_unharvested(jaxpr, args), records

    def outputs(self, results: Tree) -> Sequence[Array]:
        """The function's own results; the records go to the frame, cut off from gradients."""
        own, records = results
        states, blocks = jax.lax.stop_gradient(records)
        self.frame.states.update(states)
        self.frame.record_all(blocks)
        return own  # type: ignore[no-any-return]

    def _walked(
        self, jaxpr: Jaxpr, args: Sequence[Array], given: Tree, only: frozenset[str] | None = None
    ) -> Tree:
        states, passed = given
        child = self.frame.child(states, passed, self._emits)
        child.only = child.only if only is None else only
        return walk(child, jaxpr, args), (child.states, child.collected())


def _run_custom_jvp(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    closed = _Closed(equation.params["call_jaxpr"], frame)
    function = jax.custom_jvp(closed.plain)

    def rule(primals: Sequence[Tree], tangents: Sequence[Tree]) -> Tree:
        values = primals[:-1]
        moving = [i for i, t in enumerate(tangents[:-1]) if not isinstance(t, SymbolicZero)]
        moved = tuple(tangents[i] for i in moving)

        def differentiated(values: Sequence[Array], moved: tuple[Array, ...]) -> Tree:
            results, tangents = jax.jvp(*_in_terms_of(equation, values, moving), moved)
            pairs = zip(results, tangents, strict=True)
            return results, [t if _has_tangent(r) else None for r, t in pairs]

        jaxpr, tree = closed.trace_rule(differentiated, list(values), moved)
        leaves, records = closed.ruled(jaxpr, [*values, *moved], primals)
        results, derivatives = jax.tree.unflatten(tree, leaves)
        pairs = zip(results, derivatives, strict=True)
        derivatives = [_no_tangent(r) if t is None else t for r, t in pairs]
        return (results, records), (derivatives, jax.tree.map(_no_tangent, records))

    function.defjvp(rule, symbolic_zeros=True)
    return closed.outputs(function(*closed.inputs(args)))


def _run_custom_vjp(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    closed = _Closed(equation.params["call_jaxpr"], frame)
    function = jax.custom_vjp(closed.plain)

    def forward(*inputs: Tree) -> Tree:
        plain = jax.tree.map(lambda x: x.value, inputs)
        values = plain[:-1]
        moving = tuple(i for i, x in enumerate(inputs[:-1]) if x.perturbed)

        def differentiated(values: Sequence[Array]) -> Tree:
            run, chosen = _in_terms_of(equation, values, moving)
            return jax.vjp(run, *chosen)

        jaxpr, tree = closed.trace_rule(differentiated, list(values))
        leaves, records = closed.ruled(jaxpr, values, plain)
        results, pull_back = jax.tree.unflatten(tree, leaves)
        return (results, records), Partial(
            functools.partial(_pulled_back, moving, len(args)), pull_back
        )

    def backward(pull_back: Partial, cotangents: Tree) -> Tree:
        with frame.harvest.outer_context():
            return pull_back(cotangents[0])

    function.defvjp(forward, backward, symbolic_zeros=True)
    return closed.outputs(function(*closed.inputs(args)))


def _run_custom_vmap(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    closed = _Closed(equation.params["call"], frame)
    function = custom_vmap(closed.plain)

    @function.def_vmap
    def rule(size: int, batched: Sequence[Tree], *inputs: Tree) -> Tree:
        axes = jax.tree.map(lambda b: 0 if b else None, list(batched))
        batch = functools.partial(jax.vmap, in_axes=axes, axis_size=size)
        _, records = batch(closed.plain)(*inputs)
        with frame.harvest.outer_context():
            results = batch(lambda *inputs: evaluated(equation, inputs[:-1]))(*inputs)
        return (results, records), jax.tree.map(lambda _: True, (results, records))

    return closed.outputs(function(*closed.inputs(args)))


def _in_terms_of(
    equation: Equation, values: Sequence[Array], chosen: Sequence[int]
) -> tuple[Callable[..., list[Array]], tuple[Array, ...]]:
    """The equation as a function of some of its arguments, and those."""

    def run(*moving: Array) -> list[Array]:
        replaced = dict(zip(chosen, moving, strict=True))
        return evaluated(equation, [replaced.get(i, x) for i, x in enumerate(values)])

    return run, tuple(values[i] for i in chosen)


def _pulled_back(
    moving: tuple[int, ...], number: int, pull_back: Callable[..., Any], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Cotangents of all arguments and of what the frame gave, None where nothing moves."""
    moved = dict(zip(moving, pull_back([_instantiated(c) for c in cotangents]), strict=True))
    return tuple(moved.get(i) for i in range(number + 1))


def _instantiated(cotangent: Any) -> Any:
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    make = np.zeros if cotangent.dtype == jax.dtypes.float0 else jnp.zeros
    return make(cotangent.shape, cotangent.dtype)


def _has_tangent(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _no_tangent(x: Array) -> Any:
    return zero_from_primal(x, symbolic_zeros=True)


RULES["custom_jvp_call"] = Rule(census_of("call_jaxpr"), _run_custom_jvp)
RULES["custom_vjp_call"] = Rule(census_of("call_jaxpr"), _run_custom_vjp)
RULES["custom_vmap_call"] = Rule(census_of("call"), _run_custom_vmap)


def _holds_log(jaxpr: Jaxpr) -> bool:
    return Silent().concerns_jaxpr(jaxpr)


def _silenced(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program without its logs."""

    def run(*args: Any) -> list[Any]:
        return walk(Frame(Silent(), {}, {}), jaxpr, args)

    return _compat.trace(run, *(v.aval for v in _compat.parts(jaxpr)[0].invars))[0]


_compat.register_partial_eval(_compat.Logs(log_p, is_harvested, _holds_log, _silenced))

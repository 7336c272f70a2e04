"""Rules for `custom_jvp`, `custom_vjp` and `custom_vmap`, and logs under partial evaluation.

Each function becomes a function with a custom rule again. Run plainly, it is the walked function,
which returns records beside its results. Transformed from outside, it runs the user's rule, which
often runs the function itself, logs included. If the rule logs the same as the function, the
records come from the rule; otherwise the function is walked once more for the records alone, and
the compiler removes what they do not need. All other logs in a rule belong to the harvest around
the transformation.

A harvest around `grad` walks the program that JAX makes of the function. JAX's rules for splitting
a program would lose, add or repeat logs, so `_compat.register_partial_eval` wraps them: a log runs
as often in the differentiated program as in the original.
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
from logax._harvest.census import Census, have_same_records
from logax._harvest.harvest import RULES, Frame, Rule, SilentHarvest, census_of_param
from logax._harvest.walker import evaluate_equation, walk, walk_unharvested
from logax._log import is_inside_harvest, log_p


class _ExplicitFunction:
    """A function with a custom rule that takes states and returns records explicitly."""

    def __init__(self, jaxpr: Jaxpr, frame: Frame) -> None:
        self.jaxpr, self.frame = jaxpr, frame
        self.census: Census = frame.harvest.census(jaxpr)
        self._emits = frame.harvest.emits_inside(frame, self.census, may_repeat=True)

    def inputs(self, args: Sequence[Array]) -> list[Tree]:
        """Return the arguments, then states and scope, which the function must not close over."""
        states = self.frame.states_for(self.census, self._emits)
        return [*args, (states, self.frame.scope())]

    def call(self, *inputs: Tree) -> Tree:
        """Call the walked function."""
        return self._walk(self.jaxpr, inputs[:-1], inputs[-1])

    def trace_rule(self, rule: Callable[..., Tree], *args: Tree) -> tuple[Jaxpr, Tree]:
        """Trace the user's rule with its logs bound."""
        with self.frame.harvest.rule_context():
            return _compat.trace_to_jaxpr(rule, *args)

    def run_rule(self, jaxpr: Jaxpr, args: Sequence[Array], inputs: Sequence[Tree]) -> Tree:
        """Return the results of a rule that was traced as `jaxpr`, and the records."""
        logged = self.frame.harvest.census(jaxpr)
        common = {key: logged[key] for key in self.census if key in logged}
        if have_same_records(common, self.census):
            return self._walk(jaxpr, args, inputs[-1], frozenset(self.census))
        _, records = self.call(*inputs)
        return walk_unharvested(jaxpr, args), records

    def record_outputs(self, results: Tree) -> Sequence[Array]:
        """Return the function's own results; the records go to the frame, without gradients."""
        own, records = results
        states, blocks = jax.lax.stop_gradient(records)
        self.frame.states.update(states)
        self.frame.record_all(blocks)
        return own  # type: ignore[no-any-return]

    def _walk(
        self, jaxpr: Jaxpr, args: Sequence[Array], added: Tree, only: frozenset[str] | None = None
    ) -> Tree:
        states, scope = added
        child = self.frame.child(states, scope, self._emits)
        child.only_keys = child.only_keys if only is None else only
        return walk(child, jaxpr, args), (child.states, child.collect_blocks())


def _run_custom_jvp(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    explicit = _ExplicitFunction(equation.params["call_jaxpr"], frame)
    function = jax.custom_jvp(explicit.call)

    def rule(primals: Sequence[Tree], tangents: Sequence[Tree]) -> Tree:
        values = primals[:-1]
        perturbed = [i for i, t in enumerate(tangents[:-1]) if not isinstance(t, SymbolicZero)]
        tangents_in = tuple(tangents[i] for i in perturbed)

        def run_jvp(values: Sequence[Array], tangents_in: tuple[Array, ...]) -> Tree:
            results, tangents = jax.jvp(*_as_function_of(equation, values, perturbed), tangents_in)
            pairs = zip(results, tangents, strict=True)
            return results, [t if _has_tangent(r) else None for r, t in pairs]

        jaxpr, tree = explicit.trace_rule(run_jvp, list(values), tangents_in)
        leaves, records = explicit.run_rule(jaxpr, [*values, *tangents_in], primals)
        results, derivatives = jax.tree.unflatten(tree, leaves)
        pairs = zip(results, derivatives, strict=True)
        derivatives = [_zero_tangent(r) if t is None else t for r, t in pairs]
        return (results, records), (derivatives, jax.tree.map(_zero_tangent, records))

    function.defjvp(rule, symbolic_zeros=True)
    return explicit.record_outputs(function(*explicit.inputs(args)))


def _run_custom_vjp(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    explicit = _ExplicitFunction(equation.params["call_jaxpr"], frame)
    function = jax.custom_vjp(explicit.call)

    def forward(*inputs: Tree) -> Tree:
        plain = jax.tree.map(lambda x: x.value, inputs)
        values = plain[:-1]
        perturbed = tuple(i for i, x in enumerate(inputs[:-1]) if x.perturbed)

        def run_vjp(values: Sequence[Array]) -> Tree:
            run, chosen = _as_function_of(equation, values, perturbed)
            return jax.vjp(run, *chosen)

        jaxpr, tree = explicit.trace_rule(run_vjp, list(values))
        leaves, records = explicit.run_rule(jaxpr, values, plain)
        results, pull_back = jax.tree.unflatten(tree, leaves)
        return (results, records), Partial(
            functools.partial(_pull_back, perturbed, len(args)), pull_back
        )

    def backward(pull_back: Partial, cotangents: Tree) -> Tree:
        with frame.harvest.outer_context():
            return pull_back(cotangents[0])

    function.defvjp(forward, backward, symbolic_zeros=True)
    return explicit.record_outputs(function(*explicit.inputs(args)))


def _run_custom_vmap(equation: Equation, args: Sequence[Array], frame: Frame) -> Sequence[Array]:
    explicit = _ExplicitFunction(equation.params["call"], frame)
    function = custom_vmap(explicit.call)

    @function.def_vmap
    def rule(size: int, batched: Sequence[Tree], *inputs: Tree) -> Tree:
        axes = jax.tree.map(lambda b: 0 if b else None, list(batched))
        batch = functools.partial(jax.vmap, in_axes=axes, axis_size=size)
        _, records = batch(explicit.call)(*inputs)
        with frame.harvest.outer_context():
            results = batch(lambda *inputs: evaluate_equation(equation, inputs[:-1]))(*inputs)
        return (results, records), jax.tree.map(lambda _: True, (results, records))

    return explicit.record_outputs(function(*explicit.inputs(args)))


def _as_function_of(
    equation: Equation, values: Sequence[Array], chosen: Sequence[int]
) -> tuple[Callable[..., list[Array]], tuple[Array, ...]]:
    """Return the equation as a function of some of its arguments, and these arguments."""

    def run(*perturbed: Array) -> list[Array]:
        replaced = dict(zip(chosen, perturbed, strict=True))
        return evaluate_equation(equation, [replaced.get(i, x) for i, x in enumerate(values)])

    return run, tuple(values[i] for i in chosen)


def _pull_back(
    perturbed: tuple[int, ...],
    number: int,
    pull_back: Callable[..., Any],
    cotangents: Sequence[Any],
) -> tuple[Any, ...]:
    """Return the cotangents of all arguments and of the frame's inputs, None where unperturbed."""
    results = pull_back([_instantiate_zero(c) for c in cotangents])
    by_position = dict(zip(perturbed, results, strict=True))
    return tuple(by_position.get(i) for i in range(number + 1))


def _instantiate_zero(cotangent: Any) -> Any:
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    make = np.zeros if cotangent.dtype == jax.dtypes.float0 else jnp.zeros
    return make(cotangent.shape, cotangent.dtype)


def _has_tangent(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _zero_tangent(x: Array) -> Any:
    return zero_from_primal(x, symbolic_zeros=True)


RULES["custom_jvp_call"] = Rule(census_of_param("call_jaxpr"), _run_custom_jvp)
RULES["custom_vjp_call"] = Rule(census_of_param("call_jaxpr"), _run_custom_vjp)
RULES["custom_vmap_call"] = Rule(census_of_param("call"), _run_custom_vmap)


def _holds_log(jaxpr: Jaxpr) -> bool:
    return SilentHarvest().concerns_jaxpr(jaxpr)


def _without_logs(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program without its logs."""

    def run(*args: Any) -> list[Any]:
        return walk(Frame(SilentHarvest(), {}, {}), jaxpr, args)

    return _compat.trace_to_jaxpr(
        run, *(v.aval for v in _compat.jaxpr_and_consts(jaxpr)[0].invars)
    )[0]


_compat.register_partial_eval(_compat.LogHooks(log_p, is_inside_harvest, _holds_log, _without_logs))

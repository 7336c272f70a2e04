"""JAX API that is private or differs between the supported versions, 0.8 and later.

No other module of logax may import JAX's private modules; a test checks it. An entry names the
versions that need it; "private" means that no supported version has a public equivalent. The other
functions build on such entries.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import linear_util as _lu
from jax._src import source_info_util as _source
from jax._src.ad_checkpoint import remat_p as _remat_p
from jax._src.array import ArrayImpl as _ArrayImpl
from jax._src.custom_batching import custom_vmap_p as _custom_vmap_p
from jax._src.debugging import debug_effect as _debug_effect
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow import loops as _loops
from jax._src.named_sharding import UNSPECIFIED as _UNSPECIFIED
from jax.experimental import io_callback
from jax.extend import core as jex
from jax.interpreters import mlir

# JAX's classes are loosely typed or move between versions, so annotations use these names.
Array: TypeAlias = Any
Aval: TypeAlias = Any
Equation: TypeAlias = Any
Jaxpr: TypeAlias = Any
Tree: TypeAlias = Any

# Class of arrays that are not tracers. Private. Asking an array for its class instead would
# initialize JAX's backends.
ConcreteArray: type = _ArrayImpl

# Effects of `jax.debug.callback`. Private. Computing them by tracing would slow down the import.
CALLBACK_EFFECTS: set[Any] = {_debug_effect}

_EXPLICIT = jax.sharding.AxisType.Explicit
_NO_MESH = jax.sharding.AbstractMesh((), ())

# Return whether no transformation is being traced on this thread. Private.
is_outside_traces: Callable[[], bool] = _core.trace_state_clean


def is_on_several_devices(x: Any) -> bool:
    """Return whether a concrete array is on more than one device."""
    return isinstance(x, _ArrayImpl) and x.sharding.num_devices > 1


def may_run_on_several_devices(jaxpr: Jaxpr) -> bool:
    """Return whether a program may span several devices although its arguments are on one.

    It may if a mesh is set, if a constant is on several devices, or if an equation names shardings.
    Private: the names of primitives and of their parameters.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return True
    inner, consts = jaxpr_and_consts(jaxpr)
    if any(map(is_on_several_devices, consts)):
        return True
    return any(
        equation.primitive.name in _SHARDING_PRIMITIVES
        or any(map(_spans_devices, _shardings_of(equation.params)))
        or any(map(may_run_on_several_devices, jaxprs_in(equation.params)))
        for equation in inner.eqns
    )


_SHARDING_PRIMITIVES = {"shard_map", "sharding_constraint", "reshard", "mesh_cast", "xla_pmap"}


def _shardings_of(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the shardings in the parameters of a `jit` equation."""
    for name in ("in_shardings", "out_shardings"):
        yield from params.get(name, ())


def _spans_devices(x: Any) -> bool:
    return isinstance(x, jax.sharding.Sharding) and x.num_devices > 1


def match_weak_type(x: Array, aval: Aval) -> Array:
    """Make an array weakly typed if `aval` is. Private: no public function sets weak types."""
    return _lax._convert_element_type(x, weak_type=True) if aval.weak_type else x


def jaxpr_and_consts(jaxpr: Jaxpr) -> tuple[Jaxpr, Sequence[Array]]:
    """Return the open jaxpr and its constants.

    Before 0.11 a `ClosedJaxpr` wraps a `Jaxpr`, and some primitives hold open ones; since 0.11 one
    class is both.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def jaxprs_in(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yield the jaxprs among an equation's parameters. 0.8.0 has no public `jaxprs_in_params`."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def with_common_consts(jaxprs: Sequence[Jaxpr]) -> tuple[tuple[Jaxpr, ...], list[Array]]:
    """Turn the constants of all jaxprs into leading arguments of each, and return them too.

    Like the three functions below it builds jaxprs, which need private debug information.
    """
    inners, consts = zip(*map(jaxpr_and_consts, jaxprs), strict=True)
    constvars = [v for inner in inners for v in inner.constvars]

    def close(inner: Jaxpr) -> Jaxpr:
        invars = [*constvars, *inner.invars]
        opened = jex.Jaxpr((), invars, inner.outvars, inner.eqns, inner.effects, _debug_info())
        return jex.ClosedJaxpr(opened, ())

    if not constvars:
        return tuple(jaxprs), []
    return tuple(map(close, inners)), [x for each in consts for x in each]


def open_jaxpr(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Array]]:
    """Return an open jaxpr that takes its constants as first arguments, and the constants."""
    (closed,), consts = with_common_consts([jaxpr])
    return jaxpr_and_consts(closed)[0], consts


def single_equation_jaxpr(equation: Equation) -> tuple[Jaxpr, list[Any]]:
    """Return a jaxpr of this one equation, and its input variables in order."""
    inputs = list(variables(equation.invars))
    return sub_jaxpr([equation], inputs, equation.outvars), inputs


def variables(atoms: Iterable[Any]) -> dict[Any, None]:
    """Return the distinct variables among some atoms, in order."""
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, jex.Literal))


def sub_jaxpr(
    equations: Sequence[Equation], invars: Sequence[Any], outvars: Sequence[Any]
) -> Jaxpr:
    """Build an open jaxpr from some equations of another one."""
    effects = frozenset().union(*(e.effects for e in equations))
    return jex.Jaxpr((), list(invars), list(outvars), list(equations), effects, _debug_info())


@functools.cache
def _debug_info() -> Any:
    """Return debug information for jaxprs that logax builds. Its class is private."""
    info: Any = jax.make_jaxpr(lambda: ())().jaxpr.debug_info
    return info._replace(func_src_info="logax", arg_names=None, result_paths=None)


@contextlib.contextmanager
def equation_context(equation: Equation) -> Iterator[None]:
    """Restore the named scopes, source line and settings under which an equation was traced.

    Private: `jax.core.eval_jaxpr` does this for whole jaxprs, not for one equation whose parameters
    change.
    """
    stack = _source.current_name_stack() + equation.source_info.name_stack
    with (
        _source.user_context(equation.source_info.traceback, name_stack=stack),
        equation.ctx.manager,
    ):
        yield


class JitArguments(NamedTuple):
    """Positions and names of the static and the donated arguments of a jitted function."""

    static: tuple[frozenset[int], frozenset[str]]
    donated: tuple[frozenset[int], frozenset[str]]


def jit_arguments(fun: Any) -> JitArguments:
    """Return the static and the donated arguments of a function, none if it is not jitted.

    Private.
    """
    jit = getattr(fun, "_jit_info", None)
    if jit is None:
        return JitArguments((frozenset(), frozenset()), (frozenset(), frozenset()))
    owner = 1 if isinstance(fun, types.MethodType) else 0  # a bound method has one argument fewer

    def positions(numbers: Any) -> frozenset[int]:
        return frozenset(i - owner if i >= 0 else i for i in numbers or () if i < 0 or i >= owner)

    return JitArguments(
        (positions(jit.static_argnums), frozenset(jit.static_argnames or ())),
        (positions(jit.donate_argnums), frozenset(jit.donate_argnames or ())),
    )


def trace_to_jaxpr(fun: Callable[..., Any], *args: Tree) -> tuple[Jaxpr, Tree]:
    """Return the closed jaxpr of `fun` and the tree structure of its results."""
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    return jaxpr, jax.tree.structure(shapes)


def rebind_jit(
    equation: Equation, jaxpr: Jaxpr, args: Sequence[Array], added_in: int
) -> list[Array]:
    """Bind a `jit` equation with a new jaxpr that has more inputs and outputs at the end.

    Private: the parameters with one entry per operand and result are not documented.
    """
    params = dict(equation.params)
    added_out = len(jaxpr_and_consts(jaxpr)[0].outvars) - len(equation.outvars)
    for name, filler in (
        ("in_shardings", _UNSPECIFIED),
        ("in_layouts", None),
        ("donated_invars", False),
    ):
        params[name] = (*params[name], *[filler] * added_in)
    for name, filler in (("out_shardings", _UNSPECIFIED), ("out_layouts", None)):
        params[name] = (*params[name], *[filler] * added_out)
    return rebind(equation, args, {**params, "jaxpr": jaxpr})


def rebind(equation: Equation, args: Sequence[Array], params: dict[str, Any]) -> list[Array]:
    """Bind the primitive of an equation with other arguments and parameters."""
    return list(equation.primitive.bind(*args, **params))


def jaxpr_of_call(params: dict[str, Any]) -> Jaxpr:
    """Return the jaxpr of a call equation. `eval_jaxpr` of 0.10 names the parameter `jaxpr`."""
    return params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]


def scan_operand_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return the number of constants and of carries among the operands of a `scan`.

    Since 0.11 its parameters hold trees instead of numbers.
    """
    if "num_consts" in params:  # pragma: no cover - only before 0.11, and reached there
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # pragma: no cover - since 0.11, reached there
    return len(list(consts)), len(list(carry))  # pragma: no cover - see above


def scan_options(params: dict[str, Any]) -> dict[str, Any]:
    """Return the private options of a `scan`: `_split_transpose` in 0.8, none by 0.10."""
    return {"_split_transpose": True} if params.get("_split_transpose") else {}


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    """Return the mesh axes that a `shard_map` maps over: `newly_manual_axes` by 0.10."""
    axes = params.get("manual_axes", params.get("newly_manual_axes"))
    return frozenset(axes if axes is not None else params["mesh"].axis_names)


def varying_axes(aval: Aval) -> frozenset[str]:
    """Return the mesh axes along which a value varies; empty outside `shard_map`.

    The attribute of the type is `vma` in 0.8 and `mat.varying` by 0.10.
    """
    axes = getattr(aval, "vma", None)
    if axes is None and hasattr(aval, "mat"):  # pragma: no branch - `vma` before 0.10
        axes = aval.mat.varying
    return frozenset(axes or ())


def replicate(x: Array) -> Array:
    """Replicate a value that an explicit mesh shards; return other values unchanged."""
    mesh, spec = _explicit_sharding(x)
    if all(axis is None for axis in spec):
        return x
    return _replicate_on(mesh, x)


def reshard_like(x: Array, like: Array) -> Array:
    """Replicate `x` on the explicit mesh of `like`, which must be replicated itself."""
    x, mesh = replicate(x), _explicit_sharding(like)[0]
    return x if mesh is None or _explicit_sharding(x)[0] == mesh else _replicate_on(mesh, x)


def replicate_like(tree: Tree, arrays: Sequence[Array]) -> Tree:
    """Replicate the values of `tree` on the explicit mesh of the first array that has one."""
    meshes = [mesh for mesh, _ in map(_explicit_sharding, arrays) if mesh is not None]
    return jax.tree.map(lambda x: _replicate_on(meshes[0], x), tree) if meshes else tree


def _explicit_sharding(x: Array) -> tuple[Any, Any]:
    """Return the explicit mesh and the partition spec of a value; None and () without one."""
    sharding: Any = getattr(jax.typeof(x), "sharding", None)
    explicit = [
        kind for kind in getattr(sharding, "mesh", _NO_MESH).axis_types if kind == _EXPLICIT
    ]
    return (sharding.mesh, sharding.spec) if explicit else (None, ())


def _replicate_on(mesh: Any, x: Array) -> Array:
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.sharding.reshard(x, sharding)


def shard_leading_axis(x: Array, mesh: Any, axes: Sequence[str]) -> Array:
    """Shard the first axis over explicit mesh axes. JAX itself does it for automatic ones."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if not any(kinds[name] == _EXPLICIT for name in axes):
        return x
    spec = jax.sharding.PartitionSpec(tuple(axes))
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, spec))


def make_varying(tree: Tree, axes: frozenset[str]) -> Tree:
    """Mark values as varying along mesh axes, by `lax.pcast`, before 0.9 by `lax.pvary`."""

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(jax.typeof(x))))
        if not missing:
            return x
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pvary(x, missing)  # pragma: no cover - only before 0.9, and reached there

    return jax.tree.map(vary, tree) if axes else tree


def may_transfer_implicitly() -> bool:
    """Return whether the transfer guard allows passing NumPy arrays to a program.

    The setting exists in all versions, but the type of `jax.config` does not declare it.
    """
    return jax.config.jax_transfer_guard_host_to_device in (None, "allow")


def make_effects_barrier() -> Callable[[], None]:
    """Return a function that waits for the effectful programs that this thread has started.

    Private: any thread may call the result, while `jax.effects_barrier` must run on this thread.
    """
    tokens = _dispatch.runtime_tokens
    pending = [*tokens.current_tokens.values(), *tokens.output_runtime_tokens.values()]

    def wait() -> None:
        for token in pending:
            with contextlib.suppress(RuntimeError):  # raised where the result is used
                token.block_until_ready()

    return wait


def lower_host_call(
    context: Any,
    callback: Callable[..., Any],
    operands: Sequence[Any],
    avals_in: Sequence[Aval],
    avals_out: Sequence[Aval] = (),
) -> Sequence[Any]:
    """Lower to a call of `callback` on the host, which takes and returns arrays.

    The raw lowering passes NumPy arrays, while `jax.debug.callback` converts each to a `jax.Array`
    first. In a program for several devices, outside `shard_map`, XLA accepts only the callbacks of
    JAX itself. The context of a lowering is not documented in any version.
    """
    axes = context.module_context.axis_context
    manual = getattr(axes, "manual_axes", None)
    is_single_device = getattr(axes, "num_devices", 1) == 1 if manual is None else False
    is_per_shard = manual is not None and set(manual) == set(axes.mesh.axis_names)
    if is_single_device or is_per_shard:
        inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
        results, _, _ = mlir.emit_python_callback(
            inner, callback, None, list(operands), avals_in, avals_out, has_side_effect=True
        )
        return results

    def call_by_jax(*arrays: Array) -> Any:
        if avals_out:
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals_out]
            return io_callback(lambda *given: list(callback(*given)), shapes, *arrays)
        jax.debug.callback(callback, *arrays)
        return []

    return lower_function(context, call_by_jax, operands, avals_in, avals_out)[0]


def lower_function(
    context: Any,
    function: Callable[..., Sequence[Array]],
    operands: Sequence[Any],
    avals_in: Sequence[Aval],
    avals_out: Sequence[Aval] | None = None,
) -> tuple[Sequence[Any], Sequence[Aval]]:
    """Lower a function of arrays inside a lowering rule; return its results and their types."""
    # Shardings are settled by now. Types with shardings would have to agree, so drop them.
    avals_in = [jax.core.ShapedArray(a.shape, a.dtype) for a in avals_in]
    with jax.sharding.use_abstract_mesh(_NO_MESH):
        if avals_out is None:
            shapes = jax.eval_shape(function, *avals_in)
            avals_out = [jax.core.ShapedArray(s.shape, s.dtype) for s in shapes]
        inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
        return mlir.lower_fun(function, multiple_results=True)(inner, *operands), avals_out


class LogHooks(NamedTuple):
    """Access to logs that partial evaluation needs.

    Attributes:
      primitive: Primitive of a log: effectful, without results.
      are_bound: Function that returns whether this thread traces with logs bound.
      are_in: Function that returns whether a jaxpr contains a log at any depth.
      remove_from: Function that returns a jaxpr without its logs.
    """

    primitive: Any
    are_bound: Callable[[], bool]
    are_in: Callable[[Jaxpr], bool]
    remove_from: Callable[[Jaxpr], Jaxpr]


def register_partial_eval(logs: LogHooks) -> None:
    """Make logs run as often under differentiation as without it. Private.

    To differentiate, JAX splits a program into a known and an unknown part (partial evaluation).
    Some of its rules change how often an effect happens; this function wraps those rules. Programs
    without logs are not affected.

    | JAX's rule | with logs |
    | --- | --- |
    | hoists loop-invariant equations out of a `scan` | a log is never loop-invariant |
    | hoists whole constructs and functions | the hoisted copy does not log; the loop does |
    | runs a whole `while` again for the unknown part | the second run does not log |
    """
    cond_p, while_p = jex.primitives.cond_p, jex.primitives.while_p
    rules, checkpointed = _pe.custom_partial_eval_rules, _pe.partial_eval_jaxpr_custom_rules
    rules[logs.primitive] = _rule_of_log(logs)
    rules[while_p] = _split_while(rules[while_p], logs)
    checkpointed[while_p] = _split_checkpointed_while(checkpointed[while_p], logs)
    for construct in (cond_p, while_p, _remat_p, _custom_vmap_p, jex.primitives.linear_solve_p):
        rules[construct] = _keep_logs_of_construct(construct, rules.get(construct), logs)
    trace: Any = _pe.JaxprTrace
    for name in ("process_custom_jvp_call", "process_custom_vjp_call", "process_call"):
        if hasattr(trace, name):  # `process_call` until 0.10
            setattr(trace, name, _keep_logs_of_function(getattr(trace, name), logs))
    trace.process_shard_map = _keep_shards_with_logs(trace.process_shard_map, logs)


def _rule_of_log(logs: LogHooks) -> Any:
    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _is_hoisting():
            return _stage(trace, logs.primitive, tracers, params)
        return trace.default_process_primitive(logs.primitive, tracers, params)

    return rule


def _keep_logs_of_construct(construct: Any, rule: Any, logs: LogHooks) -> Any:
    """Wrap the rule of a primitive: its results may be hoisted, its logs stay in the loop."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not (any(map(logs.are_in, jaxprs_in(params))) and _is_hoisting()):
            return split(trace, tracers, params)
        staged = _stage(trace, construct, tracers, params)
        silent = _params_without_logs(construct, params, logs)
        # Hoisting a copy would make other effects, such as callbacks, happen twice.
        return staged if _effects_in(silent) else split(trace, tracers, silent)

    def split(trace: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        if rule is None:
            return trace.default_process_primitive(construct, tracers, params)
        return rule(trace, *tracers, **params)

    return wrapped


def _keep_logs_of_function(method: Any, logs: LogHooks) -> Any:
    """Wrap a method that splits a call: its results may be hoisted, its logs stay in the loop.

    The function is the third argument; its operands are the only list among the others.
    """

    def wrapped(trace: Any, primitive: Any, function: Any, *others: Any, **options: Any) -> Any:
        if not (logs.are_bound() and _is_hoisting()):
            return method(trace, primitive, function, *others, **options)
        (values,) = (each for each in others if isinstance(each, (list, tuple)))
        tracers = [trace.instantiate_const(trace.to_jaxpr_tracer(x)) for x in values]
        jaxpr = jax.make_jaxpr(function.call_wrapped)(*(tracer.aval for tracer in tracers))
        if logs.are_in(jaxpr):
            with _core.set_current_trace(trace):
                jax.jit(_core.jaxpr_as_fun(jaxpr))(*tracers)
            silent = _core.jaxpr_as_fun(logs.remove_from(jaxpr))
            function = _lu.wrap_init(silent, debug_info=function.debug_info)
        return method(trace, primitive, function, *others, **options)

    return wrapped


def _keep_shards_with_logs(method: Any, logs: LogHooks) -> Any:
    """Wrap the method that splits a `shard_map`: one that logs stays in the loop entirely."""

    def wrapped(trace: Any, primitive: Any, function: Any, values: Any, **options: Any) -> Any:
        if logs.are_bound() and _is_hoisting():
            tracers = [trace.instantiate_const(trace.to_jaxpr_tracer(x)) for x in values]
            results = method(trace, primitive, function, tracers, **options)
            recipes = [r.recipe for r in results if isinstance(r, _pe.JaxprTracer)]
            equations = [r for r in recipes if isinstance(r, _pe.JaxprEqnRecipe)]
            if equations and logs.are_in(equations[0].params["jaxpr"]):
                handle = _pe.EffectHandle(list(equations[0].in_tracers), equations[0])
                trace.effect_handles.append(handle)
                return results
        return method(trace, primitive, function, values, **options)

    return wrapped


def _split_while(rule: Any, logs: LogHooks) -> Any:
    """Wrap the rule of `while`, which runs the known part and stages a loop of everything."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        before = len(trace.effect_handles)
        results = rule(trace, *tracers, **params)
        staged = [t for t in results if isinstance(t, _pe.JaxprTracer) and not t.is_known()]
        holds = any(map(logs.are_in, jaxprs_in(params)))
        if holds and 0 < len(staged) < len(results):
            recipe: Any = staged[0].recipe
            silent = _params_without_logs(recipe.primitive, params, logs)
            equation = recipe._replace(params=silent, effects=_effects_in(silent))
            for tracer in staged:
                tracer.recipe = equation
            handles = trace.effect_handles[before:] if equation.effects else []
            trace.effect_handles[before:] = [
                _pe.EffectHandle(handle.parents, equation) for handle in handles
            ]
        return results

    return wrapped


def _split_checkpointed_while(rule: Any, logs: LogHooks) -> Any:
    """Wrap the rule of a `while` inside `checkpoint`: as `_split_while`, but for equations."""

    def wrapped(saveable: Any, unknown: Any, instantiated: Any, equation: Equation) -> Any:
        if not any(map(logs.are_in, jaxprs_in(equation.params))):
            return rule(saveable, unknown, instantiated, equation)
        params = _params_without_logs(equation.primitive, equation.params, logs)
        silent = equation.replace(params=params, effects=_effects_in(params))
        # JAX would save the results of effects for the backward pass, which its rule cannot handle.
        split = equation if any(unknown) else silent
        known, _, *rest = rule(saveable, unknown, instantiated, split)
        if known is None:  # the predicate is unknown, so the loop runs once, later
            return known, equation, *rest
        return known if any(unknown) else equation, silent, *rest

    return wrapped


def _params_without_logs(construct: Any, params: dict[str, Any], logs: LogHooks) -> dict[str, Any]:
    """Return the parameters of an equation with the logs removed from all jaxprs."""

    def without_logs(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            values = map(without_logs, value)
            return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
        if not hasattr(getattr(value, "jaxpr", value), "eqns") or not logs.are_in(value):
            return value
        without = logs.remove_from(value)
        return open_jaxpr(without)[0] if construct is _remat_p else without

    return {name: without_logs(value) for name, value in params.items()}


def _effects_in(params: dict[str, Any]) -> frozenset[Any]:
    return frozenset().union(*(jaxpr_and_consts(jaxpr)[0].effects for jaxpr in jaxprs_in(params)))


def _stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """Stage the primitive in the unknown part, even if all of its operands are known."""
    tracers = [trace.instantiate_const(trace.to_jaxpr_tracer(t)) for t in tracers]
    avals, effects = primitive.abstract_eval(*(t.aval for t in tracers), **params)
    effects = effects | _effects_in(params)  # `custom_vmap` lacks those of its jaxprs in 0.8
    results = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in avals]
    equation = _pe.new_eqn_recipe(
        trace, tracers, results, primitive, params, effects, _source.current()
    )
    for result in results:
        result.recipe = equation
    trace.effect_handles.append(_pe.EffectHandle(tracers, equation))
    return results


def _is_hoisting() -> bool:
    """Return whether JAX is hoisting loop-invariant equations out of a `scan`.

    JAX has no flag for it, so this looks for its functions on the stack.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code in _HOISTING:
            return True
        frame = frame.f_back
    return False


_HOISTING = {_loops._scan_known_hoisting.__code__, _loops._scan_partial_eval_custom.__code__}

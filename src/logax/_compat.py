"""All that differs between JAX versions, or is not public API, in one room.

Every entry says what it stands for and which versions need it. Nothing else in logax may mention
JAX's private modules.
"""

from __future__ import annotations

import contextlib
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
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow import loops as _loops
from jax._src.named_sharding import UNSPECIFIED as _UNSPECIFIED
from jax.experimental import io_callback
from jax.extend import core as jex
from jax.interpreters import mlir

# JAX's own types are loosely typed or move between versions; these names say what is meant.
Array: TypeAlias = Any
Aval: TypeAlias = Any
Equation: TypeAlias = Any
Jaxpr: TypeAlias = Any
Tree: TypeAlias = Any


# The class of arrays that are no tracers. Making one to ask it would start JAX's devices.
ConcreteArray: type = _ArrayImpl

_EXPLICIT = jax.sharding.AxisType.Explicit
_NO_MESH = jax.sharding.AbstractMesh((), ())

# Whether no transformation is being traced here. Private on every version.
outside_of_traces: Callable[[], bool] = _core.trace_state_clean


def on_several_devices(x: Any) -> bool:
    """Return whether an array lies on more than one device."""
    return isinstance(x, _ArrayImpl) and x.sharding.num_devices > 1


def may_run_on_several_devices(jaxpr: Jaxpr) -> bool:
    """Return whether a program, given arguments on one device, may be one for several.

    It is if a mesh is set, if a constant lies on several, or if a part of it names shardings.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return True
    inner, consts = parts(jaxpr)
    if any(map(on_several_devices, consts)):
        return True
    return any(
        equation.primitive.name in _SHARDING_PRIMITIVES
        or any(map(_is_sharding, _shardings_of(equation.params)))
        or any(map(may_run_on_several_devices, jaxprs_in(equation.params)))
        for equation in inner.eqns
    )


_SHARDING_PRIMITIVES = {"shard_map", "sharding_constraint", "reshard", "mesh_cast", "xla_pmap"}


def _shardings_of(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the shardings that a `jit` was given."""
    for name in ("in_shardings", "out_shardings"):
        yield from params.get(name, ())


def _is_sharding(x: Any) -> bool:
    return isinstance(x, jax.sharding.Sharding) and x.num_devices > 1


def typed_like(x: Array, aval: Aval) -> Array:
    """Return an array weakly typed if `aval` is."""
    return _lax._convert_element_type(x, weak_type=True) if aval.weak_type else x


def parts(jaxpr: Jaxpr) -> tuple[Jaxpr, Sequence[Array]]:
    """The open jaxpr and its constants.

    Before 0.11 a `ClosedJaxpr` wraps a `Jaxpr`, and some primitives hold open ones; since 0.11
    there is one class for both.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def jaxprs_in(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs among an equation's parameters (0.8.0 has no public `jaxprs_in_params`)."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def with_common_consts(jaxprs: Sequence[Jaxpr]) -> tuple[tuple[Jaxpr, ...], list[Array]]:
    """The same programs without constants of their own: each takes those of all of them first."""
    inners, consts = zip(*map(parts, jaxprs), strict=True)
    constvars = [v for inner in inners for v in inner.constvars]

    def closed(inner: Jaxpr) -> Jaxpr:
        taken = [*constvars, *inner.invars]
        opened = jex.Jaxpr((), taken, inner.outvars, inner.eqns, inner.effects, _NO_DEBUG_INFO)
        return jex.ClosedJaxpr(opened, ())

    if not constvars:
        return tuple(jaxprs), []
    return tuple(map(closed, inners)), [x for each in consts for x in each]


def open_jaxpr(jaxpr: Jaxpr) -> tuple[Jaxpr, list[Array]]:
    """The open jaxpr without constants, and those, which it takes as its first arguments."""
    (closed,), consts = with_common_consts([jaxpr])
    return parts(closed)[0], consts


def single_equation(equation: Equation) -> tuple[Jaxpr, list[Any]]:
    """A jaxpr of this one equation, and the variables it takes in that order."""
    inputs = list(variables(equation.invars))
    return sub_jaxpr([equation], inputs, equation.outvars), inputs


def variables(atoms: Iterable[Any]) -> dict[Any, None]:
    """The variables among some atoms, each once, in order."""
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, jex.Literal))


def sub_jaxpr(
    equations: Sequence[Equation], invars: Sequence[Any], outvars: Sequence[Any]
) -> Jaxpr:
    """An open jaxpr of some equations of another one."""
    effects = frozenset().union(*(e.effects for e in equations))
    return jex.Jaxpr((), list(invars), list(outvars), list(equations), effects, _NO_DEBUG_INFO)


# A jaxpr must say where it comes from; one that we cut out of another does not need to.
_NO_DEBUG_INFO = jax.make_jaxpr(lambda: ())().jaxpr.debug_info._replace(
    func_src_info="logax", arg_names=None, result_paths=None
)


@contextlib.contextmanager
def equation_context(equation: Equation) -> Iterator[None]:
    """Named scopes, source line and thread-local settings under which an equation was traced.

    `jax.core.eval_jaxpr` does this for whole jaxprs; there is no public way for one equation
    whose parameters change.
    """
    stack = _source.current_name_stack() + equation.source_info.name_stack
    with (
        _source.user_context(equation.source_info.traceback, name_stack=stack),
        equation.ctx.manager,
    ):
        yield


class JitArguments(NamedTuple):
    """Positions and names of the arguments that a jitted function was told of."""

    static: tuple[frozenset[int], frozenset[str]]
    donated: tuple[frozenset[int], frozenset[str]]


def jit_arguments(fun: Any) -> JitArguments:
    """The static and the donated arguments of a function, none where it is not jitted.

    Private on every version.
    """
    jit = getattr(fun, "_jit_info", None)
    if jit is None:
        return JitArguments((frozenset(), frozenset()), (frozenset(), frozenset()))
    owner = 1 if isinstance(fun, types.MethodType) else 0  # a bound method has one argument less

    def positions(numbers: Any) -> frozenset[int]:
        return frozenset(i - owner if i >= 0 else i for i in numbers or () if i < 0 or i >= owner)

    return JitArguments(
        (positions(jit.static_argnums), frozenset(jit.static_argnames or ())),
        (positions(jit.donate_argnums), frozenset(jit.donate_argnames or ())),
    )


def trace(fun: Callable[..., Any], *args: Tree) -> tuple[Jaxpr, Tree]:
    """The closed jaxpr of `fun`, which must return arrays, and the tree of what it returns."""
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    return jaxpr, jax.tree.structure(shapes)


def rebind_jit(
    equation: Equation, jaxpr: Jaxpr, args: Sequence[Array], added_in: int
) -> list[Array]:
    """Bind a `jit` equation with a new jaxpr that takes and returns more at the end.

    What its parameters say of each operand and result is private on every version.
    """
    params = dict(equation.params)
    added_out = len(parts(jaxpr)[0].outvars) - len(equation.outvars)
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


def called_jaxpr(params: dict[str, Any]) -> Jaxpr:
    """The jaxpr of a plain call (`eval_jaxpr` of 0.10 named it differently)."""
    return params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]


def scan_split(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a `scan` are constants and carry (trees since 0.11)."""
    if "num_consts" in params:  # pragma: no cover - only before 0.11, and reached there
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # pragma: no cover - since 0.11, reached there
    return len(list(consts)), len(list(carry))  # pragma: no cover - see above


def scan_options(params: dict[str, Any]) -> dict[str, Any]:
    """What a `scan` was told by a private name (in 0.8; by 0.10 it is not in the equation)."""
    return {"_split_transpose": True} if params.get("_split_transpose") else {}


def manual_axes(params: dict[str, Any]) -> frozenset[str]:
    """The mesh axes a `shard_map` equation maps over (`newly_manual_axes` by 0.10)."""
    axes = params.get("manual_axes", params.get("newly_manual_axes"))
    return frozenset(axes if axes is not None else params["mesh"].axis_names)


def varying_axes(aval: Aval) -> frozenset[str]:
    """The mesh axes over which a value differs between shards; empty outside `shard_map`.

    Types call them `vma` in 0.8, and `mat` by 0.10.
    """
    axes = getattr(aval, "vma", None)
    if axes is None and hasattr(aval, "mat"):  # pragma: no branch - `vma` before 0.10
        axes = aval.mat.varying
    return frozenset(axes or ())


def replicated(x: Array) -> Array:
    """The value whole on every device, where an explicit mesh says that it is not."""
    mesh, spec = _layout(x)
    if all(axis is None for axis in spec):
        return x
    return _whole_on(mesh, x)


def laid_as(x: Array, like: Array) -> Array:
    """The value as one that `like`, which is whole on every device, can be exchanged for."""
    x, mesh = replicated(x), _layout(like)[0]
    return x if mesh is None or _layout(x)[0] == mesh else _whole_on(mesh, x)


def laid_with(tree: Tree, arrays: Sequence[Array]) -> Tree:
    """Values whole on every device of the explicit mesh that one of these arrays is on."""
    meshes = [mesh for mesh, _ in map(_layout, arrays) if mesh is not None]
    return jax.tree.map(lambda x: _whole_on(meshes[0], x), tree) if meshes else tree


def _layout(x: Array) -> tuple[Any, Any]:
    """The explicit mesh that a value is on, and how; None where there is none."""
    sharding: Any = getattr(jax.typeof(x), "sharding", None)
    explicit = [
        kind for kind in getattr(sharding, "mesh", _NO_MESH).axis_types if kind == _EXPLICIT
    ]
    return (sharding.mesh, sharding.spec) if explicit else (None, ())


def _whole_on(mesh: Any, x: Array) -> Array:
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.sharding.reshard(x, whole)


def laid_along(x: Array, mesh: Any, axes: Sequence[str]) -> Array:
    """The value laid out along its first axis, where a mesh is explicit; else JAX does that."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if not any(kinds[name] == _EXPLICIT for name in axes):
        return x
    spec = jax.sharding.PartitionSpec(tuple(axes))
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, spec))


def make_varying(tree: Tree, axes: frozenset[str]) -> Tree:
    """Say that values may differ along mesh axes (`lax.pvary` until 0.9, `lax.pcast` since)."""

    def vary(x: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(jax.typeof(x))))
        if not missing:
            return x
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pvary(x, missing)  # pragma: no cover - only before 0.9, and reached there

    return jax.tree.map(vary, tree) if axes else tree


def may_transfer_implicitly() -> bool:
    """Return whether NumPy arrays may be passed to a program: no transfer guard forbids it.

    Settings are attributes of `jax.config` that its type does not declare.
    """
    return jax.config.jax_transfer_guard_host_to_device in (None, "allow")


def effects_of_this_thread() -> Callable[[], None]:
    """What waits, on any thread, for the programs with effects that this thread has started.

    `jax.effects_barrier` does it on this thread only, for as long as it takes.
    """
    tokens = _dispatch.runtime_tokens
    pending = [*tokens.current_tokens.values(), *tokens.output_runtime_tokens.values()]

    def wait() -> None:
        for token in pending:
            with contextlib.suppress(RuntimeError):  # it is told to whoever uses the result
                token.block_until_ready()

    return wait


def host_call(
    context: Any,
    callback: Callable[..., Any],
    operands: Sequence[Any],
    avals_in: Sequence[Aval],
    avals_out: Sequence[Aval] = (),
) -> Sequence[Any]:
    """Lower to a call of `callback` on the host, which gets arrays and returns them.

    The raw lowering hands over NumPy arrays; `jax.debug.callback` makes a `jax.Array` of each
    first. But in a program for several devices, outside of `shard_map`, XLA takes only JAX's own.
    """
    axes = context.module_context.axis_context
    manual = getattr(axes, "manual_axes", None)
    alone = getattr(axes, "num_devices", 1) == 1 if manual is None else False
    shards = manual is not None and set(manual) == set(axes.mesh.axis_names)
    if alone or shards:
        inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
        results, _, _ = mlir.emit_python_callback(
            inner, callback, None, list(operands), avals_in, avals_out, has_side_effect=True
        )
        return results

    def by_jax(*arrays: Array) -> Any:
        if avals_out:
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals_out]
            return io_callback(lambda *given: list(callback(*given)), shapes, *arrays)
        jax.debug.callback(callback, *arrays)
        return []

    return lowered(context, by_jax, operands, avals_in, avals_out)[0]


def lowered(
    context: Any,
    function: Callable[..., Sequence[Array]],
    operands: Sequence[Any],
    avals_in: Sequence[Aval],
    avals_out: Sequence[Aval] | None = None,
) -> tuple[Sequence[Any], Sequence[Aval]]:
    """What a function of arrays gives in the midst of a lowering, and of which types that is."""
    # How values are laid out is settled; types that say so would have to agree.
    avals_in = [jax.core.ShapedArray(a.shape, a.dtype) for a in avals_in]
    with jax.sharding.use_abstract_mesh(_NO_MESH):
        if avals_out is None:
            shapes = jax.eval_shape(function, *avals_in)
            avals_out = [jax.core.ShapedArray(s.shape, s.dtype) for s in shapes]
        inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
        return mlir.lower_fun(function, multiple_results=True)(inner, *operands), avals_out


class Logs(NamedTuple):
    """What partial evaluation has to know of logs.

    Attributes:
      primitive: The effectful primitive without results that a log is.
      are_bound: Returns whether logs are bound while this thread traces.
      are_in: Returns whether a jaxpr has a log, however deep.
      silenced: Returns the same program without logs.
    """

    primitive: Any
    are_bound: Callable[[], bool]
    are_in: Callable[[Jaxpr], bool]
    silenced: Callable[[Jaxpr], Jaxpr]


def register_partial_eval(logs: Logs) -> None:
    """Make logs run as often under differentiation as without it.

    To differentiate, JAX splits a program into what is known at once and the rest. Some of its
    rules for that change how often an effect happens, and are wrapped here. Nothing changes for
    programs without logs. Private on every version.

    | JAX | with logs |
    | --- | --- |
    | moves out of a `scan` what does not vary in it | a log counts as varying |
    | moves, there, whole constructs and functions | without logs; these run in the loop |
    | runs a whole `while` again for the rest | the second run is without logs |
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


def _rule_of_log(logs: Logs) -> Any:
    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _is_hoisting():
            return _stage(trace, logs.primitive, tracers, params)
        return trace.default_process_primitive(logs.primitive, tracers, params)

    return rule


def _keep_logs_of_construct(construct: Any, rule: Any, logs: Logs) -> Any:
    """Wrap the rule of a primitive: its results may leave the loop, its logs stay."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not (any(map(logs.are_in, jaxprs_in(params))) and _is_hoisting()):
            return split(trace, tracers, params)
        staged = _stage(trace, construct, tracers, params)
        silent = _silent_params(construct, params, logs)
        # Other effects, such as callbacks, must not happen twice.
        return staged if _effects_in(silent) else split(trace, tracers, silent)

    def split(trace: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        if rule is None:
            return trace.default_process_primitive(construct, tracers, params)
        return rule(trace, *tracers, **params)

    return wrapped


def _keep_logs_of_function(method: Any, logs: Logs) -> Any:
    """Wrap what splits a call of a function: its results may leave the loop, its logs stay.

    The function is the third argument; the values it is called with are the only list among the
    others.
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
            silent = _core.jaxpr_as_fun(logs.silenced(jaxpr))
            function = _lu.wrap_init(silent, debug_info=function.debug_info)
        return method(trace, primitive, function, *others, **options)

    return wrapped


def _keep_shards_with_logs(method: Any, logs: Logs) -> Any:
    """Wrap what splits a `shard_map`: one that logs stays in the loop, results and all."""

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


def _split_while(rule: Any, logs: Logs) -> Any:
    """Wrap the rule of `while`, which runs a loop of what is known and stages one of all."""

    def wrapped(trace: Any, *tracers: Any, **params: Any) -> Any:
        before = len(trace.effect_handles)
        results = rule(trace, *tracers, **params)
        staged = [t for t in results if isinstance(t, _pe.JaxprTracer) and not t.is_known()]
        holds = any(map(logs.are_in, jaxprs_in(params)))
        if holds and 0 < len(staged) < len(results):
            recipe: Any = staged[0].recipe
            silent = _silent_params(recipe.primitive, params, logs)
            equation = recipe._replace(params=silent, effects=_effects_in(silent))
            for tracer in staged:
                tracer.recipe = equation
            handles = trace.effect_handles[before:] if equation.effects else []
            trace.effect_handles[before:] = [
                _pe.EffectHandle(handle.parents, equation) for handle in handles
            ]
        return results

    return wrapped


def _split_checkpointed_while(rule: Any, logs: Logs) -> Any:
    """Wrap the rule of a `while` in a `checkpoint`: as above, equations in place of tracers."""

    def wrapped(saveable: Any, unknown: Any, instantiated: Any, equation: Equation) -> Any:
        if not any(map(logs.are_in, jaxprs_in(equation.params))):
            return rule(saveable, unknown, instantiated, equation)
        params = _silent_params(equation.primitive, equation.params, logs)
        silent = equation.replace(params=params, effects=_effects_in(params))
        # JAX would keep results of effects for the backward run, and its rule has no room for any.
        split = equation if any(unknown) else silent
        known, _, *rest = rule(saveable, unknown, instantiated, split)
        if known is None:  # the predicate is not known: it runs once, later
            return known, equation, *rest
        return known if any(unknown) else equation, silent, *rest

    return wrapped


def _silent_params(construct: Any, params: dict[str, Any], logs: Logs) -> dict[str, Any]:
    """Return the parameters of an equation with programs that do not log."""

    def silent(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            values = map(silent, value)
            return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
        if not hasattr(getattr(value, "jaxpr", value), "eqns") or not logs.are_in(value):
            return value
        without = logs.silenced(value)
        return open_jaxpr(without)[0] if construct is _remat_p else without

    return {name: silent(value) for name, value in params.items()}


def _effects_in(params: dict[str, Any]) -> frozenset[Any]:
    return frozenset().union(*(parts(jaxpr)[0].effects for jaxpr in jaxprs_in(params)))


def _stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """Leave the primitive in the program that is split, whatever is known of its operands."""
    tracers = [trace.instantiate_const(trace.to_jaxpr_tracer(t)) for t in tracers]
    avals, effects = primitive.abstract_eval(*(t.aval for t in tracers), **params)
    effects = effects | _effects_in(params)  # which `custom_vmap` does not have in 0.8
    results = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in avals]
    equation = _pe.new_eqn_recipe(
        trace, tracers, results, primitive, params, effects, _source.current()
    )
    for result in results:
        result.recipe = equation
    trace.effect_handles.append(_pe.EffectHandle(tracers, equation))
    return results


def _is_hoisting() -> bool:
    """Return whether JAX is moving work out of a `scan` that does not vary in it.

    JAX keeps no flag for it, so this looks for its functions on the stack.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code in _HOISTING:
            return True
        frame = frame.f_back
    return False


_HOISTING = {_loops._scan_known_hoisting.__code__, _loops._scan_partial_eval_custom.__code__}

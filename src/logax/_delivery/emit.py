"""The primitives that connect a program to the host: emit records, open calls, ask for numbers.

`emit_p` hands its operands to the host. Under `vmap` it gets a lane axis, so that there is one host
call for all lanes. Gates are operands and applied on the host, so that lanes and branches that JAX
runs but does not select emit nothing. `open_p` asks the host for the number of a call, where a
tapped function is part of a larger program. `ask_p` sends arrays to the host and returns its
answer, one number for each lane.

Two primitives carry information about lanes. `lanes_p` returns zero, with a lane axis if any of its
operands has one: it gives every emission the lanes of its call. `levels_p` returns, as data, the
levels of lanes over which the number of an owner varies: a `cond` with a batched predicate adds a
lane axis to all operands of its branches, so that an emission cannot see this from its operands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _compat
from logax._compat import Array
from logax._delivery.packet import (
    OBJECT_OVERHEAD_BYTES,
    Packet,
    PacketLayout,
    PacketSchema,
    Packing,
    merge_lane_axes,
)
from logax._log import EFFECTS
from logax._support.arrays import lane_count, move_lanes_first

Receive = Callable[[Packet], Any]
Answer = Callable[[tuple[int, ...], Sequence[Any]], Any]


def emit(
    schema: PacketSchema,
    lanes: Array,
    operands: Sequence[Array],
    receive: Receive,
    *,
    answers: bool = False,
) -> Array | None:
    """Call `receive` on the host with a packet of the operands.

    Args:
      schema: Meaning of the operands.
      lanes: Lanes of the call, from `lane_marker`.
      operands: The operands, in the order of the schema.
      receive: Host function.
      answers: True if the program uses the number that `receive` returns.

    Returns:
      With `answers` that number, otherwise None.
    """
    flags = ((),) * len(operands)
    operands = [_compat.replicate(x) for x in operands]  # the host needs whole arrays
    params = {
        "schema": schema,
        "lanes": (),
        "batched": flags,
        "receive": receive,
        "answers": answers,
    }
    results = emit_p.bind(lanes, *operands, **params)
    return results[0] if answers else None


def open_call(lanes: Array, begin: Callable[[], int]) -> Array:
    """Return the number of a new call; `begin` runs on the host whenever the program gets here."""
    return open_p.bind(lanes, begin=begin)[0]


def lane_marker(arrays: Sequence[Array]) -> Array:
    """Return zero, with a lane axis for every level of `vmap` that one of the arrays has."""
    return lanes_p.bind(jnp.zeros((), jnp.int32), *arrays)


def owner_operands(owner: Array, lanes: Array) -> tuple[Array, Array]:
    """Return the operands of a packet that hold the number of an owner."""
    return levels_p.bind(owner, lanes, number=0, varying=0), owner


def current_shard() -> Array | None:
    """Return the index of the shard if traced inside a `shard_map`, otherwise None."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.axis_index(axes) if axes else None


def ask_host(
    answer: Answer,
    operands: Sequence[Array],
    prepare: Callable[[tuple[int, ...]], None] | None = None,
) -> Array:
    """Send arrays to the host, and return its answer: one number for each lane.

    Under `vmap` there is one host call for all lanes. It is an effect, so that it happens as often
    as the program gets here, even if the answer is not used.

    Args:
      answer: Host function of the number of lanes at each level of `vmap` and of the arrays, each
        with all lanes as one leading axis. Returns one number for each lane.
      operands: The arrays. The lanes are those that any of them varies over.
      prepare: Called with the lanes on the user's thread: before the program is compiled, or,
        outside of programs, before `answer`. It may raise.
    """
    operands = [_compat.replicate(jnp.asarray(x)) for x in operands]  # the host needs whole arrays
    none = ((),) * len(operands)
    return ask_p.bind(*operands, answer=answer, prepare=prepare, lanes=(), over=none)


def _emit_abstract(*_: Any, answers: bool, **__: Any) -> tuple[list[Any], Any]:
    return [jax.core.ShapedArray((), np.dtype(np.int32))] * answers, EFFECTS


def _emit_batch(args: Any, dims: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    size = lane_count(args, dims)
    first = 1 + params["schema"].num_common  # all lanes share one call and one shard
    common = _first_lanes(args[:first], dims[:first])
    operands = move_lanes_first(args[first:], dims[first:])
    varies = [False] * (first - 1) + [d is not None for d in dims[first:]]
    params["batched"] = tuple(
        (own, *over) for own, over in zip(varies, params["batched"], strict=True)
    )
    params["lanes"] = (size, *params["lanes"])
    return emit_p.bind(*common, *operands, **params), [None] * params["answers"]


def _emit_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    return emit_p.bind(*primals, **params), []


def _make_layout(avals: Sequence[Any], packing: Packing | None, params: Any) -> PacketLayout:
    schema, lanes = params["schema"], params["lanes"]
    size = OBJECT_OVERHEAD_BYTES + sum(
        math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in avals
    )
    rows = sum(avals[end].shape[-1] for _, end, _ in schema.spans)
    return PacketLayout(schema, lanes, params["batched"], packing, size, rows * math.prod(lanes))


def _lower_emit(context: Any, *args: Any, on_cpu: bool = False, **params: Any) -> Any:
    avals = context.avals_in[1:]
    packing = Packing(avals, in_place=on_cpu)
    packed, packed_avals = _compat.lower_function(context, packing.pack, args[1:], avals)
    layout, answers = _make_layout(avals, packing, params), params["answers"]
    receive = params["receive"]

    def arrive(*operands: Any) -> tuple[Any, ...]:
        """Receive the operands, on an XLA thread."""
        answer = receive(Packet(layout, operands))
        return (np.int32(answer),) if answers else ()

    return _compat.lower_host_call(context, arrive, packed, packed_avals, context.avals_out)


def _emit_eagerly(*args: Any, **params: Any) -> list[Any]:
    # Outside of programs the arrays belong to the user, who may donate them next.
    operands = [np.asarray(x) for x in args[1:]]
    answer = params["receive"](Packet(_make_layout(operands, None, params), operands))
    return [jnp.int32(answer)] if params["answers"] else []


def _lower_open(context: Any, lanes: Any, *, begin: Callable[[], int]) -> Any:
    def answer(_: Any) -> tuple[Any]:
        return (np.uint32(begin()),)

    return _compat.lower_host_call(context, answer, [lanes], context.avals_in, context.avals_out)


def _open_batch(args: Any, dims: Any, *, begin: Any) -> tuple[Any, list[Any]]:
    return open_p.bind(_first_lane(args[0], dims[0]), begin=begin), [None]


def _lanes_batch(args: Any, dims: Any) -> tuple[Array, int]:
    # Bind again, so that the axes of outer vmaps are seen too.
    each = _first_lanes(args, dims)
    return jnp.broadcast_to(lanes_p.bind(*each), (lane_count(args, dims),)), 0


def _lanes_jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
    zero = lanes_p.bind(*primals)
    return zero, ad.Zero(jax.typeof(zero).to_tangent_aval())


def _levels_batch(args: Any, dims: Any, *, number: int, varying: int) -> tuple[Array, None]:
    each = _first_lanes(args, dims)
    varying |= (dims[0] is not None) << number
    return levels_p.bind(*each, number=number + 1, varying=varying), None


def _levels(*_: Any, number: int, varying: int) -> Array:
    return jnp.uint32(varying)


def _first_lanes(args: Sequence[Any], dims: Sequence[int | None]) -> list[Array]:
    return [x if d is None else _first_lane(x, d) for x, d in zip(args, dims, strict=True)]


def _first_lane(x: Array, axis: int) -> Array:
    """Return the value of the first lane; zero if there are no lanes."""
    if x.shape[axis] == 0:
        return jnp.zeros((), x.dtype)
    return jax.lax.index_in_dim(x, 0, axis, keepdims=False)


def _call_answer(answer: Answer, lanes: tuple[int, ...], over: Any, *operands: Any) -> Any:
    number = int(np.prod(lanes))
    whole = []
    for x, varies in zip(operands, over, strict=True):
        x = np.asarray(x)
        each = merge_lane_axes(x, varies, lanes) if any(varies) else x[None]
        whole.append(np.broadcast_to(each, (number, *each.shape[1:])))
    return np.asarray(answer(lanes, whole), np.uint32).reshape(lanes)


def _ask_abstract(*_: Any, lanes: tuple[int, ...], **__: Any) -> tuple[Any, Any]:
    return jax.core.ShapedArray(lanes, np.dtype(np.uint32)), EFFECTS


def _ask_batch(args: Any, dims: Any, *, lanes: Any, over: Any, **own: Any) -> tuple[Array, int]:
    wider = tuple((d is not None, *each) for d, each in zip(dims, over, strict=True))
    lanes = (lane_count(args, dims), *lanes)
    return ask_p.bind(*move_lanes_first(args, dims), lanes=lanes, over=wider, **own), 0


def _ask_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Array, Any]:
    number = ask_p.bind(*primals, **params)
    return number, ad.Zero(jax.typeof(number).to_tangent_aval())


def _ask_eagerly(*args: Any, answer: Any, prepare: Any, lanes: Any, over: Any) -> Array:
    if prepare is not None:
        prepare(lanes)
    return jnp.asarray(_call_answer(answer, lanes, over, *args))


def _lower_ask(context: Any, *args: Any, answer: Any, prepare: Any, lanes: Any, over: Any) -> Any:
    if prepare is not None:
        prepare(lanes)

    def call(*arrays: Any) -> tuple[Any]:
        return (_call_answer(answer, lanes, over, *arrays),)

    return _compat.lower_host_call(context, call, args, context.avals_in, context.avals_out)


emit_p = jex.Primitive("logax_emit")
emit_p.multiple_results = True
emit_p.def_effectful_abstract_eval(_emit_abstract)
emit_p.def_impl(_emit_eagerly)
batching.primitive_batchers[emit_p] = _emit_batch
ad.primitive_jvps[emit_p] = _emit_jvp
mlir.register_lowering(emit_p, _lower_emit)
mlir.register_lowering(emit_p, functools.partial(_lower_emit, on_cpu=True), platform="cpu")

open_p = jex.Primitive("logax_open")
open_p.multiple_results = True
open_p.def_effectful_abstract_eval(
    lambda lanes, begin: ([jax.core.ShapedArray((), np.dtype(np.uint32))], EFFECTS)
)
open_p.def_impl(lambda lanes, begin: [jnp.uint32(begin())])
batching.primitive_batchers[open_p] = _open_batch
mlir.register_lowering(open_p, _lower_open)

lanes_p = jex.Primitive("logax_lanes")
lanes_p.def_impl(lambda zero, *arrays: zero)
lanes_p.def_abstract_eval(lambda zero, *arrays: zero)
batching.primitive_batchers[lanes_p] = _lanes_batch
ad.primitive_jvps[lanes_p] = _lanes_jvp
mlir.register_lowering(lanes_p, lambda context, zero, *arrays: [zero])

levels_p = jex.Primitive("logax_levels")
levels_p.def_impl(_levels)
levels_p.def_abstract_eval(lambda *_, **__: jax.core.ShapedArray((), np.dtype(np.uint32)))
batching.primitive_batchers[levels_p] = _levels_batch
mlir.register_lowering(levels_p, mlir.lower_fun(_levels, multiple_results=False))

ask_p = jex.Primitive("logax_ask")
ask_p.def_effectful_abstract_eval(_ask_abstract)
ask_p.def_impl(_ask_eagerly)
batching.primitive_batchers[ask_p] = _ask_batch
ad.primitive_jvps[ask_p] = _ask_jvp
mlir.register_lowering(ask_p, _lower_ask)

"""The primitives through which records leave a program.

`emit_p` hands its operands to the host. Under `vmap` it gets lanes, not copies: one host call for
all of them. Gates are operands and are applied on the host, so that lanes and branches that JAX
runs without meaning it stay silent. `open_p` asks the host for the number of a call, where a tapped
function is part of a larger program. `lanes_p` is zero, with a lane axis wherever one of its
operands has one: it tells every emission of a call which lanes the call has. `levels_p` says, as
data, over which levels of lanes the number of an owner varies: a `cond` whose predicate varies
gives a lane axis to all that its branches see, so that what an emission gets there does not tell.

A question that a program asks the host: some arrays, answered with one number.

Under `vmap` there is one question for all lanes, and an answer for each. It has an effect, so that
it is asked as often as the program gets there, and asked even where nobody uses the answer.
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
from logax._delivery.packet import OBJECTS, Emission, Packet, Packing, Parcel, over_all
from logax._log import EFFECTS
from logax._support.arrays import lane_count, lanes_first

Take = Callable[[Parcel], Any]


def emit(
    packet: Packet, lanes: Array, operands: Sequence[Array], take: Take, *, answers: bool = False
) -> Array | None:
    """Hand operands to `take` on the host; `lanes` comes from `lanes_of`.

    Returns:
      With `answers` the number that `take` returns, else None.
    """
    flags = ((),) * len(operands)
    operands = [_compat.replicated(x) for x in operands]  # the host wants them whole
    params = {"packet": packet, "lanes": (), "batched": flags, "take": take, "answers": answers}
    results = emit_p.bind(lanes, *operands, **params)
    return results[0] if answers else None


def opened(lanes: Array, begin: Callable[[], int]) -> Array:
    """The number of a call, which `begin` gives on the host each time the program gets here."""
    return open_p.bind(lanes, begin=begin)[0]


def lanes_of(arrays: Sequence[Array]) -> Array:
    """Zero, with a lane axis wherever one of these has one."""
    return lanes_p.bind(jnp.zeros((), jnp.int32), *arrays)


def owned(owner: Array, lanes: Array) -> tuple[Array, Array]:
    """The number of an owner as operands of an emission with these lanes."""
    return levels_p.bind(owner, lanes, number=0, varying=0), owner


def shard_here() -> Array | None:
    """The index of the shard, if this part of the program is traced inside a `shard_map`."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.axis_index(axes) if axes else None


def _emit_abstract(*_: Any, answers: bool, **__: Any) -> tuple[list[Any], Any]:
    return [jax.core.ShapedArray((), np.dtype(np.int32))] * answers, EFFECTS


def _emit_batch(args: Any, dims: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    size = lane_count(args, dims)
    first = 1 + params["packet"].common  # there is one call, and one shard, whatever its lanes
    common = _any_of_each(args[:first], dims[:first])
    operands = lanes_first(args[first:], dims[first:])
    varies = [False] * (first - 1) + [d is not None for d in dims[first:]]
    params["batched"] = tuple(
        (own, *over) for own, over in zip(varies, params["batched"], strict=True)
    )
    params["lanes"] = (size, *params["lanes"])
    return emit_p.bind(*common, *operands, **params), [None] * params["answers"]


def _emit_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    return emit_p.bind(*primals, **params), []


def _emission(avals: Sequence[Any], packing: Packing | None, params: Any) -> Emission:
    packet, lanes = params["packet"], params["lanes"]
    size = OBJECTS + sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in avals)
    rows = sum(avals[end].shape[-1] for _, end, _ in packet.spans)
    return Emission(packet, lanes, params["batched"], packing, size, rows * math.prod(lanes))


def _emit_lowered(context: Any, *args: Any, on_cpu: bool = False, **params: Any) -> Any:
    avals = context.avals_in[1:]
    packing = Packing(avals, in_place=on_cpu)
    packed, packed_avals = _compat.lowered(context, packing.pack, args[1:], avals)
    emission, take, answers = _emission(avals, packing, params), params["take"], params["answers"]

    def arrive(*operands: Any) -> tuple[Any, ...]:
        """Take in the operands, on a thread of XLA's."""
        answer = take(Parcel(emission, operands))
        return (np.int32(answer),) if answers else ()

    return _compat.host_call(context, arrive, packed, packed_avals, context.avals_out)


def _emit_now(*args: Any, **params: Any) -> list[Any]:
    # Outside of programs the arrays are the user's, who may give them away next.
    operands = [np.asarray(x) for x in args[1:]]
    answer = params["take"](Parcel(_emission(operands, None, params), operands))
    return [jnp.int32(answer)] if params["answers"] else []


def _open_lowered(context: Any, lanes: Any, *, begin: Callable[[], int]) -> Any:
    def answer(_: Any) -> tuple[Any]:
        return (np.uint32(begin()),)

    return _compat.host_call(context, answer, [lanes], context.avals_in, context.avals_out)


def _open_batch(args: Any, dims: Any, *, begin: Any) -> tuple[Any, list[Any]]:
    return open_p.bind(_any_of(args[0], dims[0]), begin=begin), [None]


def _lanes_batch(args: Any, dims: Any) -> tuple[Array, int]:
    # An axis of a vmap further out must still show.
    each = _any_of_each(args, dims)
    return jnp.broadcast_to(lanes_p.bind(*each), (lane_count(args, dims),)), 0


def _lanes_jvp(primals: Any, tangents: Any) -> tuple[Array, Any]:
    zero = lanes_p.bind(*primals)
    return zero, ad.Zero(jax.typeof(zero).to_tangent_aval())


def _levels_batch(args: Any, dims: Any, *, number: int, varying: int) -> tuple[Array, None]:
    each = _any_of_each(args, dims)
    varying |= (dims[0] is not None) << number
    return levels_p.bind(*each, number=number + 1, varying=varying), None


def _levels(*_: Any, number: int, varying: int) -> Array:
    return jnp.uint32(varying)


def _any_of_each(args: Sequence[Any], dims: Sequence[int | None]) -> list[Array]:
    return [x if d is None else _any_of(x, d) for x, d in zip(args, dims, strict=True)]


def _any_of(x: Array, axis: int) -> Array:
    """The value of some lane; zero where there is none."""
    if x.shape[axis] == 0:
        return jnp.zeros((), x.dtype)
    return jax.lax.index_in_dim(x, 0, axis, keepdims=False)


emit_p = jex.Primitive("logax_emit")
emit_p.multiple_results = True
emit_p.def_effectful_abstract_eval(_emit_abstract)
emit_p.def_impl(_emit_now)
batching.primitive_batchers[emit_p] = _emit_batch
ad.primitive_jvps[emit_p] = _emit_jvp
mlir.register_lowering(emit_p, _emit_lowered)
mlir.register_lowering(emit_p, functools.partial(_emit_lowered, on_cpu=True), platform="cpu")

open_p = jex.Primitive("logax_open")
open_p.multiple_results = True
open_p.def_effectful_abstract_eval(
    lambda lanes, begin: ([jax.core.ShapedArray((), np.dtype(np.uint32))], EFFECTS)
)
open_p.def_impl(lambda lanes, begin: [jnp.uint32(begin())])
batching.primitive_batchers[open_p] = _open_batch
mlir.register_lowering(open_p, _open_lowered)

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


Answer = Callable[[tuple[int, ...], Sequence[Any]], Any]


def ask(
    answer: Answer,
    operands: Sequence[Array],
    prepare: Callable[[tuple[int, ...]], None] | None = None,
) -> Array:
    """The number that the host gives for these arrays.

    Args:
      answer: Called on the host with how many lanes there are at each level of `vmap` and the
        arrays, each with all lanes as one axis in front. Gives one number for each of the lanes.
      operands: The arrays. Lanes are those that one of them varies over.
      prepare: Called with the lanes in the user's thread: before the program is compiled, or
        without a program, before `answer`. It may raise.
    """
    operands = [_compat.replicated(jnp.asarray(x)) for x in operands]  # the host wants them whole
    none = ((),) * len(operands)
    return ask_p.bind(*operands, answer=answer, prepare=prepare, lanes=(), over=none)


def _answered(answer: Answer, lanes: tuple[int, ...], over: Any, *operands: Any) -> Any:
    number = int(np.prod(lanes))
    whole = []
    for x, varies in zip(operands, over, strict=True):
        x = np.asarray(x)
        each = over_all(x, varies, lanes) if any(varies) else x[None]
        whole.append(np.broadcast_to(each, (number, *each.shape[1:])))
    return np.asarray(answer(lanes, whole), np.uint32).reshape(lanes)


def _abstract(*_: Any, lanes: tuple[int, ...], **__: Any) -> tuple[Any, Any]:
    return jax.core.ShapedArray(lanes, np.dtype(np.uint32)), EFFECTS


def _batch(args: Any, dims: Any, *, lanes: Any, over: Any, **own: Any) -> tuple[Array, int]:
    wider = tuple((d is not None, *each) for d, each in zip(dims, over, strict=True))
    lanes = (lane_count(args, dims), *lanes)
    return ask_p.bind(*lanes_first(args, dims), lanes=lanes, over=wider, **own), 0


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Array, Any]:
    number = ask_p.bind(*primals, **params)
    return number, ad.Zero(jax.typeof(number).to_tangent_aval())


def _now(*args: Any, answer: Any, prepare: Any, lanes: Any, over: Any) -> Array:
    if prepare is not None:
        prepare(lanes)
    return jnp.asarray(_answered(answer, lanes, over, *args))


def _lowered(context: Any, *args: Any, answer: Any, prepare: Any, lanes: Any, over: Any) -> Any:
    if prepare is not None:
        prepare(lanes)

    def call(*arrays: Any) -> tuple[Any]:
        return (_answered(answer, lanes, over, *arrays),)

    return _compat.host_call(context, call, args, context.avals_in, context.avals_out)


ask_p = jex.Primitive("logax_ask")
ask_p.def_effectful_abstract_eval(_abstract)
ask_p.def_impl(_now)
batching.primitive_batchers[ask_p] = _batch
ad.primitive_jvps[ask_p] = _jvp
mlir.register_lowering(ask_p, _lowered)

"""A question that a program asks the host: some arrays, answered with one number.

Under `vmap` there is one question for all lanes, and an answer for each. It has an effect, so that
it is asked as often as the program gets there, and asked even where nobody uses the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _compat
from logax._compat import Array
from logax._delivery.packets import over_all
from logax._lane_axes import lane_count, lanes_first
from logax._log import EFFECTS

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
